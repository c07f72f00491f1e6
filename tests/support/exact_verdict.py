"""Judge a model pair by the text of Rules S8.1 to S8.21, S8.28 to S8.34, S8.38 and S8.40, not by the implementation.

``apply`` writes the mixed model. Each of its nodes is computed in float32. Each tensor of a low type, converted
operands included, is rounded where a node makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.support.exact_effects import changes_nothing, effects
from tests.support.exact_masks import Constant, Levels, levels_of, proven_masks
from tests.support.exact_operators import LOW, Ambiguous, Bounded, certain_tensor, compute, compute_outputs, to_low
from tests.support.exact_quantities import id_outputs, quantity_outputs

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


Orders = Mapping[str, Bounded]


def run(
    model: onnx.ModelProto, feed: Mapping[str, NDArray[np.generic]], saturate: bool, orders: Orders | None = None
) -> Tensors:
    """Return every tensor of a model; tensors of a low type are rounded and held in float32.

    ``orders``: the indices that each TopK gives in place of its own, by the name of the node: Rule S8.38. Its own ones
    are under ``own_order(name)``.
    """
    low = low_types(model)
    values = {name: certain_tensor(x) for name, x in feed.items()}
    for t in model.graph.initializer:
        x = numpy_helper.to_array(t)
        values[t.name] = certain_tensor(x if x.dtype.kind in "iub" else x.astype(np.float32))
    for node in model.graph.node:
        inputs = [values[name] for name in node.input]
        outputs = compute_outputs(node, inputs)
        if orders and node.name in orders:
            values[own_order(node.name)] = outputs[1]
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
            gather = helper.make_node("GatherElements", [], [], axis=axis)
            outputs = [compute(gather, [inputs[0], orders[node.name]]), orders[node.name]]
        for name, output in zip(node.output, outputs, strict=True):
            values[name] = to_low(output, low[name], saturate) if name in low else output
    return values


def own_order(node: str) -> str:
    return f"{node} own order"


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
    rerun: Callable[[Orders], Tensors]  # the mixed model with another order, by the names of the original

    @property
    def is_ignored(self) -> bool:
        """Return whether the batch holds nothing but NaN, which is not judged: Rule S8.28."""
        return all(np.isnan(self.reference[x.name].value).all() for x in self.original.graph.input)


def pair(
    original: onnx.ModelProto, mixed: onnx.ModelProto, feed: Mapping[str, NDArray[np.generic]], saturate: bool
) -> Pair:
    """Run both models on one batch. A node keeps its name in the mixed model; its output may have a new one."""
    mixed_values, types = run(mixed, feed, saturate), low_types(mixed)
    authored = {node.name for node in original.graph.node}
    renamed_outputs = {node.name: node.output for node in mixed.graph.node if node.name in authored}
    names: dict[str, str] = {}
    for node in original.graph.node:
        names |= dict(zip(node.output, renamed_outputs[node.name], strict=True))
    inserted = {node.output[0]: node.input[0] for node in mixed.graph.node if node.name not in authored}
    conversions = [
        Conversion(node.name, inserted[name], mixed_values[inserted[name]], types[name])
        for node in mixed.graph.node
        for name in node.input
        if node.name in authored and name in inserted and name in types
    ]
    values = {name: certain_tensor(x) for name, x in feed.items()}
    values |= {name: mixed_values[new] for name, new in names.items()}
    low = {name: types[new] for name, new in names.items() if new in types}

    def rerun(orders: Orders) -> Tensors:
        reordered = run(mixed, feed, saturate, orders)
        return reordered | {name: reordered[new] for name, new in names.items()}

    return Pair(original, run(original, feed, False), values, low, conversions, rerun)


# --- conditions on values: a condition that depends on the radius raises Ambiguous ---


def holds_for_an_element(certainly: NDArray[np.bool_], possibly: NDArray[np.bool_]) -> bool:
    """Return whether a condition holds for an element: it holds where ``certainly``, and only where ``possibly``."""
    if not certainly.any() and possibly.any():
        raise Ambiguous("a value at a limit")
    return bool(certainly.any())


Limit = float | NDArray[np.float64]  # of a magnitude, for all elements or for each


def within(t: Bounded, least: Limit, end: Limit = np.inf, where: NDArray[np.bool_] | None = None) -> bool:
    """Return whether an element has a magnitude in [least, end). NaN has no magnitude; an infinity has one."""
    size = np.abs(t.value.astype(np.float64))
    low, high = size - t.radius, size + t.radius
    certainly = (low >= least) & ((high < end) | (end == np.inf))
    possibly = (high >= least) & ((low < end) | (end == np.inf))
    if where is None:
        return holds_for_an_element(certainly, possibly)
    return holds_for_an_element(certainly & where, possibly & where)


def all_finite(t: Bounded) -> bool:
    return bool(np.isfinite(t.value).all())


def all_zero(t: Bounded) -> bool:
    if np.isnan(t.value).any():
        return False
    size = np.abs(t.value.astype(np.float64))
    if (size - t.radius).max() > 0:
        return False
    if t.is_certain:
        return True
    raise Ambiguous("a value that may be zero")


def count_mask_signs(t: Bounded, levels: Levels) -> int:
    """Return the number of signs for which a finite value is as large as a mask's."""
    usable = np.isfinite(t.value)
    return sum(within(t, levels.by_sign[sign], where=usable & (t.value * sign > 0)) for sign in (-1, 1))


