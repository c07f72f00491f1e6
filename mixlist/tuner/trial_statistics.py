"""Add the statistics of a trial to the graph: as few as tell whether anything overflows.

A sum of magnitudes is not finite where one value is not: one reduction per tensor, and none where a tensor is finite if
what it was made of is (a *skippable* one). Of some tensors an infinity says nothing by itself: of those that carry
masks, that hold infinities or numbers beyond all quantities in the reference already and, where the accelerator
saturates, of those beyond the range. Their whole ranges are taken, and where one of these *ambiguous* tensors is at the
limit, ``mask_classifier`` decides as ``check`` does. The ranges of tensors near the low range are taken too: a trial
that keeps such a tensor in float32 may convert it for a reader, which loses values beyond the range (Rule S8.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.result import TensorRange
from mixlist.checker.value_counts import Totals, finite_and_infinite_counts
from mixlist.emulation.graph_statistics import SUM, InstrumentedModel, Probe
from mixlist.emulation.instrument import instrument
from mixlist.emulation.observer import RangeReader, Ranges
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Node, Value, float_values
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, overflow_bound
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.constants import ConstantRange
from mixlist.patterns.masks import Mask

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.session import Array

RangeOf = Callable[[Value], ConstantRange | None]
LARGE = 1e30  # of a magnitude: 1e8 such values add up to what float32 holds
NEAR = 1 / 8  # of the low range: a value of the reference that is larger may be beyond it in a trial
LEAST = 1e-6  # the smallest divisor that counts: no rounding makes it zero
_BOUNDED, _VALUE_PRESERVING = operators(Trait.BOUNDED), operators(Trait.VALUE_PRESERVING)
# If all values that a steady operator reads and makes are far within the range in the reference, no rounding takes one
# beyond the range. If one does, because terms cancel or errors grow eightfold, the final check finds it.
_WELL_CONDITIONED = operators(Trait.WELL_CONDITIONED)
_NORMALIZES = operators(Trait.NORMALIZES)  # steady if their epsilon is no zero: a variance divides


@dataclass(frozen=True)
class AmbiguousValues:
    """The ranges of one batch in the reference and in a trial: a value at a limit may be an overflow or a mask's.

    ``counted``: the numbers of the trial's finite and infinite values, in tensors that are not finite in the reference.
    """

    reference: Ranges
    mixed: Ranges
    counted: Totals


@dataclass(frozen=True)
class TrialStatistics:
    """The statistics of a trial: the outputs that hold them, and the way to read them.

    ``sums``: the tensors of each output's columns; an output has the shape [columns], or [iterations, columns] where it
    comes out of a loop. ``nan_only``: tensors of which only a NaN counts; ``ambiguous``: those of which the sum says
    nothing. ``order``: of the tensors with sums, the place at which their node computes. ``ranged``: the tensors with
    ranges, without the model. ``ends``: the outputs that are made last before each cut. ``limit``: the magnitude that
    values beyond the low range become, infinite where they do not saturate; ``bound``: the least magnitude that a
    conversion loses.
    """

    sums: Mapping[str, tuple[TensorRef, ...]]
    nan_only: AbstractSet[TensorRef]
    ambiguous: AbstractSet[TensorRef]
    order: Mapping[TensorRef, int]
    ranged: InstrumentedModel
    counted: InstrumentedModel
    ends: Sequence[tuple[str, ...]]
    limit: float
    bound: float

    @property
    def names(self) -> list[str]:
        """All outputs with statistics."""
        return list(dict.fromkeys((*self.sums, *self.ranged.widths, *self.counted.widths)))

    def first_overflow(self, reference: Mapping[str, Array], mixed: Mapping[str, Array]) -> str:
        """Return the first node that overflows and does not in the reference, "" for none.

        ``mixed`` may be a part of the statistics. The outputs are not in order of computation: some hold sums alone,
        later ones hold sums and ranges.
        """
        found: list[TensorRef] = []
        for name, tensors in self.sums.items():
            if name not in mixed or np.isfinite(mixed[name]).all():
                continue
            before, after = np.atleast_2d(reference[name]), np.atleast_2d(mixed[name])
            nan = np.isnan(after).any(axis=0) & ~np.isnan(before).any(axis=0)
            infinite = ~np.isfinite(after).all(axis=0) & np.isfinite(before).all(axis=0)
            overflows = np.where([tensor in self.nan_only for tensor in tensors], nan, infinite)
            overflows &= [tensor not in self.ambiguous for tensor in tensors]
            found += [tensors[column] for column in np.flatnonzero(overflows)]
        return str(min(found, key=lambda tensor: self.order[tensor]).producer) if found else ""

    def ambiguous_values(self, reference: Mapping[str, Array], mixed: Mapping[str, Array]) -> AmbiguousValues | None:
        """Return the ranges in the reference and in the trial, if one of the trial's is at a limit."""
        if not self.ranged.widths:
            return None
        ranges = self._reader.read(mixed)
        least = min(self.limit, self.bound)
        if all(r.finite and r.magnitude < least for r in ranges.values()):
            return None
        return AmbiguousValues(self._reader.read(reference), ranges, self._numbers(mixed))

    def _numbers(self, mixed: Mapping[str, Array]) -> Totals:
        """Return the numbers of a trial's finite and infinite values, in the tensors that are counted."""
        totals: dict[tuple[TensorRef, str], float] = {}
        for key, places in self.counted.outputs.items():
            totals[key] = sum(float(np.sum(mixed[place.output][..., place.column])) for place in places)
        for probe in self.counted.probes:
            if probe.source is not None:
                totals |= {(probe.ref, name): n for (tensor, name), n in totals.items() if tensor == probe.source}
        return totals

    @cached_property
    def _reader(self) -> RangeReader:
        return RangeReader(self.ranged)


