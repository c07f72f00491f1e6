"""Find out whether any node of a step overflows, as an accelerator with a float status does (Rule S10.25).

Such an accelerator sets the status in each node that overflows, and the optimizer reads it. The probes and rules are
those of a check: what float32 overflows as well is no exception.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mixlist.checker.finding_rules import classify_outputs
from mixlist.checker.hidden_overflow import HiddenOverflowFinder
from mixlist.checker.model_pair import make_model_pair
from mixlist.checker.operand_rules import classify_operands, converted_ranges
from mixlist.checker.session_config import SessionConfig
from mixlist.graph.load import LoadedModel
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.prune import prune_model
from mixlist.lists.policy import Policy
from mixlist.training.step_graph import StepGraph

if TYPE_CHECKING:
    from mixlist.emulation.observer import Ranges
    from mixlist.runtime.session import Feed


class NodeOverflowDetector:
    """The step in float32 and in mixed precision, with the probes of a check.

    ``mixed`` is the mixed model of the step graph. ``saturate``: values out of range become the largest finite value.
    """

    def __init__(self, graph: StepGraph, mixed: LoadedModel, policy: Policy, provider: str, *, saturate: bool) -> None:
        config = SessionConfig(provider, None, saturate)
        step, mixed = (_without_evaluation(graph, model) for model in (graph.loaded, mixed))
        self._pair = pair = make_model_pair(step, policy, mixed, config)
        # A Clip after an overflow repairs the value (Rule S8.30), but the node before it has set the float status.
        self._hidden_overflows = HiddenOverflowFinder(
            pair.nodes, frozenset(pair.low_types), pair.reference, pair.mixed, clips_repair=False
        )

    def overflows(self, feed: Feed) -> bool:
        """Return True if a low node or a conversion overflows, or is clamped, where float32 does not.

        ``feed`` has every input of the step graph.
        """
        pair = self._pair
        _, mixed = pair.mixed_observer.start(feed)()
        if not self._may_overflow(mixed):
            return False
        _, reference = pair.reference_observer.start(feed)()
        batch = self._hidden_overflows.add_hidden_overflows(feed, pair.batch_ranges(0, reference, mixed))
        return classify_outputs(batch, pair.nodes, {}) or classify_operands(batch, pair.conversion_readers, {})

    def _may_overflow(self, mixed: Ranges) -> bool:
        """Return False if the ranges of the mixed model alone show that nothing overflows, as in nearly every step."""
        pair = self._pair
        batch = pair.batch_ranges(0, {}, mixed)
        return (
            any(conversion.in_reference for conversion in pair.conversions)  # then only the reference shows it
            or any(batch.low_tensors_at_limit())
            or any(converted.ends_out_of_range for converted in converted_ranges(batch))
        )

    def close(self) -> None:
        """Release the sessions."""
        self._pair.close()
        self._hidden_overflows.close()


def _without_evaluation(graph: StepGraph, model: LoadedModel) -> LoadedModel:
    """Return a model of the step without the nodes that only compute the metric, which no step runs."""
    if not graph.has_evaluation:
        return model
    proto = copy_message(model.proto)
    prune_model(proto, graph.step_outputs)
    return replace(model, proto=proto)
