"""The range of one tensor in one batch, as the probes of a run give it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ObservedRange:
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
