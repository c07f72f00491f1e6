"""Detect whether protobuf refuses a file because its messages nest too deeply, and not because the file is damaged.

protobuf reports both cases with the same error. Therefore this module reads the wire format itself.
"""

from __future__ import annotations

# protobuf reads at most this many nested messages. A body in a body is three of them: NodeProto, AttributeProto and
# GraphProto.
MAX_MESSAGE_DEPTH = 100
_VARINT, _EIGHT_BYTES, _LENGTH_PREFIXED, _FOUR_BYTES = 0, 1, 2, 5  # wire types; the groups 3 and 4 are obsolete
# The search reads at most this many fields, so that a large file does not take long.
_MAX_FIELDS = 10_000_000


def nests_too_deeply(data: bytes) -> bool:
    """Return True if a serialized model has more nested messages than protobuf reads.

    The search stops at the first damaged field, and returns False if the fields before it nest less deeply.
    """
    from onnx import ModelProto

    # Each element is a range of bytes that holds fields: start, end, type of the message, depth.
    pending = [(0, len(data), ModelProto.DESCRIPTOR, 0)]
    for _ in range(_MAX_FIELDS):
        if not pending:
            return False
        offset, end, message_type, depth = pending.pop()
        if depth > MAX_MESSAGE_DEPTH:
            return True
        if offset >= end:
            continue
        # Each field starts with a key: the field number, and in the last three bits the wire type.
        key, offset = _read_varint(data, offset)
        wire_type = key & 7
        if wire_type == _LENGTH_PREFIXED:
            size, offset = _read_varint(data, offset)
        else:
            size = _field_size(data, offset, wire_type)
        if size < 0 or offset + size > end:
            return False
        # The rest of this message is read after the content of this field.
        pending.append((offset + size, end, message_type, depth))
        field = message_type.fields_by_number.get(key >> 3)
        if wire_type == _LENGTH_PREFIXED and field is not None and field.message_type is not None:
            pending.append((offset, offset + size, field.message_type, depth + 1))
    # Too many fields to read them all. Without a proof of deep nesting, the file counts as damaged.
    return False


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the variable-length integer at an offset, and the offset behind it; -1 and ``offset`` if there is none.

    Each byte holds seven bits, the lowest ones first. The top bit says that another byte follows.
    """
    number = 0
    for index, byte in enumerate(data[offset : offset + 10]):  # a 64-bit integer takes at most ten bytes
        number |= (byte & 127) << 7 * index
        if byte < 128:
            return number, offset + index + 1
    return -1, offset


def _field_size(data: bytes, offset: int, wire_type: int) -> int:
    """Return the number of bytes of a field without a length prefix; -1 if the field is damaged or obsolete."""
    if wire_type == _VARINT:
        _, end = _read_varint(data, offset)
        return end - offset or -1  # a damaged varint has no bytes
    return {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire_type, -1)
