"""Find the masks of a graph that leave the range of a low type, and everything that they pass on the way to a softmax.

Rule S4.35: A mask is a large negative constant that Add, Sub, Max, Where and value movers carry to a softmax. Neg,
Mul and Div may scale it on the way, for example by 0 where nothing is masked.

Rule S4.37: The scores that are added to a mask are between -16000 and 16000.

This module knows no policy. ``resolver.masks`` decides for each group of connected nodes what happens to its mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from mixlist.graph.model import Graph, Node, Value
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, round_unless_lost
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.call_frames import CallFrame
from mixlist.patterns.constants import ConstantRange
from mixlist.patterns.factor_bounds import factor_bounds, reciprocal
from mixlist.patterns.mask_constants import computed_inputs, computing_group, filled_mask, is_reducible
from mixlist.patterns.mask_plan import LARGEST_SCORE, CallMasks, MaskFlow, MaskGroup, MaskPlan
from mixlist.patterns.masks import SMALLEST_MASK

if TYPE_CHECKING:
    from mixlist.patterns.mask_calls import MaskFinders

_SOFTMAX = operators(Trait.SOFTMAX)
_ONLY_SHAPE = operators(Trait.READS_ONLY_SHAPE)
# ScatterElements and ScatterND write a mask into a part of another one, as torch exports masked_fill of a slice.
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
_PASSES = operators(Trait.MOVES_VALUES) | _SCATTERS | {"Max", "Neg", "Cast"}
_PARTS = _PASSES | _SOFTMAX | {"Add", "Sub", "Mul", "Div", "ConstantOfShape"}

NO_MASKS = CallMasks()


class MaskFinder:
    """Follows the masks of one graph: back from the softmaxes, then forward with the numbers.

    A function's body has one finder for each kind of call. No mask that enters or leaves a body can be reduced.

    ``path``: the nodes that could carry a mask to a softmax. ``carrying``: those that do. ``flows``: the mask in each
    value that a node makes. ``arriving``: the values in which a mask reaches a softmax. ``constants``: the slots that
    read a constant of a mask. ``read_constants``: by node the masks in the other constants that it reads, which may be
    larger than the mask in its output. ``computed``: the constants that a mask or its factor is computed from;
    ``computed_at``: by node those that it reads itself; ``computed_slots``: the parameters among them. ``varies``:
    whether a constant was examined whose value depends on ``frame``.
    """

    def __init__(self, finders: MaskFinders, graph: Graph, call: CallMasks, frame: CallFrame | None) -> None:
        self.finders, self.graph, self.call, self.frame = finders, graph, call, frame
        self.ranges, self.low = finders.ranges, finders.low
        self.varies = False
        self.callees: dict[Node, MaskFinder] = {}
        self.arriving: set[Value | None] = set()
        self.computed: set[Value | None] = set()
        self.computed_at: dict[Node, list[Value]] = {}
        self.computed_slots: list[int] = []
        self.plan = MaskPlan()
        self.calls: dict[Node, tuple[bool, ...]] = {}  # the calls of functions, with the results that are wanted
        self.softmaxes: set[Node] = set()
        self.path: list[Node] = []
        self.flows: dict[Value | None, MaskFlow] = {}
        self.carrying: set[Node] = set()
        self.constants: list[tuple[Node, int]] = []
        self.read_constants: dict[Node, list[MaskFlow]] = {}
        self.unsound: set[Node] = set()  # nodes whose mask no constant's change keeps in range
        self.sources: dict[Node, str] = {}
        self.leaders: dict[Node, Node] = {}  # of the groups, as a union-find forest

    def find(self) -> None:
        """Find the groups in the order of their first node."""
        self.trace_back()
        arguments = zip(self.graph.root.inputs, self.call.arguments, strict=False)
        self.flows.update({value: flow for value, flow in arguments if flow is not None})
        for node in self.path:
            self._carry(node)
        on_path = set(self.path)
        for node in self.calls:
            if node not in on_path:
                self._call(node, NO_MASKS)
        self._drop_ended()
        if any(flow.exceeds(self.low) for flow in chain(self.flows.values(), *self.read_constants.values())):
            self._connect()
            self.plan.groups = tuple(self._groups())
        self.plan.groups += tuple(self._computing())
        self.plan = self.finders.shared(self.graph, self.plan)

    def _drop_ended(self) -> None:
        """Forget the nodes whose masks end before a softmax, in a Cast of the author that makes them infinite."""
        if not self.flows:
            return
        results = zip(self.graph.root.outputs, self.call.wanted, strict=False)
        arriving = self.arriving
        arriving.update(value for value, is_wanted in results if is_wanted)
        arriving.update(value for node in self.softmaxes for value in node.inputs[:1])
        for node in reversed(self.path):
            if node not in self.carrying:
                continue
            is_arriving = any(value in arriving and value in self.flows for value in node.outputs)
            if node.function is not None:
                callee = self.callees[node]
                wanted = tuple([value in arriving for value, _ in zip(node.outputs, callee.call.wanted, strict=False)])
                if any(callee.call.wanted) and wanted != callee.call.wanted:
                    callee = self._call(node, replace(callee.call, wanted=wanted if any(wanted) else ()))
                pairs = zip(node.inputs, node.function.root.inputs, strict=False)
                read = [value for value, parameter in pairs if parameter in callee.arriving]
            else:
                read = _carried(node) if is_arriving else []
            arriving.update(_listed(read))
            if not is_arriving and not read:
                self.carrying.remove(node)

    def trace_back(self) -> set[Value | None]:
        """Find the nodes on a way to a softmax, from the end; return all values on a way."""
        results = zip(self.graph.root.outputs, self.call.wanted, strict=False)
        leading: set[Value | None] = set(_listed(value for value, is_wanted in results if is_wanted))
        for node in reversed(self.graph.nodes):
            if node.function is not None:
                wanted = tuple([value in leading for value in node.outputs])
                self.calls[node] = wanted = wanted if any(wanted) else ()
                leads = self.finders.leading(node.function, wanted)
                if wanted or leads:
                    self.path.append(node)
                    leading.update(_listed(value for slot, value in enumerate(node.inputs) if slot in leads))
                continue
            if node.op_type not in _PARTS or not node.is_plain:
                continue
            if node.op_type in _SOFTMAX:
                self.softmaxes.add(node)
                leading.update(_listed(node.inputs[:1]))
            elif not leading.isdisjoint(node.outputs):
                self.path.append(node)
                leading.update(_listed(_carried(node)))
        self.path.reverse()
        return leading

    # --- the numbers ---

    def _carry(self, node: Node) -> None:
        """Find the mask in the outputs of a node."""
        if node.function is not None:
            self._enter(node, node.function)
            return
        if node.op_type == "ConstantOfShape":
            flow = self._filled(node)
        else:
            read = {slot: flow for slot, flow in self._read(node) if flow is not None}
            flow = self._combined(node, read) if read else None
        if flow is not None:
            self.carrying.add(node)
            self.flows.update(dict.fromkeys(_listed(node.outputs), flow))

    def _enter(self, node: Node, function: Graph) -> None:
        """Follow masks into the function that a node calls, and out of it."""
        wanted = self.calls[node]
        leads = self.finders.leading(function, wanted)
        read = {slot: flow for slot, flow in self._read(node, leads) if flow is not None}
        arguments = tuple([read.get(slot) for slot in range(len(node.inputs))]) if read else ()
        callee = self._call(node, CallMasks(arguments, wanted))
        results = [callee.flows.get(value) for value in function.root.outputs]
        made: dict[Value | None, MaskFlow] = {
            v: flow for v, flow, want in zip(node.outputs, results, wanted, strict=False) if v and want and flow
        }
        if wanted and not made:  # calls that return no mask share their decisions
            self._call(node, CallMasks(arguments))
        self.flows.update(made)
        if read or made:
            self.carrying.add(node)
            self.unsound.add(node)
            self.sources.setdefault(node, f"a tensor of {node.op_type}")

    def _call(self, node: Node, call: CallMasks) -> MaskFinder:
        """Let the plan of a call be that for a kind of call; return its finder."""
        assert node.function is not None
        callee = self.callees[node] = self.finders.of(
            node.function, call, self.ranges.frames.frame_of(node, self.frame)
        )
        self.plan.calls[node.id] = callee.plan
        self.varies |= callee.varies and self.frame is not None
        return callee

    def _range_of(self, value: Value) -> ConstantRange | None:
        """Return the range that a constant has in this call; None if it is not known."""
        self.varies |= self.ranges.frames.depends_on_call(value, self.frame)
        return self.ranges.known_range_of(value, self.frame)

    def _read(self, node: Node, slots: AbstractSet[int] | None = None) -> Iterator[tuple[int, MaskFlow | None]]:
        """Yield the slots that may carry a mask, with the mask; ``slots`` are those of a call."""
        for slot, value in enumerate(_carried(node)):
            if value is None or value.type not in types.MIXABLE or (slots is not None and slot not in slots):
                continue
            flow = self.flows.get(value)
            if value.is_constant and (flow is None or value.constant_proto is not None):
                flow = self._constant(node, slot, value)
            elif flow is not None and value.is_constant:
                self.constants.append((node, slot))
            yield slot, flow

    def _constant(self, node: Node, slot: int, value: Value) -> MaskFlow | None:
        """Return the mask in a constant that no node of the path makes, if it holds numbers of that size."""
        known = self._range_of(value)
        # Rounded, so that a rewritten model has the same masks.
        magnitude = round_unless_lost(known.max_abs, self.low) if known is not None else 0.0
        if magnitude < SMALLEST_MASK:
            return None
        self.constants.append((node, slot))
        if value.constant_proto is None:
            self.computed_at.setdefault(node, []).append(value)
        if not is_reducible(value):
            self.unsound.add(node)
        self.sources.setdefault(node, f"constant {value.name!r}")
        flow = MaskFlow(magnitude)
        self.read_constants.setdefault(node, []).append(flow)
        return flow

    def _filled(self, node: Node) -> MaskFlow | None:
        """Return the mask that a ConstantOfShape makes; its number is no constant that could be changed."""
        magnitude = filled_mask(node)
        if magnitude is None:
            return None
        self.unsound.add(node)
        name = node.outputs[0].name if node.outputs and node.outputs[0] is not None else ""
        self.sources[node] = f"tensor {name!r}"
        return MaskFlow(magnitude)

    def _combined(self, node: Node, read: Mapping[int, MaskFlow]) -> MaskFlow | None:
        flows = list(read.values())
        if node.op_type == "Cast":
            made = next((value.type for value in _listed(node.outputs)), types.UNKNOWN)
            is_infinite = made in FINITE_MAX and FINITE_MAX[made] < flows[0].total < inf  # by the author's will
            return None if is_infinite else flows[0]
        if node.op_type in ("Mul", "Div"):
            return self._scaled(node, read)
        if node.op_type in ("Add", "Sub"):
            return MaskFlow(
                sum(flow.total for flow in flows),
                sum(flow.weight for flow in flows),
                max([LARGEST_SCORE, *(flow.scores for flow in flows)]),
            )
        return MaskFlow(
            max(flow.total for flow in flows),
            max(flow.weight for flow in flows),
            inf if _accumulates(node) else max(flow.scores for flow in flows),
        )

    def _scaled(self, node: Node, read: Mapping[int, MaskFlow]) -> MaskFlow:
        """Return a mask times or over a factor. An unknown factor may be a score: then no constant can be reduced."""
        flow, *masks = read.values()
        if masks:
            self.unsound.add(node)
            return flow.multiplied(masks[0])
        factor = next((value for slot, value in enumerate(node.inputs) if value is not None and slot not in read), None)
        if factor is not None and factor.is_constant and factor.constant_proto is None:
            self.computed_at.setdefault(node, []).append(factor)
        bounds = factor_bounds(factor, self._range_of, self.low) if factor is not None else None
        if bounds is not None and node.op_type == "Div":
            bounds = reciprocal(bounds)
        if bounds is None:
            self.unsound.add(node)
            return flow
        return flow.scaled(bounds.magnitude)

    def _computing(self) -> Iterator[MaskGroup]:
        """Yield groups of the nodes that compute masks and their factors from other constants, from the end."""
        results = zip(self.graph.root.outputs, self.call.computed, strict=False)
        self.computed.update(value for value, is_computed in results if is_computed and value.is_constant)
        self.computed.update(
            chain.from_iterable(self.computed_at[node] for node in self.computed_at.keys() & self.carrying)
        )
        if not self.computed and not any(callee.computed_slots for callee in self.callees.values()):
            return
        for node in reversed(self.graph.nodes):
            callee, makes = self.callees.get(node), tuple([value in self.computed for value in node.outputs])
            if callee is not None:
                callee = self._call(node, replace(callee.call, computed=makes)) if any(makes) else callee
                self.computed.update(computed_inputs(node, callee.computed_slots))
            elif any(makes):
                self.computed.update(computed_inputs(node, range(len(node.inputs))))
                group = computing_group(node, self._range_of, self.low)
                if group is not None:
                    yield group
        self.computed_slots = [slot for slot, value in enumerate(self.graph.root.inputs) if value in self.computed]

    # --- the groups ---

    def _connect(self) -> None:
        """Join the nodes that a mask connects; mark as unsound those whose mask is also read elsewhere."""
        values = self.flows.keys()
        parameters: dict[Value, Node] = {}  # with a node that reads the mask in it
        results = [self.graph.root.outputs]
        for node in self.graph.nodes:
            results += [body.outputs for body in node.bodies.values()]
            if values.isdisjoint(node.inputs):
                continue
            is_on_way = node in self.carrying or node in self.softmaxes
            for value in node.inputs:
                if value is None or value not in values:
                    continue
                if is_on_way:
                    self._join(value.producer or parameters.setdefault(value, node), node)
                    if value.producer is None:
                        self.unsound.add(node)
                        self.sources.setdefault(node, f"argument {value.name!r}")
                elif value.producer is not None and (node.op_type not in _ONLY_SHAPE or node.domain):
                    self.unsound.add(value.producer)
        for value in chain.from_iterable(results):
            if value in values and value.producer is not None:
                self.unsound.add(value.producer)

    def _leader(self, node: Node) -> Node:
        while (above := self.leaders.get(node, node)) is not node:
            self.leaders[node] = self.leaders.get(above, above)
            node = above
        return node

    def _join(self, one: Node, other: Node) -> None:
        first, second = self._leader(one), self._leader(other)
        if first is not second:
            self.leaders[max(first, second, key=_order)] = min(first, second, key=_order)

    def _groups(self) -> Iterator[MaskGroup]:
        """Yield the groups of which a value leaves the range."""
        groups: dict[Node, MaskGroup] = {}
        weights: dict[Node, float] = {}
        leaving: set[Node] = set()  # the leaders of groups with a value out of range
        for node in sorted(self.carrying | self.softmaxes, key=_order):
            scores = node.inputs[0] if node in self.softmaxes else None
            if scores is not None and scores.is_constant and scores in self.flows:
                self.constants.append((node, 0))
            found = [flow for value in (*node.inputs, *node.outputs) if (flow := self.flows.get(value)) is not None]
            if not found:
                continue  # a softmax without a mask
            found += self.read_constants.get(node, ())
            leader = self._leader(node)
            group = groups.setdefault(leader, MaskGroup())
            if node in self.softmaxes:
                group.softmaxes.append(node)
            weights[leader] = max(weights.get(leader, 1.0), *(flow.weight for flow in found))
            group.total = max(group.total, *(flow.total for flow in found))
            group.reducible &= node not in self.unsound
            if node in self.sources and not group.source:
                group.source = self.sources[node]
            group.reducible &= all(flow.scores <= FINITE_MAX[self.low] / 2 for flow in found)
            exceeds = any(flow.exceeds(self.low) for flow in found)
            if exceeds:
                leaving.add(leader)
            if node.function is None and (exceeds or node in self.softmaxes):
                group.exceeding.append(node)
            group.destination = group.destination or self._destination(node)
        for leader, group in groups.items():
            group.limit = FINITE_MAX[self.low] / 2 / weights[leader]
            group.reducible &= group.limit >= SMALLEST_MASK
        for node, slot in self.constants:
            if node.function is None and (node in self.carrying or node in self.softmaxes):
                group = groups[self._leader(node)]
                if self._changes(node.inputs[slot], group.limit):
                    group.limits.setdefault(node, {})[slot] = group.limit
        yield from (group for leader, group in groups.items() if leader in leaving and group.destination)

    def _destination(self, node: Node) -> str:
        """Return the name of a softmax, or of a call that brings a mask to one; empty for other nodes."""
        results = zip(self.graph.root.outputs, self.call.wanted, strict=False)
        if any(is_wanted and value in node.outputs for value, is_wanted in results):
            return f"the caller of {self.graph.path}"
        reads_mask = not self.flows.keys().isdisjoint(node.inputs) or node in self.read_constants
        if node in self.softmaxes or (node.function is not None and reads_mask):
            return f"{node.op_type} {node.proto.name!r}" if node.proto.name else node.op_type
        return ""

    def _changes(self, value: Value | None, limit: float) -> bool:
        """Return whether a limit may change a constant, or the constants that it is computed from."""
        known = self.ranges.known_range_of(value) if value is not None and value.constant_proto is not None else None
        return known is None or known.max_abs > limit


def _carried(node: Node) -> list[Value | None]:
    """Return the inputs that may carry a mask: all but a divisor."""
    return node.inputs[:1] if node.is_plain and node.op_type == "Div" else node.inputs


def _accumulates(node: Node) -> bool:
    """Return whether a node is a scatter that may add or multiply any number of values into one place."""
    return node.op_type in _SCATTERS and any(
        attribute.name == "reduction" and attribute.s in (b"add", b"mul") for attribute in node.proto.attribute
    )


def _order(node: Node) -> int:
    return node.id


def _listed(values: Iterable[Value | None]) -> list[Value]:
    return [value for value in values if value is not None and value.type in types.MIXABLE]