def loses_unmasked_value(t: Bounded, edge: float, levels: Levels) -> bool:
    """Return whether a finite value is beyond the low type and not a mask's: all masks have one sign."""
    usable, end = np.isfinite(t.value), levels.of(t.value)
    if not within(t, edge, where=usable):
        return False
    return count_mask_signs(t, levels) == 2 or within(t, np.minimum(edge, end), end, usable & (edge < end))


# --- Rules S8.3 to S8.11 ---


@dataclass
class Findings:
    """Hold the findings of one batch.

    An output is (tensor, kind), an operand (reader, converted tensor, kind). ``first`` names the first offenders.
    """

    outputs: set[tuple[str, str]] = field(default_factory=set)
    operands: set[tuple[str, str, str]] = field(default_factory=set)
    first: set[str] = field(default_factory=set)

    @property
    def exception(self) -> bool:
        """Return whether the batch counts as an exception: Rule S8.14."""
        return any(kind in EXCEPTIONS for *_, kind in (*self.outputs, *self.operands))


def judge(batches: list[Pair], saturate: bool) -> list[Findings]:
    """Return the findings of each batch: the kinds of outputs, and of operands that a conversion loses."""
    masks = proven_masks(batches[0].original)
    return [Findings() if batch.is_ignored else judge_batch(batch, masks, saturate) for batch in batches]


def judge_batch(batch: Pair, masks: list[Constant], saturate: bool) -> Findings:
    findings = Findings()
    if "float16" not in (*batch.low.values(), *(conversion.low for conversion in batch.conversions)):
        masks = []

    for conversion in batch.conversions:
        kind = kind_of_operand(conversion, levels_of(masks, conversion.source, batch.reference), saturate)
        if kind in EXCEPTIONS and loses_nothing_that_matters(conversion, batch.original):
            kind = "intended"
        if kind:
            findings.operands.add((conversion.reader, conversion.source, kind))
        if kind in EXCEPTIONS:
            findings.first.add(conversion.reader)
    constants = {t.name for t in batch.original.graph.initializer}
    # Tensors that lost a value, or are not finite where the reference is. Values of masks do not count.
    newly_not_finite: set[str] = set()
    producers = [(node, name) for node in batch.original.graph.node for name in node.output]
    for node, name in producers:
        reference, mixed = batch.reference[name], batch.mixed[name]
        if reference.value.dtype != np.float32:
            continue
        inputs = [i for i in node.input if i not in constants]
        levels = levels_of(masks, name, batch.reference)
        edge = low_edge(batch)
        output = Output(reference, mixed, batch.low.get(name), levels, saturate, batch.original, name, edge)
        input_not_finite = any(
            not all_finite(batch.mixed[i]) for i in inputs if batch.mixed[i].value.dtype == np.float32
        )
        kind = output.kind(input_not_finite, bool(newly_not_finite & set(inputs)))
        if kind:
            findings.outputs.add((name, kind))
        overflowed_inputs = {(i, k) for i in inputs for k in ("overflow", "propagated")} & findings.outputs
        if kind == "preexisting" and overflowed_inputs and output.loses_more:
            findings.outputs.add((name, "propagated"))
        if kind == "overflow" or (kind == "saturated" and not {(i, kind) for i in inputs} & findings.outputs):
            findings.first.add(node.name)
        explained_by_mask = (np.abs(reference.value) >= levels.of(reference.value)) & (
            np.sign(reference.value) * np.sign(mixed.value) > 0
        )
        explained_by_mask |= levels.explain_infinity(mixed.value)
        new_infinities = np.isinf(mixed.value) & ~np.isinf(reference.value) & ~explained_by_mask
        if kind == "intended":
            new_infinities[...] = False
        has_new_nan = (np.isnan(mixed.value) & ~np.isnan(reference.value)).any()
        # A lost value may be finite in the mixed model, where a safe mask replaced its mask. It still counts once.
        # An infinity that an input explains stays explained, even if the reference has a value as large as a mask's.
        if kind in ("overflow", "propagated") or new_infinities.any() or has_new_nan:
            newly_not_finite.add(name)
    return findings


