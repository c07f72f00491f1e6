"""Measure which share of the gradient values the low type loses, with the loss scaled and unscaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixlist.ops import dtypes
from mixlist.ops.low_precision import SMALLEST_NORMAL
from mixlist.runtime.array_casts import numpy_type
from mixlist.training.result import GradientUnderflow

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed
    from mixlist.training.step_session import Float32Array, StepSession

# Each training samples at least this many steps, or all if it has fewer. A sampled step costs two more: one in float32,
# and one mixed step with the loss unscaled.
MIN_SAMPLED_STEPS = 8
# The indices of ``UnderflowSampler.counts``. The file of --state holds this list, so the order is part of its format.
_VALUES, _ZEROS, _SUBNORMALS, _UNSCALED_ZEROS, _UNSCALED_SUBNORMALS, _STEPS = range(6)
_ALL_VALUES, _ALL_ZEROS, _ALL_FLOAT32_ZEROS = range(6, 9)


class UnderflowSampler:
    """Counts the zeros and subnormal numbers among the gradient values that are not zero in float32.

    A value counts as subnormal if its magnitude is below the smallest normal number of the low type, and if the low
    type can represent it exactly. A gradient that was computed in float32 usually has more digits than a
    subnormal number of the low type. Such a gradient has lost no digits, so it does not count.

    ``low_type`` is "float16" or "bfloat16", ``steps`` the number of steps of each training.
    """

    def __init__(self, float32_session: StepSession, mixed_session: StepSession, low_type: str, steps: int) -> None:
        self.float32_session, self.mixed_session = float32_session, mixed_session
        self.smallest_normal = SMALLEST_NORMAL[dtypes.ELEMENT_BY_NAME[low_type]]
        self.low_dtype = numpy_type(dtypes.ELEMENT_BY_NAME[low_type])
        self.interval = max(1, steps // MIN_SAMPLED_STEPS)
        self.counts = [0] * 9

    def is_sampled(self, step: int) -> bool:
        """Return whether a step is sampled."""
        return step % self.interval == 0

    def sample(self, feed: Feed, scaled_gradient: Float32Array, scale: float, unscaled: float = 1.0) -> None:
        """Count the gradient values of one step.

        ``scaled_gradient`` is the gradient array of the mixed session, for a loss multiplied by ``scale``. The
        array has the same values when this method returns. ``unscaled`` is the factor of the loss without loss scaling:
        the share of a batch whose gradients are added to those of others.
        """
        scaled_copy = scaled_gradient.copy()
        # ``feed`` has the parameters of the mixed training, so the steps differ in precision and loss scale only.
        reference = self.float32_session.step(feed, 1.0).gradient
        # A gradient that is zero in float32, for example through an inactive ReLU, is no underflow.
        counted = np.isfinite(reference) & (reference != 0)
        unscaled_gradient = scaled_copy if scale == unscaled else self.mixed_session.step(feed, unscaled).gradient
        self.counts[_VALUES] += int(counted.sum())
        self.counts[_ALL_VALUES] += reference.size
        self.counts[_ALL_ZEROS] += int((scaled_copy == 0).sum())
        self.counts[_ALL_FLOAT32_ZEROS] += int((reference == 0).sum())
        for zero_index, subnormal_index, gradient in (
            (_ZEROS, _SUBNORMALS, scaled_copy),
            (_UNSCALED_ZEROS, _UNSCALED_SUBNORMALS, unscaled_gradient),
        ):
            magnitudes = np.abs(gradient[counted])
            small = magnitudes[(magnitudes > 0) & (magnitudes < self.smallest_normal)]
            self.counts[zero_index] += int((magnitudes == 0).sum())
            # The low type can represent a value if the conversion to this type and back does not change it.
            self.counts[subnormal_index] += int((small.astype(self.low_dtype).astype(np.float32) == small).sum())
        self.counts[_STEPS] += 1
        # The mixed session writes every gradient into this one array, so the unscaled step has overwritten it.
        scaled_gradient[...] = scaled_copy

    def result(self) -> GradientUnderflow | None:
        """Return the shares over all steps sampled so far, or None if no step was sampled."""
        counts, steps = self.counts, self.counts[_STEPS]
        if not steps:
            return None
        zero, subnormal, zero_unscaled, subnormal_unscaled = (
            counts[index] / max(counts[_VALUES], 1)
            for index in (_ZEROS, _SUBNORMALS, _UNSCALED_ZEROS, _UNSCALED_SUBNORMALS)
        )
        zero_gradient_share = {
            name: counts[index] / max(counts[_ALL_VALUES], 1)
            for name, index in (("float32", _ALL_FLOAT32_ZEROS), ("mixed", _ALL_ZEROS))
        }
        return GradientUnderflow(zero, subnormal, zero_unscaled, subnormal_unscaled, steps, zero_gradient_share)
