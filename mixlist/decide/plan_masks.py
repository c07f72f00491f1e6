"""Masks in a plan: prevent NaN in a fully masked row when a mask leaves the range of the low type.

A mask is a large negative constant that Add, Sub, Max and value movers, such as Where, carry to a softmax. Neg, Mul and
Div may scale it on the way, for example by 0 where nothing is masked::

    (1 - attention_mask) -> Mul(-1e9) -> Add(scores) -> Softmax

A fused attention that reads a mask counts as an addition of scores and a softmax. A *score* is an element of the
attention scores, to which a mask is added (Rule S4.37).

Two softmaxes belong together if a mask on the way to one also reaches the other. If one of them is low precision, the
constants are reduced for both. So the nodes that a mask connects are decided as a whole: a *group*. A group that
reaches only softmaxes in high precision keeps its nodes (Rule S4.35); the constants of the others are reduced (Rule
S4.36). A node that computes a mask from constants that are no masks is a group of its own: ``Pow(-50, 3)`` makes the
mask -125000 from two small constants, and there is no large constant that could be reduced.

Rules S4.35 and S4.36 depend on each other: a gray softmax may follow the nodes that the mask keeps. So the solver first
decides a graph as if all masks that can be reduced were reduced. Then it keeps each group that reaches only softmaxes
in high precision, and decides the graph again. Keeping a group only makes other nodes high precision, never
low. So no group has to be released, and the result does not depend on the order of the groups.

The search for masks knows no policy. ``checker/intended_infinities.py`` walks the graph for a check: it passes fewer
operators, because it must not excuse an overflow, and also follows the sign of a mask and the tensors that are joined
to it. Both walks start at constants of at least ``SMALLEST_MASK``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import inf, isfinite
from typing import NamedTuple
from weakref import WeakKeyDictionary

from mixlist.decide.classification import Classification, DecisionKind
from mixlist.decide.constant_ranges import ConstantRange, ConstantRanges, read_fill_value
from mixlist.decide.decisions import MaskGroup, SlotLimits
from mixlist.decide.solution import Solution
from mixlist.diagnostics import Diagnostic
from mixlist.lists.policy import Policy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, find_scope_outputs, float_values
from mixlist.model.low_precision import FINITE_MAX, round_unless_lost
from mixlist.model.naming import node_ref
from mixlist.model.traits import Trait, operators
from mixlist.model.weights import stored_element_count
from mixlist.option_spelling import spell

SMALLEST_MASK = 1e4  # the smallest magnitude that models write as a mask
# The largest magnitude of the scores that are added to a mask (Rule S4.37).
LARGEST_SCORE = 16000.0
# A constant with more elements is not reduced, because the whole tensor is changed in memory.
_MOST_REDUCED_ELEMENTS = 2**24
# A factor may be computed from at most this many values. The number also limits the depth of the recursion.
_MOST_VALUES = 100

_MOST_NAMED = 12  # nodes in the hint of a warning
_SOFTMAX = operators(Trait.SOFTMAX)
# The input of a fused attention, which contains a softmax, that is added to its scores.
BIAS_SLOTS = {
    ("", "Attention"): 3,
    ("com.microsoft", "Attention"): 5,
    ("com.microsoft", "MultiHeadAttention"): 5,
    ("com.microsoft", "GroupQueryAttention"): 10,
}
_VALUE_MOVERS = operators(Trait.MOVES_VALUES)
_FILLERS = operators(Trait.FILLS)
_READS_ONLY_SHAPE = operators(Trait.READS_ONLY_SHAPE)
# ScatterElements and ScatterND write a mask into a part of another one, as torch exports masked_fill of a slice.
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
# These leave the magnitude of a mask as it is.
_CARRIERS = _VALUE_MOVERS | _SCATTERS | {"Max", "Neg", "Cast"}
_MASK_OPERATORS = _CARRIERS | _SOFTMAX | {"Add", "Sub", "Mul", "Div", "ConstantOfShape"}
_FIRST_INPUT = _SOFTMAX | {"Div"}  # of these only the first input may carry a mask
_INDICATOR_TYPES = dtypes.INTEGERS | {dtypes.BOOL}


# --- the mask in a tensor ---


class _CarriedMask(NamedTuple):
    """The mask in a tensor, as bounds of its elements.

    ``magnitude``: the sum of the magnitudes of the mask constants that were added up. Infinity means that the magnitude
    is not known; the elements are finite, but count as out of range. ``summed_masks``: the number of masks that are
    added up in the tensor; once the constants are reduced, each of them may have the magnitude of the limit. A factor
    counts, too: ``Mul(m, 2)`` is two masks. ``scores``: the largest magnitude of all other tensors that were added;
    infinite if the number of additions is unknown.
    """

    magnitude: float
    summed_masks: float = 1.0
    scores: float = 0.0

    def exceeds(self, low: int) -> bool:
        """Return whether the low type cannot hold the values."""
        return self.magnitude + self.scores > FINITE_MAX[low]

    def scaled(self, factor: float) -> _CarriedMask:
        """Return the mask times a factor of this magnitude."""
        # A factor below 1 does not count in summed_masks: the limit must also hold before the multiplication.
        summed_masks = self.summed_masks * max(factor, 1.0)
        return _CarriedMask(_product(self.magnitude, factor), summed_masks, _product(self.scores, factor))


def _product(first: float, second: float) -> float:
    """Return a product. Zero times infinity is zero here, because infinity means a finite number that is unknown."""
    return first * second if first and second else 0.0


# --- follow the masks ---


class _MaskFinder:
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
        self.masks: dict[Value | None, _CarriedMask] = {}
        self.carrying_nodes: set[Node] = set()
        self.arriving_values: set[Value | None] = set()
        self.constant_slots: list[tuple[Node, int]] = []
        self.constant_masks: dict[Node, list[_CarriedMask]] = {}
        self.unreducible: set[Node] = set()
        self.source_texts: dict[Node, str] = {}
        self.computed_mask_inputs: dict[Node, list[Value]] = {}

    def find_groups(self) -> tuple[MaskGroup, ...]:
        """Return the groups whose masks leave the range of the low type."""
        # 1. Which nodes lie on a way to a softmax?
        self._trace_back()
        # 2. Which masks do they carry, and how large are these?
        for node in self.nodes_to_softmax:
            self._note_output_mask(node)
        for node in self.softmaxes:
            if _is_attention(node):
                self._note_bias(node)
        self._drop_masks_that_end()
        # 3. Which of these nodes belong together?
        groups: tuple[MaskGroup, ...] = ()
        if any(mask.exceeds(self.low) for mask in chain(self.masks.values(), *self.constant_masks.values())):
            groups = tuple(_MaskGrouper(self).groups())
        return (*groups, *self._single_node_groups())

    # --- back from the softmaxes ---

    def _trace_back(self) -> None:
        """Find the softmaxes, and the nodes on a way to one."""
        to_softmax: set[Value | None] = set()
        # Backward through the topological order: all readers of a value come before the node that makes it.
        for node in reversed(self.graph.nodes):
            if _is_attention(node):
                self.softmaxes.add(node)
                to_softmax.update(_mixable_values(_mask_inputs(node)))
            elif node.op_type not in _MASK_OPERATORS or not node.is_plain:
                continue
            elif node.op_type in _SOFTMAX:
                self.softmaxes.add(node)
                to_softmax.update(_mixable_values(_mask_inputs(node)))
            elif not to_softmax.isdisjoint(node.outputs):
                self.nodes_to_softmax.append(node)
                to_softmax.update(_mixable_values(_mask_inputs(node)))
        self.nodes_to_softmax.reverse()

    # --- forward with the magnitudes ---

    def _note_output_mask(self, node: Node) -> None:
        """Note the mask in the outputs of a node, if they have one."""
        if node.op_type == "ConstantOfShape":
            mask = self._filled_mask(node)
        else:
            masks_read = dict(self._read_masks(node))
            mask = self._combined(node, masks_read) if masks_read else None
        if mask is not None:
            self.carrying_nodes.add(node)
            self.masks.update(dict.fromkeys(_mixable_values(node.outputs), mask))

    def _note_bias(self, node: Node) -> None:
        """Note the mask that a fused attention reads, with the scores that it adds."""
        for mask in dict(self._read_masks(node)).values():
            self.constant_masks[node] = [mask._replace(scores=max(mask.scores, LARGEST_SCORE))]

    def _read_masks(self, node: Node) -> Iterator[tuple[int, _CarriedMask]]:
        """Yield the input slots that carry a mask, each with its mask, and note the slots of constants."""
        for slot, value in enumerate(_mask_inputs(node)):
            if value is None or value.type not in dtypes.MIXABLE:
                continue
            mask = self.masks.get(value)
            if value.is_constant and (mask is None or value.constant_proto is not None):
                mask = self._note_constant_mask(node, slot, value)
            elif mask is not None and (value.is_constant or _is_fill(value)):
                # A carrying node makes this constant from a mask, as in Unsqueeze(mask): limit it here, too.
                self.constant_slots.append((node, slot))
            if mask is not None:
                yield slot, mask

    def _note_constant_mask(self, node: Node, slot: int, value: Value) -> _CarriedMask | None:
        """Return the mask in a constant that no carrying node makes, and note the constant; None if it is no mask."""
        constant_range = self.ranges.known_range_of(value)
        # Rounded, so that a rewritten model, whose constants are rounded, has the same masks.
        magnitude = round_unless_lost(constant_range.max_abs, self.low) if constant_range is not None else 0.0
        if magnitude < SMALLEST_MASK:
            return None
        self.constant_slots.append((node, slot))
        if value.constant_proto is None:
            self.computed_mask_inputs.setdefault(node, []).append(value)
        if not _is_reducible(value):
            self.unreducible.add(node)
        self.source_texts.setdefault(node, f"constant {value.name!r}")
        mask = _CarriedMask(magnitude)
        self.constant_masks.setdefault(node, []).append(mask)
        return mask

    def _filled_mask(self, node: Node) -> _CarriedMask | None:
        """Return the mask that a ConstantOfShape makes; its number is an attribute, which is reduced."""
        magnitude = _filled_mask_magnitude(node)
        if magnitude is None:
            return None
        if any(value.type != dtypes.FLOAT for value in _mixable_values(node.outputs)):
            self.unreducible.add(node)  # authored in a low type, which held the number
        name = node.outputs[0].name if node.outputs and node.outputs[0] is not None else ""
        self.source_texts[node] = f"tensor {name!r}"
        return _CarriedMask(magnitude)

    def _combined(self, node: Node, masks_read: Mapping[int, _CarriedMask]) -> _CarriedMask | None:
        """Return the mask in the output of a node; None if the output has none.

        ``masks_read``: the masks by input slot, at least one.
        """
        masks = list(masks_read.values())
        if node.op_type == "Cast":
            output_type = next((value.type for value in _mixable_values(node.outputs)), dtypes.UNKNOWN)
            # The author casts to a low type that makes the mask infinite. Infinities of the author are never reduced.
            is_infinite = output_type in FINITE_MAX and FINITE_MAX[output_type] < masks[0].magnitude < inf
            return None if is_infinite else masks[0]
        if node.op_type in ("Mul", "Div"):
            return self._scaled(node, masks_read)
        if node.op_type in ("Add", "Sub"):
            # In the worst case the masks of both operands have the same sign and place, so they add up.
            # The other operands may be scores. The sum of all scores counts as LARGEST_SCORE (Rule S4.37).
            return _CarriedMask(
                sum(mask.magnitude for mask in masks),
                sum(mask.summed_masks for mask in masks),
                max([LARGEST_SCORE, *(mask.scores for mask in masks)]),
            )
        # Where, Concat, Max and scatters: each element comes from one of the masks.
        return _CarriedMask(
            max(mask.magnitude for mask in masks),
            max(mask.summed_masks for mask in masks),
            inf if _accumulates(node) else max(mask.scores for mask in masks),
        )

    def _scaled(self, node: Node, masks_read: Mapping[int, _CarriedMask]) -> _CarriedMask:
        """Return a mask times a factor, or over a divisor.

        A factor without a known range may be a score. Then the mask cannot be reduced.
        """
        mask, *other_masks = masks_read.values()
        if other_masks:
            self.unreducible.add(node)
            return _CarriedMask(inf)
        # The only other operand; a Mul of two masks has none, and is done above.
        factors = (value for slot, value in enumerate(node.inputs) if value is not None and slot not in masks_read)
        factor = next(factors, None)
        if factor is not None and factor.is_constant and factor.constant_proto is None:
            self.computed_mask_inputs.setdefault(node, []).append(factor)
        factor_bounds = _FactorBounds(self.ranges.known_range_of, self.low)
        bounds = factor_bounds.bounds_of(factor) if factor is not None else None
        if bounds is not None and node.op_type == "Div":
            bounds = _reciprocal(bounds)
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
        arriving.update(value for node in self.softmaxes for value in _mask_inputs(node))
        for node in reversed(self.nodes_to_softmax):
            if node not in self.carrying_nodes:
                continue
            if any(value in arriving and value in self.masks for value in node.outputs):
                arriving.update(_mixable_values(_mask_inputs(node)))
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
            computed_values.update(_computed_inputs(node))
            group = _make_single_node_group(node, self.ranges.known_range_of, self.low)
            if group is not None:
                yield group


def _mask_inputs(node: Node) -> list[Value | None]:
    """Return the inputs that may carry a mask, at their slots: all but a divisor, and of an attention its bias."""
    if _is_attention(node):
        slot = BIAS_SLOTS[node.domain, node.op_type]
        return [None] * slot + node.inputs[slot : slot + 1]
    return node.inputs[:1] if node.op_type in _FIRST_INPUT else node.inputs


def _is_attention(node: Node) -> bool:
    """Return whether a node is an attention with a bias of its scores."""
    return (node.domain, node.op_type) in BIAS_SLOTS and not node.is_call


def _accumulates(node: Node) -> bool:
    """Return whether a node is a scatter that may add or multiply any number of values into one place."""
    return node.op_type in _SCATTERS and any(
        attribute.name == "reduction" and attribute.s in (b"add", b"mul") for attribute in node.proto.attribute
    )


def _mixable_values(values: Iterable[Value | None]) -> list[Value]:
    """Return the values that are float32, float16 or bfloat16 tensors: only these can carry a mask."""
    return [value for value in values if value is not None and value.type in dtypes.MIXABLE]


# --- join the nodes that masks connect ---


class _MaskGrouper:
    """Joins the nodes that masks connect.

    The groups are a union-find forest: each group is a tree of nodes, and its root is the *leader* of the group.
    ``parents``: by node, the parent in the tree; a leader has none. ``unreducible`` and ``constant_slots``: see
    _MaskFinder.
    """

    def __init__(self, finder: _MaskFinder) -> None:
        self.finder = finder
        # Copies, to which the grouper adds.
        self.unreducible, self.constant_slots = {*finder.unreducible}, [*finder.constant_slots]
        self.parents: dict[Node, Node] = {}
        self.compared: list[tuple[Node, _CarriedMask]] = []  # the masks that are compared with zero, with their nodes

    def _connect(self) -> None:
        """Join each node that reads a mask with the node that makes it; find the masks that cannot be reduced."""
        finder = self.finder
        # The node of the path from which a tensor has its mask, also where movers and Adds carried it off the path.
        makers = {value: value.producer for value in finder.masks if value is not None and value.producer is not None}
        masks = {value: finder.masks[value] for value in makers}
        for node in finder.graph.nodes:
            # Most nodes read no mask, so this fast test comes first.
            if makers.keys().isdisjoint(node.inputs):
                continue
            is_on_path = node in finder.carrying_nodes or node in finder.softmaxes
            read = [value for value in node.inputs if value is not None and value in makers]
            for value in read:
                if is_on_path and value in finder.masks:
                    self._join(makers[value], node)
                # A reader outside the path would get other numbers if the mask were reduced, but a Shape would not.
                elif node.op_type in _READS_ONLY_SHAPE and not node.domain:
                    continue
                # transformers asks in this way where the sum of a causal mask and an attention mask is zero.
                elif node.op_type == "Equal" and node.is_plain and any(map(self._is_zero, node.inputs)):
                    self.compared.append((makers[value], masks[value]))
                elif not is_on_path and node.is_plain and len(read) == 1 and node.op_type in _VALUE_MOVERS | {"Add"}:
                    makers.update(dict.fromkeys(_mixable_values(node.outputs), makers[value]))
                    masks.update(dict.fromkeys(_mixable_values(node.outputs), masks[value]))
                else:
                    self.unreducible.add(makers[value])
        # A result is read outside, too.
        self.unreducible.update(makers[value] for value in find_scope_outputs(finder.graph) if value in makers)

    def _is_zero(self, value: Value | None) -> bool:
        constant_range = self.finder.ranges.known_range_of(value) if value is not None else None
        return constant_range is not None and constant_range.single_value == 0

    def groups(self) -> Iterator[MaskGroup]:
        """Yield the groups in which a value leaves the range, in the order of their first node."""
        self._connect()
        finder = self.finder
        groups: dict[Node, MaskGroup] = {}  # by leader
        summed_masks: dict[Node, float] = {}  # by leader
        exceeding_leaders: set[Node] = set()
        for node in sorted(finder.carrying_nodes | finder.softmaxes, key=_node_id):
            tensors = (*node.inputs, *node.outputs)
            masks = [mask for value in tensors if (mask := finder.masks.get(value)) is not None]
            if not masks and not _is_attention(node):
                continue  # a softmax without a mask
            # A constant can be larger than the mask in the node's output, and the node reads it in low precision.
            masks += finder.constant_masks.get(node, ())
            if not masks:
                continue
            leader = self._leader(node)
            exceeds = any(mask.exceeds(finder.low) for mask in masks)
            if exceeds:
                exceeding_leaders.add(leader)
            # The sum with the most masks decides how much of the range each constant of the group may take.
            summed_masks[leader] = max(summed_masks.get(leader, 1.0), *(mask.summed_masks for mask in masks))
            group = groups.setdefault(leader, MaskGroup())
            group.magnitude = max(group.magnitude, *(mask.magnitude for mask in masks))
            # A reduced mask takes half of the range, and the scores must fit into the other half.
            group.reducible &= all(mask.scores <= FINITE_MAX[finder.low] / 2 for mask in masks)
            self._add_node(group, node, exceeds)
        # A limit holds for a whole group, so it is known only after all of its nodes.
        for leader, group in groups.items():
            # The other half of the range is for the scores (Rule S4.36).
            group.limit = FINITE_MAX[finder.low] / 2 / summed_masks[leader]
            group.reducible &= group.limit >= SMALLEST_MASK  # a smaller constant would not mask every score
        for node, mask in self.compared:
            # A reduced mask must be far from zero, also after scores were added, as it is if nothing makes it smaller.
            group = groups.get(self._leader(node), MaskGroup())
            is_far = mask.magnitude == group.magnitude and mask.summed_masks == 1 and group.limit > LARGEST_SCORE
            group.reducible &= is_far and mask.scores <= LARGEST_SCORE
        self._add_limits(groups)
        # A group without a destination reaches no softmax.
        yield from (group for leader, group in groups.items() if leader in exceeding_leaders and group.destination)

    def _add_node(self, group: MaskGroup, node: Node, exceeds: bool) -> None:
        """Add a node to its group; ``exceeds``: whether a mask at the node leaves the range."""
        finder = self.finder
        if node in finder.softmaxes:
            group.softmaxes.append(node)
            scores = node.inputs[0]
            # Slots are noted where a node passes a mask on. A softmax passes none on, so its slot is noted here.
            if scores is not None and (scores.is_constant or _is_fill(scores)) and scores in finder.masks:
                self.constant_slots.append((node, 0))
        group.reducible &= node not in self.unreducible
        group.source = group.source or finder.source_texts.get(node, "")
        if exceeds or node in finder.softmaxes:
            group.exceeding_nodes.append(node)
        group.destination = group.destination or self._destination(node)

    def _add_limits(self, groups: dict[Node, MaskGroup]) -> None:
        """Add the limit of its group to each slot that reads a constant of a mask, and to each ConstantOfShape."""
        finder = self.finder
        for node in finder.carrying_nodes:
            if node.op_type == "ConstantOfShape":
                group = groups[self._leader(node)]
                if (_filled_mask_magnitude(node) or 0.0) > group.limit:
                    group.fills[node] = group.limit
        for node, slot in self.constant_slots:
            if node in finder.carrying_nodes or node in finder.softmaxes:
                group = groups[self._leader(node)]
                if self._may_change(node.inputs[slot], group.limit):
                    group.limits.setdefault(node, {})[slot] = group.limit

    def _may_change(self, value: Value | None, limit: float) -> bool:
        """Return whether a limit may change a constant, or the constants from which it is computed."""
        if value is None or value.constant_proto is None:
            return True
        # Of an unknown constant, every magnitude is possible.
        constant_range = self.finder.ranges.known_range_of(value)
        return constant_range is None or constant_range.max_abs > limit

    def _destination(self, node: Node) -> str:
        """Return the name of a softmax; empty for other nodes."""
        if node not in self.finder.softmaxes:
            return ""
        return f"{node.op_type} {node.proto.name!r}" if node.proto.name else node.op_type

    def _leader(self, node: Node) -> Node:
        """Return the leader of a node's group; halve the path to it, so that the next search is short."""
        while (parent := self.parents.get(node, node)) is not node:
            self.parents[node] = self.parents.get(parent, parent)
            node = parent
        return node

    def _join(self, producer: Node, reader: Node) -> None:
        """Unite the groups of two nodes; the earlier one of their leaders becomes the leader."""
        first, second = sorted((self._leader(producer), self._leader(reader)), key=_node_id)
        if first is not second:
            self.parents[second] = first


