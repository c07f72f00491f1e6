"""Judge a check by the text of its rules, apart from the implementation: Rules S8.1 to S8.21, S8.28.

The mixed model is what ``apply`` writes. Each of its nodes is computed in float32, and each tensor of a low type,
converted operands included, is rounded where a node makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from tests.support.exact_masks import Constant, Levels, levels_of, proven_masks
from tests.support.exact_operators import LOW, Ambiguous, Bounded, certain, compute, to_low

Tensors = dict[str, Bounded]
EXCEPTIONS = ("overflow", "saturated")
LOW_TYPES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


# --- the two models ---


def low_types(model: onnx.ModelProto) -> dict[str, str]:
    """Return the low type of each tensor that has one."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    typed = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    typed |= {t.name: t.data_type for t in graph.initializer}
    return {name: LOW_TYPES[kind] for name, kind in typed.items() if kind in LOW_TYPES}


def run(model: onnx.ModelProto, feed: Mapping[str, NDArray[np.generic]], saturate: bool) -> Tensors:
    """Return every tensor of a model; tensors of a low type are rounded and held in float32."""
    low = low_types(model)
    values = {name: certain(x) for name, x in feed.items()}
    for t in model.graph.initializer:
        x = numpy_helper.to_array(t)
        values[t.name] = certain(x if x.dtype == np.int64 else x.astype(np.float32))
    for node in model.graph.node:
        output = compute(node, [values[name] for name in node.input])
        name = node.output[0]
        values[name] = to_low(output, low[name], saturate) if name in low else output
    return values


@dataclass(frozen=True)
class Conversion:
    """Hold a high tensor that a low node reads, before the conversion that mixlist inserted."""

    reader: str
    source: str  # the high tensor, by its name in both models
    before: Bounded
    low: str


@dataclass(frozen=True)
class Pair:
    """Hold the values of both models in one batch, by the names of the original."""

    original: onnx.ModelProto
    reference: Tensors
    mixed: Tensors
    low: dict[str, str]  # the low type of each original tensor that a node makes in low precision
    conversions: list[Conversion]

    @property
    def is_ignored(self) -> bool:
        """Return whether the batch holds nothing but NaN, which is not judged: Rule S8.28."""
        return all(np.isnan(self.reference[x.name].value).all() for x in self.original.graph.input)


def pair(
    original: onnx.ModelProto, mixed: onnx.ModelProto, feed: Mapping[str, NDArray[np.generic]], saturate: bool
) -> Pair:
    """Run both models on one batch. A node keeps its name in the mixed model; its output may have a new one."""
    ours, types = run(mixed, feed, saturate), low_types(mixed)
    authored = {node.name for node in original.graph.node}
    now = {node.name: node.output[0] for node in mixed.graph.node if node.name in authored}
    names = {node.output[0]: now[node.name] for node in original.graph.node}
    inserted = {node.output[0]: node.input[0] for node in mixed.graph.node if node.name not in authored}
    conversions = [
        Conversion(node.name, inserted[name], ours[inserted[name]], types[name])
        for node in mixed.graph.node
        for name in node.input
        if node.name in authored and name in inserted and name in types
    ]
    values = {name: certain(x) for name, x in feed.items()} | {name: ours[new] for name, new in names.items()}
    low = {name: types[new] for name, new in names.items() if new in types}
    return Pair(original, run(original, feed, False), values, low, conversions)


# --- conditions on values, which the radius must not change ---


def some(surely: NDArray[np.bool_], perhaps: NDArray[np.bool_]) -> bool:
    """Return whether a condition holds for an element: it does where ``surely``, and at most where ``perhaps``."""
    if not surely.any() and perhaps.any():
        raise Ambiguous("a value at a limit")
    return bool(surely.any())


Limit = float | NDArray[np.float64]  # of a magnitude, for all elements or for each


