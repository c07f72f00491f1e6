"""Find the masks of a whole model; a function is searched once for all calls with the same masks and constants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from weakref import WeakKeyDictionary

from mixlist.graph.model import Graph
from mixlist.patterns.call_frames import CallFrame
from mixlist.patterns.constant_ranges import ConstantRanges
from mixlist.patterns.graph_masks import UNKNOWN_MASK, CallMasks, GraphMasks
from mixlist.patterns.mask_finder import NO_MASKS, MaskFinder

# The most finders of one model. ``CallFrames.scaled_limit`` raises this limit for a model with many calls.
MOST_FINDERS = 2_000
# The results of find_mask_groups(), by main graph and low type. ``tune`` asks for one model hundreds of times.
_CACHED_MASKS: WeakKeyDictionary[Graph, dict[int, GraphMasks]] = WeakKeyDictionary()


def find_mask_groups(main: Graph, ranges: ConstantRanges, low: int) -> GraphMasks:
    """Return the groups of a model whose masks leave the range of the low type.

    A second search of the same graph for the same low type returns the first result.
    """
    masks_by_type = _CACHED_MASKS.setdefault(main, {})
    if low not in masks_by_type:
        masks_by_type[low] = MaskFinders(ranges, low).finder_for(main, NO_MASKS, None).graph_masks
    return masks_by_type[low]


class MaskFinders:
    """The mask finders of a model's graphs, one for each graph and kind of call, and the GraphMasks that they make.

    A finder that reads a constant whose value depends on the call serves one CallFrame only. All other finders serve
    every call of their kind. Two finders of one function share a GraphMasks if both have the same effect on decisions.
    """

    def __init__(self, ranges: ConstantRanges, low: int) -> None:
        self.ranges, self.low = ranges, low
        self._by_frame: dict[tuple[Graph, CallMasks, CallFrame | None], MaskFinder] = {}
        self._first: dict[tuple[Graph, CallMasks], MaskFinder] = {}  # the first finder of each kind of call
        self._masks_by_effect: dict[Hashable, GraphMasks] = {}
        self._parameters_to_softmax: dict[tuple[int, tuple[bool, ...]], frozenset[int]] = {}

    def finder_for(self, graph: Graph, call_kind: CallMasks, frame: CallFrame | None) -> MaskFinder:
        """Return a finder that has searched the graph for a kind of call."""
        has_too_many_finders = len(self._by_frame) >= self.ranges.frames.scaled_limit(MOST_FINDERS)
        if has_too_many_finders and (graph, call_kind) not in self._first:
            # Functions that call functions can add up masks in a number of ways that grows exponentially. If all
            # magnitudes count as unknown, kinds of calls differ only in the arguments that have a mask.
            call_kind = replace(call_kind, arguments=tuple([mask and UNKNOWN_MASK for mask in call_kind.arguments]))
        # The first finder of a kind serves all calls, unless it examined a constant that differs between them.
        finder = self._first.get((graph, call_kind))
        if finder is not None and finder.depends_on_frame:
            finder = self._by_frame.get((graph, call_kind, frame))
        if finder is None:
            finder = self._by_frame[graph, call_kind, frame] = MaskFinder(self, graph, call_kind, frame)
            finder.find_graph_masks()
            self._first.setdefault((graph, call_kind), finder)
        return finder

    def share_equal(self, graph: Graph, masks: GraphMasks) -> GraphMasks:
        """Return the first GraphMasks of the graph that has the same effect as ``masks``."""
        return self._masks_by_effect.setdefault((graph, masks.effect), masks)

    def parameters_to_softmax(self, graph: Graph, reach_softmax: tuple[bool, ...]) -> frozenset[int]:
        """Return the positions of the parameters that lead to a softmax inside a function, or to one in the caller.

        ``reach_softmax`` says of each result whether it leads to a softmax in the caller.
        """
        key = id(graph), reach_softmax
        if key not in self._parameters_to_softmax:
            # Only the walk back is needed, which depends neither on the masks of the arguments nor on constants.
            to_softmax = MaskFinder(self, graph, CallMasks(reach_softmax=reach_softmax), None).trace_back()
            slots = [slot for slot, value in enumerate(graph.root.inputs) if value in to_softmax]
            self._parameters_to_softmax[key] = frozenset(slots)
        return self._parameters_to_softmax[key]