def low_edge(batch: Pair) -> float:
    """Return the smallest magnitude that the low type of the mixed model does not hold."""
    return min(LOW[low][3] for low in (*batch.low.values(), *(c.low for c in batch.conversions), "bfloat16"))


def loses_nothing_that_matters(conversion: Conversion, model: onnx.ModelProto) -> bool:
    """Return whether no output depends on what the conversion loses: Rule S8.30."""
    edge = LOW[conversion.low][3]
    outputs = next(node.output for node in model.graph.node if node.name == conversion.reader)
    value = conversion.before.value
    is_bounded = changes_nothing(model, conversion.source, edge, value[~(np.abs(value) < edge)])
    return all(effects(model, output, edge) is None for output in outputs) or is_bounded


def kind_of_operand(conversion: Conversion, levels: Levels, saturate: bool) -> str | None:
    """Return the kind of a conversion from the finite values of the tensor: Rule S8.4."""
    x, (_, _, normal, edge) = conversion.before, LOW[conversion.low]
    usable = np.isfinite(x.value)
    if within(x, edge, where=usable):
        if not loses_unmasked_value(x, edge, levels):
            return "intended"
        return "saturated" if saturate else "overflow"
    return "underflow" if usable.all() and not all_zero(x) and not within(x, normal) else None


