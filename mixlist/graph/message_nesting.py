"""Find out whether protobuf refuses a file because its messages nest too deeply, and not because it is damaged."""

from __future__ import annotations

MAX_DEPTH = 100  # messages in messages that protobuf reads; a body in a body is three of them
_VARINT, _EIGHT_BYTES, _MESSAGE, _FOUR_BYTES = 0, 1, 2, 5  # wire types; the others are not in use
_MOST = 10_000_000  # fields that are looked at


def nests_too_deeply(data: bytes) -> bool:
    """Return True if a serialized model has messages nested deeper than protobuf reads.

    Only the fields before the first damage are looked at.
    """
    from onnx import ModelProto

    pending = [(0, len(data), ModelProto.DESCRIPTOR, 0)]
    for _ in range(_MOST):
        if not pending:
            return False
        at, end, kind, depth = pending.pop()
        if depth > MAX_DEPTH:
            return True
        if at >= end:
            continue
        key, at = _varint(data, at)
        size, at = _varint(data, at) if key & 7 == _MESSAGE else (_size(data, at, key & 7), at)
        if size < 0 or at + size > end:
            return False
        pending.append((at + size, end, kind, depth))
        field = kind.fields_by_number.get(key >> 3)
        if key & 7 == _MESSAGE and field is not None and field.message_type is not None:
            pending.append((at, at + size, field.message_type, depth + 1))
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at an offset, and the offset behind it; -1 if there is none."""
    number = 0
    for shift, byte in enumerate(data[at : at + 10]):
        number |= (byte & 127) << 7 * shift
        if byte < 128:
            return number, at + shift + 1
    return -1, at


def _size(data: bytes, at: int, wire_type: int) -> int:
    """Return the number of bytes that a field without a length takes; -1 for a wire type that is not in use."""
    if wire_type == _VARINT:
        _, end = _varint(data, at)
        return end - at or -1
    return {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire_type, -1)
