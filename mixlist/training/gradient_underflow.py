"""Count the gradient values that the low type makes zero, and in which parameters.

The gradients of a mixed training are compared with those of the float32 training at the same steps. Two trainings never
have equal gradients, but the shares of zeros among them are alike. Steps without an exception are sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from mixlist.training.loop_scaler import NamedParameters, gradient_values, is_sampled
from mixlist.training.result import GradientUnderflow


class ZeroCounter:
    """Counts the values and the zeros of each gradient in the sampled steps of one training, by step."""

    def __init__(self) -> None:
        self.values: dict[int, Counter[str]] = {}
        self.zeros: dict[int, Counter[str]] = {}

    def __call__(self, step: int, parameters: NamedParameters) -> None:
        """Count the gradients of one optimizer, if the step is sampled."""
        if not is_sampled(step):
            return
        values, zeros = self.values.setdefault(step, Counter()), self.zeros.setdefault(step, Counter())
        for name, parameter in parameters:
            gradient = gradient_values(parameter)
            if gradient is not None:
                values[name] += gradient.numel()
                zeros[name] += int((gradient == 0).sum())


def compare_gradients(runs: Sequence[tuple[ZeroCounter, ZeroCounter, Collection[int]]]) -> GradientUnderflow | None:
    """Return the shares of lost values over runs.

    A run has the counts of its mixed and its float32 training, and the steps with an exception in one of them. Only the
    other steps count, and only those that both trainings have. The result is None if there is no such step.
    """
    steps, values, zeros, float32_zeros = 0, Counter[str](), Counter[str](), Counter[str]()
    for mixed, float32, exceptions in runs:
        for step in (mixed.values.keys() & float32.values.keys()) - set(exceptions):
            steps += 1
            values += float32.values[step]
            zeros += mixed.zeros[step]
            float32_zeros += float32.zeros[step]
    if not values:
        return None

    def share_lost(zero: int, zero_in_float32: int, count: int) -> float:
        return max(0.0, (zero - zero_in_float32) / max(count - zero_in_float32, 1))

    total, zero, zero_in_float32 = values.total(), zeros.total(), float32_zeros.total()
    shares = {name: share_lost(zeros[name], float32_zeros[name], count) for name, count in values.items()}
    return GradientUnderflow(
        zero=share_lost(zero, zero_in_float32, total),
        steps=steps,
        zero_gradient_share={"float32": zero_in_float32 / total, "mixed": zero / total},
        by_parameter=dict(sorted(shares.items(), key=lambda item: -item[1])),
    )