def _node_id(node: Node) -> int:
    return node.id


# --- the constants of masks ---


def _is_fill(value: Value) -> bool:
    """Return whether a ConstantOfShape makes the value."""
    return value.producer is not None and value.producer.op_type == "ConstantOfShape" and value.producer.is_plain


def _is_reducible(value: Value) -> bool:
    """Return whether a constant is a float32 tensor of the model whose elements can be changed in memory."""
    tensor = value.constant_proto
    # A caller may replace an "overridable" initializer, which is also a graph input: its stored value is a default.
    if tensor is None or value.kind == "overridable" or value.type != dtypes.FLOAT:
        return False
    # The rewriter reduces an array of all elements, which a sparse tensor does not store.
    return stored_element_count(tensor) <= _MOST_REDUCED_ELEMENTS and tensor.DESCRIPTOR.name != "SparseTensorProto"


def _filled_mask_magnitude(node: Node) -> float | None:
    """Return the magnitude of the mask that a ConstantOfShape makes; None if it makes none."""
    magnitude = abs(read_fill_value(node) or 0.0)
    return magnitude if SMALLEST_MASK <= magnitude < inf else None


def _make_single_node_group(node: Node, range_of: _RangeOf, low: int) -> MaskGroup | None:
    """Return the group of a single node, which computes a mask from other constants.

    Return None if all constants that the node reads or makes fit the low type.
    """
    for value in (*node.outputs, *node.inputs):
        if value is None or not value.is_constant or value.type not in dtypes.MIXABLE:
            continue
        constant_range = range_of(value)
        reason = constant_range.misfit_reason(low) if constant_range is not None else None
        if constant_range is not None and reason:
            return MaskGroup(
                exceeding_nodes=[node],
                reducible=False,
                magnitude=constant_range.max_abs,
                misfit=f"constant {value.name!r} {reason}, and a mask is computed from it",
            )
    return None


