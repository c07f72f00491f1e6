"""What a trial said: whether a choice keeps the limits, and if not, which it broke first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixlist.checker.accuracy import MEASURES, Limits, OutputAccuracy
from mixlist.checker.exception_rate import too_many
from mixlist.tuner.trial_worker import Batch


@dataclass(frozen=True)
class Goal:
    """What must hold: the limits of ``check``. ``accuracy_loss``: of task accuracy, None where there are no labels."""

    limits: Limits
    exception_rate: float
    accuracy_loss: float | None = None

    def first_counts(self, batches: int) -> bool:
        """Whether one batch with an overflow, among so many, breaks the limit."""
        return too_many(1, batches, self.exception_rate)


@dataclass(frozen=True)
class Outcome:
    """One choice, tried. ``why``: the limit that was broken first, in words; ``batch``: where, None for all of them.

    ``crashed``: its process died, which another time it may not.
    """

    passed: bool
    why: str = ""
    batch: int | None = None
    crashed: bool = False


class Judge:
    """Batches of one trial, added one by one; ``verdict`` is there as soon as it is certain."""

    def __init__(self, goal: Goal, outputs: Sequence[str], batches: int) -> None:
        self.goal, self.batches = goal, batches
        self.outputs = [OutputAccuracy(name) for name in outputs]
        self.overflows: list[int] = []
        self.right = [0.0, 0.0]
        self.counted = 0
        self.seen = 0

    def add(self, at: int, batch: Batch) -> Outcome | None:
        """The outcome where this batch settles it."""
        self.seen += 1
        if batch.overflow:
            self.overflows.append(at)
            if too_many(len(self.overflows), self.batches, self.goal.exception_rate):
                return Outcome(False, _overflow(batch.overflow, len(self.overflows), self.batches), at)
        self.right = [self.right[0] + batch.right[0], self.right[1] + batch.right[1]]
        self.counted += batch.right[2]
        for whole, part in zip(self.outputs, batch.outputs, strict=True):
            whole.merge(part)
            if whole.lost(self.goal.limits):
                return Outcome(False, _broken(whole, self.goal.limits), at)
        return self._end() if self.seen == self.batches else None

    def _end(self) -> Outcome:
        for output in self.outputs:
            if not output.finding(self.goal.limits).passed:
                return Outcome(False, _broken(output, self.goal.limits))
        loss = (self.right[0] - self.right[1]) / max(self.counted, 1)
        if self.goal.accuracy_loss is not None and loss > self.goal.accuracy_loss:
            return Outcome(False, f"task accuracy falls by {loss:.4g}, the limit is {self.goal.accuracy_loss:g}")
        return Outcome(True)


def _overflow(node: str, count: int, batches: int) -> str:
    return f"overflow at {node}" + (f", in {count} or more of {batches} batches" if batches > 1 else "")


def _broken(output: OutputAccuracy, limits: Limits) -> str:
    finding = output.finding(limits)
    asked = limits.asked()
    values = {name: getattr(finding, field) for name, field in MEASURES.items()}
    told = [f"{n} {values[n]:.3g} (limit {asked[n]:g})" for n in finding.failed_limits if n in asked]
    return f"output {output.name!r}: {', '.join(told) or ', '.join(finding.failed_limits)}"
