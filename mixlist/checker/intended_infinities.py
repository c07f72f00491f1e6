"""Prove from the graph which infinities are intended: those of masks (Rule S8.12), and those without an effect.

A mask is a large negative constant that is added to scores, so that a softmax makes zero of them. In float16 a mask of
-1e9, or the sum of -65504 and a score, is -infinity. The softmax makes zero of -infinity, too, so this is intended.

A mask is proven if a constant, the constant branch of a Where, or a constant factor (``(1 - mask) * -1e9``) is carried
by Add, Sub, Max, Where and value movers to a softmax and to nothing else. A large value without this proof is an
overflow.

- Sub turns the sign of its second input. The constant may be multiplied by factors from -1 to 1, of which negative ones
  turn the sign, before another value is joined to it.
- A value that the other operands alone could make is an overflow, too. In each batch, the largest magnitudes in the
  reference of what Add, Sub, Max, Where or Concat join to the constant are added up. For a constant below 131040 the
  sum must be in the range of float16 (NaN and infinities are not); then every infinity of the mask's sign is the
  mask's. For a larger constant it must be below half of the constant (without NaN and infinities).
- A float32 node that reads the mask passes it on. A node that reads a tensor in which the low type loses a value that
  belongs to no mask is no first offender.

An infinity has no effect if a Clip, Min or Max replaces it by a bound, or if no output depends on it (Rule S8.30).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mixlist.checker.observer import ObservedRange, Ranges
from mixlist.decide.constant_ranges import find_origins
from mixlist.decide.plan_masks import BIAS_SLOTS, SMALLEST_MASK
from mixlist.model.graph import Graph, Node, Value, find_scope_outputs, float_values
from mixlist.model.naming import NodeRef, TensorRef, node_ref, output_ref
from mixlist.model.traits import Trait, operators
from mixlist.model.weights import is_external, read_pieces

# --- masks ---

# No physical quantity is as large: such a value is written on purpose, as float32's lowest value is.
SENTINEL = 1e37
# Half of 1e9, the smallest mask to which float32 adds usual scores without effect: its neighbors are 64 away.
_LEAST_ABSORBING = 5e8
# A Cast rounds a mask, but the result is still a mask. Where is not among them: it joins two tensors.
_MASK_MOVERS = operators(Trait.MOVES_VALUES) - {"Where"} | {"Cast"}
_WITH_CONSTANTS = frozenset({"Add", "Sub", "Max", "Where"})
_MASK_CARRIERS = _MASK_MOVERS | _WITH_CONSTANTS  # the operators that Rule S8.12 names
_SOFTMAX = operators(Trait.SOFTMAX)


@dataclass(frozen=True)
class MaskLevels:
    """The magnitudes from which on a value belongs to a mask, for negative and for positive values.

    The level is ``SENTINEL`` for a sign without a proven mask: such a value needs no proof. ``_NO_MASK``, with infinite
    levels, is that of a constant which makes no mask.
    """

    negative: float = SENTINEL
    positive: float = SENTINEL

    def for_sign_of(self, value: float) -> float:
        """Return the level for the sign of a value."""
        return self.positive if value > 0 else self.negative

    def cover(self, value: float) -> bool:
        """Return True if a value is large enough to belong to a mask."""
        return abs(value) >= self.for_sign_of(value)

    @property
    def least(self) -> float:
        """Return the lower of the two levels."""
        return min(self.negative, self.positive)

    @property
    def negated(self) -> MaskLevels:
        """Return the levels of the negated values."""
        return MaskLevels(self.positive, self.negative)

    def lowered(self, second: MaskLevels) -> MaskLevels:
        """Return the lower of both levels for each sign."""
        return MaskLevels(min(self.negative, second.negative), min(self.positive, second.positive))


_NO_MASK = MaskLevels(math.inf, math.inf)


@dataclass(frozen=True)
class Mask:
    """The mask that a tensor carries.

    ``levels``: half of the constant, for its sign. Scores are added to the constant, so a value that is at least half
    of it still belongs to the mask. ``joined``: the tensors that Add, Sub, Max, Where or Concat join to the mask, such
    as the scores. ``factors``: the tensors that multiply the constant, such as ``1 - mask``. The values of factors must
    be from -1 to 1; a negative factor turns the sign of the mask.
    """

    levels: MaskLevels
    joined: frozenset[TensorRef] = frozenset()
    factors: frozenset[TensorRef] = frozenset()

    def levels_in(self, ranges: Ranges, bound: float) -> MaskLevels:
        """Return the levels of the mask in one batch, or the default levels if the batch does not prove a mask.

        A batch does not prove the mask if a factor leaves -1 to 1, or if the joined tensors alone could make a value as
        large as the mask. ``ranges``: those of the reference in this batch. ``bound``: the least magnitude that
        overflows.
        """
        # A constant of at least twice SENTINEL has the default levels already, and needs no proof (Rule S8.11).
        if self.levels.least >= SENTINEL or not self._factors_in_range(ranges):
            return MaskLevels()
        # A value that overflows is at least as large as the bound, and a value of the mask is at least as large as the
        # level. The joined tensors must stay below the larger of the two: else they could make such a value alone.
        if self.levels.least < bound:
            is_proven = self._joined_in_range(ranges, bound)
        else:
            # Infinities of the reference do not count: they are infinite in both models.
            magnitudes = (_finite_magnitude(ranges.get(tensor)) for tensor in self.joined)
            is_proven = sum(magnitudes) < self.levels.least
        if not is_proven:
            return MaskLevels()
        # A factor of -1 makes 1e9 of -1e9: then large values of both signs belong to the mask.
        turns_sign = any(ranges[tensor].minimum < 0 for tensor in self.factors)
        return MaskLevels().lowered(self.levels.lowered(self.levels.negated) if turns_sign else self.levels)

    def explains_every_overflow(self, ranges: Ranges, bound: float) -> bool:
        """Return True if no value but the mask's can overflow, because the joined tensors are too small together.

        A mask with factors is not enough, because 0.0001 times the constant -1e9 is no mask, but overflows in float16.
        With a constant of at least twice ``SENTINEL`` it is enough, because no quantity is as large.
        """
        is_constant_alone = not self.factors or self.levels.least >= SENTINEL
        return is_constant_alone and self._factors_in_range(ranges) and self._joined_in_range(ranges, bound)

    def _factors_in_range(self, ranges: Ranges) -> bool:
        """Return True if the values of all factors are from -1 to 1."""
        return all(tensor in ranges and ranges[tensor].magnitude <= 1 for tensor in self.factors)

    def _joined_in_range(self, ranges: Ranges, bound: float) -> bool:
        """Return True if the sum of the joined tensors, without the mask, cannot overflow."""
        joined_ranges = (ranges.get(tensor) for tensor in self.joined)
        return sum(math.inf if joined is None else joined.magnitude for joined in joined_ranges) < bound


def _finite_magnitude(tensor_range: ObservedRange | None) -> float:
    """Return the larger magnitude of the finite ends of a range; infinity for a tensor that is not observed."""
    if tensor_range is None:
        return math.inf
    return max((abs(end) for end in (tensor_range.minimum, tensor_range.maximum) if math.isfinite(end)), default=0.0)


def find_masks(graph: Graph) -> dict[TensorRef, Mask]:
    """Return the tensors of a model that provably carry a mask to a softmax, each with its mask."""
    # A mask that another operator reads too could overflow there with an effect, so it is not proven.
    only_for_softmax = _values_only_for_softmax(graph)
    mask_of_value: dict[Value, Mask] = {}
    masks: dict[TensorRef, Mask] = {}
    for node in graph.nodes:
        if not node.is_plain:
            continue
        mask = _output_mask(graph, node, mask_of_value)
        if mask is None:
            continue
        for value in node.outputs:
            if value is not None and value in only_for_softmax:
                mask_of_value[value] = masks[_tensor_ref(graph, value)] = mask
    return masks


def mask_slot(node: Node) -> int | None:
    """Return the input in which a softmax, or a fused attention, reads a mask; None for other nodes."""
    if node.is_plain and node.op_type in _SOFTMAX:
        return 0
    return None if node.is_call else BIAS_SLOTS.get((node.domain, node.op_type))


def find_absorbing_softmaxes(graph: Graph) -> frozenset[NodeRef]:
    """Return the softmaxes and fused attentions with a mask so large that float32 loses the scores in the sum.

    Where a whole row is masked, all probabilities are equal there. A reduced mask would leave the scores.
    """
    readers = [
        (node, slot) for node in graph.nodes if (slot := mask_slot(node)) is not None and slot < len(node.inputs)
    ]
    masks = find_masks(graph) if readers else {}
    found = set()
    for node, slot in readers:
        value = node.inputs[slot]
        if value is not None:
            mask = masks.get(_tensor_ref(graph, value))
            levels = _constant_levels(value) if mask is None else mask.levels
            if _LEAST_ABSORBING <= levels.negative < math.inf:
                found.add(node_ref(node))
    return frozenset(found)


def _values_only_for_softmax(graph: Graph) -> set[Value]:
    """Return the values that reach a softmax and nothing else: no output of a graph, and no other operator."""
    readers: dict[Value, list[Node]] = {}
    # What a body returns is read outside, by nodes that this search does not follow.
    scope_outputs = find_scope_outputs(graph)
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    only_for_softmax: set[Value] = set()
    # Reversed, so that the readers of a value come before its producer.
    for node in reversed(graph.nodes):
        for value in node.outputs:
            value_readers = readers.get(value, ()) if value is not None and value not in scope_outputs else ()
            if (
                value is not None
                and value_readers
                and all(_leads_only_to_softmax(reader, value, only_for_softmax) for reader in value_readers)
            ):
                only_for_softmax.add(value)
    return only_for_softmax


def _leads_only_to_softmax(reader: Node, value: Value, only_for_softmax: set[Value]) -> bool:
    """Return whether a reader of the mask ``value`` is a softmax, or leads to one and to nothing else."""
    slot = mask_slot(reader)
    if slot is not None:
        return all(read is not value or k == slot for k, read in enumerate(reader.inputs))
    if not reader.is_plain:
        return False
    if reader.op_type == "Shape":  # it reads no elements
        return True
    passes_mask = reader.op_type in _MASK_CARRIERS or reader.op_type == "Mul"
    return passes_mask and all(value in only_for_softmax for value in reader.outputs if value is not None)


def _output_mask(graph: Graph, node: Node, mask_of_value: Mapping[Value, Mask]) -> Mask | None:
    """Return the mask in a node's output: one that the node reads, or one that a constant of it makes."""
    inputs = float_values(node.inputs)
    if node.op_type == "Mul":
        # A constant times a factor. A mask that is multiplied later is not proven.
        levels = _NO_MASK
        for value in inputs:
            levels = levels.lowered(_constant_levels(value))
        factors = frozenset(ref for value in inputs for ref in _variable_origins(graph, value))
        return Mask(levels, factors=factors) if levels != _NO_MASK else None
    if node.op_type not in _MASK_CARRIERS:
        return None
    masks = []
    for position, value in enumerate(inputs):
        mask = mask_of_value.get(value)
        if mask is None:
            mask = Mask(_constant_levels(value) if node.op_type in _WITH_CONSTANTS else _NO_MASK)
        if mask.levels != _NO_MASK:
            # Sub(scores, m): -m reaches the softmax.
            is_negated = node.op_type == "Sub" and position == 1
            masks.append(replace(mask, levels=mask.levels.negated) if is_negated else mask)
    if not masks:
        return None
    levels = _NO_MASK
    joined = frozenset(ref for value in inputs if value not in mask_of_value for ref in _variable_origins(graph, value))
    for mask in masks:
        levels, joined = levels.lowered(mask.levels), joined | mask.joined
    return Mask(levels, joined, frozenset[TensorRef]().union(*(mask.factors for mask in masks)))


