"""What happened to each node's output: overflow, its consequences, and what is no fault of the list (issue: Overflow).

Per batch a node's output in low precision is compared with the float32 reference, by their ranges:

- finite in float32, not finite in low precision, all its inputs finite there: ``overflow``, a first offender;
- the same with an input that was not finite at that time, or zero because of one: ``propagated``;
- not finite in float32 already: ``intended`` where infinities come out of constants (masks), else ``preexisting``;
- at the largest finite value where the accelerator saturates and float32 is beyond it: ``saturated``;
- all zero where float32 is not, or nothing above the smallest normal number: ``underflow``;
- within a factor of two of the limit: ``near-limit``.

A mask's sentinel (-3.4e38 and the like: beyond 1e37 on one side only) that becomes infinite without a NaN is
``intended`` too: it is written to vanish in a softmax, and does so as -inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mixlist.checker.instrument import Key
from mixlist.checker.result import Kind
from mixlist.checker.wiring import Wired
from mixlist.ops import types
from mixlist.resolver.constants import overflow_bound
from mixlist.rewriter.emulate import FINITE_MAX

SENTINEL = 1e37  # no quantity reaches it; masks are written with float32's lowest value
NEAR = 0.5  # of the largest finite value
SMALLEST_NORMAL = {types.FLOAT16: 2.0**-14, types.BFLOAT16: 2.0**-126}


@dataclass(frozen=True)
class Range:
    """The statistics of one tensor in one batch; ``when`` is the first iteration that was not finite, 0 outside loops.

    ``ran`` is False where the tensor was not computed (a branch not taken, a loop without iterations).
    """

    minimum: float
    maximum: float
    nan: bool
    ran: bool = True
    when: int | None = None

    @property
    def finite(self) -> bool:
        """Whether every value was finite."""
        return self.when is None

    @property
    def magnitude(self) -> float:
        """The largest magnitude; NaN counts as infinite."""
        if not self.ran:
            return 0.0
        return math.inf if self.nan else max(abs(self.minimum), abs(self.maximum))


@dataclass
class Tally:
    """What happened to one tensor over the batches: how often each kind, and the largest magnitudes."""

    wired: Wired
    key: Key
    batches: dict[Kind, list[int]] = field(default_factory=dict)
    reference: float = 0.0
    mixed: float = 0.0
    counts: dict[Kind, int] = field(default_factory=dict)  # values concerned, by the second look


def classify(
    batch: int,
    wired: Iterable[Wired],
    reference: Mapping[Key, Range],
    mixed: Mapping[Key, Range],
    low: Mapping[Key, int],
    saturate: bool,
    tallies: dict[Key, Tally],
) -> bool:
    """Add one batch to the tallies; True if it holds an exception (an overflow or a saturation).

    ``low`` gives the low element type of the tensors that the mixed model holds in low precision.
    """
    exception = False
    masks: set[Key] = set()
    for node in wired:
        for slot in range(len(node.node.outputs)):
            key = Key(node.path, node.label, slot)
            exact, ours = reference.get(key), mixed.get(key)
            if exact is None or ours is None or not ours.ran:
                continue
            kind = _kind(node, key, exact, ours, reference, mixed, low.get(key), saturate, masks)
            tally = tallies.setdefault(key, Tally(node, key))
            tally.reference = max(tally.reference, exact.magnitude)
            tally.mixed = max(tally.mixed, ours.magnitude)
            if kind is not None:
                tally.batches.setdefault(kind, []).append(batch)
                exception |= kind in ("overflow", "saturated")
    return exception


def _kind(
    node: Wired,
    key: Key,
    exact: Range,
    ours: Range,
    reference: Mapping[Key, Range],
    mixed: Mapping[Key, Range],
    low: int | None,
    saturate: bool,
    masks: set[Key],
) -> Kind | None:
    if not exact.finite:
        if _is_mask(node, exact, reference, masks):
            masks.add(key)
            return "intended"
        return "preexisting"
    if not ours.finite:
        if _is_sentinel(exact, ours):
            masks.add(key)
            return "intended"
        return "propagated" if any(_reached(s.key, s.when, ours, mixed, masks) for s in node.inputs) else "overflow"
    if low is None:
        return None
    limit = FINITE_MAX[low]
    if saturate and ours.magnitude >= limit and exact.magnitude >= overflow_bound(low):
        return "saturated"
    if 0 < exact.magnitude < SMALLEST_NORMAL[low] or (ours.magnitude == 0 and exact.magnitude > 0):
        after_overflow = any(not mixed[s.key].finite for s in node.inputs if s.key in mixed)  # x / inf
        return "propagated" if after_overflow else "underflow"
    return "near-limit" if ours.magnitude >= NEAR * limit else None


def _reached(key: Key, when: str, ours: Range, mixed: Mapping[Key, Range], masks: set[Key]) -> bool:
    """Whether an input was not finite, by accident, at the time when the output stopped being finite."""
    source = mixed.get(key)
    if source is None or source.when is None or (key in masks and not source.nan):
        return False
    if when == "before":
        return True
    assert ours.when is not None
    return source.when + (1 if when == "next" else 0) <= ours.when


def _is_mask(node: Wired, exact: Range, reference: Mapping[Key, Range], masks: set[Key]) -> bool:
    """Infinite in float32, without NaN, out of constants or of other masks."""
    if exact.nan:
        return False
    infinite = [s.key for s in node.inputs if s.key in reference and not reference[s.key].finite]
    if infinite:
        return all(k in masks for k in infinite)
    return any(v is not None and v.constant for v in node.node.inputs) and _has_infinite_constant(node)


def _has_infinite_constant(node: Wired) -> bool:
    from mixlist.graph.weights import is_external, pieces

    for value in node.node.inputs:
        tensor = value.tensor if value is not None else None
        if tensor is None or value is None or is_external(tensor) or types.element(value.type) not in types.FLOATS:
            continue
        for piece in pieces(tensor, None):
            if any(math.isinf(v) for v in (float(piece.min()), float(piece.max())) if piece.size):
                return True
    return False


def _is_sentinel(exact: Range, ours: Range) -> bool:
    if ours.nan:
        return False
    beyond = [v for v in (exact.minimum, exact.maximum) if abs(v) >= SENTINEL]
    infinite = [v for v in (ours.minimum, ours.maximum) if math.isinf(v)]
    return len(beyond) == 1 and len(infinite) == 1 and (beyond[0] > 0) == (infinite[0] > 0)
