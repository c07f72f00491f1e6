"""Hypothesis strategies for random valid ONNX models, with feeds and an error bound for every output.

``cases()`` draws a Case. Every model passes ``onnx.checker`` (full) and loads in ONNX Runtime's CPU
provider; tests/support/test_graphs.py asserts that, together with how often each feature appears.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

from tests.support.graph_flow import FLOWS
from tests.support.graph_moves import sequence
from tests.support.graph_patterns import MORE_DOMAINS
from tests.support.graph_scope import (
    BFLOAT16,
    BOOL,
    FLOAT,
    FLOAT16,
    INT64,
    STATE_BOUND,
    STATE_ERROR,
    Scope,
    Shape,
    Value,
    value_info,
)
from tests.support.graph_table import DECISIONS, TABLE

T = TypeVar("T")
OPSETS = (17, 13, 11, 18, 21, 22, 9, 7, 8, 10, 12, 14, 15, 16, 19, 20)
SUFFIXES = ("", "", "", "_float16", "_to_float16", "_cast", "_fp16", "/out", ".1")
SHAPES: tuple[Shape, ...] = ((2, 4), ("N", 4), (4,), ("N", 2, 4))


@dataclass(frozen=True)
class Case:
    """A random model, its inputs, and the allowed difference of a mixed-precision copy.

    ``errors`` maps an output to its error bound in units of the low type's epsilon. ``features``
    are the names of the patterns in the model.
    """

    model: onnx.ModelProto
    inputs: tuple[Value, ...]
    errors: dict[str, float]
    features: frozenset[str]

    def feeds(self, n: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
        """Values within the bounds of the inputs; the dynamic dimension N has size ``n``."""
        rng = np.random.default_rng(seed)
        return {v.name: _feed(v, n, rng) for v in self.inputs}

    def __repr__(self) -> str:
        return f"Case(features={sorted(self.features)}, model=\n{onnx.printer.to_text(self.model)})"


def _feed(v: Value, n: int, rng: np.random.Generator) -> np.ndarray:
    shape = [n if d == "N" else int(d) for d in v.shape]
    if v.dtype == BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.uniform(-1, 1, shape).astype(np.float16 if v.dtype == FLOAT16 else np.float32)


@dataclass
class Generator:
    """The choices that Hypothesis draws for one model, and the data that its scopes share."""

    draw: Callable[[st.SearchStrategy[int]], int]
    opset: int = 17
    ir: int = 8
    flat: bool = False  # no control flow or sequences
    families: Sequence[str] = ()  # of operators on which only decisions are compared: no runtime need run them
    duplicates: bool = False
    counter: Counter[str] = field(default_factory=Counter)
    features: set[str] = field(default_factory=set)
    constant_keys: dict[str, Any] = field(default_factory=dict)
    used_constants: set[str] = field(default_factory=set)
    widened: set[str] = field(default_factory=set)
    overridable: list[Value] = field(default_factory=list)
    masks: set[str] = field(default_factory=set)  # names of tensors that hold a mask and nothing else
    declared: list[Value] = field(default_factory=list)  # values of unknown type that get a value_info

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, both included; shrinks to low."""
        return self.draw(st.integers(low, high)) if high > low else low

    def pick(self, items: Sequence[T]) -> T:
        """One of the items; shrinks to the first."""
        return items[self.integer(0, len(items) - 1)]

    def chance(self, percent: int) -> bool:
        """True in about that many of a hundred draws; shrinks to False."""
        return self.integer(0, 99) >= 100 - percent

    def new_name(self, scope: Scope, hint: str) -> str:
        """A new value name; now and then one that a rewriter could give to a value of its own."""
        self.counter[scope.names] += 1
        return f"{scope.names}{hint.lower()}{self.counter[scope.names]}{self.pick(SUFFIXES)}"

    def node_name(self, scope: Scope, op: str) -> str:
        """A node name: a unique one, none, one that other scopes use too, or one that numbering would give.

        Two nodes of one graph share a name only where ``duplicates`` allows it: the checker accepts
        that, ONNX Runtime does not.
        """
        kind = self.integer(0, 9)
        name = {9: "same", 5: f"{op}_0"}.get(kind)
        used_names = {node.name for node in scope.nodes}
        if name and (name not in used_names or self.duplicates):
            self.features.update(["duplicate node name"] if name in used_names else [])
            return name
        if kind >= 6:
            self.features.add("unnamed node")
            return ""
        self.counter["node"] += 1
        return f"node{self.counter['node']}"


def grow(scope: Scope, steps: int) -> None:
    """Append up to ``steps`` operators, patterns or control flow nodes."""
    gen = scope.gen
    table = [op.make for op in TABLE if op.since <= gen.opset for _ in range(op.weight)]
    if gen.flat:
        table = [make for make in table if make is not sequence]
    for family in gen.families:
        table += [op.make for op in DECISIONS[family] if op.since <= gen.opset for _ in range(op.weight)]
    for _ in range(steps):
        flow = not gen.flat and scope.depth < 2 and gen.chance(8 if scope.depth else 14)
        gen.pick([f.make for f in FLOWS if f.since <= gen.opset] if flow else table)(scope)


