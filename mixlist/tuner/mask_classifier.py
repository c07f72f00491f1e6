"""Decide whether an infinity of a trial is a mask's or an overflow, as ``check`` does (Rules S8.11 and S8.12)."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from mixlist.checker.counting_sessions import MaskedOverflowFinder
from mixlist.checker.finding_rules import EXCEPTIONS, BatchRanges, Tally, classify
from mixlist.checker.model_pair import ObservedModel, SessionConfig
from mixlist.emulation.instrument import instrument
from mixlist.emulation.observer import Ranges
from mixlist.graph.dataflow import trace_dataflow
from mixlist.graph.io import Loaded
from mixlist.graph.model import Graph
from mixlist.graph.naming import output_ref
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW
from mixlist.patterns.masks import find_masks
from mixlist.resolver.decisions import Solution, reached

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed


class MaskClassifier:
    """The nodes and masks of a model, and the overflows in its ambiguous ranges. ``low``: the low type."""

    def __init__(self, loaded: Loaded, graph: Graph, low: int, saturate: bool) -> None:
        self.loaded, self.low, self.saturate = loaded, low, saturate
        self.nodes = trace_dataflow(graph)
        self.masks = find_masks(self.nodes) if low == types.FLOAT16 else {}
        self._finder: MaskedOverflowFinder | None = None

    def first_overflow(self, feed: Feed, ranges: tuple[Ranges, Ranges], main: Solution) -> str:
        """Return the first node that overflows in a batch under a plan, "" where the infinities are by design."""
        if self._finder is None:  # it counts in the reference; a trial has no mixed model to count in
            observe = SessionConfig("cpu", None, self.saturate).observe_reference
            reference = ObservedModel(self.loaded, instrument(self.loaded.proto).probes, observe)
            self._finder = MaskedOverflowFinder(self.nodes, {self.low}, reference)
        reference_ranges, mixed_ranges = ranges
        batch = BatchRanges(0, reference_ranges, mixed_ranges, _low_types(main, reference_ranges), self.saturate)
        tallies: dict[TensorRef, Tally] = {}
        classify(self._finder.complete(feed, batch), self.nodes, tallies)
        overflows = (tensor for tensor, tally in tallies.items() if not tally.batches.keys().isdisjoint(EXCEPTIONS))
        return next((str(tensor.producer) for tensor in overflows), "")

    def close(self) -> None:
        """Release the session."""
        if self._finder is not None:
            self._finder.close()


def _low_types(main: Solution, tensors: Container[TensorRef]) -> dict[TensorRef, int]:
    """Return the low element types of these tensors; of a function's, that of any specialization."""
    low: dict[TensorRef, int] = {}
    for solution in reached(main):
        for node in solution.graph.order:
            for slot, value in enumerate(node.outputs):
                if value is not None and solution.decided[value.id] in LOW:
                    tensor = output_ref(solution.graph, node, slot)
                    if tensor in tensors:
                        low[tensor] = solution.decided[value.id]
    return low
