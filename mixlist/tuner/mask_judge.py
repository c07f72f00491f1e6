"""Whether an infinity of a trial is a mask's or an overflow: judged where the plan is, by the rules of ``check``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mixlist.checker.counting_sessions import CountingSession, MaskedOverflowFinder
from mixlist.checker.finding_rules import BatchRanges, Tally, classify
from mixlist.checker.model_pair import SessionConfig
from mixlist.emulation.instrument import instrument
from mixlist.emulation.observer import Ranges
from mixlist.graph.dataflow import trace_dataflow
from mixlist.graph.io import Loaded
from mixlist.graph.model import Graph
from mixlist.graph.naming import output_ref
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW
from mixlist.patterns.masks import Mask, find_masks
from mixlist.resolver.decisions import Solution, reached


class Masked:
    """The masks of a model, and what its doubtful ranges mean. ``low``: the low type."""

    def __init__(self, loaded: Loaded, graph: Graph, low: int, saturate: bool) -> None:
        self.loaded, self.low, self.saturate = loaded, low, saturate
        self.wired = trace_dataflow(graph)
        self.masks: dict[TensorRef, Mask] = find_masks(self.wired) if low == types.FLOAT16 else {}
        self._hidden: MaskedOverflowFinder | None = None

    def overflow(self, feed: Mapping[str, Any], ranges: tuple[Ranges, Ranges], main: Solution) -> str:
        """The first node that overflows in a batch as ``main`` decides; "" where the infinities are by design."""
        exact, ours = ranges
        batch = BatchRanges(0, exact, ours, _low(main, exact), self.saturate)
        if self._hidden is None:
            self._hidden = self._make_hidden()
        tallies: dict[TensorRef, Tally] = {}
        if not classify(self._hidden.complete(feed, batch), self.wired, tallies):
            return ""
        key = next(key for key, tally in tallies.items() if {"overflow", "saturated"} & tally.batches.keys())
        return str(key.producer)

    def _make_hidden(self) -> MaskedOverflowFinder:
        """Counts in the reference, by a session made when first needed; a trial has no mixed model to count in."""
        observe = SessionConfig("cpu", None, self.saturate).observe_reference
        probes = instrument(self.loaded.proto).probes
        count_reference = partial(CountingSession, self.loaded, probes, observe)
        return MaskedOverflowFinder(self.wired, {self.low}, count_reference, None)

    def close(self) -> None:
        """Let the session go."""
        if self._hidden is not None:
            self._hidden.close()


def _low(main: Solution, keys: Mapping[TensorRef, Any]) -> dict[TensorRef, int]:
    """The low element types of these tensors; of a function's, that of any specialisation."""
    found: dict[TensorRef, int] = {}
    for solution in reached(main):
        for node in solution.graph.order:
            for slot, value in enumerate(node.outputs):
                if value is not None and solution.decided[value.id] in LOW:
                    key = output_ref(solution.graph, node, slot)
                    if key in keys:
                        found[key] = solution.decided[value.id]
    return found