def _computed_inputs(node: Node) -> list[Value]:
    """Return the inputs of a node that are computed constants."""
    return [value for value in node.inputs if value is not None and value.is_constant and value.constant_proto is None]


# --- the factors that scale a mask ---


class _Interval(NamedTuple):
    """All numbers from ``smallest`` to ``largest``, which are finite."""

    smallest: float
    largest: float

    @property
    def magnitude(self) -> float:
        """Return the largest magnitude."""
        return max(-self.smallest, self.largest)

    def union(self, second: _Interval) -> _Interval:
        """Return the smallest interval that contains both."""
        return _Interval(min(self.smallest, second.smallest), max(self.largest, second.largest))


_ZERO, _ZERO_TO_ONE = _Interval(0.0, 0.0), _Interval(0.0, 1.0)
_IntervalFunction = Callable[[_Interval, _Interval], _Interval | None]
_RangeOf = Callable[[Value], ConstantRange | None]  # the range of a constant; None if its value is unknown


class _FactorBounds:
    """The bounds of one factor, and of the values from which it is computed.

    Constants count as ``low`` rounds them, so that a rewritten model has the same bounds.
    """

    def __init__(self, range_of: _RangeOf, low: int) -> None:
        self.range_of, self.low = range_of, low
        self.intervals: dict[Value, _Interval | None] = {}

    def bounds_of(self, value: Value) -> _Interval | None:
        """Return an interval that contains all elements of a value.

        None: the value may be a score, or may be infinite, or too many values were visited.
        """
        if value not in self.intervals:
            if len(self.intervals) >= _MOST_VALUES:
                return None
            self.intervals[value] = None  # marks the value as visited while its inputs are visited
            self.intervals[value] = self._of_constant(value) if value.is_constant else self._of_computed(value)
        return self.intervals[value]

    def _of_constant(self, value: Value) -> _Interval | None:
        constant_range = self.range_of(value)
        if constant_range is None:
            return None
        smallest, largest = constant_range.smallest, constant_range.largest
        if not (isfinite(smallest) and isfinite(largest)):
            # An infinity or NaN of the author: only the rest is bounded.
            smallest, largest = -constant_range.max_abs, constant_range.max_abs
        return _Interval(round_unless_lost(smallest, self.low), round_unless_lost(largest, self.low))

    def _of_computed(self, value: Value) -> _Interval | None:
        node = value.producer
        if node is None or not node.is_plain:
            return None
        # The Cast of an attention mask: its integers count as 0 or 1 (Rule S4.36).
        if node.op_type == "Cast" and not float_values(node.inputs):
            is_indicator = all(source is not None and source.type in _INDICATOR_TYPES for source in node.inputs)
            return _ZERO_TO_ONE if is_indicator else None
        if node.op_type in ("Add", "Sub", "Mul", "Div", "Neg", "Cast", "Min", "Max") or node.op_type in _VALUE_MOVERS:
            return self._of_result(node)
        # Any other operator, such as a MatMul, may compute a score.
        return None

    def _of_result(self, node: Node) -> _Interval | None:
        """Return the interval of a node's result, computed from the intervals of its float inputs."""
        input_intervals = [self.bounds_of(value) for value in float_values(node.inputs)]
        bounds = [interval for interval in input_intervals if interval is not None]
        if len(bounds) < len(input_intervals) or not bounds:
            return None
        # Start with the first input. Operators with several inputs then combine it with each of the others.
        result: _Interval | None = bounds[0]
        if node.op_type in _VALUE_MOVERS and node.op_type in _FILLERS:
            bounds.append(_ZERO)  # Pad and Trilu may put zeros into their output
        if node.op_type == "Neg":
            result = _interval_negated(bounds[0])
        for interval in bounds[1:]:  # a value mover has the union of its inputs
            result = _BINARY.get(node.op_type, _Interval.union)(result, interval) if result is not None else None
        return result if result is not None and isfinite(result.smallest) and isfinite(result.largest) else None


