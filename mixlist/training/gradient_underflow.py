"""Measure how much of the gradients the low type loses, in some of the steps, with the loss scaled and unscaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixlist.ops import types
from mixlist.ops.low_precision import SMALLEST_NORMAL
from mixlist.runtime.array_casts import numpy_type
from mixlist.training.result import GradientUnderflow

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed
    from mixlist.training.step_session import Floats, StepSession

SAMPLES = 8  # steps of each training that are sampled, at least; each costs two steps more


class UnderflowSampler:
    """Count zeros and subnormal numbers among the gradient values that are not zero in float32.

    A value is subnormal if it lies below the smallest normal number of the low type and is one of its numbers: a
    gradient that was held in float32 to its end has more digits than that.
    """

    def __init__(self, exact: StepSession, mixed: StepSession, low: str, steps: int) -> None:
        self.exact, self.mixed = exact, mixed
        self.normal = SMALLEST_NORMAL[types.ELEMENT_BY_NAME[low]]
        self.low = numpy_type(types.ELEMENT_BY_NAME[low])
        self.every = max(1, steps // SAMPLES)
        self.counts = [0] * 6  # values, zeros, subnormal ones, the two of the unscaled loss, steps

    def samples(self, step: int) -> bool:
        """Return whether a step is sampled."""
        return step % self.every == 0

    def sample(self, feed: Feed, scaled: Floats, scale: float) -> None:
        """Count one step; ``scaled``: its gradients as the session gave them, which stay as they are."""
        copy = scaled.copy()
        reference = self.exact.step(feed, 1.0).gradient
        counted = np.isfinite(reference) & (reference != 0)
        unscaled = copy if scale == 1 else self.mixed.step(feed, 1.0).gradient
        self.counts[0] += int(counted.sum())
        for first, gradient in ((1, copy), (3, unscaled)):
            size = np.abs(gradient[counted])
            small = size[(size > 0) & (size < self.normal)]
            self.counts[first] += int((size == 0).sum())
            self.counts[first + 1] += int((small.astype(self.low).astype(np.float32) == small).sum())
        self.counts[5] += 1
        scaled[...] = copy  # the mixed session's own array, which the second run has filled

    def result(self) -> GradientUnderflow | None:
        """Return the shares so far; None if no step was sampled."""
        values, *counts, steps = self.counts
        if not steps:
            return None
        zero, subnormal, zero_unscaled, subnormal_unscaled = (count / max(values, 1) for count in counts)
        return GradientUnderflow(zero, subnormal, zero_unscaled, subnormal_unscaled, steps)
