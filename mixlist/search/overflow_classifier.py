"""Decide whether large values of a trial are an overflow or belong to a mask (Rules S8.4, S8.11, S8.12).

Most tensors of a trial have one statistic, which shows an overflow. The tensors for which that is not enough have
ranges (``trial_statistics`` says which). This module applies the rules of ``check`` to these ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.conversions import Conversion, find_observed_ref
from mixlist.checker.finding_rules import (
    EXCEPTION_KINDS,
    BatchRanges,
    FindingRecord,
    OperandKey,
    OperandRecord,
    classify_operands,
    classify_outputs,
)
from mixlist.checker.hidden_overflow import HiddenOverflowFinder
from mixlist.checker.instrument import instrument
from mixlist.checker.model_pair import ObservedModel
from mixlist.decide.clipped_tensors import find_clipped_tensors
from mixlist.decide.decisions import GraphSolution
from mixlist.decide.proven_masks import find_masks
from mixlist.model import dtypes
from mixlist.model.dataflow import DataflowNode, trace_dataflow
from mixlist.model.graph import Graph, Value
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import LOW_TYPES, overflow_bound
from mixlist.model.naming import TensorRef, output_ref
from mixlist.search.rounding_plan import RoundingPoint, Roundings
from mixlist.search.trial_statistics import AmbiguousValues

if TYPE_CHECKING:
    from mixlist.run.session import Feed


@dataclass(frozen=True)
class _TensorRead:
    """An input slot of a node that reads a tensor with a range.

    ``name``: the name of the value at the slot. ``source``: the tensor. If the value comes out of a body, ``source``
    is one of several tensors that the slot may read.
    """

    node: DataflowNode
    slot: int
    name: str
    source: TensorRef


class OverflowClassifier:
    """Finds the overflows in the ambiguous ranges of a model's trials. ``low_type``: the low element type.

    ``config``: how it runs the reference.

    ``nodes``: the nodes of the model in order of computation. ``masks``: the tensors that carry masks.
    ``clipped``: the tensors that only Clips read (Rule S8.30).
    """

    def __init__(self, loaded: LoadedModel, graph: Graph, low_type: int, config: CheckSessions) -> None:
        self.loaded, self.graph, self.low_type, self.config = loaded, graph, low_type, config
        self.nodes = trace_dataflow(graph)
        # bfloat16 has the range of float32, so the usual mask values fit into it.
        self.masks = find_masks(graph) if low_type == dtypes.FLOAT16 else {}
        self.clipped = find_clipped_tensors(graph, overflow_bound(low_type))
        self._node_by_ref = {node.ref: node for node in self.nodes}
        self._finder: HiddenOverflowFinder | None = None
        # The tensors with ranges, and what is derived from them: the nodes that make them, the slots that read them,
        # and the ids of their values.
        self._ranged: frozenset[TensorRef] = frozenset()
        self._producers: list[DataflowNode] = []
        self._reads: list[_TensorRead] = []
        self._value_ids: dict[TensorRef, int] = {}

    def find_first_overflow(
        self, feed: Feed, values: AmbiguousValues, solution: GraphSolution, roundings: Roundings
    ) -> str:
        """Return a node that overflows in a batch under a plan; "" if the large values are those of masks.

        A node whose converted input overflows comes before a node whose output does. ``solution``: the decisions of the
        plan. ``roundings``: those of its nodes.
        """
        if self._finder is None:
            # The finder runs the reference to count values in it. It has no mixed model, so it gets the counts of the
            # trial from ``values.counts``.
            probes = instrument(self.loaded.proto).probes
            reference = ObservedModel(self.loaded, probes, self.config.open_reference_observer)
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
            self.config.saturate,
            conversion_ranges=conversions,
        )
        batch = self._finder.add_hidden_overflows(feed, batch, values.counts)
        operand_records: dict[OperandKey, OperandRecord] = {}
        records: dict[TensorRef, FindingRecord] = {}
        # Converted inputs come before outputs: a lost input explains an output that is not finite, and not the reverse.
        classify_operands(batch, self._node_by_ref, operand_records)
        classify_outputs(batch, self._producers, records)
        for record in (*operand_records.values(), *records.values()):
            if not record.batches.keys().isdisjoint(EXCEPTION_KINDS):
                return str(record.tensor.producer)
        return ""

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
            _TensorRead(node, slot, value.name, source)
            for node in self.nodes
            if any(tensor.ref in tensors for tensor in node.inputs)
            for slot, value in enumerate(node.node.inputs)
            if value is not None
            for source in _possible_sources(node, value)
            if source in tensors
        ]

    def _conversions(self, roundings: Roundings) -> Iterator[Conversion]:
        """Yield the tensors with ranges that nodes read rounded under a plan."""
        for read in self._reads:
            rounding = roundings.get(RoundingPoint(read.node.ref))
            elem = rounding.inputs[read.slot] if rounding is not None else 0
            if elem:
                yield Conversion(read.name, elem, read.source, read.source, (read.node.ref,))

    def _low_types(self, solution: GraphSolution) -> dict[TensorRef, int]:
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
