"""Decide whether large values of a trial are a mask's or an overflow, as ``check`` does (Rules S8.4, S8.11, S8.12)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.checker.batch_ranges import BatchRanges
from mixlist.checker.finding_records import FindingRecord, OperandKey, OperandRecord
from mixlist.checker.finding_rules import EXCEPTION_KINDS, classify_outputs
from mixlist.checker.hidden_overflow import HiddenOverflowFinder
from mixlist.checker.model_pair import ObservedModel
from mixlist.checker.operand_rules import classify_operands
from mixlist.checker.session_config import SessionConfig
from mixlist.emulation.conversions import Conversion, find_observed_ref
from mixlist.emulation.instrument import instrument
from mixlist.graph.dataflow import DataflowNode, trace_dataflow
from mixlist.graph.load import LoadedModel
from mixlist.graph.model import Graph, Value
from mixlist.graph.naming import output_ref
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.patterns.masks import find_masks
from mixlist.resolver.decisions import GraphSolution, reachable_solutions
from mixlist.tuner.rounding_plan import LocalRoundings, RoundingPoint
from mixlist.tuner.trial_statistics import AmbiguousValues

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed


@dataclass(frozen=True)
class _Read:
    """One input slot of a node that reads a tensor with a range, or may read it through a body or a call."""

    node: DataflowNode
    slot: int
    name: str
    source: TensorRef


class MaskClassifier:
    """The nodes and masks of a model, and the overflows in its ambiguous ranges. ``low``: the low type."""

    def __init__(self, loaded: LoadedModel, graph: Graph, low: int, saturate: bool) -> None:
        self.loaded, self.low, self.saturate = loaded, low, saturate
        self.nodes = trace_dataflow(graph)
        self.masks = find_masks(self.nodes) if low == types.FLOAT16 else {}
        self._by_ref = {node.ref: node for node in self.nodes}
        self._finder: HiddenOverflowFinder | None = None
        self._ranged: frozenset[TensorRef] = frozenset()  # the tensors of the three that follow
        self._near: list[DataflowNode] = []  # the nodes that make such a tensor
        self._reads: list[_Read] = []
        self._values: dict[Graph, list[tuple[TensorRef, int]]] = {}  # such tensors by the ids of their values

    def first_overflow(
        self, feed: Feed, values: AmbiguousValues, main: GraphSolution, roundings: Sequence[LocalRoundings]
    ) -> str:
        """Return the first node that overflows in a batch under a plan, "" where the infinities are by design.

        ``roundings`` are those of ``main`` and of the functions that it calls.
        """
        if self._finder is None:  # it counts in the reference; a trial has no mixed model to count in
            observe = SessionConfig("cpu", None, self.saturate).observe_reference
            reference = ObservedModel(self.loaded, instrument(self.loaded.proto).probes, observe)
            self._finder = HiddenOverflowFinder(self.nodes, {self.low}, reference)
        reference_ranges, mixed_ranges = values.reference, values.mixed
        self._look_at(frozenset(reference_ranges))
        converted = [(c, mixed_ranges[c.probe]) for c in self._conversions(roundings) if mixed_ranges[c.probe].ran]
        batch = BatchRanges(
            0, reference_ranges, mixed_ranges, self._low_types(main), self.saturate, conversion_ranges=converted
        )
        batch = self._finder.add_hidden_overflows(feed, batch, values.counted)
        operand_records: dict[OperandKey, OperandRecord] = {}
        records: dict[TensorRef, FindingRecord] = {}
        classify_operands(batch, self._by_ref, operand_records)
        classify_outputs(batch, self._near, records)
        for record in (*operand_records.values(), *records.values()):
            if not record.batches.keys().isdisjoint(EXCEPTION_KINDS):
                return str(record.tensor.producer)
        return ""

    def _look_at(self, tensors: frozenset[TensorRef]) -> None:
        """Find the nodes that make and read the tensors with ranges, unless they are known: few of all nodes."""
        if tensors == self._ranged:
            return
        self._ranged = tensors
        self._values.clear()
        makers = {tensor.producer for tensor in tensors}
        self._near = [node for node in self.nodes if node.ref in makers]
        self._reads = [
            _Read(node, slot, value.name, source)
            for node in self.nodes
            if any(tensor.ref in tensors for tensor in node.inputs)
            for slot, value in enumerate(node.node.inputs)
            if value is not None
            for source in _sources(node, value)
            if source in tensors
        ]

    def _conversions(self, roundings: Sequence[LocalRoundings]) -> Iterator[Conversion]:
        """Yield the tensors with ranges that nodes read converted under a plan."""
        for read in self._reads:
            point = RoundingPoint((), read.node.ref)
            found = {local.nodes[point].inputs[read.slot] for local in roundings if point in local.nodes}
            for elem in found - {0}:
                yield Conversion(read.name, elem, read.source, read.source, (read.node.ref,))

    def _low_types(self, main: GraphSolution) -> dict[TensorRef, int]:
        """Return the low element types of the tensors with ranges; of a function's, that of any specialization."""
        low: dict[TensorRef, int] = {}
        for solution in reachable_solutions(main):
            if solution.graph not in self._values:
                self._values[solution.graph] = list(self._values_of(solution.graph))
            low |= {
                t: solution.decided_types[at]
                for t, at in self._values[solution.graph]
                if solution.decided_types[at] in LOW_TYPES
            }
        return low

    def _values_of(self, graph: Graph) -> Iterator[tuple[TensorRef, int]]:
        for node in graph.nodes:
            for slot, value in enumerate(node.outputs):
                if value is not None:
                    tensor = output_ref(graph, node, slot)
                    if tensor in self._ranged:
                        yield tensor, value.id

    def close(self) -> None:
        """Release the session."""
        if self._finder is not None:
            self._finder.close()


def _sources(node: DataflowNode, value: Value) -> list[TensorRef]:
    """Return the tensors that one input of a node may hold."""
    observed = find_observed_ref(node.graph, value)
    if observed is not None:
        return [observed]
    if value.is_constant:
        return []
    return [tensor.ref for tensor in node.inputs]  # through a body or call: any tensor that the node reads