@dataclass(frozen=True)
class Output:
    """Judge one output of one node in one batch."""

    reference: Bounded
    mixed: Bounded
    low: str | None
    levels: Levels  # the smallest magnitudes of a mask's value
    saturate: bool
    model: onnx.ModelProto
    name: str
    edge: float  # the smallest magnitude that the low type does not hold

    def kind(self, input_not_finite: bool, input_newly_not_finite: bool) -> str | None:
        """Return the kind of the output.

        ``input_not_finite``: an input is not finite in the mixed model. ``input_newly_not_finite``: and it is finite
        in the reference, and no mask is the cause.
        """
        reference, mixed = self.reference, self.mixed
        if all_finite(reference) and all_finite(mixed):
            return self.kind_of_finite(input_not_finite) if self.low else None
        if all_finite(mixed):
            is_saturated = self.saturate and self.has_lost_value and within(mixed, self.largest)
            return "saturated" if is_saturated else "preexisting"
        if all_finite(reference):
            if input_newly_not_finite:
                return "propagated"
            if self.changes_nothing(np.inf):
                return "intended"
            return "intended" if self.is_mask(np.inf) and not self.has_lost_value else "overflow"
        if (self.has_new_loss or (self.has_lost_value and not self.saturate)) and not input_newly_not_finite:
            return "overflow"
        return "saturated" if self.saturate and self.has_lost_value else "preexisting"

    def kind_of_finite(self, input_not_finite: bool) -> str | None:
        reference, mixed = self.reference, self.mixed
        assert self.low
        _, _, normal, edge = LOW[self.low]
        if self.saturate and within(mixed, self.largest) and within(reference, edge):
            if self.changes_nothing(self.largest):
                return "intended"
            return "intended" if self.is_mask(self.largest) and not self.has_lost_value else "saturated"
        if not all_zero(reference) and (not within(reference, normal) or all_zero(mixed)):
            return "propagated" if input_not_finite else "underflow"
        return "near-limit" if within(mixed, np.nextafter(self.largest / 2, np.inf)) else None

    def changes_nothing(self, limit: float) -> bool:
        """Return whether the values of the mixed model that reach the limit change no output: Rule S8.30."""
        value = self.mixed.value
        return changes_nothing(self.model, self.name, self.edge, value[~(np.abs(value) < limit)])

    @property
    def loses_more(self) -> bool:
        """Return whether more values are not finite than in the reference."""
        return bool((~np.isfinite(self.mixed.value)).sum() > (~np.isfinite(self.reference.value)).sum())

    @property
    def largest(self) -> float:
        return LOW[self.low or "float16"][1]

    @property
    def has_lost_value(self) -> bool:
        """Return whether the reference has a value beyond the low type that is no mask's."""
        return self.low is not None and loses_unmasked_value(self.reference, LOW[self.low][3], self.levels)

    def is_mask(self, limit: float) -> bool:
        """Return whether all values at the limit are masks', of one sign that they keep: Rules S8.11 and S8.12."""
        if np.isnan(self.mixed.value).any() or count_mask_signs(self.reference, self.levels) != 1:
            return False
        at_limit = np.abs(self.mixed.value) >= limit
        if (at_limit & (np.sign(self.mixed.value) * np.sign(self.reference.value) < 0)).any():
            return False
        unexplained = at_limit & ~self.levels.explain_infinity(self.mixed.value)
        return not within(self.reference, 0, self.levels.of(self.reference.value), unexplained)

    @property
    def has_new_loss(self) -> bool:
        """Return whether there is more NaN, an infinity of a new sign, or more infinities than masks: Rule S8.5."""
        reference, mixed = self.reference.value, self.mixed.value
        if np.isnan(mixed).sum() > np.isnan(reference).sum():
            return True
        level = self.levels.of(reference)
        within(self.reference, level)  # raises Ambiguous where the number of masks depends on the radius
        mask_count = (np.isfinite(reference) & (np.abs(reference) >= level)).sum()
        if np.isfinite(mixed).sum() < np.isfinite(reference).sum() - mask_count:
            return True
        if np.isnan(reference).any() or np.isnan(mixed).any():
            return False
        signs_with_masks = [((np.sign(reference) == sign) & (np.abs(reference) >= level)).any() for sign in (-1, 1)]
        return any((mixed == sign * np.inf).any() and not e for sign, e in zip((-1, 1), signs_with_masks, strict=True))


# --- Rules S8.14 to S8.19, S8.33 and S8.34 ---

MAX_EXCEPTION_RATE = 0.005
MAX_NORMALIZED = 0.01  # a cosine below 0.999 has a larger normalized error than this
MAX_MISMATCH = 0.01
LEAST_DIFFERENT = 8
MAX_IGNORED = 0.5


def exception_rate(batches: list[Pair], findings_by_batch: list[Findings]) -> float:
    """Return the share of exceptions among the batches that are judged: Rules S8.14 and S8.28."""
    pairs = zip(batches, findings_by_batch, strict=True)
    exceptions = [findings.exception for batch, findings in pairs if not batch.is_ignored]
    return sum(exceptions) / max(len(exceptions), 1)


def verdict(batches: list[Pair], findings_by_batch: list[Findings], clamp: float) -> str:
    """Return pass, fail or inconclusive: Rules S8.20, S8.21, S8.28, S8.40.

    ``clamp`` is the value of the mixed model that agrees with an infinity of the reference: Rule S8.19.
    """
    if exception_rate(batches, findings_by_batch) >= MAX_EXCEPTION_RATE:
        return "fail"
    failing, orders = judge_outputs(batches, clamp)
    if failing - {name for order in orders.values() for name in order.outputs}:
        return "fail"
    compared = [batch for batch in batches if not batch.is_ignored]
    names = [v.name for v in batches[0].original.graph.output]
    nan = [sum(np.isnan(b.reference[y].value).mean() for b in compared) for y in names]
    ignored = (max(nan) + len(batches) - len(compared)) / len(batches)
    if any(has_broken_reference(*both) for both in zip(batches, findings_by_batch, strict=True)):
        return "inconclusive"
    return "inconclusive" if ignored > MAX_IGNORED else "pass"


