"""Classify what happened to each node's output in low precision (Rules S8.5 to S8.11).

Per batch a node's output in low precision is compared with the float32 reference, by their ranges:

- finite in float32, not finite in low precision, all its inputs finite there: ``overflow``, a first offender;
- the same with an input that was not finite at that time, or zero because of one: ``propagated``;
- not finite in float32 already: ``intended`` where infinities come out of constants (masks), else ``preexisting``;
- at the largest finite value where the accelerator saturates and float32 is beyond it: ``saturated``;
- all zero where float32 is not, or nothing above the smallest normal number: ``underflow``; where values are counted
  (full statistics), also if at least 1 % of those that float32 holds became zero;
- within a factor of two of the limit: ``near-limit``.

A mask's sentinel (-3.4e38 and the like: beyond 1e37 on one side only, or what ``masks`` proves) that becomes infinite
without a NaN is ``intended`` too: it is written to vanish in a softmax, and does so as -inf. What else may overflow in
the tensor of a mask, no range can tell: ``suspects`` are counted (``hidden``), and one such value is an ``overflow``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from mixlist.checker.result import Kind, ValueCounts
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode, InputTensor
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, SMALLEST_NORMAL, overflow_bound
from mixlist.patterns.masks import SENTINEL as SENTINEL
from mixlist.patterns.masks import Mask

NEAR = 0.5  # of the largest finite value
FLUSHED = 0.01  # of the values that are not zero in float32: fewer are lost in rounding's own noise


@dataclass
class Tally:
    """What happened to one tensor over the batches: how often each kind, and the largest magnitudes."""

    wired: DataflowNode
    key: TensorRef
    batches: dict[Kind, list[int]] = field(default_factory=dict)
    reference: float = 0.0
    mixed: float = 0.0
    counts: dict[Kind, int] = field(default_factory=dict)  # values concerned, by the second look


@dataclass(frozen=True)
class Batch:
    """What is known of one batch: the ranges of both models, and what more was found out.

    ``low`` gives the low element type of the tensors that the mixed model holds in low precision. ``masks`` carry a
    mask to a softmax. ``hidden``: tensors with a value that float32 holds, the low type does not, and no mask explains.
    ``counts``: of the values of every low tensor, and how many are not zero in float32; empty where nobody counted.
    """

    index: int
    reference: Mapping[TensorRef, ObservedRange]
    mixed: Mapping[TensorRef, ObservedRange]
    low: Mapping[TensorRef, int]
    saturate: bool
    masks: Mapping[TensorRef, Mask] = field(default_factory=dict)
    hidden: AbstractSet[TensorRef] = frozenset()
    counts: Mapping[TensorRef, ValueCounts] = field(default_factory=dict)

    def level(self, key: TensorRef, low: int) -> float:
        """The magnitude from which a value is a mask's."""
        mask = self.masks.get(key)
        if mask is None or mask.level >= SENTINEL or not mask.holds(self._around(mask), overflow_bound(low)):
            return SENTINEL
        return mask.level

    def hides_nothing(self, key: TensorRef, low: int) -> bool:
        """Whether a tensor carries a mask, and nothing else in it can overflow."""
        mask = self.masks.get(key)
        return mask is not None and mask.hides_nothing(self._around(mask), overflow_bound(low))

    def _around(self, mask: Mask) -> dict[TensorRef, float]:
        keys = mask.beside | mask.factors
        return {key: self.reference[key].magnitude for key in keys if key in self.reference}


def has_suspects(batch: Batch) -> bool:
    """Whether a low tensor is not finite, or at the limit: else there is nothing to look for."""
    found = ((batch.mixed.get(key), low) for key, low in batch.low.items())
    return any(ours is not None and _at_limit(ours, low, batch.saturate) for ours, low in found)


def suspects(batch: Batch) -> dict[TensorRef, float]:
    """The low tensors whose infinities may hide an overflow among them, and the level at which the others begin."""
    found = {}
    for key, low in batch.low.items():
        exact, ours = batch.reference.get(key), batch.mixed.get(key)
        if exact is None or ours is None or not _at_limit(ours, low, batch.saturate):
            continue
        level, limit = batch.level(key, low), FINITE_MAX[low] if batch.saturate else math.inf
        if level <= overflow_bound(low) or batch.hides_nothing(key, low):
            continue
        if not exact.finite or _is_sentinel(exact, ours, level, limit):
            found[key] = level
    return found


def _at_limit(ours: ObservedRange, low: int, saturate: bool) -> bool:
    return ours.ran and (not ours.finite or (saturate and ours.magnitude >= FINITE_MAX[low]))


@dataclass
class _Judged:
    """The tensors that were judged before: those with infinities by design, and those that float32 does not have."""

    seen: set[TensorRef] = field(default_factory=set)
    by_design: set[TensorRef] = field(default_factory=set)
    spoilt: set[TensorRef] = field(default_factory=set)


def classify(batch: Batch, wired: Iterable[DataflowNode], tallies: dict[TensorRef, Tally]) -> bool:
    """Add one batch to the tallies; True if it holds an exception (an overflow or a saturation)."""
    exception = False
    judged = _Judged()
    for node in wired:
        for slot in range(len(node.node.outputs)):
            key = TensorRef(*node.ref, slot)
            exact, ours = batch.reference.get(key), batch.mixed.get(key)
            if exact is None or ours is None or not ours.ran:
                continue
            kind = _kind(node, key, exact, ours, batch, judged)
            judged.seen.add(key)
            tally = tallies.setdefault(key, Tally(node, key))
            tally.reference = max(tally.reference, exact.magnitude)
            tally.mixed = max(tally.mixed, ours.magnitude)
            if kind is not None:
                tally.batches.setdefault(kind, []).append(batch.index)
                exception |= kind in ("overflow", "saturated")
    return exception


