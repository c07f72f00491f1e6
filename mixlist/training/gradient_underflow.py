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
    steps, values = 0, Counter[str]()
    zeros = {"mixed": Counter[str](), "float32": Counter[str]()}
    for mixed, float32, exceptions in runs:
        for step in (mixed.values.keys() & float32.values.keys()) - set(exceptions):
            steps += 1
            values += float32.values[step]
            zeros["mixed"] += mixed.zeros[step]
            zeros["float32"] += float32.zeros[step]
    if not values:
        return None

    def share_lost(more: int, nonzero: int) -> float:
        return max(0.0, more / max(nonzero, 1))

    total, zeros_of = values.total(), {kind: counts.total() for kind, counts in zeros.items()}
    by_parameter = {
        name: share_lost(zeros["mixed"][name] - zeros["float32"][name], count - zeros["float32"][name])
        for name, count in values.items()
    }
    return GradientUnderflow(
        zero=share_lost(zeros_of["mixed"] - zeros_of["float32"], total - zeros_of["float32"]),
        steps=steps,
        zero_gradient_share={kind: count / total for kind, count in sorted(zeros_of.items())},
        by_parameter=dict(sorted(by_parameter.items(), key=lambda item: -item[1])),
    )
