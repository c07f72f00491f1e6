"""Decide whether large values of a trial are an overflow or belong to a mask (Rules S8.4, S8.11, S8.12).

Most tensors of a trial have one statistic, which shows an overflow. The tensors for which that is not enough have
ranges (``trial_statistics`` says which). This module applies the rules of ``check`` to these ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.checker.check_sessions import CheckSessions
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
from mixlist.checker.model_pair import ObservedModel
from mixlist.emulation.conversions import Conversion, find_observed_ref
from mixlist.emulation.instrument import instrument
from mixlist.graph.dataflow import DataflowNode, trace_dataflow
from mixlist.graph.load import LoadedModel
from mixlist.graph.model import Graph, Value
from mixlist.graph.naming import output_ref
from mixlist.graph.refs import TensorRef
from mixlist.ops import dtypes
from mixlist.ops.low_precision import LOW_TYPES, overflow_bound
from mixlist.patterns.clipped_tensors import find_clipped_tensors
from mixlist.patterns.proven_masks import find_masks
from mixlist.resolver.decisions import GraphSolution, find_reachable_solutions
from mixlist.tuner.rounding_plan import LocalRoundings, RoundingPoint
from mixlist.tuner.trial_statistics import AmbiguousValues

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed


@dataclass(frozen=True)
class _TensorRead:
    """An input slot of a node that reads a tensor with a range.

    ``name``: the name of the value at the slot. ``source``: the tensor. If the value comes out of a body or a call,
    ``source`` is one of several tensors that the slot may read.
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
        self.loaded, self.low_type, self.config = loaded, low_type, config
        self.nodes = trace_dataflow(graph)
        # bfloat16 has the range of float32, so the usual mask values fit into it.
        self.masks = find_masks(self.nodes) if low_type == dtypes.FLOAT16 else {}
        self.clipped = find_clipped_tensors(self.nodes, overflow_bound(low_type))
        self._node_by_ref = {node.ref: node for node in self.nodes}
        self._finder: HiddenOverflowFinder | None = None
        # The tensors with ranges, and what is derived from them: the nodes that make them, the slots that read them,
        # and for each graph the tensors with the ids of their values.
        self._ranged: frozenset[TensorRef] = frozenset()
        self._producers: list[DataflowNode] = []
        self._reads: list[_TensorRead] = []
        self._value_ids: dict[Graph, list[tuple[TensorRef, int]]] = {}

    def find_first_overflow(
        self, feed: Feed, values: AmbiguousValues, main: GraphSolution, roundings: Sequence[LocalRoundings]
    ) -> str:
        """Return a node that overflows in a batch under a plan; "" if the large values are those of masks.

        A node whose converted input overflows comes before a node whose output does. ``main``: the decisions of the
        plan. ``roundings``: those of ``main`` and of the functions that it calls.
        """
        if self._finder is None:
            # The finder runs the reference to count values in it. It has no mixed model, so it gets the counts of the
            # trial from ``values.counts``.
            probes = instrument(self.loaded.proto).probes
            reference = ObservedModel(self.loaded, probes, self.config.open_reference_observer)
            self._finder = HiddenOverflowFinder(self.nodes, {self.low_type}, reference)
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
            self._low_types(main),
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
        self._value_ids.clear()
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

    def _conversions(self, roundings: Sequence[LocalRoundings]) -> Iterator[Conversion]:
        """Yield the tensors with ranges that nodes read rounded under a plan."""
        for read in self._reads:
            point = RoundingPoint((), read.node.ref)
            # In a function, the node may round the input in one specialization and leave it alone in another.
            elems = {local.nodes[point].inputs[read.slot] for local in roundings if point in local.nodes}
            for elem in elems - {0}:
                yield Conversion(read.name, elem, read.source, read.source, (read.node.ref,))

    def _low_types(self, main: GraphSolution) -> dict[TensorRef, int]:
        """Return the low element types of the tensors with ranges that a plan makes low.

        A tensor of a function is low if it is low in any specialization.
        """
        low_types: dict[TensorRef, int] = {}
        for solution in find_reachable_solutions(main):
            if solution.graph not in self._value_ids:
                self._value_ids[solution.graph] = list(self._ids_of_ranged_values(solution.graph))
            for tensor, value_id in self._value_ids[solution.graph]:
                elem = solution.decided_types[value_id]
                if elem in LOW_TYPES:
                    low_types[tensor] = elem
        return low_types

    def _ids_of_ranged_values(self, graph: Graph) -> Iterator[tuple[TensorRef, int]]:
        for node in graph.nodes:
            for slot, value in enumerate(node.outputs):
                if value is not None:
                    tensor = output_ref(graph, node, slot)
                    if tensor in self._ranged:
                        yield tensor, value.id

    def close(self) -> None:
        """Release the session that counts values of the reference."""
        if self._finder is not None:
            self._finder.close()


def _possible_sources(node: DataflowNode, value: Value) -> list[TensorRef]:
    """Return the tensors that an input of a node may be."""
    observed = find_observed_ref(node.graph, value)
    if observed is not None:
        return [observed]
    if value.is_constant:
        return []
    # The value comes out of a body or a call, or is a parameter of a function: any tensor that the node reads.
    return [tensor.ref for tensor in node.inputs]