def _reciprocal(divisor: _Interval) -> _Interval | None:
    """Return the interval of one over a divisor; None if the divisor may be zero."""
    if divisor.smallest <= 0 <= divisor.largest:
        return None
    # Of divisors with one sign, the larger one gives the smaller reciprocal.
    return _Interval(1 / divisor.largest, 1 / divisor.smallest)


def _interval_negated(a: _Interval) -> _Interval:
    return _Interval(-a.largest, -a.smallest)


def _interval_sum(a: _Interval, b: _Interval) -> _Interval:
    return _Interval(a.smallest + b.smallest, a.largest + b.largest)


def _interval_product(a: _Interval, b: _Interval) -> _Interval:
    # The signs decide which pair of ends gives the smallest product, and which the largest.
    products = [x * y for x in (a.smallest, a.largest) for y in (b.smallest, b.largest)]
    return _Interval(min(products), max(products))


def _interval_quotient(a: _Interval, b: _Interval) -> _Interval | None:
    inverse = _reciprocal(b)
    return _interval_product(a, inverse) if inverse is not None else None


_BINARY: dict[str, _IntervalFunction] = {
    "Add": _interval_sum,
    "Sub": lambda a, b: _interval_sum(a, _interval_negated(b)),
    "Mul": _interval_product,
    "Div": _interval_quotient,
    "Min": lambda a, b: _Interval(min(a.smallest, b.smallest), min(a.largest, b.largest)),
    "Max": lambda a, b: _Interval(max(a.smallest, b.smallest), max(a.largest, b.largest)),
}


