"""Decide whether a trial passes: every limit of ``check`` must hold on all batches (Rules S9.2 and S9.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixlist.checker.accuracy import MEASURES, Limits, OutputAccuracy
from mixlist.checker.exception_rate import too_many_exceptions
from mixlist.checker.result import CheckReport
from mixlist.tuner.trial_worker import Answers, BatchResult


@dataclass(frozen=True)
class Goal:
    """The limits of a trial: those of ``check``, and ``accuracy_loss``, of task accuracy (None without labels)."""

    limits: Limits
    exception_rate: float
    accuracy_loss: float | None = None

    def first_counts(self, batches: int) -> bool:
        """Return whether one batch with an overflow, among so many, breaks the limit."""
        return too_many_exceptions(1, batches, self.exception_rate)

    def accuracy_reason(self, right: int, kept: int, count: int) -> str:
        """Return why too many right answers are lost, "" where they are not."""
        loss = (right - kept) / max(count, 1)
        if self.accuracy_loss is None or loss <= self.accuracy_loss:
            return ""
        return f"task accuracy falls by {loss:.4g}, the limit is {self.accuracy_loss:g}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial. ``why``: the limit that broke first; ``batch``: where, None for all of them together.

    ``crashed``: its process died, which another time it may not.
    """

    passed: bool
    why: str = ""
    batch: int | None = None
    crashed: bool = False


class TrialVerdict:
    """The verdict on one trial, whose batches are added one by one."""

    def __init__(self, goal: Goal, outputs: Sequence[str], batches: int) -> None:
        self.goal, self.batches = goal, batches
        self.outputs = [OutputAccuracy(name) for name in outputs]
        self.overflows = self.added = 0
        self.answers: Answers = (0, 0, 0)

    def add(self, index: int, batch: BatchResult) -> Outcome | None:
        """Add a batch; return the outcome as soon as it is certain. A refused batch fails the trial (Rule S9.13)."""
        self.added += 1
        if batch.refusal is not None:
            which = f" on batch {index}" if self.batches > 1 else ""
            return Outcome(False, f"ONNX Runtime refuses it{which}, {batch.refusal}", index)
        if batch.overflow:
            self.overflows += 1
            if too_many_exceptions(self.overflows, self.batches, self.goal.exception_rate):
                share = f", in {self.overflows} or more of {self.batches} batches" if self.batches > 1 else ""
                return Outcome(False, f"overflow at {batch.overflow}{share}", index)
        right, kept, labels = batch.answers
        self.answers = self.answers[0] + right, self.answers[1] + kept, self.answers[2] + labels
        for output, of_batch in zip(self.outputs, batch.outputs, strict=True):
            output.merge(of_batch)
            if output.cannot_pass(self.goal.limits):
                return Outcome(False, _broken_limits(output, self.goal.limits), index)
        return self._of_all_batches() if self.added == self.batches else None

    def _of_all_batches(self) -> Outcome:
        for output in self.outputs:
            if not output.finding(self.goal.limits).passed:
                return Outcome(False, _broken_limits(output, self.goal.limits))
        reason = self.goal.accuracy_reason(*self.answers)
        return Outcome(not reason, reason)


def check_reasons(report: CheckReport, goal: Goal) -> tuple[str, ...]:
    """Return why a check fails the goal, () where it passes."""
    reasons = () if report.verdict == "pass" else report.reasons
    if report.task is None:
        return reasons
    count = report.task.count
    right, kept = (round(share * count) for share in (report.task.reference, report.task.mixed))
    reason = goal.accuracy_reason(right, kept, count)
    return (*reasons, reason) if reason else reasons


def _broken_limits(output: OutputAccuracy, limits: Limits) -> str:
    finding = output.finding(limits)
    asked = limits.enabled()
    values = {name: getattr(finding, field) for name, field in MEASURES.items()}
    broken = [f"{name} {values[name]:.3g} (limit {asked[name]:g})" for name in finding.failed_limits if name in asked]
    return f"output {output.name!r}: {', '.join(broken) or ', '.join(finding.failed_limits)}"
