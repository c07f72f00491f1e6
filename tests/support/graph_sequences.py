"""Sequences and optionals in random graphs, also through If and Loop.

These graphs serve the comparison of decisions: a runtime need not run them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.support.graph_constants import plain
from tests.support.graph_ops import NewValues
from tests.support.graph_scope import BOOL, FLOAT, INT64, Scope, Shape, Value


def sequence_of(shape: Shape) -> Value:
    """The template of a sequence of float32 tensors."""
    return replace(plain(shape), sequence=True)


def _sequences(s: Scope) -> list[Value]:
    return [v for v in reversed(s.visible()) if v.sequence and not v.optional]


def _index(s: Scope) -> Value:
    return s.constant(0, INT64)


def _element(s: Scope, shape: Shape) -> Value | None:
    """A tensor to put into a sequence; now and then a constant, which may be out of range."""
    if s.gen.chance(15) and all(isinstance(d, int) for d in shape):
        return s.constant(np.full([int(d) for d in shape], s.gen.pick([0.5, 1e6])))
    fits = [v for v in s.floats() if v.shape == shape]
    return s.gen.pick(fits) if fits else None


def construct(s: Scope) -> NewValues:
    """A new sequence: from tensors, from nothing, or from the rows of a tensor."""
    values = s.floats()
    if not values:
        return None
    x = s.gen.pick(values)
    s.gen.features.add("sequence")
    kind = s.gen.pick(["SequenceConstruct", "SequenceConstruct", "SequenceEmpty", "SplitToSequence"])
    if kind == "SplitToSequence" and x.shape:
        keep = s.gen.integer(0, 1)
        shape: Shape = (1, *x.shape[1:]) if keep else x.shape[1:]
        return s.emit_one(kind, [x], sequence_of(shape), axis=0, keepdims=keep)
    if kind == "SequenceEmpty":
        empty = s.emit_one(kind, [], sequence_of(x.shape), dtype=TensorProto.FLOAT)
        return s.emit_one("SequenceInsert", [empty, x], sequence_of(x.shape)) if empty else None
    more_elements = [e for _ in range(s.gen.integer(0, 2)) if (e := _element(s, x.shape)) is not None]
    elements = [*more_elements, x] if s.gen.chance(50) else [x, *more_elements]
    return s.emit_one("SequenceConstruct", elements, sequence_of(x.shape))


def change(s: Scope) -> NewValues:
    """Insert into, erase from, copy, or measure a sequence."""
    sequences = _sequences(s)
    if not sequences:
        return None
    seq = s.gen.pick(sequences)
    kinds = ["SequenceInsert", "SequenceInsert", "SequenceErase", "SequenceLength"]
    kind = s.gen.pick(kinds + (["Identity"] if s.gen.opset >= 14 else []))
    if kind == "SequenceInsert":
        x = _element(s, seq.shape)
        at = [_index(s)] if s.gen.chance(30) else []
        return s.emit_one(kind, [seq, x, *at], sequence_of(seq.shape)) if x else None
    if kind == "SequenceErase":
        return s.emit_one(kind, [seq], sequence_of(seq.shape))
    if kind == "SequenceLength":
        return s.emit_one(kind, [seq], Value("", INT64, (), 0.0, 0.0))
    return s.emit_one("Identity", [seq], sequence_of(seq.shape))


def read(s: Scope) -> NewValues:
    """A tensor from a sequence."""
    sequences = _sequences(s)
    if not sequences:
        return None
    seq = s.gen.pick(sequences)
    if seq.shape and isinstance(seq.shape[-1], int) and s.gen.chance(25):
        joined = replace(plain((*seq.shape[:-1], "M")))
        return s.emit_one("ConcatFromSequence", [seq], joined, axis=len(seq.shape) - 1)
    return s.emit_one("SequenceAt", [seq, _index(s)], plain(seq.shape))


def optional(s: Scope) -> NewValues:
    """Wrap a tensor or sequence, read an optional, or ask whether it has content."""
    present = [v for v in s.visible() if v.optional]
    if present and s.gen.chance(70):
        o = s.gen.pick(present)
        if s.gen.chance(20):
            return s.emit_one("OptionalHasElement", [o], Value("", BOOL, (), 0.0, 0.0))
        return s.emit_one("OptionalGetElement", [o], replace(o, name="", optional=False))
    values = [*s.floats(), *_sequences(s)]
    if not values:
        return None
    s.gen.features.add("optional")
    x = s.gen.pick(values)
    return s.emit_one("Optional", [x], replace(x, name="", bound=1.0, error=0.0, optional=True))


def map_sequence(s: Scope) -> NewValues:
    """SequenceMap with a body that changes each element, or makes a second sequence."""
    sequences = [v for v in _sequences(s) if v.shape]
    if not sequences:
        return None
    seq = s.gen.pick(sequences)
    s.gen.counter["flow"] += 1
    body = Scope(s.gen, s, names=f"m{s.gen.counter['flow']}_")
    element = Value(f"{body.names}element", FLOAT, seq.shape, 1.0, 0.0)
    body.inputs = [element]
    extra = [v for v in s.floats() if v.shape == seq.shape][:1] if s.gen.chance(30) else []
    inner = [Value(f"{body.names}extra", FLOAT, v.shape, 1.0, 0.0) for v in extra]
    body.inputs += inner
    body.values = list(body.inputs)
    result = _body_result(body, seq.shape)
    s.gen.features.add("SequenceMap")
    return s.emit("SequenceMap", [seq, *extra], [sequence_of(seq.shape)], body=body.graph("body", [result]))


def _body_result(body: Scope, shape: Shape) -> Value:
    from tests.support.graphs import grow  # growing a scope may open another one here

    grow(body, body.gen.integer(0, 3))
    fits = [v for v in body.floats() if v.shape == shape]
    result = body.emit_one(body.gen.pick(["Relu", "Tanh", "Identity"]), [body.gen.pick(fits)], plain(shape))
    assert result is not None
    return result


# -- control flow that carries sequences ------------------------------------------------------------
def conditional(s: Scope) -> Any:
    """If whose branches yield a sequence."""
    sequences = _sequences(s)
    condition = next((v for v in s.visible() if v.dtype == BOOL and v.shape == ()), None)
    if not sequences or s.gen.opset < 14:
        return None
    seq = s.gen.pick(sequences)
    condition = condition or s.constant(s.gen.chance(50), BOOL)
    branches = []
    for prefix, name in ((f"{s.names}t_", "then"), (f"{s.names}e_", "else")):
        scope = Scope(s.gen, s, names=prefix)
        branches.append(scope.graph(name, [_sequence_from_node(scope, seq)]))
    s.gen.features.update(["If", "sequence through control flow"])
    return s.emit("If", [condition], [sequence_of(seq.shape)], then_branch=branches[0], else_branch=branches[1])


def _sequence_from_node(scope: Scope, seq: Value) -> Value:
    """A sequence that a node of this scope makes from an outer one, or from a tensor."""
    from tests.support.graphs import grow

    grow(scope, scope.gen.integer(0, 2))
    x = _element(scope, seq.shape)
    kind = scope.gen.pick(["Identity", "SequenceInsert", "SequenceConstruct"])
    inputs = {"Identity": [seq], "SequenceInsert": [seq, x], "SequenceConstruct": [x]}[kind if x else "Identity"]
    sequence = scope.emit_one(kind if x else "Identity", inputs, sequence_of(seq.shape))
    assert sequence is not None
    return sequence


def loop(s: Scope) -> Any:
    """Loop with a sequence as its state."""
    sequences = _sequences(s)
    if not sequences or s.gen.opset < 14:
        return None
    seq = s.gen.pick(sequences)
    s.gen.counter["flow"] += 1
    body = Scope(s.gen, s, names=f"q{s.gen.counter['flow']}_")
    state = replace(sequence_of(seq.shape), name=f"{body.names}state")
    step, go = Value(f"{body.names}i", INT64, (), 0.0, 0.0, True), Value(f"{body.names}go", BOOL, (), 0.0, 0.0)
    body.inputs = [step, go, state]
    body.values = list(body.inputs)
    result = _sequence_from_node(body, state)
    more = body.emit_one("Identity", [go], replace(go, name=""))
    assert more is not None
    s.gen.features.update(["Loop", "sequence through control flow"])
    count, true = s.constant(2, INT64), s.constant(True, BOOL)
    return s.emit("Loop", [count, true, seq], [sequence_of(seq.shape)], body=body.graph("body", [more, result]))