# --- decide what happens to the masks ---


class MaskTreatment(NamedTuple):
    """The treatment of the masks of one graph while the graph is decided.

    ``kept_groups`` and ``reduced_fills`` are those of the Solution, which calls the first one ``kept_masks``, and has
    ``reduced_slots`` among its ``changed_slots``: by node, the slots that read a reduced constant, each with the
    largest magnitude that it may keep.
    """

    kept_groups: frozenset[MaskGroup]
    reduced_slots: Mapping[Node, SlotLimits]
    reduced_fills: Mapping[Node, float]


MaskGroups = tuple[MaskGroup, ...]
KeptGroups = frozenset[MaskGroup]

# The masks of a model, by graph and low type. ``tune`` asks for one model hundreds of times.
_CACHED_GROUPS: WeakKeyDictionary[Graph, dict[int, MaskGroups]] = WeakKeyDictionary()
# After this many rounds all groups are kept, and the graph is decided a last time. A graph with many groups could
# otherwise need one round per group. Keeping a group is always safe.
_MAX_ROUNDS = 4
# A softmax of these kinds keeps its authored type, whatever is decided for the nodes around it. The list need not be
# complete: find_groups_kept_after() keeps the groups of other softmaxes that stay high, after the first round.
_NEVER_LOW: frozenset[DecisionKind] = frozenset({"none", "cast", "shape", "authored", "schema"})