def has_broken_reference(batch: Pair, findings: Findings) -> bool:
    """Return whether an output is NaN or infinite in the reference for no reason in the data: Rule S8.40."""
    graph = batch.original.graph
    data = [batch.reference[x.name].value for x in graph.input if batch.reference[x.name].value.dtype.kind == "f"]
    for y in graph.output:
        is_nan = np.isnan(batch.reference[y.name].value).any()
        explains = np.isnan if is_nan else (lambda x: ~np.isfinite(x))
        if (y.name, "preexisting") in findings.outputs and not any(explains(x).any() for x in data):
            return True
    return False


def judge_outputs(batches: list[Pair], clamp: float) -> tuple[set[str], dict[str, Order]]:
    """Return the outputs that miss their limits, and the orders that excuse some of these outputs."""
    compared = [batch for batch in batches if not batch.is_ignored]
    if not compared:
        return set(), {}
    model = compared[0].original
    low = next(iter((*compared[0].low.values(), *(c.low for c in compared[0].conversions))), "float16")
    quantities, ids = quantity_outputs(model), id_outputs(model)

    def keeps(name: str, mixed: list[Tensors]) -> bool:
        values = [(b.reference[name], m[name]) for b, m in zip(compared, mixed, strict=True)]
        return keeps_limits(values, clamp, low, name in quantities, is_id=name in ids)

    failing = {v.name for v in model.graph.output if not keeps(v.name, [b.mixed for b in compared])}
    return failing, find_orders(compared, failing, keeps) if failing else {}


def keeps_limits(
    batches: list[tuple[Bounded, Bounded]], clamp: float, low: str, is_quantity: bool, *, is_id: bool = False
) -> bool:
    """Return whether one output keeps the default limits in every batch: Rules S8.15 to S8.19, S8.33, S8.34."""
    if batches[0][0].value.dtype == np.float32 and not is_id:
        keeps_errors = all(keeps_error_limit(reference, mixed, clamp) for reference, mixed in batches)
        return keeps_errors and not any(map(partial(is_collapse, low=low), parts_of(batches)))
    differ = [reference.value != mixed.value for reference, mixed in batches]
    if np.concatenate([d.reshape(-1) for d in differ]).mean() <= MAX_MISMATCH:
        return True
    return is_quantity and all(keeps_error_limit(reference, mixed, clamp) for reference, mixed in batches)


# --- Rule S8.38 ---

NEARLY_EQUAL = 0.02


@dataclass
class Order:
    """Hold the outputs that an order excuses, and the number of places where the mixed model has another element."""

    outputs: set[str] = field(default_factory=set)
    places: int = 0
    batches: list[int] = field(default_factory=list)
    is_near: bool = True

    def add(self, index: int, own: NDArray[np.int64], order: NDArray[np.int64], data: Bounded, axis: int) -> None:
        """Add one batch: both orders, and the values of the reference that they order."""
        if own.shape != order.shape:
            self.places += 1
            self.is_near = False
            return
        self.places += int((own != order).sum())
        if (own == order).all():
            return
        self.batches.append(index)
        values = data.value.astype(np.float64)
        chosen, other = (np.take_along_axis(values, indices, axis) for indices in (order, own))
        for row, first, second in zip(
            *(np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]) for x in (values, chosen, other)), strict=True
        ):
            usable = row[np.isfinite(row)]
            limit = NEARLY_EQUAL * float(usable.max() - usable.min()) if usable.size else 0.0
            differing = first != second
            with np.errstate(invalid="ignore"):
                gap = float(np.abs(first - second)[differing].max(initial=0))
            if differing.any() and abs(gap - limit) <= 4 * data.radius.max() + 1e-9 * limit:
                raise Ambiguous("a difference at its limit")
            self.is_near &= gap <= limit


