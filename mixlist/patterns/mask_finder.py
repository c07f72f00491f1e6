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
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from mixlist.graph.model import Graph, Node, Value
from mixlist.ops import dtypes
from mixlist.ops.low_precision import FINITE_MAX, round_unless_lost
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.call_frames import CallFrame
from mixlist.patterns.constant_ranges import ConstantRange
from mixlist.patterns.factor_bounds import factor_bounds, reciprocal
from mixlist.patterns.graph_masks import LARGEST_SCORE, CallMasks, CarriedMask, GraphMasks, MaskGroup
from mixlist.patterns.mask_constants import computed_inputs, filled_mask_magnitude, is_reducible, make_single_node_group
from mixlist.patterns.mask_groups import make_mask_groups, mixable_values
from mixlist.patterns.proven_masks import SMALLEST_MASK

if TYPE_CHECKING:
    from mixlist.patterns.mask_calls import MaskFinders

_SOFTMAX = operators(Trait.SOFTMAX)
# ScatterElements and ScatterND write a mask into a part of another one, as torch exports masked_fill of a slice.
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
# These leave the magnitude of a mask as it is.
_CARRIERS = operators(Trait.MOVES_VALUES) | _SCATTERS | {"Max", "Neg", "Cast"}
_MASK_OPERATORS = _CARRIERS | _SOFTMAX | {"Add", "Sub", "Mul", "Div", "ConstantOfShape"}

NO_MASKS = CallMasks()


