"""Add the statistics of a trial to the graph, the fewest that show whether a value overflows, and read them.

- **Sums.** The sum of magnitudes of a tensor is not finite if one of its values is not finite. So most tensors get one
  reduction.
- **No statistic.** A tensor is *skippable* if it is finite whenever the inputs of its node are. It gets no reduction.
- **Ranges.** Some tensors are *ambiguous*: an infinity in them need not be an overflow. These are tensors that carry
  masks, tensors that only Clips read, and tensors whose sum is infinite or may become so in the reference already
  (``MAX_SUMMABLE``). If the accelerator saturates, tensors beyond the range of the low type are ambiguous too. They get
  the statistics of ``check``. If one of their values is at the limit, ``OverflowClassifier`` decides by the rules of
  ``check`` whether it is an overflow or belongs to a mask (Rules S8.4, S8.11, S8.12).
- Tensors near the limit of the low range get ranges too. A trial that keeps such a tensor in float32 may convert it for
  one of its readers, and lose the values beyond the range there (Rule S8.4). That reader is the first offender, and not
  the node behind it whose sum is not finite (Rules S8.5, S8.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.conversions import Conversion, find_observed_ref
from mixlist.checker.finding_rules import (
    EXCEPTION_KINDS,
    BatchRanges,
    FindingRecord,
    OperandKey,
    classify_operands,
    classify_outputs,
)
from mixlist.checker.hidden_overflow import HiddenOverflowFinder
from mixlist.checker.instrument import RANGE_STATISTICS, SUM, InstrumentedModel, Instrumenter, Probe
from mixlist.checker.intended_infinities import HarmlessValues, Mask, find_harmless_values, find_masks
from mixlist.checker.model_pair import ObservedModel
from mixlist.checker.observer import RangeReader, Ranges
from mixlist.checker.result import TensorRange
from mixlist.checker.value_counts import FINITE_AND_INFINITE, Totals
from mixlist.decide.constant_ranges import ConstantRange
from mixlist.decide.solution import Solution
from mixlist.model import dtypes
from mixlist.model.dataflow import DataflowNode, trace_dataflow
from mixlist.model.graph import Graph, Node, Value, float_values
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import FINITE_MAX, LOW_TYPES, overflow_bound
from mixlist.model.naming import NodeRef, TensorRef, output_ref
from mixlist.model.traits import Trait, operators
from mixlist.search.rounding_plan import RoundingPoint, Roundings

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.run.session import Array, Feed

FindConstantRange = Callable[[Value], ConstantRange | None]
MAX_SUMMABLE = 1e30  # a magnitude: the sum of 1e8 such values is still finite in float32
# A value of the reference is near the limit if its magnitude is at least this share of the low range. A trial may take
# such a value beyond the range.
NEAR_RANGE = 1 / 8
LEAST_DIVISOR = 1e-6  # rounding to a low type does not make a divisor of this magnitude zero
_BOUNDED, _VALUE_PRESERVING = operators(Trait.BOUNDED), operators(Trait.VALUE_PRESERVING)
# If all values that a well-conditioned operator reads and makes are far from the limit of the range in the reference,
# no rounding takes one beyond the range. There are rare exceptions (terms that cancel, errors that grow eightfold): the
# final check finds them.
_WELL_CONDITIONED = operators(Trait.WELL_CONDITIONED)
_NORMALIZES = operators(Trait.NORMALIZES)  # well-conditioned if their epsilon is not zero: they divide by a variance


class AmbiguousValues(NamedTuple):
    """The ranges of one batch in the reference and in a trial. A value at the limit may belong to a mask.

    ``counts``: the numbers of finite and infinite values in the trial, of tensors that are not finite in the reference.
    """

    reference: Ranges
    mixed: Ranges
    counts: Totals


@dataclass(frozen=True)
class TrialStatistics:
    """The statistics of a trial: the graph outputs that hold them, and the way to read them.

    ``sum_columns``: by the name of an output with sums, the tensors of its columns. The output has the shape [columns],
    or [iterations, columns] if a loop makes it. ``nan_only``: the tensors of which only a NaN counts (float64).
    ``ambiguous``: the tensors whose sums are ignored. ``position_of``: for each tensor with a sum the position of its
    node in order of computation. ``ranges`` and ``counts``: the outputs and columns that hold ranges, and numbers of
    finite and infinite values; the model (``proto``) in both is empty. ``cut_outputs``: for each cut of the graph, the
    last tensors before it (as in ``InstrumentedModel``). ``overflow_value``: the magnitude that values beyond the low
    range become (infinity, unless they saturate). ``overflow_bound``: the least magnitude that becomes infinite in the
    low type.
    """

    sum_columns: Mapping[str, tuple[TensorRef, ...]]
    nan_only: AbstractSet[TensorRef]
    ambiguous: AbstractSet[TensorRef]
    position_of: Mapping[TensorRef, int]
    ranges: InstrumentedModel
    counts: InstrumentedModel
    cut_outputs: Sequence[tuple[str, ...]]
    overflow_value: float
    overflow_bound: float

    @property
    def output_names(self) -> list[str]:
        """The names of all graph outputs with statistics."""
        return list(dict.fromkeys((*self.sum_columns, *self.ranges.column_counts, *self.counts.column_counts)))

    def find_first_overflow(self, reference: Mapping[str, Array], mixed: Mapping[str, Array]) -> str:
        """Return the first node that overflows in the trial and not in the reference, "" if there is none.

        ``reference`` and ``mixed``: the outputs by name; ``mixed`` may lack some. The outputs with sums alone come
        before those with ranges, so their order is not the order of computation. ``position_of`` finds the first node.
        """
        overflows: list[TensorRef] = []
        for name, tensors in self.sum_columns.items():
            if name not in mixed or np.isfinite(mixed[name]).all():
                continue
            # One row for each iteration of a loop; outside loops [columns] becomes [1, columns]. The trial may run
            # another number of iterations than the reference, so the rows are reduced before they are compared.
            before, after = np.atleast_2d(reference[name]), np.atleast_2d(mixed[name])
            nan = np.isnan(after).any(axis=0) & ~np.isnan(before).any(axis=0)
            infinite = ~np.isfinite(after).all(axis=0) & np.isfinite(before).all(axis=0)
            # A float64 tensor is never low, so an infinity in it does not count as an overflow.
            is_overflow = np.where([tensor in self.nan_only for tensor in tensors], nan, infinite)
            is_overflow &= [tensor not in self.ambiguous for tensor in tensors]
            overflows += [tensors[column] for column in np.flatnonzero(is_overflow)]
        return str(min(overflows, key=lambda tensor: self.position_of[tensor]).producer) if overflows else ""

    def find_ambiguous_values(
        self, reference: Mapping[str, Array], mixed: Mapping[str, Array]
    ) -> AmbiguousValues | None:
        """Return the ranges in the reference and in the trial if a range of the trial is at the limit, else None."""
        if not self.ranges.column_counts:
            return None
        mixed_ranges = self._range_reader.read(mixed)
        # With saturation, values beyond the range become the largest finite number, which is below the bound.
        limit = min(self.overflow_value, self.overflow_bound)
        if all(observed.finite and observed.magnitude < limit for observed in mixed_ranges.values()):
            return None
        return AmbiguousValues(self._range_reader.read(reference), mixed_ranges, self._count_values(mixed))

    def _count_values(self, mixed: Mapping[str, Array]) -> Totals:
        """Return the numbers of finite and infinite values of a trial, for the tensors that are counted."""
        totals: dict[tuple[TensorRef, str], float] = {}
        for key, places in self.counts.columns.items():
            # Sum over the iterations, if a loop makes the output: its shape is [iterations, columns].
            totals[key] = sum(float(np.sum(mixed[place.output][..., place.column])) for place in places)
        for probe in self.counts.probes:
            # A tensor that only repeats the values of ``source`` has the counts of ``source``.
            if probe.source is not None:
                totals |= {(probe.ref, name): n for (tensor, name), n in totals.items() if tensor == probe.source}
        return totals

    @cached_property
    def _range_reader(self) -> RangeReader:
        return RangeReader(self.ranges)


def add_statistics(
    model: ModelProto,
    tensors: Sequence[TensorRange],
    masks: Mapping[TensorRef, Mask],
    harmless: Mapping[TensorRef, HarmlessValues],
    low_type: int,
    saturate: bool,
    nodes: Sequence[DataflowNode],
    cut_tensors: Container[str],
    find_constant_range: FindConstantRange,
    near_inputs: AbstractSet[TensorRef] = frozenset(),
) -> tuple[ModelProto, TrialStatistics]:
    """Return a copy of the model with the statistics of a trial, and the places where they are.

    ``tensors``: the ranges of the reference over all batches. ``masks``: the tensors that carry masks. ``harmless``:
    the tensors with values that change no output. ``nodes``: the nodes whose outputs may be skippable; if it is empty,
    every tensor gets a range. ``cut_tensors``: as for ``Instrumenter``. ``near_inputs``: the graph inputs with values
    near the limit of the low range.
    """
    infinite_by_design = {*masks, *harmless}.union(*(mask.joined | mask.factors for mask in masks.values()))
    selection = _Selection(tensors, infinite_by_design, low_type, saturate, nodes, find_constant_range, near_inputs)
    instrument_more = partial(Instrumenter, needs_own_range=selection.needs_own_range, cut_tensors=cut_tensors)
    # Each pass adds its probes to the graph of the pass before: sums, then ranges (which include a sum), then counts.
    summed = instrument_more(model, lambda probe: (SUM,) if selection.is_summed(probe) else ()).run()
    ranged = instrument_more(summed.proto, lambda probe: RANGE_STATISTICS if selection.is_ranged(probe) else ()).run()
    passes = [summed, ranged]
    if selection.not_finite:
        passes.append(
            instrument_more(
                ranged.proto, lambda probe: FINITE_AND_INFINITE if selection.is_counted(probe) else ()
            ).run()
        )
    sum_columns = _sum_columns(summed) | _sum_columns(ranged)
    return passes[-1].proto, TrialStatistics(
        sum_columns=sum_columns,
        nan_only=frozenset(probe.ref for probe in summed.probes if probe.elem == dtypes.DOUBLE),
        ambiguous=frozenset(probe.ref for probe in ranged.probes if selection.is_ambiguous(probe)),
        position_of=_positions(sum_columns, tensors),
        ranges=_without_model(ranged),
        counts=_without_model(passes[-1]) if selection.not_finite else InstrumentedModel(type(model)()),
        # Each pass knows only the statistics that it added. A cut needs those of all passes before it.
        cut_outputs=[tuple(chain(*cut)) for cut in zip(*(result.cut_outputs for result in passes), strict=True)],
        overflow_value=FINITE_MAX[low_type] if saturate else math.inf,
        overflow_bound=overflow_bound(low_type),
    )


def _without_model(instrumented: InstrumentedModel) -> InstrumentedModel:
    """Return the places of the statistics without the model, which workers get in segments."""
    return replace(instrumented, proto=type(instrumented.proto)())


def _positions(sum_columns: Mapping[str, Sequence[TensorRef]], tensors: Sequence[TensorRange]) -> dict[TensorRef, int]:
    """Return for each tensor with a sum the position of its node. ``tensors`` are in order of computation."""
    positions = {tensor.producer: position for position, tensor in enumerate(tensors)}
    return {tensor: positions.get(tensor.producer, -1) for columns in sum_columns.values() for tensor in columns}


def _sum_columns(instrumented: InstrumentedModel) -> dict[str, tuple[TensorRef, ...]]:
    """Return the tensors of the columns of each output that holds sums of magnitudes."""
    columns: dict[str, dict[int, TensorRef]] = {}
    for (tensor, statistic), places in instrumented.columns.items():
        for place in places if statistic == SUM.name else ():
            columns.setdefault(place.output, {})[place.column] = tensor
    return {output: tuple(by_column[column] for column in sorted(by_column)) for output, by_column in columns.items()}


class _Selection:
    """Decides which statistics each tensor gets. The parameters are those of ``add_statistics``.

    ``infinite_by_design``: the tensors of masks, and those whose infinities change no output. ``near``: the nodes with
    an output near the limit of the low range. ``far``: the nodes whose outputs are all far from the limit. A node that
    never ran is in neither set.
    """

    def __init__(
        self,
        tensors: Sequence[TensorRange],
        infinite_by_design: AbstractSet[TensorRef],
        low_type: int,
        saturate: bool,
        nodes: Sequence[DataflowNode],
        find_constant_range: FindConstantRange,
        near_inputs: AbstractSet[TensorRef],
    ) -> None:
        self.near_bound, self.find_constant_range = NEAR_RANGE * overflow_bound(low_type), find_constant_range
        self.near: set[NodeRef] = set()
        self.far: set[NodeRef] = set()
        for tensor in tensors:
            # A magnitude that is NaN is not below the bound, so its node counts as near.
            (self.far if tensor.magnitude < self.near_bound else self.near).add(tensor.producer)
        self.far -= self.near
        self.near_inputs, self.all_ranged = near_inputs, not nodes
        self.infinite_by_design = infinite_by_design
        self.skippable = {node.ref for node in nodes if self._outputs_stay_finite(node)}
        bound = overflow_bound(low_type) if saturate else MAX_SUMMABLE
        # "not <" instead of ">=", because a magnitude may be NaN.
        self.beyond_bound = {(t.producer, t.tensor) for t in tensors if not t.magnitude < bound}
        self.not_finite = {(t.producer, t.tensor) for t in tensors if t.nan or not math.isfinite(t.magnitude)}

    def is_ambiguous(self, probe: Probe) -> bool:
        """Return True if an infinity in a tensor need not be an overflow."""
        # A float64 tensor is never low.
        is_beyond = (probe.ref.producer, probe.tensor) in self.beyond_bound and probe.elem != dtypes.DOUBLE
        return probe.ref in self.infinite_by_design or is_beyond

    def needs_own_range(self, tensor: TensorRef) -> bool:
        """Return True if a tensor gets a range of its own, although it only repeats another tensor.

        A trial may round this tensor and leave the other one as it is.
        """
        return tensor in self.infinite_by_design or tensor.producer in self.near

    def is_ranged(self, probe: Probe) -> bool:
        """Return True if a tensor gets a range."""
        is_near_output = bool(probe.ref.node) and probe.ref.producer in self.near
        is_near = self.all_ranged or probe.ref in self.near_inputs or is_near_output
        return self.is_ambiguous(probe) or (is_near and probe.elem != dtypes.DOUBLE)

    def is_summed(self, probe: Probe) -> bool:
        """Return True if a tensor gets a sum of magnitudes alone."""
        return not self.is_ranged(probe) and probe.ref.producer not in self.skippable

    def is_counted(self, probe: Probe) -> bool:
        """Return True if the finite and the infinite values of a tensor are counted."""
        return (probe.ref.producer, probe.tensor) in self.not_finite and self.is_ranged(probe)

    def _outputs_stay_finite(self, node: DataflowNode) -> bool:
        """Return True if a node's outputs are finite whenever its inputs are.

        The inputs have statistics, or are skippable themselves. A value-preserving operator makes no larger values, but
        it can overflow if its float32 input is rounded first. So its outputs must not be near the limit. A node that
        reads infinities by design is a first offender if it makes a NaN of them (Rule S8.5): a Softmax of a masked row.
        """
        op_type = node.node.op_type
        if not self.infinite_by_design.isdisjoint(tensor.ref for tensor in node.inputs):
            return False
        # The traits describe standard operators. An operator of another domain may have the same name.
        if node.node.domain or not all(self._is_safe(value) for value in float_values(node.node.inputs)):
            return False
        if op_type in _BOUNDED or (op_type in _VALUE_PRESERVING and node.ref not in self.near):
            return True
        if op_type not in _WELL_CONDITIONED and not self._has_large_divisor(node.node):
            return False
        return node.ref in self.far and self.near.isdisjoint(tensor.ref.producer for tensor in node.inputs)

    def _has_large_divisor(self, node: Node) -> bool:
        """Return True if a node divides by a constant far from zero, or by a variance plus an epsilon far from zero."""
        if node.op_type == "Div":
            divisor = node.inputs[1]
            constant = self.find_constant_range(divisor) if divisor is not None and divisor.is_constant else None
            return (
                constant is not None
                and constant.single_value is not None
                and abs(constant.single_value) >= LEAST_DIVISOR
            )
        # Without the attribute, epsilon has its default value 1e-5, which is large enough.
        epsilons = [attribute.f for attribute in node.proto.attribute if attribute.name == "epsilon"]
        return node.op_type in _NORMALIZES and all(epsilon >= LEAST_DIVISOR for epsilon in epsilons)

    def _is_safe(self, value: Value) -> bool:
        """Return True if a value is a constant far from the limit of the range, or the output of a node that computes.

        Such an output has statistics or is skippable. Outputs of control flow have no statistics here.
        """
        if value.is_constant:
            constant = self.find_constant_range(value)
            return constant is not None and constant.max_abs < self.near_bound
        producer = value.producer
        return producer is not None and not producer.bodies


# --- classify the ambiguous ranges ---


class OverflowClassifier:
    """Finds the overflows in the ambiguous ranges of a model's trials. ``low_type``: the low element type.

    ``sessions``: how it runs the reference. ``nodes``: the nodes of the model in order of computation. ``masks``: the
    tensors that carry masks. ``harmless``: the tensors with values that change no output (Rule S8.30).
    """

    def __init__(self, loaded: LoadedModel, graph: Graph, low_type: int, sessions: CheckSessions) -> None:
        self.loaded, self.graph, self.low_type, self.sessions = loaded, graph, low_type, sessions
        self.nodes = trace_dataflow(graph)
        # bfloat16 has the range of float32, so the usual mask values fit into it.
        self.masks = find_masks(graph) if low_type == dtypes.FLOAT16 else {}
        self.harmless = find_harmless_values(graph, overflow_bound(low_type))
        self._node_by_ref = {node.ref: node for node in self.nodes}
        self._position_of = {str(node.ref): position for position, node in enumerate(self.nodes)}
        self._finder: HiddenOverflowFinder | None = None
        # The tensors with ranges, and what is derived from them: the nodes that make them, the slots that read them
        # (node, slot, name of the value, and tensor, which is one of several if the value comes out of a body), and
        # the ids of their values.
        self._ranged: frozenset[TensorRef] = frozenset()
        self._producers: list[DataflowNode] = []
        self._reads: list[tuple[DataflowNode, int, str, TensorRef]] = []
        self._value_ids: dict[TensorRef, int] = {}

    def find_first_overflow(self, feed: Feed, values: AmbiguousValues, solution: Solution, roundings: Roundings) -> str:
        """Return the first node that overflows in a batch under a plan; "" if the large values are those of masks.

        ``solution``: the decisions of the plan. ``roundings``: those of its nodes.
        """
        if self._finder is None:
            # The finder runs the reference to count values in it. It has no mixed model, so it gets the counts of the
            # trial from ``values.counts``.
            probes = Instrumenter(self.loaded.proto).run().probes
            reference = ObservedModel(self.loaded, probes, self.sessions.open_reference_observer)
            self._finder = HiddenOverflowFinder(self.graph, {self.low_type}, reference)
        self._set_ranged_tensors(frozenset(values.reference))
        # A tensor in a branch or loop that did not run in this batch has no range.
        conversions = [
            (conversion, values.mixed[conversion.observed_ref])
            for conversion in self._conversions(roundings)
            if values.mixed[conversion.observed_ref].ran
        ]
        batch = BatchRanges(
            0,
            values.reference,
            values.mixed,
            self._low_types(solution),
            self.sessions.saturate,
            conversion_ranges=conversions,
        )
        batch = self._finder.add_hidden_overflows(feed, batch, values.counts)
        operand_records: dict[OperandKey, FindingRecord] = {}
        records: dict[TensorRef, FindingRecord] = {}
        # Converted inputs come before outputs: a lost input explains an output that is not finite, and not the reverse.
        classify_operands(batch, self._node_by_ref, operand_records)
        classify_outputs(batch, self._producers, records)
        exceptions = (
            record
            for record in (*operand_records.values(), *records.values())
            if not record.batches.keys().isdisjoint(EXCEPTION_KINDS)
        )
        return self.first_node(str(record.tensor.producer) for record in exceptions)

    def first_node(self, names: Iterable[str]) -> str:
        """Return the node that is computed first, by its name; "" if there is none."""
        return min(names, key=lambda name: self._position_of.get(name, len(self._position_of)), default="")

    def _set_ranged_tensors(self, tensors: frozenset[TensorRef]) -> None:
        """Find the nodes that make and read the tensors with ranges. These are few nodes.

        The tensors are the same in almost every trial, so the result is kept.
        """
        if tensors == self._ranged:
            return
        self._ranged = tensors
        self._value_ids = {
            tensor: value.id
            for node in self.graph.nodes
            for slot, value in enumerate(node.outputs)
            if value is not None and (tensor := output_ref(node, slot)) in tensors
        }
        producers = {tensor.producer for tensor in tensors}
        self._producers = [node for node in self.nodes if node.ref in producers]
        self._reads = [
            (node, slot, value.name, source)
            for node in self.nodes
            if any(tensor.ref in tensors for tensor in node.inputs)
            for slot, value in enumerate(node.node.inputs)
            if value is not None
            for source in _possible_sources(node, value)
            if source in tensors
        ]

    def _conversions(self, roundings: Roundings) -> Iterator[Conversion]:
        """Yield the tensors with ranges that nodes read rounded under a plan."""
        for node, slot, name, source in self._reads:
            rounding = roundings.get(RoundingPoint(node.ref))
            elem = rounding.inputs[slot] if rounding is not None else 0
            if elem:
                yield Conversion(name, elem, source, source, (node.ref,))

    def _low_types(self, solution: Solution) -> dict[TensorRef, int]:
        """Return the low element types of the tensors with ranges that a plan makes low."""
        types = {tensor: solution.decided_types[value_id] for tensor, value_id in self._value_ids.items()}
        return {tensor: elem for tensor, elem in types.items() if elem in LOW_TYPES}

    def close(self) -> None:
        """Release the session that counts values of the reference."""
        if self._finder is not None:
            self._finder.close()


def _possible_sources(node: DataflowNode, value: Value) -> list[TensorRef]:
    """Return the tensors that an input of a node may be."""
    observed = find_observed_ref(value)
    if observed is not None:
        return [observed]
    if value.is_constant:
        return []
    # The value comes out of a body, or goes into one: any tensor that the node reads.
    return [tensor.ref for tensor in node.inputs]
