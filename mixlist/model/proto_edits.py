"""Copy protobuf messages, and sort or remove the messages of a repeated field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound="Message")
# A key starts with a position in the node list. Keys are compared from left to right.
SortKey = tuple[int, int, int]


def copy_message(message: MessageT) -> MessageT:
    """Return a copy that shares nothing with ``message``."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def copy_fields(source: Message, target: Message, *skipped: str) -> None:
    """Copy all fields of ``source`` except the ``skipped`` ones to ``target``, an empty message of the same type."""
    for field, value in source.ListFields():
        if field.name in skipped:
            continue
        if hasattr(value, "MergeFrom"):  # a message or a repeated field
            getattr(target, field.name).MergeFrom(value)
        else:
            setattr(target, field.name, value)


def reorder_messages(messages: RepeatedCompositeFieldContainer[MessageT], keys: Sequence[SortKey | None]) -> None:
    """Sort a repeated field in place, and remove messages. ``keys`` has the key of each message, None to remove it."""
    last = (len(keys) + 1, 0, 0)  # greater than the key of any message that stays
    next_keys = iter([last if key is None else key for key in keys])
    # sort() calls the function once for each message, from first to last. It moves pointers and copies no message.
    messages.sort(key=lambda _: next(next_keys))
    removed = sum(key is None for key in keys)
    if removed:
        del messages[len(messages) - removed :]