def add_statistics(
    model: ModelProto,
    tensors: Sequence[TensorRange],
    masks: Mapping[TensorRef, Mask],
    low: int,
    saturate: bool,
    nodes: Sequence[DataflowNode],
    cuts: Container[str],
    range_of: RangeOf,
    inputs: AbstractSet[TensorRef] = frozenset(),
) -> tuple[ModelProto, TrialStatistics]:
    """Return a copy of the model with the statistics of a trial, and where they are.

    ``tensors``: what the reference's values are like over all batches; ``masks``: the tensors that carry masks;
    ``nodes``: those whose outputs may be skippable; if there are none, every tensor has a range; ``cuts`` as for
    ``instrument``; ``range_of``: the range of a constant; ``inputs``: the graph inputs near the low range.
    """
    magnitudes = _Magnitudes(tensors, range_of, low)
    skippable = {node.ref for node in nodes if magnitudes.makes_skippable(node)}
    bound = overflow_bound(low) if saturate else LARGE
    beyond = {(t.producer, t.tensor) for t in tensors if not t.magnitude < bound}
    unfinite = {(t.producer, t.tensor) for t in tensors if t.nan or not math.isfinite(t.magnitude)}
    around_masks = {*masks}.union(*(mask.joined | mask.factors for mask in masks.values()))

    def is_ambiguous(probe: Probe) -> bool:
        is_beyond = (probe.ref.producer, probe.tensor) in beyond and probe.elem != types.DOUBLE
        return probe.ref in around_masks or is_beyond

    def own(tensor: TensorRef) -> bool:
        return tensor in around_masks or tensor.producer in magnitudes.near

    def is_ranged(probe: Probe) -> bool:
        is_near = not nodes or probe.ref in inputs or (bool(probe.ref.node) and probe.ref.producer in magnitudes.near)
        return is_ambiguous(probe) or (is_near and probe.elem != types.DOUBLE)

    def is_summed(probe: Probe) -> bool:
        return not is_ranged(probe) and probe.ref.producer not in skippable

    def is_counted(probe: Probe) -> bool:
        return (probe.ref.producer, probe.tensor) in unfinite and is_ranged(probe)

    summed = instrument(model, (SUM,), is_summed, needs_own_range=own, cut_tensors=cuts)
    ranged = instrument(summed.proto, is_observed=is_ranged, needs_own_range=own, cut_tensors=cuts)
    instrumented = [summed, ranged]
    if unfinite:
        instrumented.append(
            instrument(ranged.proto, finite_and_infinite_counts(), is_counted, needs_own_range=own, cut_tensors=cuts)
        )
    ends = [tuple(chain(*cut)) for cut in zip(*(each.cut_outputs for each in instrumented), strict=True)]
    sums = _sums(summed) | _sums(ranged)
    return instrumented[-1].proto, TrialStatistics(
        sums=sums,
        nan_only=frozenset(probe.ref for probe in summed.probes if probe.elem == types.DOUBLE),
        ambiguous=frozenset(probe.ref for probe in ranged.probes if is_ambiguous(probe)),
        order=_order(sums, tensors),
        ranged=_without_model(ranged),
        counted=_without_model(instrumented[-1]) if unfinite else InstrumentedModel(type(model)()),
        ends=ends,
        limit=FINITE_MAX[low] if saturate else math.inf,
        bound=overflow_bound(low),
    )


