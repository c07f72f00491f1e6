"""How much of the gradients the low type loses: looked at in some steps, with the loss scaled and unscaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixlist.ops import types
from mixlist.ops.low_precision import SMALLEST_NORMAL
from mixlist.runtime.casts import numpy_type
from mixlist.training.result import Underflow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.training.step_session import Machine

SAMPLES = 8  # steps of each training that are looked at, at least; each costs two steps more


class Sampler:
    """Counts zeros and subnormal numbers among the gradient values that are not zero in float32.

    Subnormal is what lies below the smallest normal number of the low type and is one of its numbers: a gradient that
    was held in float32 to its end has more digits than that.
    """

    def __init__(self, exact: Machine, mixed: Machine, low: str, steps: int) -> None:
        self.exact, self.mixed = exact, mixed
        self.normal = SMALLEST_NORMAL[types.ELEMENT[low]]
        self.low = numpy_type(types.ELEMENT[low])
        self.every = max(1, steps // SAMPLES)
        self.counts = [0] * 6  # values, zeros, subnormal ones, the two of the unscaled loss, steps

    def wants(self, step: int) -> bool:
        """Whether a step is looked at."""
        return step % self.every == 0

    def look(self, feed: Mapping[str, Any], scaled: NDArray[Any], scale: float) -> None:
        """Count one step; ``scaled``: its gradients as they came, which stay as they are."""
        import numpy as np

        kept = scaled.copy()
        reference = self.exact.step(feed, 1.0).gradient
        there = np.isfinite(reference) & (reference != 0)
        unscaled = kept if scale == 1 else self.mixed.step(feed, 1.0).gradient
        self.counts[0] += int(there.sum())
        for at, gradient in ((1, kept), (3, unscaled)):
            size = np.abs(gradient[there])
            small = size[(size > 0) & (size < self.normal)]
            self.counts[at] += int((size == 0).sum())
            self.counts[at + 1] += int((small.astype(self.low).astype(np.float32) == small).sum())
        self.counts[5] += 1
        scaled[...] = kept  # the mixed machine's own array, which the second run has filled

    def result(self) -> Underflow | None:
        """The shares so far; None where nothing was looked at."""
        values, zero, subnormal, zero_unscaled, subnormal_unscaled, steps = self.counts
        if not steps:
            return None
        whole = max(values, 1)
        return Underflow(zero / whole, subnormal / whole, zero_unscaled / whole, subnormal_unscaled / whole, steps)
