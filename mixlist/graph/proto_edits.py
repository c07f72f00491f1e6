"""Copy protobuf messages, and rearrange those of a repeated field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from google.protobuf.message import Message
    from onnx import ModelProto

MessageT = TypeVar("MessageT", bound="Message")
SortKey = tuple[int, int, int]
OLDEST_OPSET = 7  # of the standard domain (Rule S7.15)


def copy_message(message: MessageT) -> MessageT:
    """Return a message of its own with the same content."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def copy_fields(source: Message, target: Message, *left_out: str) -> None:
    """Copy the fields of a message to one that is empty, but for those that are ``left_out``."""
    for field, value in source.ListFields():
        if field.name in left_out:
            continue
        if hasattr(value, "MergeFrom"):  # a message or a repeated field
            getattr(target, field.name).MergeFrom(value)
        else:
            setattr(target, field.name, value)


def reorder_messages(messages: RepeatedCompositeFieldContainer[MessageT], keys: Sequence[SortKey | None]) -> None:
    """Sort a repeated field in place by the keys of its messages, and remove those whose key is None."""
    last = (len(keys) + 1, 0, 0)
    next_keys = iter([last if key is None else key for key in keys])
    messages.sort(key=lambda _: next(next_keys))  # moves pointers: no message is copied
    removed = sum(key is None for key in keys)
    if removed:
        del messages[len(messages) - removed :]


def standard_opset(model: ModelProto) -> int:
    """Return the version of ONNX's own domain that a model imports; 13 where it imports none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 13)