def find_orders(
    batches: list[Pair], failing: set[str], keeps: Callable[[str, list[Tensors]], bool]
) -> dict[str, Order]:
    """Return the TopK nodes that put nearly equal values in another order, by name, with the outputs they excuse."""
    graph = batches[0].original.graph
    inputs = {v.name for v in graph.input}
    nodes = [n for n in graph.node if n.op_type == "TopK" and behind(graph, n) & failing]
    barred = set().union(*(behind(graph, n) for n in nodes if n.input[0] in inputs))
    nodes = [n for n in nodes if n.input[0] not in inputs]
    reruns = [batch.rerun({n.name: batch.reference[n.output[1]] for n in nodes}) for batch in batches]
    orders = {n.name: Order() for n in nodes}
    for index, (batch, mixed) in enumerate(zip(batches, reruns, strict=True)):
        for n in nodes:
            axis = next((a.i for a in n.attribute if a.name == "axis"), -1)
            own, order = mixed[own_order(n.name)].value, batch.reference[n.output[1]].value
            orders[n.name].add(index, own, order, batch.reference[n.input[0]], axis)
    for name in failing - barred:
        changed = [orders[n.name] for n in nodes if name in behind(graph, n) and orders[n.name].places]
        if changed and all(order.is_near for order in changed) and keeps(name, reruns):
            for order in changed:
                order.outputs.add(name)
    return {name: order for name, order in orders.items() if order.outputs}


def behind(graph: onnx.GraphProto, node: onnx.NodeProto) -> set[str]:
    """Return the outputs of the model that depend on a node."""
    reached = set(node.output)
    for reader in graph.node:
        if reached & set(reader.input):
            reached |= set(reader.output)
    return reached & {v.name for v in graph.output}


Part = tuple[NDArray[np.float64], NDArray[np.float64], float]  # reference, mixed, and the largest radius


def parts_of(batches: list[tuple[Bounded, Bounded]]) -> Iterator[Part]:
    """Yield the values of a whole output and of each index of each axis, over all batches."""
    radius = max(float(t.radius.max(initial=0)) for batch in batches for t in batch)
    yield (*(np.concatenate([batch[side].value.reshape(-1) for batch in batches]) for side in (0, 1)), radius)
    for axis in range(batches[0][0].value.ndim):
        for index in range(max(reference.value.shape[axis] for reference, _ in batches)):
            with_index = [batch for batch in batches if batch[0].value.shape[axis] > index]
            sides = (
                np.concatenate([batch[side].value.take(index, axis).reshape(-1) for batch in with_index])
                for side in (0, 1)
            )
            yield (*sides, radius)


def is_collapse(part: Part, low: str) -> bool:
    """Return whether a part became one finite value: Rule S8.33."""
    reference, mixed, radius = part
    counts = ~np.isnan(reference)
    x, y = reference[counts].astype(np.float64), mixed[counts].astype(np.float64)
    if len(x) < LEAST_DIFFERENT or not np.isfinite(y).all() or y.max() - y.min() > 2 * radius:
        return False
    if radius:
        raise Ambiguous("values that may be one value")
    low_values = to_low(certain_tensor(x.astype(np.float32)), low, False).value
    low_values[np.abs(low_values) < LOW[low][2]] = 0
    if len(np.unique(low_values)) < LEAST_DIFFERENT:
        return False
    error, limit = np.linalg.norm(x - y), MAX_NORMALIZED * np.linalg.norm(x)
    if abs(error - limit) <= 1e-6 * limit:
        raise Ambiguous("an error at its limit")
    return bool(error > limit)


def keeps_error_limit(reference: Bounded, mixed: Bounded, clamp: float) -> bool:
    """Return whether the normalized error of one batch keeps its limit: Rules S8.15, S8.18 and S8.19."""
    is_finite, is_infinite = np.isfinite(reference.value), np.isinf(reference.value)
    reference_infinities = reference.value[is_infinite]
    where_infinite = mixed.value[is_infinite]
    clamped = np.copysign(np.float32(clamp), reference_infinities)
    agree = (where_infinite == reference_infinities) | (where_infinite == clamped)
    if not agree.all() or not np.isfinite(mixed.value[is_finite]).all():
        return False
    x, y = (t.value[is_finite].astype(np.float64) for t in (reference, mixed))
    radius = float(np.linalg.norm(reference.radius[is_finite]) + np.linalg.norm(mixed.radius[is_finite]))
    error, size = float(np.linalg.norm(x - y)), float(np.linalg.norm(x))
    if error + radius <= MAX_NORMALIZED * (size - radius) * (1 - 1e-6) or (error == radius == 0):
        return True
    if error - radius > MAX_NORMALIZED * (size + radius) * (1 + 1e-6):
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