def halve_to_state_bound(scope: Scope, value: Value, shape: Shape | None = None) -> Value:
    """The value, halved until it is within the bounds of a state."""
    while value.bound > STATE_BOUND or value.error > STATE_ERROR - 4:
        half = scope.constant(0.5)
        out = replace(value, bound=value.bound / 2, error=value.rounded_error / 2 + value.bound / 2)
        halved = scope.emit_one("Mul", [value, half], out)
        assert halved is not None
        value = halved
    return value


# -- the model ------------------------------------------------------------------------------------
def _inputs(gen: Generator, scope: Scope) -> list[Value]:
    for i in range(gen.integer(1, 3)):
        dtype = FLOAT16 if i == 2 and gen.chance(40) else FLOAT
        if dtype == FLOAT16 and gen.families and gen.opset >= 13 and gen.chance(50):
            dtype = BFLOAT16
        scope.inputs.append(scope.add(Value(f"in{i}", dtype, gen.pick(SHAPES) if i else ("N", 4), 1.0, 0.0)))
    if gen.chance(60):
        scope.inputs.append(scope.add(Value("flag", BOOL, (), 0.0, 0.0)))
    if gen.families and gen.chance(30):
        scope.inputs.append(scope.add(Value("ids", INT64, ("N", 4), 0.0, 0.0)))
    if gen.families and gen.opset >= 11 and gen.chance(10):
        scope.inputs.append(scope.add(Value("list", FLOAT, ("N", 4), 1.0, 0.0, sequence=True)))
    return list(scope.inputs)


def _outputs(gen: Generator, scope: Scope) -> list[Value]:
    candidates = [v for v in reversed(scope.values) if not v.constant and v.is_tensor]
    computed = [v for v in candidates if v not in scope.inputs] or candidates
    picked = [gen.pick(computed), *(gen.pick(candidates) for _ in range(gen.integer(0, 2)))]
    outputs = list({v.name: v for v in picked}.values())
    if any(v in scope.inputs for v in outputs):
        gen.features.add("input is output")
    if gen.chance(8):
        overridable = {v.name for v in gen.overridable}
        constants = {t.name for t in scope.initializers} - overridable
        outputs += [v for v in scope.values if v.name in constants and v.dtype == FLOAT][:1]
        gen.features.add("initializer is output")
    if gen.chance(5):
        outputs.append(outputs[0])
        gen.features.add("output twice")
    return outputs


def build(
    draw: Callable[[st.SearchStrategy[int]], int],
    *,
    flat: bool = False,
    families: Sequence[str] = (),
) -> Case:
    """Draw one model with operators of one, two, or all of the families."""
    gen = Generator(draw, flat=flat)
    if families:
        picked_families = {gen.pick(families), gen.pick(families)}
        gen.families = sorted(families if gen.chance(10) else picked_families)
    gen.opset = gen.pick(OPSETS)
    gen.ir = gen.pick([8, 10, 7, 9, 4, 3] if gen.opset <= 12 else [8, 10, 9, 7])
    gen.duplicates = gen.chance(4)
    scope = Scope(gen)
    inputs = _inputs(gen, scope)
    grow(scope, gen.integer(1, 14))
    outputs = _outputs(gen, scope)
    graph = helper.make_graph(scope.nodes, "main", [], [value_info(v) for v in outputs], scope.initializers)
    graph.input.extend(value_info(v) for v in [*inputs, *gen.overridable])
    graph.value_info.extend(value_info(v) for v in gen.declared)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", gen.opset)], ir_version=gen.ir)
    if families:
        model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in MORE_DOMAINS)
    if gen.chance(30):
        model = onnx.shape_inference.infer_shapes(model)
        gen.features.add("value_info")
    if gen.chance(20):
        model.metadata_props.add(key="author", value="nobody")
    return Case(
        model, tuple(inputs), {v.name: v.error for v in outputs}, frozenset(gen.features | _opset_feature(model))
    )


def _opset_feature(model: onnx.ModelProto) -> set[str]:
    return {f"opset {'<13' if model.opset_import[0].version < 13 else '>=13'}"}


@st.composite
def cases(draw: st.DrawFn, *, flat: bool = False, families: Sequence[str] = ()) -> Case:
    """Random models.

    ``flat`` models have no control flow or sequences. Models with ``families`` of graph_table.DECISIONS also
    have computed constants, sequences and optionals everywhere, masks, positions or unknown types; only their decisions
    can be compared, not their numbers.
    """
    return build(draw, flat=flat, families=families)
