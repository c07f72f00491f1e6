"""Damage to a model as a protobuf message: one field somewhere becomes what it should not be.

The result is still a valid message, so it is read; what it says is wrong: a missing or alien attribute, an
absurd dimension, bytes that do not fit their shape, an unknown version, a name that is used twice, a graph in itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import message_factory

LARGEST = 200_000  # bytes; a graph copied into itself doubles
NUMBERS = (-1, 0, 1, 2, 3, 7, 10, 11, 13, 16, 17, 26, 27, 99, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1e-30, 65520.0, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    *(
        "",
        "x",
        "y",
        "\0",
        "a" * 1000,
        "ai.onnx",
        "com.microsoft",
        "ai.onnx.ml",
        "nowhere",
        "offset",
        "length",
        "location",
    ),
    *("-1", "0", "4", "99999999999999999999", "1e3", "../w.data", "/etc/passwd", "w.data", "missing.data", "."),
    *("If", "Loop", "Scan", "Constant", "Cast", "ConstantOfShape", "SequenceEmpty", "SequenceInsert", "Optional"),
    *("Dropout", "LSTM", "Resize", "Identity", "Shape", "MatMul", "Nope", "to", "value", "body", "then_branch", "axis"),
)
BYTES = (b"", b"\0", b"\xff\xfe", b"\0\0\x80\x7f", b"N" * 17)


def mutate(model: Any, rng: random.Random) -> str:
    """Change one field of one message of ``model``, in place; returns which and how."""
    everything = list(messages(model))
    message = rng.choice(everything)
    set_fields = [field for field, _ in message.ListFields()]
    field = rng.choice(set_fields if set_fields and rng.random() < 0.75 else list(message.DESCRIPTOR.fields))
    change = _repeated if field.is_repeated else _single
    how = change(message, field, everything, rng)
    return f"{message.DESCRIPTOR.name}.{field.name}: {how}"


def messages(message: Any) -> Iterator[Any]:
    """The message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from messages(inner)


def _single(message: Any, field: Any, everything: list[Any], rng: random.Random) -> str:
    if rng.random() < 0.3:
        message.ClearField(field.name)
        return "cleared"
    if field.message_type is None:
        value = _scalar(field, everything, rng)
        setattr(message, field.name, value)
        return f"set to {value!r:.80}"
    copied = _another(field.message_type, everything, rng)
    getattr(message, field.name).CopyFrom(copied)
    return "copied from elsewhere"


def _repeated(message: Any, field: Any, everything: list[Any], rng: random.Random) -> str:
    values = getattr(message, field.name)
    actions: list[Callable[[], str]] = [lambda: _append(values, field, everything, rng)]
    if len(values):
        at = rng.randrange(len(values))
        actions += [lambda: _drop(values, at), lambda: _clear(message, field), lambda: _reverse(values)]
        actions += [lambda: _change(values, at, field, everything, rng)] * 3
    return rng.choice(actions)()


def _append(values: Any, field: Any, everything: list[Any], rng: random.Random) -> str:
    if field.message_type is None:
        values.append(_scalar(field, everything, rng))
    else:
        values.add().CopyFrom(_another(field.message_type, everything, rng))
    return f"one more: {values[-1]!r:.80}"


def _drop(values: Any, at: int) -> str:
    del values[at]
    return f"without {at}"


def _clear(message: Any, field: Any) -> str:
    message.ClearField(field.name)
    return "cleared"


def _reverse(values: Any) -> str:
    values.reverse()
    return "reversed"


def _change(values: Any, at: int, field: Any, everything: list[Any], rng: random.Random) -> str:
    if field.message_type is None:
        values[at] = _scalar(field, everything, rng)
    else:
        values[at].CopyFrom(_another(field.message_type, everything, rng))
    return f"{at} is now {values[at]!r:.80}"


def _another(kind: Any, everything: list[Any], rng: random.Random) -> Any:
    """A copy of a message of this kind from anywhere in the model, even one that holds the place, or an empty one."""
    message = message_factory.GetMessageClass(kind)()
    same = [m for m in everything if m.DESCRIPTOR is kind and m.ByteSize() < LARGEST]
    if same and rng.random() < 0.9:
        message.CopyFrom(rng.choice(same))
    return message


def _scalar(field: Any, everything: list[Any], rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == field.TYPE_BYTES:
        return rng.choice(BYTES)
    if kind == field.CPPTYPE_STRING:
        return rng.choice(TEXTS) if rng.random() < 0.5 else rng.choice(list(_texts(everything)) or [""])
    low, high = _bounds(field)
    return rng.choice([n for n in NUMBERS if low <= n <= high])


def _bounds(field: Any) -> tuple[int, int]:
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _texts(everything: list[Any]) -> Iterator[str]:
    """Every text of the model, so that a name may turn up in the wrong place."""
    for message in everything:
        for field, value in message.ListFields():
            if field.type == field.TYPE_STRING:
                yield from value if field.is_repeated else [value]
