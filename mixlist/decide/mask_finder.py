"""Find the masks of a graph that leave the range of a low type, and every node that they pass on the way to a softmax.

Rule S4.35: A mask is a large negative constant that Add, Sub, Max, Where and value movers carry to a softmax. Neg,
Mul and Div may scale it on the way, for example by 0 where nothing is masked::

    (1 - attention_mask) -> Mul(-1e9) -> Add(scores) -> Softmax

Rule S4.37: The scores that are added to a mask are between -16000 and 16000.

This module knows no policy. ``resolver.mask_protection`` decides for each group of connected nodes what happens to its
mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import inf
from weakref import WeakKeyDictionary

from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.factor_bounds import factor_bounds, reciprocal
from mixlist.decide.graph_masks import LARGEST_SCORE, CarriedMask, MaskGroup
from mixlist.decide.mask_constants import computed_inputs, filled_mask_magnitude, is_reducible, make_single_node_group
from mixlist.decide.mask_groups import make_mask_groups, mixable_values
from mixlist.decide.proven_masks import SMALLEST_MASK
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.low_precision import FINITE_MAX, round_unless_lost
from mixlist.model.traits import Trait, operators

_SOFTMAX = operators(Trait.SOFTMAX)
# ScatterElements and ScatterND write a mask into a part of another one, as torch exports masked_fill of a slice.
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
# These leave the magnitude of a mask as it is.
_CARRIERS = operators(Trait.MOVES_VALUES) | _SCATTERS | {"Max", "Neg", "Cast"}
_MASK_OPERATORS = _CARRIERS | _SOFTMAX | {"Add", "Sub", "Mul", "Div", "ConstantOfShape"}

# The results of find_mask_groups(), by graph and low type. ``tune`` asks for one model hundreds of times.
_CACHED_GROUPS: WeakKeyDictionary[Graph, dict[int, tuple[MaskGroup, ...]]] = WeakKeyDictionary()


def find_mask_groups(graph: Graph, ranges: ConstantRanges, low: int) -> tuple[MaskGroup, ...]:
    """Return the groups of a model whose masks leave the range of the low type, in the order of their first node.

    A second search of the same graph for the same low type returns the first result.
    """
    groups_by_type = _CACHED_GROUPS.setdefault(graph, {})
    if low not in groups_by_type:
        groups_by_type[low] = MaskFinder(graph, ranges, low).find_groups()
    return groups_by_type[low]


class MaskFinder:
    """Follows the masks of a model: first back from the softmaxes, then forward with the magnitudes.

    ``nodes_to_softmax``: the nodes that could carry a mask to a softmax, in the order of the graph. ``carrying_nodes``:
    the nodes among them that carry one. ``masks``: the mask in each value that such a node makes. ``arriving_values``:
    the values in which a mask reaches a softmax. ``constant_slots``: the slots that read a constant of a mask.
    ``constant_masks``: by node, the masks in the constants that it reads; they may be larger than the mask in its
    output. ``unreducible``: the nodes whose mask stays out of range, however its constants are changed.
    ``source_texts``: by node, the text that names the constant or tensor from which its mask comes.

    ``computed_mask_inputs``: by node, the inputs that are a mask, or a factor of one, and that nodes compute from other
    constants.
    """

    def __init__(self, graph: Graph, ranges: ConstantRanges, low: int) -> None:
        self.graph, self.ranges, self.low = graph, ranges, low
        self.softmaxes: set[Node] = set()
        self.nodes_to_softmax: list[Node] = []
        self.masks: dict[Value | None, CarriedMask] = {}
        self.carrying_nodes: set[Node] = set()
        self.arriving_values: set[Value | None] = set()
        self.constant_slots: list[tuple[Node, int]] = []
        self.constant_masks: dict[Node, list[CarriedMask]] = {}
        self.unreducible: set[Node] = set()
        self.source_texts: dict[Node, str] = {}
        self.computed_mask_inputs: dict[Node, list[Value]] = {}

    def find_groups(self) -> tuple[MaskGroup, ...]:
        """Return the groups whose masks leave the range of the low type."""
        # 1. Which nodes lie on a way to a softmax?
        self._trace_back()
        # 2. Which masks do they carry, and how large are these?
        for node in self.nodes_to_softmax:
            self._find_output_mask(node)
        self._drop_masks_that_end()
        # 3. Which of these nodes belong together?
        groups: tuple[MaskGroup, ...] = ()
        if any(mask.exceeds(self.low) for mask in chain(self.masks.values(), *self.constant_masks.values())):
            groups = make_mask_groups(self)
        return (*groups, *self._single_node_groups())

    # --- back from the softmaxes ---

    def _trace_back(self) -> None:
        """Find the softmaxes, and the nodes on a way to one."""
        to_softmax: set[Value | None] = set()
        # Backward through the topological order: all readers of a value come before the node that makes it.
        for node in reversed(self.graph.nodes):
            if node.op_type not in _MASK_OPERATORS or not node.is_plain:
                continue
            if node.op_type in _SOFTMAX:
                self.softmaxes.add(node)
                to_softmax.update(mixable_values(node.inputs[:1]))
            elif not to_softmax.isdisjoint(node.outputs):
                self.nodes_to_softmax.append(node)
                to_softmax.update(mixable_values(_mask_inputs(node)))
        self.nodes_to_softmax.reverse()

    # --- forward with the magnitudes ---

    def _find_output_mask(self, node: Node) -> None:
        """Find the mask in the outputs of a node."""
        if node.op_type == "ConstantOfShape":
            mask = self._filled_mask(node)
        else:
            masks_read = dict(self._read_masks(node))
            mask = self._combined(node, masks_read) if masks_read else None
        if mask is not None:
            self.carrying_nodes.add(node)
            self.masks.update(dict.fromkeys(mixable_values(node.outputs), mask))

    def _read_masks(self, node: Node) -> Iterator[tuple[int, CarriedMask]]:
        """Yield the input slots that carry a mask, each with its mask, and note the slots of constants."""
        for slot, value in enumerate(_mask_inputs(node)):
            if value is None or value.type not in dtypes.MIXABLE:
                continue
            mask = self.masks.get(value)
            if value.is_constant and (mask is None or value.constant_proto is not None):
                mask = self._constant_mask(node, slot, value)
            elif mask is not None and value.is_constant:
                # A carrying node makes this constant from a mask, as in Unsqueeze(mask): limit it here, too.
                self.constant_slots.append((node, slot))
            if mask is not None:
                yield slot, mask

    def _constant_mask(self, node: Node, slot: int, value: Value) -> CarriedMask | None:
        """Return the mask in a constant that no carrying node makes, and note the constant; None if it is no mask."""
        constant_range = self.ranges.known_range_of(value)
        # Rounded, so that a rewritten model, whose constants are rounded, has the same masks.
        magnitude = round_unless_lost(constant_range.max_abs, self.low) if constant_range is not None else 0.0
        if magnitude < SMALLEST_MASK:
            return None
        self.constant_slots.append((node, slot))
        if value.constant_proto is None:
            self.computed_mask_inputs.setdefault(node, []).append(value)
        if not is_reducible(value):
            self.unreducible.add(node)
        self.source_texts.setdefault(node, f"constant {value.name!r}")
        mask = CarriedMask(magnitude)
        self.constant_masks.setdefault(node, []).append(mask)
        return mask

    def _filled_mask(self, node: Node) -> CarriedMask | None:
        """Return the mask that a ConstantOfShape makes; its number is an attribute, which cannot be reduced."""
        magnitude = filled_mask_magnitude(node)
        if magnitude is None:
            return None
        self.unreducible.add(node)
        name = node.outputs[0].name if node.outputs and node.outputs[0] is not None else ""
        self.source_texts[node] = f"tensor {name!r}"
        return CarriedMask(magnitude)

    def _combined(self, node: Node, masks_read: Mapping[int, CarriedMask]) -> CarriedMask | None:
        """Return the mask in the output of a node; None if the output has none.

        ``masks_read``: the masks by input slot, at least one.
        """
        masks = list(masks_read.values())
        if node.op_type == "Cast":
            output_type = next((value.type for value in mixable_values(node.outputs)), dtypes.UNKNOWN)
            # The author casts to a low type that makes the mask infinite. Infinities of the author are never reduced.
            is_infinite = output_type in FINITE_MAX and FINITE_MAX[output_type] < masks[0].magnitude < inf
            return None if is_infinite else masks[0]
        if node.op_type in ("Mul", "Div"):
            return self._scaled(node, masks_read)
        if node.op_type in ("Add", "Sub"):
            # In the worst case the masks of both operands have the same sign and place, so they add up.
            # The other operands may be scores. The sum of all scores counts as LARGEST_SCORE (Rule S4.37).
            return CarriedMask(
                sum(mask.magnitude for mask in masks),
                sum(mask.summed_masks for mask in masks),
                max([LARGEST_SCORE, *(mask.scores for mask in masks)]),
            )
        # Where, Concat, Max and scatters: each element comes from one of the masks.
        return CarriedMask(
            max(mask.magnitude for mask in masks),
            max(mask.summed_masks for mask in masks),
            inf if _accumulates(node) else max(mask.scores for mask in masks),
        )

    def _scaled(self, node: Node, masks_read: Mapping[int, CarriedMask]) -> CarriedMask:
        """Return a mask times a factor, or over a divisor.

        A factor without a known range may be a score. Then the mask cannot be reduced.
        """
        mask, *other_masks = masks_read.values()
        if other_masks:
            self.unreducible.add(node)
            return mask.multiplied(other_masks[0])
        # The only other operand; a Mul of two masks has none, and is done above.
        factors = (value for slot, value in enumerate(node.inputs) if value is not None and slot not in masks_read)
        factor = next(factors, None)
        if factor is not None and factor.is_constant and factor.constant_proto is None:
            self.computed_mask_inputs.setdefault(node, []).append(factor)
        bounds = factor_bounds(factor, self.ranges.known_range_of, self.low) if factor is not None else None
        if bounds is not None and node.op_type == "Div":
            bounds = reciprocal(bounds)
        if bounds is None:
            self.unreducible.add(node)
            return mask
        return mask.scaled(bounds.magnitude)

    def _drop_masks_that_end(self) -> None:
        """Forget the nodes whose mask reaches no softmax, because a Cast of the author makes the mask infinite."""
        if not self.masks:
            return
        # Walk back again, now only along values that carry a mask: _trace_back() did not know where masks are.
        arriving = self.arriving_values
        arriving.update(value for node in self.softmaxes for value in node.inputs[:1])
        for node in reversed(self.nodes_to_softmax):
            if node not in self.carrying_nodes:
                continue
            if any(value in arriving and value in self.masks for value in node.outputs):
                arriving.update(mixable_values(_mask_inputs(node)))
            else:
                self.carrying_nodes.remove(node)

    # --- the nodes that compute masks ---

    def _single_node_groups(self) -> Iterator[MaskGroup]:
        """Yield a group for each node that computes a mask or its factor from other constants, the last node first."""
        # A node whose mask ends before the softmax is not in carrying_nodes any more and needs no protection.
        readers = self.computed_mask_inputs.keys() & self.carrying_nodes
        # The inputs that are a mask or a factor, and the values from which they are computed.
        computed_values = set(chain.from_iterable(self.computed_mask_inputs[node] for node in readers))
        if not computed_values:
            return
        for node in reversed(self.graph.nodes):
            if computed_values.isdisjoint(node.outputs):
                continue
            computed_values.update(computed_inputs(node))
            group = make_single_node_group(node, self.ranges.known_range_of, self.low)
            if group is not None:
                yield group


def _mask_inputs(node: Node) -> list[Value | None]:
    """Return the inputs that may carry a mask: all but a divisor."""
    return node.inputs[:1] if node.op_type == "Div" else node.inputs


def _accumulates(node: Node) -> bool:
    """Return whether a node is a scatter that may add or multiply any number of values into one place."""
    return node.op_type in _SCATTERS and any(
        attribute.name == "reduction" and attribute.s in (b"add", b"mul") for attribute in node.proto.attribute
    )