def _variable_origins(graph: Graph, value: Value) -> list[TensorRef]:
    """Return the tensors that are moved into a value, without constants; only ``value`` if there is no constant."""
    # Concat(mask, scores) -> Unsqueeze: only the scores are variable.
    origins = float_values(find_origins(value, _MASK_MOVERS))
    if not any(origin.is_constant for origin in origins):
        return [_tensor_ref(graph, value)]
    return [_tensor_ref(graph, origin) for origin in origins if not origin.is_constant]


def _constant_levels(value: Value) -> MaskLevels:
    """Return the levels of a constant that may be a mask; infinite levels for all other values.

    Constants in external data are weights, and are not read.
    """
    lowest = largest = 0.0
    for origin in float_values(find_origins(value, _MASK_MOVERS)):
        if origin.constant_proto is not None and not is_external(origin.constant_proto):
            for piece in read_pieces(origin.constant_proto, None):
                if piece.size:
                    lowest, largest = min(lowest, float(piece.min())), max(largest, float(piece.max()))
    magnitude = max(-lowest, largest)
    if not magnitude >= SMALLEST_MASK:  # also for NaN
        return _NO_MASK
    level = min(magnitude / 2, SENTINEL)  # the constant may be infinite
    # A sign in which no value reaches half of the constant has no mask.
    return MaskLevels(level if -lowest >= level else math.inf, level if largest >= level else math.inf)