def _kind(
    node: DataflowNode, key: TensorRef, exact: ObservedRange, ours: ObservedRange, batch: Batch, judged: _Judged
) -> Kind | None:
    if ours.finite and exact.finite:
        kind = _finite_kind(node, key, exact, ours, batch)
    elif ours.finite:
        by_design = _is_mask(node, exact, batch.reference, judged)
        kind = "saturated" if key in batch.hidden else "intended" if by_design else "preexisting"
    else:
        kind = _infinite_kind(node, key, exact, ours, batch, judged)
    if kind == "intended":
        judged.by_design.add(key)
    return kind


def _infinite_kind(
    node: DataflowNode, key: TensorRef, exact: ObservedRange, ours: ObservedRange, batch: Batch, judged: _Judged
) -> Kind:
    """What made a tensor of the mixed model infinite or NaN."""
    explained = any(_reached(s, ours, batch.mixed, judged) for s in node.inputs)
    lost = key in batch.hidden
    new = lost and not batch.saturate
    if not exact.finite:
        new |= _is_new(exact, ours)
        kind: Kind = "intended" if _is_mask(node, exact, batch.reference, judged) else "preexisting"
        kind = "saturated" if lost and batch.saturate else kind
    else:
        low = batch.low.get(key)
        level = SENTINEL if low is None else batch.level(key, low)
        new |= not _is_sentinel(exact, ours, level)
        kind = "propagated" if explained else "intended"
    if explained or new:
        judged.spoilt.add(key)
    return "overflow" if new and not explained else kind


def _finite_kind(
    node: DataflowNode, key: TensorRef, exact: ObservedRange, ours: ObservedRange, batch: Batch
) -> Kind | None:
    """What a tensor without infinities suffers."""
    low = batch.low.get(key)
    if low is None:
        return None
    limit = FINITE_MAX[low]
    if batch.saturate and ours.magnitude >= limit and exact.magnitude >= overflow_bound(low):
        by_design = _is_sentinel(exact, ours, batch.level(key, low), limit) and key not in batch.hidden
        return "intended" if by_design else "saturated"
    after_overflow = any(not batch.mixed[s.ref].finite for s in node.inputs if s.ref in batch.mixed)  # x / inf
    if 0 < exact.magnitude < SMALLEST_NORMAL[low] or (ours.magnitude == 0 and exact.magnitude > 0):
        return "propagated" if after_overflow else "underflow"
    if ours.magnitude >= NEAR * limit:
        return "near-limit"
    counts = batch.counts.get(key)
    flushed = counts is not None and counts.flushed > 0 and counts.flushed >= FLUSHED * counts.nonzero
    return "underflow" if flushed and not after_overflow else None


def _is_new(exact: ObservedRange, ours: ObservedRange) -> bool:
    """Whether the mixed model has a NaN, or an infinity of a sign, that the reference does not have."""
    if ours.nan or exact.nan:
        return ours.nan and not exact.nan
    ends = ((exact.minimum, ours.minimum), (exact.maximum, ours.maximum))
    return any(math.isinf(other) and abs(one) < SENTINEL for one, other in ends)


def _reached(
    source: InputTensor, ours: ObservedRange, mixed: Mapping[TensorRef, ObservedRange], judged: _Judged
) -> bool:
    """Whether an input had an infinity that float32 does not have when the output stopped being finite.

    What a loop makes later in its body is not judged yet: its infinities count.
    """
    found = mixed.get(source.ref)
    if found is None or found.first_nonfinite is None:
        return False
    given = not source.ref.node  # a graph input is the same in both models
    if given or (source.ref in judged.seen and source.ref not in judged.spoilt):
        return False
    if source.timing == "before":
        return True
    assert ours.first_nonfinite is not None
    return found.first_nonfinite + (1 if source.timing == "next" else 0) <= ours.first_nonfinite


def _is_mask(
    node: DataflowNode, exact: ObservedRange, reference: Mapping[TensorRef, ObservedRange], judged: _Judged
) -> bool:
    """Infinite in float32, without NaN, out of constants or of other masks."""
    if exact.nan:
        return False
    infinite = [s.ref for s in node.inputs if s.ref in reference and not reference[s.ref].finite]
    if infinite:
        return all(k in judged.by_design for k in infinite)
    return any(v is not None and v.constant for v in node.node.inputs) and _has_infinite_constant(node)


def _has_infinite_constant(node: DataflowNode) -> bool:
    from mixlist.graph.weights import is_external, pieces

    for value in node.node.inputs:
        tensor = value.tensor if value is not None else None
        if tensor is None or value is None or is_external(tensor) or types.element(value.type) not in types.FLOATS:
            continue
        for piece in pieces(tensor, None):
            if any(math.isinf(v) for v in (float(piece.min()), float(piece.max())) if piece.size):
                return True
    return False


def _is_sentinel(exact: ObservedRange, ours: ObservedRange, level: float, limit: float = math.inf) -> bool:
    """Whether values beyond ``level``, on one side, are all that reaches ``limit`` in the mixed model."""
    ends = ((exact.minimum, ours.minimum), (exact.maximum, ours.maximum))
    beyond = {one > 0 for one, _ in ends if abs(one) >= level}
    return not ours.nan and len(beyond) == 1 and all(abs(one) >= level for one, other in ends if abs(other) >= limit)