def find_protected_masks(graph: Graph, ranges: ConstantRanges, policy: Policy) -> MaskGroups:
    """Return the masks that the low type cannot hold; () if the policy does not protect masks."""
    return find_masks_at_risk(graph, ranges, policy) if "masks" in policy.protect else ()


def find_masks_at_risk(graph: Graph, ranges: ConstantRanges, policy: Policy) -> MaskGroups:
    """Return the masks that the low type cannot hold, in the order of their first node.

    They are searched once for each graph and low type. The result is () in a mode in which no node that carries a mask
    can become low precision.
    """
    # The mode `cube` is left out: only matrix operators become low precision in it, and these carry no mask.
    if policy.mode.action not in ("lists", "force"):
        return ()
    low = dtypes.ELEMENT_BY_NAME[policy.mode.low]
    groups_by_type = _CACHED_GROUPS.setdefault(graph, {})
    if low not in groups_by_type:
        groups_by_type[low] = _MaskFinder(graph, ranges, low).find_groups()
    return groups_by_type[low]


def find_groups_kept_at_first(groups: MaskGroups, classify: Callable[[Node], Classification]) -> KeptGroups:
    """Return the groups that are kept whatever the decisions are.

    These groups have no constant to reduce, or no softmax that can become low precision.
    """
    return frozenset(
        [
            group
            for group in groups
            if not group.reducible or all(classify(node).kind in _NEVER_LOW for node in group.softmaxes)
        ]
    )