def _tensor_ref(graph: Graph, value: Value) -> TensorRef:
    """Return the TensorRef of a value; one that names no tensor (slot -1) for an input of a body.

    No run observes such an input.
    """
    if value.producer is not None:
        return output_ref(value.producer, value.output_slot)
    return TensorRef("", "", graph.root.inputs.index(value) if value in graph.root.inputs else -1)


# --- infinities without an effect ---


@dataclass(frozen=True)
class HarmlessValues:
    """The values of a tensor that change no output of the model: the infinities of each sign, and NaN.

    NaN is harmless only where all values are: no output depends on the tensor.
    """

    negative: bool = True
    positive: bool = True
    nan: bool = True

    def both(self, second: HarmlessValues) -> HarmlessValues:
        """Return the values that are harmless for two readers of a tensor."""
        return HarmlessValues(
            self.negative and second.negative, self.positive and second.positive, self.nan and second.nan
        )

    def include(self, values: Iterable[float]) -> bool:
        """Return True if infinities of the signs of all these values are harmless."""
        return all(self.positive if value > 0 else self.negative for value in values)


_ALL_HARMLESS = HarmlessValues()
_NONE_HARMLESS = HarmlessValues(negative=False, positive=False, nan=False)


def find_harmless_values(graph: Graph, bound: float) -> dict[TensorRef, HarmlessValues]:
    """Return the tensors with values that change no output (Rule S8.30), each with these values.

    A lower bound (of Clip, Max) replaces -infinity only, and an upper one (of Clip, Min) +infinity only. An infinity
    that a node does not bound is in its output, and what reads that decides. Every reader of the tensor must replace
    it. A tensor that nothing reads changes no output either, and neither does one from which only such tensors are
    computed: its NaN are intended, too, and so is every loss in a conversion for its node. Another NaN is not.

    ``bound``: the least magnitude that the low type does not hold. The constants of a Clip, Min or Max must be below.
    """
    # A value that no node reads keeps ``_ALL_HARMLESS``, unless a scope returns it.
    harmless = {v: _NONE_HARMLESS for scope in {graph.root, *(n.scope for n in graph.nodes)} for v in scope.outputs}
    # Reversed, so that the readers of a value come before its producer.
    for node in reversed(graph.nodes):
        outputs = [harmless.get(value, _ALL_HARMLESS) for value in node.outputs if value is not None]
        for slot, value in enumerate(node.inputs):
            if value is not None:
                values = _harmless_input_values(node, slot, outputs, bound)
                harmless[value] = harmless.get(value, _ALL_HARMLESS).both(values)
    computed = [value for node in graph.nodes for value in node.outputs if value is not None]
    values_of = {value: harmless.get(value, _ALL_HARMLESS) for value in (*graph.root.inputs, *computed)}
    return {_tensor_ref(graph, value): values for value, values in values_of.items() if values != _NONE_HARMLESS}


