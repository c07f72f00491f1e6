"""Find the masks of a whole model: each function once for all calls that bring it the same masks and constants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from weakref import WeakKeyDictionary

from mixlist.graph.model import Graph
from mixlist.patterns.call_frames import CallFrame
from mixlist.patterns.constants import ConstantRanges
from mixlist.patterns.mask_groups import NO_MASKS, MaskFinder
from mixlist.patterns.mask_plan import UNKNOWN_MASK, CallMasks, MaskPlan

MOST_FINDERS = 2_000  # of one model; or ten for each of its calls, if these are more
_PLANS: WeakKeyDictionary[Graph, dict[int, MaskPlan]] = WeakKeyDictionary()


def find_mask_groups(main: Graph, ranges: ConstantRanges, low: int) -> MaskPlan:
    """Return the groups of a model whose masks leave the range of the low type; they are found once."""
    known = _PLANS.setdefault(main, {})
    if low not in known:
        known[low] = MaskFinders(ranges, low).of(main, NO_MASKS, None).plan
    return known[low]


class MaskFinders:
    """Makes the finders of a model's graphs, one per graph and kind of call, and the plans that they find.

    Calls of one kind have a finder for each frame if it reads constants that the frame knows. Calls whose masks differ
    have different finders, but one plan if nothing is decided otherwise.
    """

    def __init__(self, ranges: ConstantRanges, low: int) -> None:
        self.ranges, self.low = ranges, low
        self._finders: dict[tuple[Graph, CallMasks, CallFrame | None], MaskFinder] = {}
        self._first: dict[tuple[Graph, CallMasks], MaskFinder] = {}
        self._plans: dict[Hashable, MaskPlan] = {}
        self._leading: dict[tuple[int, tuple[bool, ...]], frozenset[int]] = {}

    def of(self, graph: Graph, call: CallMasks, frame: CallFrame | None) -> MaskFinder:
        """Return the finder of a graph for a kind of call, which has found the groups."""
        if len(self._finders) >= self.ranges.frames.limit(MOST_FINDERS) and (graph, call) not in self._first:
            # Functions that call functions can add up masks in a number of ways that grows exponentially.
            call = replace(call, arguments=tuple([flow and UNKNOWN_MASK for flow in call.arguments]))
        finder = self._first.get((graph, call))
        if finder is not None and finder.varies:
            finder = self._finders.get((graph, call, frame))
        if finder is None:
            finder = self._finders[graph, call, frame] = MaskFinder(self, graph, call, frame)
            finder.find()
            self._first.setdefault((graph, call), finder)
        return finder

    def shared(self, graph: Graph, plan: MaskPlan) -> MaskPlan:
        """Return the plan of a graph that has the same effect as ``plan``."""
        return self._plans.setdefault((graph, plan.effect), plan)

    def leading(self, graph: Graph, wanted: tuple[bool, ...]) -> frozenset[int]:
        """Return the parameters that could carry a mask to a softmax inside, or to a wanted result."""
        key = id(graph), wanted
        if key not in self._leading:
            leading = MaskFinder(self, graph, CallMasks(wanted=wanted), None).trace_back()
            self._leading[key] = frozenset(slot for slot, value in enumerate(graph.root.inputs) if value in leading)
        return self._leading[key]