def find_groups_kept_after(
    groups: MaskGroups, kept_groups: KeptGroups, solution: Solution, low_type: int, rounds: int
) -> KeptGroups:
    """Return the kept groups after a graph was decided ``rounds`` times.

    These are ``kept_groups`` and the groups whose softmaxes all came out in high precision.
    """
    if len(kept_groups) == len(groups):  # no group is left to keep
        return kept_groups
    newly_kept = {
        group for group in groups if group not in kept_groups and not _has_low_softmax(group, solution, low_type)
    }
    if not newly_kept:
        return kept_groups
    return kept_groups | newly_kept if rounds < _MAX_ROUNDS else frozenset(groups)


def _has_low_softmax(group: MaskGroup, solution: Solution, low_type: int) -> bool:
    """Return whether some softmax is low precision."""
    outputs = [value for node in group.softmaxes for value in node.outputs if value is not None]
    return any(solution.decided_types[value.id] == low_type for value in outputs)


def keep_masks(solution: Solution, treatment: MaskTreatment) -> None:
    """Note the nodes that kept masks keep as authored, and the constants of the others to reduce."""
    notes: dict[int, str] = {}
    # Groups with a misfit come last, because their note says more for a node that is in two groups.
    for group in sorted(treatment.kept_groups, key=lambda group: bool(group.misfit)):
        notes.update(dict.fromkeys([node.id for node in group.exceeding_nodes], _explain_kept_group(group)))
    solution.mask_notes, solution.kept_masks = notes, treatment.kept_groups
    # A guard reaches no softmax, so no node is in both.
    solution.changed_slots = {**solution.changed_slots, **treatment.reduced_slots}
    solution.reduced_fills = treatment.reduced_fills


