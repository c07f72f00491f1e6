"""Measure how many gradient values the low type loses, and in which parameters.

The gradients of a mixed training are compared with those of the float32 training at the same steps. Two trainings never
have equal gradients, but the shares of zeros and of small values among them are alike. Steps without an exception are
sampled: the first 8, then 4 in each octave of steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mixlist.model import dtypes
from mixlist.model.low_precision import SMALLEST_NORMAL
from mixlist.training.loop_scaler import NamedParameters, gradient_values, is_sampled
from mixlist.training.result import GradientHistogram, GradientUnderflow

# The edges of the bins of magnitudes, as exponents of 2: from the smallest subnormal number, over the smallest normal
# one, to the end of the range.
EXPONENT_EDGES = {
    "float16": (-24, -19, -14, -9, -4, 1, 6, 11, 16),
    "bfloat16": (-133, -126, -94, -62, -30, 2, 34, 66, 98, 128),
}


@dataclass
class StepCounts:
    """The gradient values of one step: all of them, zeros, those below the range of the low type, subnormal ones.

    ``histograms`` has the values by magnitude for each parameter, see ``GradientHistogram``.
    """

    values: int = 0
    zeros: int = 0
    below: int = 0
    subnormal: int = 0
    histograms: dict[str, list[int]] = field(default_factory=dict)


class GradientSampler:
    """Counts the gradient values of some steps of one training.

    ``low_type`` is "float16" or "bfloat16". ``scaled``: count the gradients as they are in a mixed training, multiplied
    by the loss scale; without it, count those of the loss itself.
    """

    def __init__(self, low_type: str, *, scaled: bool) -> None:
        self.low_type, self.scaled = low_type, scaled
        self.edges = EXPONENT_EDGES[low_type]
        self.steps: dict[int, StepCounts] = {}

    def __call__(self, step: int, parameters: NamedParameters, factor: float) -> None:
        """Count the gradients of one optimizer, if the step is sampled. ``factor`` is the loss scale."""
        if not is_sampled(step):
            return
        counts = self.steps.setdefault(step, StepCounts())
        for name, parameter in parameters:
            gradient = gradient_values(parameter)
            if gradient is not None:
                self._count(counts, name, (gradient if self.scaled else gradient / factor).float().flatten())

    def _count(self, counts: StepCounts, name: str, gradient: torch.Tensor) -> None:
        smallest_normal = SMALLEST_NORMAL[dtypes.ELEMENT_BY_NAME[self.low_type]]
        magnitudes = gradient.abs()
        counts.values += gradient.numel()
        counts.zeros += int((gradient == 0).sum())
        small = gradient[(magnitudes > 0) & (magnitudes < smallest_normal)]
        rounded = small.to(torch.float16 if self.low_type == "float16" else torch.bfloat16).float()
        counts.below += int((rounded == 0).sum())
        # A gradient that a float32 operator computed has more digits than a subnormal number, and has lost none.
        is_subnormal = (rounded == small) if self.scaled else (rounded != 0)
        counts.subnormal += int(is_subnormal.sum())
        histogram = torch.bincount(bins_of_magnitudes(gradient, self.edges), minlength=len(self.edges) + 2).tolist()
        earlier = counts.histograms.get(name)
        counts.histograms[name] = histogram if earlier is None else _sums(earlier, histogram)


def bins_of_magnitudes(gradient: torch.Tensor, edges: Sequence[int]) -> torch.Tensor:
    """Return the bin of each value by its magnitude: 0 for zero, len(edges) + 1 for values that are not finite."""
    # frexp gives a mantissa from 0.5 to 1, so the exponent of 2 is one less.
    exponents = torch.frexp(gradient).exponent - 1
    bins = torch.bucketize(exponents, torch.tensor(edges, device=gradient.device), right=True) + 1
    bins[gradient == 0] = 0
    bins[~torch.isfinite(gradient)] = len(edges) + 1
    return bins


def compare_gradients(
    runs: Sequence[tuple[GradientSampler, GradientSampler, Collection[int]]],
) -> GradientUnderflow | None:
    """Return the shares of lost values over runs.

    A run has the samplers of its mixed and its float32 training, and the steps with an exception in one of them. Only
    the other steps count, and only those that both trainings have. The result is None if there is no such step.
    """
    pairs = [
        (mixed.steps[step], float32.steps[step])
        for mixed, float32, exceptions in runs
        for step in sorted(mixed.steps.keys() & float32.steps.keys())
        if step not in exceptions
    ]
    values = sum(float32.values for _, float32 in pairs)
    if not values:
        return None
    mixed_zeros = sum(mixed.zeros for mixed, _ in pairs)
    zeros = sum(float32.zeros for _, float32 in pairs)
    nonzero = max(values - zeros, 1)
    scaled: dict[str, list[int]] = {}
    unscaled: dict[str, list[int]] = {}
    for mixed, float32 in pairs:
        _add_histograms(scaled, mixed.histograms)
        _add_histograms(unscaled, float32.histograms)
    return GradientUnderflow(
        zero=max(0.0, (mixed_zeros - zeros) / nonzero),
        subnormal=min(1.0, sum(mixed.subnormal for mixed, _ in pairs) / nonzero),
        zero_unscaled=sum(float32.below for _, float32 in pairs) / nonzero,
        subnormal_unscaled=sum(float32.subnormal for _, float32 in pairs) / nonzero,
        steps=len(pairs),
        zero_gradient_share={"float32": zeros / values, "mixed": mixed_zeros / values},
        exponent_edges=runs[0][0].edges,
        histograms=tuple(
            GradientHistogram(name, tuple(counts), tuple(unscaled[name]))
            for name, counts in scaled.items()
            if name in unscaled
        ),
    )


def _sums(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _add_histograms(totals: dict[str, list[int]], histograms: Mapping[str, list[int]]) -> None:
    for name, histogram in histograms.items():
        totals[name] = _sums(totals[name], histogram) if name in totals else histogram
