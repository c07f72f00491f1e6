"""The range of one tensor in one batch, as the probes of a run give it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_FLOAT32_LARGEST = float.fromhex("0x1.fffffep127")


@dataclass(frozen=True)
class ObservedRange:
    """The statistics of one tensor in one batch.

    ``ran`` is False where the tensor was not computed (a branch not taken, a loop without iterations).
    ``first_nonfinite`` is the first iteration in which a value was not finite, 0 outside loops, None for none.
    ``first_largest`` is the first iteration that had the largest magnitude, 0 outside loops.
    """

    minimum: float
    maximum: float
    nan: bool
    ran: bool = True
    first_nonfinite: int | None = None
    first_largest: int = 0

    @property
    def finite(self) -> bool:
        """Return True if every value was finite."""
        return self.first_nonfinite is None

    @property
    def magnitude(self) -> float:
        """The largest magnitude; NaN counts as infinite."""
        if not self.ran:
            return 0.0
        return math.inf if self.nan else max(abs(self.minimum), abs(self.maximum))

    @property
    def hidden_by_nan(self) -> bool:
        """Return True if the ends are set to infinity because the provider reduced values with a NaN to NaN."""
        return self.nan and self.minimum == -math.inf and self.maximum == math.inf

    @property
    def largest(self) -> float:
        """The largest magnitude for reports: NaN if there is a NaN."""
        return math.nan if self.nan and self.ran else self.magnitude

    def in_float32(self) -> ObservedRange:
        """Return the range of the same float64 values in float32: what is beyond its range is infinite there."""
        if not self.ran or self.magnitude <= _FLOAT32_LARGEST or not self.finite:
            return self
        minimum = -math.inf if self.minimum < -_FLOAT32_LARGEST else self.minimum
        maximum = math.inf if self.maximum > _FLOAT32_LARGEST else self.maximum
        return ObservedRange(minimum, maximum, self.nan, True, 0, self.first_largest)

    def later(self, runs: int) -> ObservedRange:
        """Return the range as one of a tensor that was computed this many iterations or calls later."""
        first = None if self.first_nonfinite is None else self.first_nonfinite + runs
        return replace(self, first_nonfinite=first, first_largest=self.first_largest + runs)

    def union(self, other: ObservedRange) -> ObservedRange:
        """Return the range of both; both ran."""
        first = min((run for run in (self.first_nonfinite, other.first_nonfinite) if run is not None), default=None)
        minimum, maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        larger = min(self, other, key=lambda each: (-each.magnitude, each.first_largest))
        return ObservedRange(minimum, maximum, self.nan or other.nan, True, first, larger.first_largest)
