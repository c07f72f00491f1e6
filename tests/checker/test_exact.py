"""Verdicts against a bit-exact reference: numpy and ml_dtypes, node by node, written apart from the check.

Graphs are random; every sum in them is exact in float32 whatever its order, else the order of a sum would decide at
65520. The precision of each node is the plan's. A low node reads its inputs rounded to the low type, is computed in
float32 and its output is rounded once. MIXLIST_EXAMPLES sets the number of examples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import mixlist
from mixlist.lists.policy import Policy
from tests.support.builders import keep, policy

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "250"))
Array = NDArray[np.float32]
Values = dict[str, Array]

# (type to round to, largest finite, smallest normal), written down from the formats' definitions
LOW = {
    "float16": (np.dtype(np.float16), 65504.0, 2.0**-14),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 255 * 2.0**120, 2.0**-126),
}
MASK = 1e37  # beyond it on one side only: a mask, whose infinity is intended
ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "Mul": np.multiply,
    "Add": np.add,
    "Sub": np.subtract,
    "Div": np.divide,
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, np.float32(0)),
}
UNARY = ("Neg", "Relu", "ReduceSum")
ROWS = 8  # the most that Concat makes
OPS = (*ELEMENTWISE, "MatMul", "ReduceSum", "Concat")


@dataclass(frozen=True)
class Case:
    """A model, how its nodes compute, the policy and the batches."""

    model: onnx.ModelProto
    rules: Policy
    feeds: list[Values]
    saturate: bool

    def __repr__(self) -> str:
        lists = sorted(self.rules.lists.library.lists.items())
        said = f"{self.rules.mode.name} {self.rules.gray_policy} {self.rules.rules} saturate={self.saturate}"
        weights = {t.name: numpy_helper.to_array(t).tolist() for t in self.model.graph.initializer}
        return f"Case({said} {lists}\n{onnx.printer.to_text(self.model)}\n{weights}\n{self.feeds})"


# --- the reference ---


def rounded(x: Array, low: str, saturate: bool) -> Array:
    """To the nearest low value, ties to even; what is beyond becomes infinite or the largest finite value."""
    kind, largest, _ = LOW[low]
    with np.errstate(all="ignore"):
        y: Array = x.astype(kind).astype(np.float32)
    return np.where(np.isinf(y), np.copysign(np.float32(largest), y), y) if saturate else y


def exact(terms: NDArray[np.float64]) -> bool:
    """Whether the sums along the last axis are exact in float32 in any order: all terms on one grid of 2**24 steps."""
    finite = terms[np.isfinite(terms) & (terms != 0)]
    if not finite.size:
        return True
    fraction, exponent = np.frexp(finite)
    whole = (fraction * 2.0**53).astype(np.int64)
    grid = int((exponent - 53 + np.log2((whole & -whole).astype(np.float64)).astype(np.int64)).min())
    total = np.abs(np.where(np.isfinite(terms), terms, 0)).sum(axis=-1).max()
    return bool(grid >= -149 and total < 2.0**128 and total <= 2.0 ** (grid + 24))


def compute(node: onnx.NodeProto, inputs: list[Array]) -> Array | None:
    """A node's output in float32; None where a sum in it is not exact."""
    with np.errstate(all="ignore"):
        if node.op_type == "MatMul":
            a, b = inputs
            terms = a[:, None, :].astype(np.float64) * b.T[None, :, :].astype(np.float64)
            return terms.sum(-1).astype(np.float32) if exact(terms) else None
        if node.op_type == "ReduceSum":
            moved = np.moveaxis(inputs[0], int(inputs[1][0]), -1).astype(np.float64)
            return moved.sum(-1).astype(np.float32).reshape(reduced(inputs)) if exact(moved) else None
        if node.op_type == "Concat":
            return np.concatenate(inputs, axis=0)
        return ELEMENTWISE[node.op_type](*inputs)


def reduced(inputs: list[Array]) -> list[int]:
    return [1 if i == int(inputs[1][0]) else n for i, n in enumerate(inputs[0].shape)]


def run(model: onnx.ModelProto, feed: Values, low: Mapping[str, str], saturate: bool) -> Values | None:
    """Every tensor; ``low`` names the low type of the nodes that have one. None where a sum is not exact."""
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | feed
    for node in model.graph.node:
        inputs = [values[name] for name in node.input]
        if node.name in low:
            kind = low[node.name]
            inputs = [rounded(x, kind, saturate) if x.dtype == np.float32 else x for x in inputs]
        made = compute(node, inputs)
        if made is None:
            return None
        values[node.output[0]] = rounded(made, low[node.name], saturate) if node.name in low else made
    return values


def magnitude(x: Array) -> float:
    """The largest magnitude; NaN is infinite."""
    return float(np.abs(x).max()) if np.isfinite(x).all() else np.inf