def within(t: Bounded, least: Limit, end: Limit = np.inf, where: NDArray[np.bool_] | None = None) -> bool:
    """Return whether an element has a magnitude in [least, end); infinities have one, NaN has none."""
    size = np.abs(t.value.astype(np.float64))
    low, high = size - t.radius, size + t.radius
    surely = (low >= least) & ((high < end) | (end == np.inf))
    perhaps = (high >= least) & ((low < end) | (end == np.inf))
    return some(surely, perhaps) if where is None else some(surely & where, perhaps & where)


def finite(t: Bounded) -> bool:
    return bool(np.isfinite(t.value).all())


def zero(t: Bounded) -> bool:
    if np.isnan(t.value).any():
        return False
    size = np.abs(t.value.astype(np.float64))
    if (size - t.radius).max() > 0:
        return False
    if t.certain:
        return True
    raise Ambiguous("a value that may be zero")


def sides(t: Bounded, levels: Levels) -> int:
    """Return on how many sides there are finite values that are as large as a mask's."""
    usable = np.isfinite(t.value)
    return sum(within(t, levels.by_sign[sign], where=usable & (t.value * sign > 0)) for sign in (-1, 1))


def loses(t: Bounded, edge: float, levels: Levels) -> bool:
    """Return whether a finite value is beyond the low type, and no mask's: masks are on one side only."""
    usable, end = np.isfinite(t.value), levels.of(t.value)
    if not within(t, edge, where=usable):
        return False
    return sides(t, levels) == 2 or within(t, np.minimum(edge, end), end, usable & (edge < end))


# --- Rules S8.3 to S8.11 ---


@dataclass
class Findings:
    """Hold the findings of one batch: kinds of outputs by tensor, of operands by reader and converted tensor."""

    outputs: set[tuple[str, str]] = field(default_factory=set)
    operands: set[tuple[str, str, str]] = field(default_factory=set)
    first: set[str] = field(default_factory=set)

    @property
    def exception(self) -> bool:
        """Return whether the batch counts as an exception: Rule S8.14."""
        return any(kind in EXCEPTIONS for *_, kind in (*self.outputs, *self.operands))


def judge(batches: list[Pair], saturate: bool) -> list[Findings]:
    """Find the kind of each output, and the operands that conversions lose, in each batch."""
    masks = proven_masks(batches[0].original)
    return [Findings() if batch.is_ignored else judge_batch(batch, masks, saturate) for batch in batches]


def judge_batch(batch: Pair, masks: list[Constant], saturate: bool) -> Findings:
    found = Findings()
    if "float16" not in (*batch.low.values(), *(conversion.low for conversion in batch.conversions)):
        masks = []

    for conversion in batch.conversions:
        kind = kind_of_operand(conversion, levels_of(masks, conversion.source, batch.reference), saturate)
        if kind:
            found.operands.add((conversion.reader, conversion.source, kind))
        if kind in EXCEPTIONS:
            found.first.add(conversion.reader)
    constants = {t.name for t in batch.original.graph.initializer}
    spoiled: set[str] = set()  # not finite where the reference is, and no mask
    for node in batch.original.graph.node:
        name = node.output[0]
        true, ours = batch.reference[name], batch.mixed[name]
        if true.value.dtype != np.float32:
            continue
        inputs = [i for i in node.input if i not in constants]
        levels = levels_of(masks, name, batch.reference)
        output = Output(true, ours, batch.low.get(name), levels, saturate)
        not_finite = any(not finite(batch.mixed[i]) for i in inputs if batch.mixed[i].value.dtype == np.float32)
        kind = output.kind(not_finite, bool(spoiled & set(inputs)))
        if kind:
            found.outputs.add((name, kind))
        lost = {(i, k) for i in inputs for k in ("overflow", "propagated")} & found.outputs
        if kind == "preexisting" and lost and output.loses_more:
            found.outputs.add((name, "propagated"))
        if kind == "overflow" or (kind == "saturated" and not {(i, kind) for i in inputs} & found.outputs):
            found.first.add(node.name)
        explained = (np.abs(true.value) >= levels.of(true.value)) & (true.value * np.sign(ours.value) > 0)
        fresh = np.isinf(ours.value) & ~np.isinf(true.value) & ~explained
        if kind == "intended":
            fresh[...] = False
        if (fresh | (np.isnan(ours.value) & ~np.isnan(true.value))).any():
            spoiled.add(name)
    return found


