"""The range of the values of one tensor in one batch, as the probes of a run observe it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_FLOAT32_MAX = float.fromhex("0x1.fffffep127")


@dataclass(frozen=True)
class ObservedRange:
    """The range of one tensor in one batch.

    minimum, maximum: the smallest and the largest value; NaN does not count.
    nan: True if a value is NaN.
    ran: False if the tensor was not computed (its branch was not taken, its loop had no iteration).
    first_nonfinite: the index of the first iteration in which a value was not finite; None if all values were finite.
    first_largest: the index of the first iteration in which the largest magnitude occurred.

    A tensor outside loops has one iteration, with the index 0.
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
        """Return the largest magnitude. NaN counts as infinite."""
        if not self.ran:
            return 0.0
        return math.inf if self.nan else max(abs(self.minimum), abs(self.maximum))

    @property
    def hidden_by_nan(self) -> bool:
        """Return True if the minimum and the maximum are unknown: the provider returned NaN for them.

        ``observer.py`` sets them to -inf and inf in this case.
        """
        return self.nan and self.minimum == -math.inf and self.maximum == math.inf

    @property
    def reported_magnitude(self) -> float:
        """Return the largest magnitude as reports show it: NaN if a value is NaN, where ``magnitude`` is infinite."""
        return math.nan if self.nan and self.ran else self.magnitude

    def in_float32(self) -> ObservedRange:
        """Return the range after a conversion to float32: float64 values beyond its limits become infinite."""
        if not self.ran or self.magnitude <= _FLOAT32_MAX or not self.finite:
            return self
        minimum = -math.inf if self.minimum < -_FLOAT32_MAX else self.minimum
        maximum = math.inf if self.maximum > _FLOAT32_MAX else self.maximum
        # The range does not tell in which iteration a value first exceeded the limits: the first one is assumed.
        return ObservedRange(minimum, maximum, self.nan, True, 0, self.first_largest)

    def after_runs(self, runs: int) -> ObservedRange:
        """Return the same range with ``runs`` added to the indices of its iterations.

        Use it before ``union`` with the range of earlier iterations or calls.
        """
        first = None if self.first_nonfinite is None else self.first_nonfinite + runs
        return replace(self, first_nonfinite=first, first_largest=self.first_largest + runs)

    def union(self, other: ObservedRange) -> ObservedRange:
        """Return the range of the values of both ranges. Both tensors must have been computed."""
        first = min((run for run in (self.first_nonfinite, other.first_nonfinite) if run is not None), default=None)
        minimum, maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        # The range with the larger magnitude; of two equal ones that of the earlier iteration.
        larger = min(self, other, key=lambda observed: (-observed.magnitude, observed.first_largest))
        return ObservedRange(minimum, maximum, self.nan or other.nan, True, first, larger.first_largest)