def judged(
    model: onnx.ModelProto, single: Values, mixed: Values, low: Mapping[str, str], saturate: bool
) -> dict[str, str]:
    """The kind of each node's output, by the words of the issue and of docs."""
    found: dict[str, str] = {}
    spoilt: set[str] = set()  # not finite where float32 is, and no mask
    made = {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        name = node.output[0]
        ours, true = mixed[name], single[name]
        sources = [i for i in node.input if i not in made and not np.isfinite(mixed[i]).all()]
        accidents = [i for i in node.input if i in spoilt]
        _, largest, normal = LOW[low.get(node.name, "float16")]
        edge = 65520.0 if largest == 65504.0 else float.fromhex("0x1.ffp127")  # what rounds beyond the largest
        lost = node.name in low and bool(((np.abs(true) >= edge) & (np.abs(true) < MASK)).any())
        if np.isfinite(true).all() and np.isfinite(ours).all():
            if node.name not in low:
                continue
            if saturate and magnitude(ours) >= largest and magnitude(true) >= edge:
                found[name] = "intended" if is_mask(true, ours, largest) and not lost else "saturated"
            elif 0 < magnitude(true) < normal or magnitude(ours) == 0 < magnitude(true):
                found[name] = "propagated" if sources else "underflow"
            elif magnitude(ours) >= largest / 2:
                found[name] = "near-limit"
        elif np.isfinite(ours).all():
            found[name] = "saturated" if saturate and lost and magnitude(ours) >= largest else "preexisting"
        elif not np.isfinite(true).all():
            new = is_new(true, ours) or (lost and not saturate)
            kept = "saturated" if saturate and lost else "preexisting"
            found[name] = "overflow" if new and not accidents else kept
        elif accidents:
            found[name] = "propagated"
        else:
            found[name] = "intended" if is_mask(true, ours) and not lost else "overflow"
        fresh = np.isinf(ours) & np.isfinite(true) if found.get(name) != "intended" else np.zeros_like(ours, bool)
        if (fresh | (np.isnan(ours) & ~np.isnan(true))).any():
            spoilt.add(name)
    return found


def is_mask(true: Array, ours: Array, limit: float = np.inf) -> bool:
    """What is at the limit is beyond the mask's bound, and all of one sign."""
    beyond = true[np.abs(true) >= MASK]
    one_sided = beyond.size > 0 and bool((beyond > 0).all() or (beyond < 0).all())
    return one_sided and not np.isnan(ours).any() and bool((np.abs(true[np.abs(ours) >= limit]) >= MASK).all())


def is_new(true: Array, ours: Array) -> bool:
    """A NaN, or an infinity on a side, that is not in float32."""
    if np.isnan(true).any() or np.isnan(ours).any():
        return not np.isnan(true).any()
    return bool((np.isinf(ours) & (np.abs(true) < MASK)).any())


# --- random cases ---


def numbers(rng: np.random.Generator, shape: tuple[int, ...], low: str, constant: bool = False) -> Array:
    """Small integers times one power of two; with ``constant`` exact in either low type, so that its rules rest."""
    largest = 127 if constant else int(rng.choice([7, 127, 511, 2047]))
    scale = int(rng.integers(-6, 9))
    if low == "bfloat16" and not constant and rng.integers(3):
        scale = int(rng.choice([119, 118, 110, 60, -60, -120]))
    whole = rng.integers(-largest if rng.integers(4) else 1, largest + 1, shape)
    with np.errstate(over="ignore"):
        return np.ldexp(whole.astype(np.float32), scale)


def fed(rng: np.random.Generator, shape: tuple[int, ...], low: str) -> Array:
    """One input of one batch: numbers, now and then with an edge of float16, a mask, an infinity or NaN in it."""
    x = numbers(rng, shape, low)
    if rng.integers(6) == 0:
        edges = (65504.0, 65519.996, 65520.0, 65536.0, 2.0**-24, 2.0**-25, 2.0**-14, -3.4e38, np.inf, -np.inf, np.nan)
        x.flat[rng.integers(x.size)] = rng.choice(edges)
    return x


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A graph of up to eight nodes with two inputs; sums are exact for every batch, in both precisions."""
    mode = draw(st.sampled_from(["mixed_float16", "mixed_float16", "mixed_bfloat16", "fp16"]))
    low = "bfloat16" if mode == "mixed_bfloat16" else "float16"
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    feeds = [{x: fed(rng, (n, n), low) for x in ("x0", "x1")} for _ in range(draw(st.integers(1, 3)))]
    nodes: list[onnx.NodeProto] = []
    weights = [numpy_helper.from_array(np.array([axis], np.int64), f"axis{axis}") for axis in (0, 1)]
    tensors = {"x0": (n, n), "x1": (n, n)}
    for place in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(OPS))
        a = draw(st.sampled_from(list(tensors)))
        if op == "Concat" and tensors[a][0] == ROWS:
            op = "Neg"
        extra: list[str] = []
        if op == "ReduceSum":
            extra = [f"axis{draw(st.integers(0, 1))}"]
        elif op not in UNARY:
            fits = [b for b in tensors if shape_of(op, tensors[a], tensors[b]) is not None]
            if not fits or draw(st.integers(0, 3)) == 0:
                shape = (tensors[a][1], n) if op == "MatMul" else (1, tensors[a][1])
                value = numbers(rng, shape, low, constant=True)
                if op == "Div":
                    value = np.full(shape, 2.0 ** draw(st.integers(-6, 6)), np.float32)
                weights.append(numpy_helper.from_array(value, f"c{place}"))
                extra, second = [f"c{place}"], shape
            else:
                extra = [draw(st.sampled_from(fits))]
                second = tensors[extra[0]]
        shape_ = tensors[a]
        if op == "ReduceSum":
            shape_ = (1, shape_[1]) if extra == ["axis0"] else (shape_[0], 1)
        elif op not in UNARY:
            made = shape_of(op, shape_, second)
            assert made is not None
            shape_ = made
        nodes.append(helper.make_node(op, [a, *extra], [f"t{place}"], name=f"n{place}"))
        if op == "Concat":
            nodes[-1].attribute.append(helper.make_attribute("axis", 0))
        tensors[f"t{place}"] = shape_
    model = whole(nodes, weights, tensors)
    listed = {op: draw(st.sampled_from(["white", "white", "white", "black", "gray"])) for op in OPS}
    kept = [f"n{i}" for i in range(len(nodes)) if draw(st.integers(0, 9)) == 0]
    rules = policy(
        mode=mode,
        white=[op for op in OPS if listed[op] == "white"],
        black=[op for op in OPS if listed[op] == "black"],
        gray_policy=draw(st.sampled_from(["ascend", "between", "black-wins", "promote"])),
        rules=keep(*kept),
    )
    return Case(model, rules, feeds, draw(st.booleans()))


def shape_of(op: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int] | None:
    """The shape of a binary operator's output; None where the operands do not fit."""
    if op == "MatMul":
        return (a[0], b[1]) if a[1] == b[0] else None
    if op == "Concat":
        return (a[0] + b[0], a[1]) if a[1] == b[1] and a[0] + b[0] <= ROWS else None
    if any(m != k and 1 not in (m, k) for m, k in zip(a, b, strict=True)):
        return None
    return max(a[0], b[0]), max(a[1], b[1])


def whole(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], shapes: Mapping[str, tuple[int, int]]
) -> onnx.ModelProto:
    """The model; what no node reads is an output."""
    read = {name for node in nodes for name in node.input}
    inputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shapes[x]) for x in ("x0", "x1")]
    names = [node.output[0] for node in nodes if node.output[0] not in read]
    outputs = [helper.make_tensor_value_info(y, TensorProto.FLOAT, shapes[y]) for y in names]
    graph = helper.make_graph(nodes, "exact", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


# --- the comparison ---

SEEN: Counter[str] = Counter()


def compare(case: Case) -> None:
    """Classification of every node in every batch, magnitudes, first offenders and exception rate: all equal."""
    plan = mixlist.resolve(case.model, case.rules)
    low = {d.name: d.precision for d in plan.nodes if d.precision in LOW}
    found: dict[tuple[str, str], list[int]] = {}
    sizes: dict[str, tuple[float, float]] = {}
    exceptions = 0
    for batch, feed in enumerate(case.feeds):
        single = run(case.model, feed, {}, False)
        mixed = run(case.model, feed, low, case.saturate)
        assume(single is not None and mixed is not None)
        assert single is not None and mixed is not None
        kinds = judged(case.model, single, mixed, low, case.saturate)
        exceptions += bool({"overflow", "saturated"} & set(kinds.values()))
        for name, kind in kinds.items():
            found.setdefault((name, kind), []).append(batch)
        for node in case.model.graph.node:
            name = node.output[0]
            before = sizes.get(name, (0.0, 0.0))
            sizes[name] = max(before[0], magnitude(single[name])), max(before[1], magnitude(mixed[name]))
    mode = "saturate" if case.saturate else "inf"
    report = mixlist.check(case.model, case.rules, case.feeds, overflow_mode=mode)
    told = {(f.tensor, f.kind): list(f.batches) for f in report.nodes if f.kind != "internal-risk"}
    assert told == found
    assert {f.tensor for f in report.nodes if f.first} == {name for name, kind in found if kind == "overflow"}
    for f in report.nodes:
        assert (f.max_abs_fp32, f.max_abs_low) == sizes[f.tensor], f
    assert report.exception_rate == exceptions / len(case.feeds)
    SEEN.update({"cases": 1, "nodes": len(case.model.graph.node) * len(case.feeds), "low": len(low)})
    SEEN.update(Counter(kind for _, kind in found))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_every_verdict_is_that_of_the_reference(case: Case) -> None:
    compare(case)


def test_large_values_of_both_signs_are_no_nan() -> None:
    nodes = [
        helper.make_node("Neg", ["x0"], ["t0"], name="n0"),
        helper.make_node("Mul", ["x1", "x1"], ["t1"], name="n1"),
    ]
    model = whole(nodes, [], {"x0": (2, 8), "x1": (2, 8), "t0": (2, 8), "t1": (2, 8)})
    large = np.repeat(np.array([[3e38], [-3e38]], np.float32), 8, axis=1)
    report = mixlist.check(model, policy(white=["Mul"], black=["Neg"]), [{"x0": large, "x1": np.ones_like(large)}])
    assert report.nodes == () and report.exception_rate == 0