def kind_of_operand(conversion: Conversion, levels: Levels, saturate: bool) -> str | None:
    """Return the kind of a conversion, by the finite values of the tensor: Rule S8.4."""
    x, (_, _, normal, edge) = conversion.before, LOW[conversion.low]
    usable = np.isfinite(x.value)
    if within(x, edge, where=usable):
        if not loses(x, edge, levels):
            return "intended"
        return "saturated" if saturate else "overflow"
    return "underflow" if usable.all() and not zero(x) and not within(x, normal) else None


@dataclass(frozen=True)
class Output:
    """Judge one output of one node in one batch."""

    true: Bounded
    ours: Bounded
    low: str | None
    levels: Levels  # the magnitudes from which a value is a mask's
    saturate: bool

    def kind(self, not_finite: bool, accident: bool) -> str | None:
        """Return the kind. ``not_finite``: an input is not finite in the mixed model; ``accident``: by no mask."""
        true, ours = self.true, self.ours
        if finite(true) and finite(ours):
            return self.kind_of_finite(not_finite) if self.low else None
        if finite(ours):
            return "saturated" if self.saturate and self.lost and within(ours, self.largest) else "preexisting"
        if finite(true):
            if accident:
                return "propagated"
            return "intended" if self.is_mask(np.inf) and not self.lost else "overflow"
        if (self.new_loss or (self.lost and not self.saturate)) and not accident:
            return "overflow"
        return "saturated" if self.saturate and self.lost else "preexisting"

    def kind_of_finite(self, not_finite: bool) -> str | None:
        true, ours = self.true, self.ours
        assert self.low
        _, _, normal, edge = LOW[self.low]
        if self.saturate and within(ours, self.largest) and within(true, edge):
            return "intended" if self.is_mask(self.largest) and not self.lost else "saturated"
        if not zero(true) and (not within(true, normal) or zero(ours)):
            return "propagated" if not_finite else "underflow"
        return "near-limit" if within(ours, self.largest / 2) else None

    @property
    def loses_more(self) -> bool:
        """Return whether more values are not finite than in the reference."""
        return bool((~np.isfinite(self.ours.value)).sum() > (~np.isfinite(self.true.value)).sum())

    @property
    def largest(self) -> float:
        return LOW[self.low or "float16"][1]

    @property
    def lost(self) -> bool:
        """Return whether the reference has a value beyond the low type that is no mask's."""
        return self.low is not None and loses(self.true, LOW[self.low][3], self.levels)

    def is_mask(self, limit: float) -> bool:
        """Return whether all values at the limit are masks', on one side and of its sign: Rules S8.11 and S8.12."""
        if np.isnan(self.ours.value).any() or sides(self.true, self.levels) != 1:
            return False
        at_limit = np.abs(self.ours.value) >= limit
        if (at_limit & (self.ours.value * np.sign(self.true.value) < 0)).any():
            return False
        return not within(self.true, 0, self.levels.of(self.true.value), at_limit)

    @property
    def new_loss(self) -> bool:
        """Return whether there is more NaN, an infinity of a sign or more of them than by masks: Rule S8.5."""
        true, ours = self.true.value, self.ours.value
        if np.isnan(ours).sum() > np.isnan(true).sum():
            return True
        level = self.levels.of(true)
        within(self.true, level)  # or it is ambiguous
        masks = (np.isfinite(true) & (np.abs(true) >= level)).sum()
        if np.isfinite(ours).sum() < np.isfinite(true).sum() - masks:
            return True
        if np.isnan(true).any() or np.isnan(ours).any():
            return False
        explained = [((np.sign(true) == sign) & (np.abs(true) >= level)).any() for sign in (-1, 1)]
        return any((ours == sign * np.inf).any() and not e for sign, e in zip((-1, 1), explained, strict=True))