def _harmless_input_values(node: Node, slot: int, outputs: Sequence[HarmlessValues], bound: float) -> HarmlessValues:
    """Return the values in one input of a node that change no output; ``outputs``: those of the node's outputs."""
    if node.bodies:
        return _NONE_HARMLESS
    if all(output == _ALL_HARMLESS for output in outputs):
        return _ALL_HARMLESS
    if node.domain or node.op_type not in ("Clip", "Max", "Min") or (node.op_type == "Clip" and slot):
        return _NONE_HARMLESS
    has_lower, has_upper = _bounds_of(node, bound)
    # An infinity that this node does not bound is in its output, too. Example: Min(Max(x, -1), 1) is a Clip.
    (output,) = outputs
    return HarmlessValues(has_lower or output.negative, has_upper or output.positive, nan=False)


def _bounds_of(node: Node, bound: float) -> tuple[bool, bool]:
    """Return whether a Clip, Max or Min has a lower and an upper bound: constants of a magnitude below ``bound``."""
    if node.op_type != "Clip":
        has_constant = any(value is not None and _is_constant_below(value, bound) for value in node.inputs)
        return node.op_type == "Max" and has_constant, node.op_type == "Min" and has_constant
    # The bounds are inputs from opset 11 on, and attributes before.
    attributes = {attribute.name: abs(attribute.f) < bound for attribute in node.proto.attribute}
    lower, upper = (
        _is_constant_below(value, bound) if value is not None else attributes.get(name, False)
        for value, name in zip([*node.inputs[1:], None, None], ("min", "max"), strict=False)
    )
    return lower, upper


def _is_constant_below(value: Value, bound: float) -> bool:
    """Return True for a constant with a value, all of whose values have a magnitude below ``bound``."""
    tensor = value.constant_proto
    if tensor is None or is_external(tensor):
        return False
    pieces = [piece for piece in read_pieces(tensor, None) if piece.size]
    return bool(pieces) and all(float(abs(piece).max()) < bound for piece in pieces)