def cite_mask_rule(solution: Solution, node: Node) -> str:
    """Return the number of the rule that keeps a node with a mask, and why the mask is not reduced instead."""
    groups = [group for group in solution.kept_masks if node in group.exceeding_nodes]
    if any(group.reducible for group in groups):
        return "S4.35"
    return "S4.36" if all(group.misfit for group in groups) else "S4.36: no constant of the mask can be reduced"


def treat_masks(groups: MaskGroups, kept_groups: KeptGroups) -> MaskTreatment:
    """Return the treatment under which some groups are kept, and the constants of the others are reduced."""
    reduced_groups = [group for group in groups if group not in kept_groups]
    fills = {node: limit for group in reduced_groups for node, limit in group.fills.items()}
    slots = {node: limits for group in reduced_groups for node, limits in group.limits.items()}
    return MaskTreatment(kept_groups, slots, fills)


def _explain_kept_group(group: MaskGroup) -> str:
    """Return the part of a reason that says why the nodes of a group stay as authored."""
    mask = f"a mask of {group.magnitude_text} ({group.source})"
    others = f" and {len(group.softmaxes) - 1} more" if len(group.softmaxes) > 1 else ""
    return group.misfit or f"{mask} passes through it on the way to {group.destination}{others}"


def find_mask_warnings(solution: Solution) -> Iterator[Diagnostic]:
    """Yield a warning if the low type breaks some of a graph's mask groups."""
    # With the protection, the groups that are not kept are reduced.
    low_type, policy = solution.low_type, solution.policy
    groups: Iterable[MaskGroup] = solution.kept_masks
    if "masks" not in policy.protect:
        groups = find_masks_at_risk(solution.graph, solution.constant_ranges, policy)
    broken = [group for group in groups if any(_is_lowered(solution, node, low_type) for node in group.exceeding_nodes)]
    if broken:
        node = next(node for node in broken[0].exceeding_nodes if _is_lowered(solution, node, low_type))
        low_name, count = dtypes.type_name(low_type), sum(len(group.softmaxes) for group in broken)
        softmaxes = f"{count} {'softmax' if count == 1 else 'softmaxes'}" if count else "a softmax"
        cause = (
            broken[0].misfit
            or f"a mask of {broken[0].magnitude_text} ({broken[0].source}) leaves the range of {low_name}"
        )
        # A clamped constant is finite, but the sum of two need not be.
        effect = "can become" if policy.clamp else "becomes"
        hint = f"{spell('protect', 'masks')} keeps such nodes in high precision, or reduces the constant"
        if policy.space == "ascend":  # the engine has no such option
            lowered = [n for group in broken for n in group.exceeding_nodes if _is_lowered(solution, n, low_type)]
            names = sorted({str(node_ref(lowered_node)) for lowered_node in lowered})
            more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
            listed = ", ".join([*names[:_MOST_NAMED], *more])
            hint = f"keep in float32 by {spell('keep_dtype')}: {listed}; or export a mask of -1e4"
        text = f"{cause} at {node_ref(node)} ({node.op_type}): a row that is fully masked {effect} NaN in {softmaxes}"
        yield Diagnostic("ML508", "warning", text, hint=hint)


def _is_lowered(solution: Solution, node: Node, low_type: int) -> bool:
    """Return whether the policy gives the low type to a slot of the node that the author gave another type."""
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None:
        return False
    pairs = zip(assignment.elements, signature.groups, strict=True)
    return any(elem == low_type and group.authored != low_type for elem, group in pairs)