# --- Rules S8.14 to S8.19 ---

MAX_EXCEPTION_RATE = 0.005
MAX_NORMALIZED = 0.01  # a cosine below 0.999 has a larger normalized error than this
MAX_MISMATCH = 0.01
MAX_IGNORED = 0.5


def exception_rate(batches: list[Pair], found: list[Findings]) -> float:
    """Return the share of exceptions among the batches that are judged: Rules S8.14 and S8.28."""
    judged = [findings.exception for batch, findings in zip(batches, found, strict=True) if not batch.is_ignored]
    return sum(judged) / max(len(judged), 1)


def verdict(batches: list[Pair], found: list[Findings], clamp: float) -> str:
    """Return pass, fail or inconclusive: Rules S8.20, S8.21, S8.28. An infinity is ``clamp`` in the mixed model."""
    if exception_rate(batches, found) >= MAX_EXCEPTION_RATE:
        return "fail"
    names = [v.name for v in batches[0].original.graph.output]
    compared = [batch for batch in batches if not batch.is_ignored]
    if compared and not all(keeps_limits([(b.reference[y], b.mixed[y]) for b in compared], clamp) for y in names):
        return "fail"
    nan = [sum(np.isnan(b.reference[y].value).mean() for b in compared) for y in names]
    ignored = (max(nan) + len(batches) - len(compared)) / len(batches)
    return "inconclusive" if ignored > MAX_IGNORED else "pass"


def keeps_limits(batches: list[tuple[Bounded, Bounded]], clamp: float) -> bool:
    """Return whether one output keeps the default limits in every batch; integers and bools: Rule S8.17."""
    if batches[0][0].value.dtype == np.float32:
        return all(close(true, ours, clamp) for true, ours in batches)
    differ = [true.value != ours.value for true, ours in batches]
    if np.concatenate([d.reshape(-1) for d in differ]).mean() <= MAX_MISMATCH:
        return True
    return all(close(*(certain(t.value.astype(np.float32)) for t in batch), clamp) for batch in batches)


def close(true: Bounded, ours: Bounded, clamp: float) -> bool:
    """Return whether the normalized error of one batch keeps its limit: Rules S8.15, S8.18 and S8.19."""
    counted, infinite = np.isfinite(true.value), np.isinf(true.value)
    theirs = true.value[infinite]
    agree = (ours.value[infinite] == theirs) | (ours.value[infinite] == np.copysign(np.float32(clamp), theirs))
    if not agree.all() or not np.isfinite(ours.value[counted]).all():
        return False
    x, y = (t.value[counted].astype(np.float64) for t in (true, ours))
    slack = float(np.linalg.norm(true.radius[counted]) + np.linalg.norm(ours.radius[counted]))
    error, size = float(np.linalg.norm(x - y)), float(np.linalg.norm(x))
    if error + slack <= MAX_NORMALIZED * (size - slack) * (1 - 1e-6) or (error == slack == 0):
        return True
    if error - slack > MAX_NORMALIZED * (size + slack) * (1 + 1e-6):
        return False
    raise Ambiguous("an error at its limit")


def magnitudes(values: Iterator[Bounded]) -> tuple[float, float]:
    """Return bounds of the largest magnitude over all batches; NaN where a value is NaN."""
    low = high = 0.0
    for t in values:
        size = np.abs(t.value.astype(np.float64))
        low = float(np.maximum(low, (size - t.radius).max()))
        high = float(np.maximum(high, (size + t.radius).max()))
    return low, high
