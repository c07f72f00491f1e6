"""Find the masks before a softmax, the nodes that they keep in high precision, and the masks that are reduced.

Rule S4.35: a mask before a float32 softmax stays as authored. Rule S4.36: a mask before a low-precision softmax is
reduced, if it has a constant to reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import TensorProto, numpy_helper

from mixlist.model.traits import Trait, operators
from tests.support.reference_constants import MOVERS, NUMPY, Constants
from tests.support.reference_flow import all_scopes
from tests.support.reference_model import BFLOAT16, FLOAT, FLOAT16, LISTED, Node, Scope, Value

SMALLEST_MASK = 1e4
ROOM = 16000.0  # for the scores that are added to a mask (Rule S4.37)
INFINITE: dict[int, float] = {FLOAT16: 65520.0, BFLOAT16: 2.0**128 - 2.0**119}  # the least that becomes infinite
LARGEST: dict[int, float] = {FLOAT16: 65504.0, BFLOAT16: 2.0**128 - 2.0**120}
FLOATS = (*LISTED, TensorProto.DOUBLE)
SOFTMAX = ("Softmax", "LogSoftmax")
SHAPE_READERS = tuple(operators(Trait.READS_ONLY_SHAPE))
SCATTERS = ("ScatterElements", "ScatterND")

Bounds = tuple[float, float]
# The range of the factors that a Cast makes of integers and booleans.
CAST_RANGES: dict[int, Bounds] = {
    number: (0.0, 1.0) for name, number in TensorProto.DataType.items() if name.startswith(("INT", "UINT", "BOOL"))
}
Mask = tuple[Value, Node]  # one reading of a constant: the constant, and the node that reads it


@dataclass(frozen=True)
class Content:
    """The masks in a value.

    ``size`` is their largest finite magnitude, and ``room`` what was added to them may have (Rule S4.37); ``count`` is
    the number of masks that are added up, each counted with the factors that scale it.
    """

    masks: frozenset[Mask] = frozenset()
    size: float = 0.0
    room: float = 0.0
    count: float = 1.0

    def scaled(self, factor: float) -> Content:
        """Return the masks times a factor."""
        return Content(self.masks, self.size * factor, self.room * factor, max(1.0, self.count * factor))


NO_MASKS = Content()


@dataclass(eq=False)
class MaskedSoftmaxes:
    """Softmaxes that belong together, the masks that reach them, and the nodes on the path to them.

    ``limits`` holds the masks, with the largest magnitude that each may have, if one of them is out of range;
    ``nodes_out_of_range`` are the nodes that read or make a mask out of range.
    """

    softmaxes: set[Node] = field(default_factory=set)
    masks: set[Mask] = field(default_factory=set)
    path_nodes: list[Node] = field(default_factory=list)
    limits: dict[Mask, float] = field(default_factory=dict)
    nodes_out_of_range: set[Node] = field(default_factory=set)
    can_be_reduced: bool = True


class Masks:
    """Find the masks of one model; ``groups`` holds the softmaxes that belong together."""

    def __init__(self, main: Scope, nodes: list[Node], constants: Constants, low: int) -> None:
        self.constants, self.low = constants, low
        self.results = {v for scope in all_scopes(main) for v in scope.outputs}
        self.contents: dict[Value, Content] = {}
        self.reaching_softmax: set[Value] = set()  # values whose masks no Cast ends before a softmax
        for node in nodes:  # readers come after what they read
            content = self._carried(node)
            if content.masks:
                self.contents |= {v: content for v in node.outputs if v is not None and v.elem in LISTED}
        for node in reversed(nodes):
            if is_softmax(node) or any(v in self.reaching_softmax and v in self.contents for v in node.outputs):
                self.reaching_softmax.update(carrying_inputs(node))
        self.groups = self._groups(nodes)
        self.computing_nodes = self._computing(nodes)

    # -- what a value carries -------------------------------------------------------------------------
    def content(self, value: Value, reader: Node) -> Content:
        """Return the masks that a node reads with a value."""
        if value in self.contents:
            return self.contents[value]
        size = self.constant_size(value)
        return Content(frozenset([(value, reader)]), size) if size else NO_MASKS

    def constant_size(self, value: Value) -> float:
        """Return the largest finite magnitude of a constant that is large enough for a mask; else 0."""
        array = self.constants.array(value) if self.constants.is_constant(value) else None
        if is_filled(value) and value.producer is not None:
            fill = value.producer.attribute("value")
            array = numpy_helper.to_array(fill.t) if fill is not None else np.zeros(1, np.float32)
        if array is None or value.elem not in LISTED or not array.size:
            return 0.0
        magnitudes = np.abs(array.astype(np.float64))
        largest = float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))
        with np.errstate(all="ignore"):
            rounded = np.float32(largest).astype(NUMPY[self.low])
        return largest if rounded >= SMALLEST_MASK else 0.0

    def _carried(self, node: Node) -> Content:
        """Return the masks that a node hands on."""
        inputs = [(v, self.content(v, node)) for v in carrying_inputs(node)]
        contents = [content for _, content in inputs if content.masks]
        if not contents or is_softmax(node):
            return NO_MASKS
        if node.op == "Cast" and any(
            c.size >= INFINITE.get(v.elem or 0, np.inf) for c in contents for v in node.outputs if v
        ):
            return NO_MASKS  # the author's Cast makes it infinite
        if is_standard(node, "Mul", "Div"):
            divisor = self.factor(node.inputs[1], node) if node.op == "Div" else 1.0
            if len(contents) > 1:
                contents = [replace(c, size=1e300) for c in contents]
            else:
                factors = [self.factor(v, node) for v, c in inputs if not c.masks]
                contents = [contents[0].scaled(float(np.prod(factors)) * divisor)]
        masks = frozenset(mask for content in contents for mask in content.masks)
        room, count = max(c.room for c in contents), max(c.count for c in contents)
        if is_standard(node, "Add", "Sub"):
            return Content(masks, sum(c.size for c in contents), max(room, ROOM), sum(c.count for c in contents))
        return Content(masks, max(c.size for c in contents), np.inf if accumulates(node) else room, count)

    # -- what is computed from other constants ---------------------------------------------------------
    def _computing(self, nodes: list[Node]) -> set[Node]:
        """Return the nodes that compute masks or their factors from other constants, if a constant does not fit."""
        waiting = [v for node in nodes for v in self._computed(node)]
        computing: dict[Node, None] = {}
        for value in waiting:
            node = value.producer
            if node is not None and node not in computing:
                computing[node] = None
                waiting += [v for v in node.inputs if v is not None and self.constants.is_constant(v)]
        return {node for node in computing if not all(self._fits(v) for v in (*node.inputs, *node.outputs))}

    def _computed(self, node: Node) -> Iterator[Value]:
        """Yield the constants that a node on a path reads as masks or their factors, and that are no masks before."""
        if is_softmax(node) or not any(v in self.reaching_softmax for v in node.outputs):
            return
        carried = [v for v in carrying_inputs(node) if self.content(v, node).masks]
        yield from (v for v in carried if v not in self.contents)
        if carried and is_standard(node, "Mul", "Div"):
            yield from (v for v in node.inputs if v is not None and v not in carried and self.constants.is_constant(v))

    def _fits(self, value: Value | None) -> bool:
        return value is None or not self.constants.is_constant(value) or self.constants.fits(value, self.low)

    # -- factors --------------------------------------------------------------------------------------
    def factor(self, value: Value | None, node: Node) -> float:
        """Return the largest magnitude of a factor, or of one over a divisor; 1 if it is not known."""
        bounds = self.bounds(value)
        if bounds and node.op == "Div" and node.inputs[1] is value:
            bounds = quotient((1.0, 1.0), bounds)
        return max(map(abs, bounds)) if bounds else 1.0

    def bounds(self, value: Value | None) -> Bounds | None:
        """Return the range of a factor that is computed from constants, integers and booleans; None for others."""
        node = value.producer if value is not None else None
        if value is not None and self.constants.is_constant(value):
            return self._constant_bounds(value)
        if is_standard(node, "Cast") and node is not None and node.inputs[0] is not None:
            source = node.inputs[0]
            return self.bounds(source) if source.elem in FLOATS else CAST_RANGES.get(source.elem or 0)
        if node is None or not is_standard(node, "Neg", "Min", "Max", "Where", *BINARY, *MOVERS):
            return None
        input_bounds = [self.bounds(v) for v in node.inputs if v is not None and v.elem in FLOATS]
        known_bounds = [bounds for bounds in input_bounds if bounds]
        if len(known_bounds) < len(input_bounds) or not known_bounds:
            return None
        if is_standard(node, *BINARY):
            return BINARY[node.op](known_bounds[0], known_bounds[1])
        if is_standard(node, "Neg"):
            return -known_bounds[0][1], -known_bounds[0][0]
        if is_standard(node, "Pad", "Trilu", "CenterCropPad"):
            known_bounds.append((0.0, 0.0))
        smallest = max if is_standard(node, "Max") else min
        largest = min if is_standard(node, "Min") else max
        return smallest(low for low, _ in known_bounds), largest(high for _, high in known_bounds)

    def _constant_bounds(self, value: Value) -> Bounds | None:
        array = self.constants.array(value)
        if array is None:
            return None
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if finite.size < numbers.size:
            return -float(np.abs(finite).max(initial=0.0)), float(np.abs(finite).max(initial=0.0))
        return float(finite.min(initial=np.inf)), float(finite.max(initial=-np.inf))

    # -- softmaxes that belong together -----------------------------------------------------------------
    def _groups(self, nodes: list[Node]) -> list[MaskedSoftmaxes]:
        groups: list[MaskedSoftmaxes] = []
        for softmax in filter(is_softmax, nodes):
            masks = {mask for v in carrying_inputs(softmax) for mask in self.contents.get(v, NO_MASKS).masks}
            merged = MaskedSoftmaxes({softmax}, masks)
            for overlapping in [group for group in groups if group.masks & masks]:
                merged.softmaxes |= overlapping.softmaxes
                merged.masks |= overlapping.masks
                groups.remove(overlapping)
            if masks:
                groups.append(merged)
        for group in groups:
            self._complete(group, nodes)
        return groups

    def _complete(self, group: MaskedSoftmaxes, nodes: list[Node]) -> None:
        """Find the nodes on the way to the softmaxes of a group, and how its masks can be reduced."""
        group.path_nodes = [node for node in nodes if self._is_on_path(node, group)]
        group.nodes_out_of_range = {
            node for node in group.path_nodes if any(self.is_out_of_range(c) for c in self._contents_at(node))
        }
        group.limits = self._limits(group)
        group.can_be_reduced = self._can_be_reduced(group)

    def _is_on_path(self, node: Node, group: MaskedSoftmaxes) -> bool:
        outputs = [v for v in node.outputs if v is not None and not is_softmax(node)]
        return any(self.contents.get(v, NO_MASKS).masks & group.masks and v in self.reaching_softmax for v in outputs)

    # -- what is out of range -----------------------------------------------------------------------------
    def is_out_of_range(self, content: Content) -> bool:
        """Return whether a mask leaves the range, with room for what was added."""
        return content.size + content.room >= INFINITE[self.low]

    def _contents_at(self, node: Node) -> Iterable[Content]:
        """Yield the masks in the values that a node on the path, or a softmax, reads and makes."""
        yield from (self.content(v, node) for v in carrying_inputs(node))
        # A divisor that holds a mask is read too, although the mask ends here.
        yield from (self.contents.get(v, NO_MASKS) for v in (*node.inputs, *node.outputs) if v is not None)

    def _limits(self, group: MaskedSoftmaxes) -> dict[Mask, float]:
        """Return the limit of each mask if one is out of range: half the largest low value, shared by added masks."""
        contents = [c for node in (*group.path_nodes, *group.softmaxes) for c in self._contents_at(node) if c.masks]
        if not any(map(self.is_out_of_range, contents)):
            return {}
        return dict.fromkeys(group.masks, LARGEST[self.low] / 2 / max(c.count for c in contents))

    # -- what can be reduced --------------------------------------------------------------------------------
    def _can_be_reduced(self, group: MaskedSoftmaxes) -> bool:
        """Return whether every mask has a constant to reduce, if one is out of range (Rule S4.36)."""
        masks = set(group.limits)
        outputs = [v for n in group.path_nodes for v in n.outputs if v is not None]
        touched = [v for v in outputs if self.contents.get(v, NO_MASKS).masks & masks]
        if any(v in self.results or self._is_read_elsewhere(v, group) for v in touched):
            return False
        if any(self.contents[v].room > LARGEST[self.low] / 2 for v in touched):
            return False
        compared = [v for v in touched if any(self._comparisons(node, group) for node, _ in v.readers)]
        largest = max([self.constant_size(v) for v, _ in masks] + [self.contents[v].size for v in touched], default=0)
        for content in (self.contents[v] for v in compared):
            if content.size < largest or content.count > 1 or content.room > ROOM:
                return False
        if any(limit < (ROOM if compared else SMALLEST_MASK) for limit in group.limits.values()):
            return False
        if any(not self._is_plain(constant) for constant, _ in masks):
            return False
        return all(self._is_scaling_harmless(node, masks) for node in group.path_nodes)

    def _is_plain(self, constant: Value) -> bool:
        """Return whether a constant is a float32 initializer or Constant of the graph, and no default of an input."""
        is_written = constant.array is not None or is_standard(constant.producer, "Constant", "ConstantOfShape")
        return is_written and constant.elem == FLOAT and not constant.is_input

    def _is_read_elsewhere(self, value: Value, group: MaskedSoftmaxes) -> bool:
        """Return whether a node that is neither on the path nor a softmax reads a value that holds a mask."""
        readers = [*group.path_nodes, *group.softmaxes]
        return any(
            (node not in readers or value not in carrying_inputs(node)) and self._comparisons(node, group) is None
            for node, _ in value.readers
        )

    def _comparisons(self, node: Node, group: MaskedSoftmaxes) -> int | None:
        """Return the number of comparisons with zero that a node outside the path serves; None if it does more."""
        if node in group.path_nodes or node in group.softmaxes or not node.is_standard or node.bodies:
            return None
        if is_standard(node, *SHAPE_READERS):
            return 0
        if is_standard(node, "Equal"):
            arrays = [self.constants._values(v) for v in node.inputs if v is not None and self.constants.is_constant(v)]
            return 1 if any(array is not None and array.size and not array.any() for array in arrays) else None
        outputs = [v for v in node.outputs if v is not None and v.elem in LISTED]
        is_passing = is_standard(node, "Add", *MOVERS) and not any(v in self.results for v in outputs)
        if not is_passing or sum(v is not None and self._has_mask(v) for v in node.inputs) > 1:
            return None
        counts = [self._comparisons(reader, group) for v in outputs for reader, _ in v.readers]
        return None if None in counts else sum(count or 0 for count in counts)

    def _has_mask(self, value: Value) -> bool:
        """Return whether a value holds a mask, also outside the path."""
        node = value.producer
        is_passed = node is not None and is_standard(node, "Add", *MOVERS) and value.elem in LISTED
        inputs = node.inputs if node is not None and is_passed else []
        return value in self.contents or any(v is not None and self._has_mask(v) for v in inputs)

    def _is_scaling_harmless(self, node: Node, masks: set[Mask]) -> bool:
        """Return whether no mask and no score scales one of the masks at a node, and what divides one is constant."""
        if not is_standard(node, "Mul", "Div"):
            return True
        values = [v for v in node.inputs if v is not None]
        carried = [self.content(v, node).masks for v in carrying_inputs(node)]
        if not any(carried_masks & masks for carried_masks in carried):
            return True
        factors = [v for v in values if v not in carrying_inputs(node) or not self.content(v, node).masks]
        if sum(bool(carried_masks) for carried_masks in carried) > 1:
            return False
        factor_bounds = [self.bounds(v) for v in factors]
        return all(bounds and (node.op == "Mul" or quotient((1.0, 1.0), bounds)) for bounds in factor_bounds)


def quotient(dividend: Bounds, divisor: Bounds) -> Bounds | None:
    """Return the range of a division; None if the divisor may be zero."""
    return None if divisor[0] <= 0 <= divisor[1] else product(dividend, (1 / divisor[1], 1 / divisor[0]))


def product(first: Bounds, second: Bounds) -> Bounds:
    """Return the range of a product."""
    ends = [a * b for a in first for b in second]
    return min(ends), max(ends)


BINARY: dict[str, Callable[[Bounds, Bounds], Bounds | None]] = {
    "Add": lambda first, second: (first[0] + second[0], first[1] + second[1]),
    "Sub": lambda first, second: (first[0] - second[1], first[1] - second[0]),
    "Mul": product,
    "Div": quotient,
}


def is_standard(node: Node | None, *ops: str) -> bool:
    """Return whether a node is one of these operators of the standard domain."""
    return node is not None and node.is_standard and node.op in ops


def is_filled(value: Value) -> bool:
    """Return whether a ConstantOfShape makes the value."""
    return is_standard(value.producer, "ConstantOfShape")


def is_softmax(node: Node) -> bool:
    """Return whether the node may have a mask before it."""
    return is_standard(node, *SOFTMAX)


def accumulates(node: Node) -> bool:
    """Return whether the node may add or multiply any number of values into one place."""
    reduction = node.attribute("reduction")
    return is_standard(node, *SCATTERS) and reduction is not None and reduction.s in (b"add", b"mul")


def carrying_inputs(node: Node) -> list[Value]:
    """Return the inputs of which a node carries masks."""
    slots = {"Div": (0,), "Where": (1, 2), "Softmax": (0,), "LogSoftmax": (0,)}
    is_carrier = is_standard(
        node, "Add", "Sub", "Mul", "Div", "Neg", "Max", "Where", "Cast", *SCATTERS, *SOFTMAX, *MOVERS
    )
    if not is_carrier or node.bodies:
        return []
    if node.op == "Cast" and any(v is None or v.elem not in LISTED for v in (*node.inputs, *node.outputs)):
        return []
    carrying = [v for i, v in enumerate(node.inputs) if i in slots.get(node.op, range(len(node.inputs)))]
    return [v for v in carrying if v is not None and v.elem in LISTED]