class MaskFinder:
    """Follows the masks of one graph: first back from the softmaxes, then forward with the magnitudes.

    A function's body has one finder for each kind of call (``call_kind``). A mask that enters or leaves a body cannot
    be reduced.

    ``graph_masks``: the result. ``nodes_to_softmax``: the nodes that could carry a mask to a softmax, in the order of
    the graph. ``carrying_nodes``: the nodes among them that carry one. ``masks``: the mask in each value that such a
    node makes, and in each parameter that receives one. ``arriving_values``: the values in which a mask reaches a
    softmax. ``constant_slots``: the slots that read a constant of a mask. ``constant_masks``: by node, the masks in the
    constants that it reads; they may be larger than the mask in its output. ``unreducible``: the nodes whose mask stays
    out of range, however its constants are changed. ``source_texts``: by node, the text that names the constant or
    tensor from which its mask comes.

    ``results_to_softmax``: by calling node, for each result whether it leads to a softmax. ``callees``: by calling
    node, the finder of the function.

    ``computed_mask_inputs``: by node, the inputs that are a mask, or a factor of one, and that nodes compute from other
    constants. ``computed_values``: these inputs, and the values from which they are computed. ``computed_parameters``:
    the slots of the parameters among them.

    ``depends_on_frame``: whether a constant was examined whose value depends on ``frame``.
    """

    def __init__(self, finders: MaskFinders, graph: Graph, call_kind: CallMasks, frame: CallFrame | None) -> None:
        self.finders, self.graph, self.call_kind, self.frame = finders, graph, call_kind, frame
        self.ranges, self.low = finders.ranges, finders.low
        self.graph_masks = GraphMasks()
        self.depends_on_frame = False
        self.results_to_softmax: dict[Node, tuple[bool, ...]] = {}
        self.callees: dict[Node, MaskFinder] = {}
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
        self.computed_values: set[Value | None] = set()
        self.computed_parameters: list[int] = []

    def find_graph_masks(self) -> None:
        """Fill ``graph_masks``: the groups of this graph, and the masks of the functions that it calls."""
        # 1. Which nodes lie on a way to a softmax?
        self.trace_back()
        # 2. Which masks do they carry, and how large are these?
        arguments = zip(self.graph.root.inputs, self.call_kind.arguments, strict=False)
        self.masks.update({value: mask for value, mask in arguments if mask is not None})
        for node in self.nodes_to_softmax:
            self._find_output_mask(node)
        on_path = set(self.nodes_to_softmax)
        for node in self.results_to_softmax:
            if node not in on_path:  # the function may still have masks of its own
                self._search_callee(node, NO_MASKS)
        self._drop_masks_that_end()
        # 3. Which of these nodes belong together?
        if any(mask.exceeds(self.low) for mask in chain(self.masks.values(), *self.constant_masks.values())):
            self.graph_masks.groups = make_mask_groups(self)
        self.graph_masks.groups += tuple(self._single_node_groups())
        self.graph_masks = self.finders.share_equal(self.graph, self.graph_masks)

    # --- back from the softmaxes ---

    def trace_back(self) -> set[Value | None]:
        """Find the nodes on a way to a softmax; return all values on such a way."""
        results = zip(self.graph.root.outputs, self.call_kind.reach_softmax, strict=False)
        to_softmax: set[Value | None] = set(mixable_values(value for value, reaches in results if reaches))
        # Backward through the topological order: all readers of a value come before the node that makes it.
        for node in reversed(self.graph.nodes):
            if node.function is not None:
                results_to_softmax: tuple[bool, ...] = tuple([value in to_softmax for value in node.outputs])
                if not any(results_to_softmax):
                    results_to_softmax = ()  # as in CallMasks: False for all
                self.results_to_softmax[node] = results_to_softmax
                parameters = self.finders.parameters_to_softmax(node.function, results_to_softmax)
                if results_to_softmax or parameters:
                    self.nodes_to_softmax.append(node)
                    arguments = (value for slot, value in enumerate(node.inputs) if slot in parameters)
                    to_softmax.update(mixable_values(arguments))
                continue
            if node.op_type not in _MASK_OPERATORS or not node.is_plain:
                continue
            if node.op_type in _SOFTMAX:
                self.softmaxes.add(node)
                to_softmax.update(mixable_values(node.inputs[:1]))
            elif not to_softmax.isdisjoint(node.outputs):
                self.nodes_to_softmax.append(node)
                to_softmax.update(mixable_values(_mask_inputs(node)))
        self.nodes_to_softmax.reverse()
        return to_softmax

    # --- forward with the magnitudes ---

    def _find_output_mask(self, node: Node) -> None:
        """Find the mask in the outputs of a node."""
        if node.function is not None:
            self._find_result_masks(node, node.function)
            return
        if node.op_type == "ConstantOfShape":
            mask = self._filled_mask(node)
        else:
            masks_read = dict(self._read_masks(node))
            mask = self._combined(node, masks_read) if masks_read else None
        if mask is not None:
            self.carrying_nodes.add(node)
            self.masks.update(dict.fromkeys(mixable_values(node.outputs), mask))

    def _find_result_masks(self, node: Node, function: Graph) -> None:
        """Follow masks into the function that a node calls, and out of it."""
        # Which masks enter the function?
        results_to_softmax = self.results_to_softmax[node]
        parameters = self.finders.parameters_to_softmax(function, results_to_softmax)
        masks_read = dict(self._read_masks(node, parameters))
        arguments = tuple([masks_read.get(slot) for slot in range(len(node.inputs))]) if masks_read else ()
        callee = self._search_callee(node, CallMasks(arguments, results_to_softmax))
        result_masks = [callee.masks.get(value) for value in function.root.outputs]
        masks_made: dict[Value | None, CarriedMask] = {
            value: mask
            for value, mask, reaches in zip(node.outputs, result_masks, results_to_softmax, strict=False)
            if value and reaches and mask
        }
        # No result has a mask: use the masks of calls whose results lead to no softmax, which other calls may share.
        if results_to_softmax and not masks_made:
            self._search_callee(node, CallMasks(arguments))
        self.masks.update(masks_made)
        # A body may serve other calls, so nothing is reduced for a mask that passes a call.
        if masks_read or masks_made:
            self.carrying_nodes.add(node)
            self.unreducible.add(node)
            self.source_texts.setdefault(node, f"a tensor of {node.op_type}")

    def _search_callee(self, node: Node, call_kind: CallMasks) -> MaskFinder:
        """Search the called function for a kind of call, add its masks to ``graph_masks``, return its finder."""
        assert node.function is not None
        frame = self.ranges.frames.frame_of(node, self.frame)
        callee = self.callees[node] = self.finders.finder_for(node.function, call_kind, frame)
        self.graph_masks.calls[node.id] = callee.graph_masks
        # The main graph has no frame: its constants are the same in every search.
        self.depends_on_frame |= callee.depends_on_frame and self.frame is not None
        return callee

    def range_of(self, value: Value) -> ConstantRange | None:
        """Return the range that a constant has in this call; None if it is unknown."""
        self.depends_on_frame |= self.ranges.frames.depends_on_call(value, self.frame)
        return self.ranges.known_range_of(value, self.frame)

    def _read_masks(self, node: Node, slots: AbstractSet[int] | None = None) -> Iterator[tuple[int, CarriedMask]]:
        """Yield the input slots that carry a mask, each with its mask, and note the slots of constants.

        ``slots``: at a call, the only slots that count.
        """
        for slot, value in enumerate(_mask_inputs(node)):
            if value is None or value.type not in dtypes.MIXABLE or (slots is not None and slot not in slots):
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
        constant_range = self.range_of(value)
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
        bounds = factor_bounds(factor, self.range_of, self.low) if factor is not None else None
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
        # Walk back again, now only along values that carry a mask: trace_back() did not know where masks are.
        arriving = self.arriving_values
        results = zip(self.graph.root.outputs, self.call_kind.reach_softmax, strict=False)
        arriving.update(value for value, reaches in results if reaches)
        arriving.update(value for node in self.softmaxes for value in node.inputs[:1])
        for node in reversed(self.nodes_to_softmax):
            if node not in self.carrying_nodes:
                continue
            is_arriving = any(value in arriving and value in self.masks for value in node.outputs)
            if node.function is not None:
                arguments = self._arriving_arguments(node, node.function)
            else:
                arguments = _mask_inputs(node) if is_arriving else []
            arriving.update(mixable_values(arguments))
            if not is_arriving and not arguments:
                self.carrying_nodes.remove(node)

    def _arriving_arguments(self, node: Node, function: Graph) -> list[Value | None]:
        """Return the arguments of a call in which a mask reaches a softmax, inside the function or behind it."""
        callee = self.callees[node]
        searched_results = callee.call_kind.reach_softmax
        results = tuple(
            [value in self.arriving_values for value, _ in zip(node.outputs, searched_results, strict=False)]
        )
        if any(searched_results) and results != searched_results:  # some of the results do not arrive after all
            callee = self._search_callee(node, replace(callee.call_kind, reach_softmax=results if any(results) else ()))
        pairs = zip(node.inputs, function.root.inputs, strict=False)
        return [value for value, parameter in pairs if parameter in callee.arriving_values]

    # --- the nodes that compute masks ---

    def _single_node_groups(self) -> Iterator[MaskGroup]:
        """Yield a group for each node that computes a mask or its factor from other constants, the last node first."""
        results = zip(self.graph.root.outputs, self.call_kind.compute_mask, strict=False)
        self.computed_values.update(value for value, is_computed in results if is_computed and value.is_constant)
        # A node whose mask ends before the softmax is not in carrying_nodes any more and needs no protection.
        readers = self.computed_mask_inputs.keys() & self.carrying_nodes
        self.computed_values.update(chain.from_iterable(self.computed_mask_inputs[node] for node in readers))
        if not self.computed_values and not any(callee.computed_parameters for callee in self.callees.values()):
            return
        for node in reversed(self.graph.nodes):
            callee = self.callees.get(node)
            compute_mask = tuple([value in self.computed_values for value in node.outputs])
            if callee is not None:
                # Search the function again, now with the results from which this graph computes a mask.
                if any(compute_mask):
                    callee = self._search_callee(node, replace(callee.call_kind, compute_mask=compute_mask))
                self.computed_values.update(computed_inputs(node, callee.computed_parameters))
            elif any(compute_mask):
                self.computed_values.update(computed_inputs(node, range(len(node.inputs))))
                group = make_single_node_group(node, self.range_of, self.low)
                if group is not None:
                    yield group
        parameters = enumerate(self.graph.root.inputs)
        self.computed_parameters = [slot for slot, value in parameters if value in self.computed_values]


def _mask_inputs(node: Node) -> list[Value | None]:
    """Return the inputs that may carry a mask: all but a divisor."""
    return node.inputs[:1] if node.is_plain and node.op_type == "Div" else node.inputs


def _accumulates(node: Node) -> bool:
    """Return whether a node is a scatter that may add or multiply any number of values into one place."""
    return node.op_type in _SCATTERS and any(
        attribute.name == "reduction" and attribute.s in (b"add", b"mul") for attribute in node.proto.attribute
    )
