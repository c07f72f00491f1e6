"""Measure which gradient values the low type loses, and in which layers, with the loss scaled and unscaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mixlist.ops import dtypes
from mixlist.ops.low_precision import SMALLEST_NORMAL
from mixlist.runtime.array_casts import numpy_type
from mixlist.training.result import GradientHistogram, GradientUnderflow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.session import Feed
    from mixlist.training.step_session import Float32Array, StepSession

# Each training samples at least this many steps, or all if it has fewer. A sampled step costs two more: one in float32,
# and one mixed step with the loss unscaled.
MIN_SAMPLED_STEPS = 8
# The edges of the bins of magnitudes, as exponents of 2: from the smallest subnormal number, over the smallest normal
# one, to the end of the range.
EXPONENT_EDGES = {
    dtypes.FLOAT16: (-24, -19, -14, -9, -4, 1, 6, 11, 16),
    dtypes.BFLOAT16: (-133, -126, -94, -62, -30, 2, 34, 66, 98, 128),
}


@dataclass
class UnderflowCounts:
    """The counts of all sampled steps. The file of --state holds them, so the names are part of its format.

    - ``values``: the gradient values that are finite and not zero in float32. ``zeros`` and ``subnormals`` of them are
      so in mixed precision, with the loss scaled; ``unscaled_zeros`` and ``unscaled_subnormals`` with the scale 1.
    - ``all_values``: all gradient values. ``all_zeros`` are zero in mixed precision, ``all_float32_zeros`` in float32.
    - ``scaled`` and ``unscaled``: for each parameter, the histogram of ``values`` by their magnitudes in mixed
      precision (see ``GradientHistogram``).
    """

    steps: int = 0
    values: int = 0
    zeros: int = 0
    subnormals: int = 0
    unscaled_zeros: int = 0
    unscaled_subnormals: int = 0
    all_values: int = 0
    all_zeros: int = 0
    all_float32_zeros: int = 0
    scaled: dict[str, list[int]] = field(default_factory=dict)
    unscaled: dict[str, list[int]] = field(default_factory=dict)


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
        self.exponent_edges = EXPONENT_EDGES[dtypes.ELEMENT_BY_NAME[low_type]]
        self.counts = UnderflowCounts()

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
        counts = self.counts
        counts.values += int(counted.sum())
        counts.all_values += reference.size
        counts.all_zeros += int((scaled_copy == 0).sum())
        counts.all_float32_zeros += int((reference == 0).sum())
        zeros, subnormals = self._count_small(scaled_copy[counted])
        counts.zeros, counts.subnormals = counts.zeros + zeros, counts.subnormals + subnormals
        zeros, subnormals = self._count_small(unscaled_gradient[counted])
        counts.unscaled_zeros += zeros
        counts.unscaled_subnormals += subnormals
        self._add_histograms(counts.scaled, scaled_copy, counted)
        self._add_histograms(counts.unscaled, unscaled_gradient, counted)
        counts.steps += 1
        # The mixed session writes every gradient into this one array, so the unscaled step has overwritten it.
        scaled_gradient[...] = scaled_copy

    def _count_small(self, gradient: Float32Array) -> tuple[int, int]:
        """Return the numbers of zeros and of subnormal numbers of the low type."""
        magnitudes = np.abs(gradient)
        small = magnitudes[(magnitudes > 0) & (magnitudes < self.smallest_normal)]
        # The low type can represent a value if the conversion to this type and back does not change it.
        subnormals = (small.astype(self.low_dtype).astype(np.float32) == small).sum()
        return int((magnitudes == 0).sum()), int(subnormals)

    def _add_histograms(
        self, histograms: dict[str, list[int]], gradient: Float32Array, counted: NDArray[np.bool_]
    ) -> None:
        """Add the histogram of each parameter's ``counted`` values to ``histograms``."""
        bins = bins_of_magnitudes(gradient, self.exponent_edges)
        start = 0
        for name, view in self.mixed_session.gradient_arrays.views.items():
            part = slice(start, start + view.size)
            start = part.stop
            histogram = np.bincount(bins[part][counted[part]], minlength=len(self.exponent_edges) + 2)
            earlier = histograms.get(name)
            histograms[name] = (histogram if earlier is None else histogram + earlier).tolist()

    def result(self) -> GradientUnderflow | None:
        """Return the shares over all steps sampled so far, or None if no step was sampled."""
        counts = self.counts
        if not counts.steps:
            return None
        values, all_values = max(counts.values, 1), max(counts.all_values, 1)
        return GradientUnderflow(
            zero=counts.zeros / values,
            subnormal=counts.subnormals / values,
            zero_unscaled=counts.unscaled_zeros / values,
            subnormal_unscaled=counts.unscaled_subnormals / values,
            steps=counts.steps,
            zero_gradient_share={
                "float32": counts.all_float32_zeros / all_values,
                "mixed": counts.all_zeros / all_values,
            },
            exponent_edges=self.exponent_edges,
            histograms=tuple(
                GradientHistogram(name, tuple(scaled), tuple(counts.unscaled[name]))
                for name, scaled in counts.scaled.items()
            ),
        )


def bins_of_magnitudes(gradient: Float32Array, edges: Sequence[int]) -> NDArray[np.int64]:
    """Return the bin of each value by its magnitude: 0 for zero, len(edges) + 1 for values that are not finite."""
    # frexp gives a mantissa from 0.5 to 1, so the exponent of 2 is one less.
    exponents = np.frexp(gradient)[1] - 1
    bins: NDArray[np.int64] = np.digitize(exponents, edges).astype(np.int64) + 1
    bins[gradient == 0] = 0
    bins[~np.isfinite(gradient)] = len(edges) + 1
    return bins