def _without_model(instrumented: InstrumentedModel) -> InstrumentedModel:
    """Return the places of the statistics without the model, which a worker does not need."""
    return replace(instrumented, proto=type(instrumented.proto)())


def _order(sums: Mapping[str, Sequence[TensorRef]], tensors: Sequence[TensorRange]) -> dict[TensorRef, int]:
    """Return the places of the nodes of tensors with sums among ``tensors``, which are in order of computation."""
    places = {tensor.producer: place for place, tensor in enumerate(tensors)}
    return {tensor: places.get(tensor.producer, -1) for columns in sums.values() for tensor in columns}


def _sums(instrumented: InstrumentedModel) -> dict[str, tuple[TensorRef, ...]]:
    """Return the outputs that hold sums of magnitudes, with the tensors of their columns."""
    columns: dict[str, dict[int, TensorRef]] = {}
    for (tensor, name), places in instrumented.outputs.items():
        for place in places if name == SUM.name else ():
            columns.setdefault(place.output, {})[place.column] = tensor
    return {output: tuple(of[at] for at in sorted(of)) for output, of in columns.items()}


class _Magnitudes:
    """The nodes by the size of their outputs in the reference: ``near`` the low range, or ``far`` within it.

    A node that never ran is neither.
    """

    def __init__(self, tensors: Iterable[TensorRange], range_of: RangeOf, low: int) -> None:
        self.limit, self.range_of = NEAR * overflow_bound(low), range_of
        self.near: set[NodeRef] = set()
        self.far: set[NodeRef] = set()
        for tensor in tensors:
            (self.far if tensor.magnitude < self.limit else self.near).add(tensor.producer)
        self.far -= self.near

    def makes_skippable(self, node: DataflowNode) -> bool:
        """Return whether a node's outputs are finite if its inputs are, which have statistics or are skippable.

        A value-preserving operator can overflow when its float32 input is rounded first.
        """
        op_type = node.node.op_type
        if node.node.domain or not all(self._is_safe(value) for value in float_values(node.node.inputs)):
            return False
        if op_type in _BOUNDED or (op_type in _VALUE_PRESERVING and node.ref not in self.near):
            return True
        if op_type not in _WELL_CONDITIONED and not self._divides_by_much(node.node):
            return False
        return node.ref in self.far and self.near.isdisjoint(tensor.ref.producer for tensor in node.inputs)

    def _divides_by_much(self, node: Node) -> bool:
        """Return whether a node divides by a constant, or by a variance with an epsilon, that is not almost nothing."""
        if node.op_type == "Div":
            divisor = node.inputs[1]
            found = self.range_of(divisor) if divisor is not None and divisor.is_constant else None
            return found is not None and found.single is not None and abs(found.single) >= LEAST
        epsilon = [attribute.f for attribute in node.proto.attribute if attribute.name == "epsilon"]
        return node.op_type in _NORMALIZES and all(each >= LEAST for each in epsilon)  # 1e-5 if left out

    def _is_safe(self, value: Value) -> bool:
        """Return whether a value is a constant far within the range, or made by a node that computes."""
        if value.is_constant:
            found = self.range_of(value)
            return found is not None and found.max_abs < self.limit
        producer = value.producer
        return producer is not None and not producer.bodies and producer.function is None
