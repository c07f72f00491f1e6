"""Decide whether a trial passes: every limit of ``check`` must hold over all batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.limits import Limits, describe_failed_limits, largest_share_of_limits, too_many_exceptions
from mixlist.checker.result import OutputFinding
from mixlist.checker.user_judge import JudgeMeasures, UserJudge, describe_broken_limits
from mixlist.search.trial_worker import BatchResult


@dataclass(frozen=True)
class TrialLimits:
    """The limits that a trial must keep.

    ``max_exception_rate``: the share of batches that may have an overflow. ``judge``: the judge of the user with its
    limits, if any.
    """

    outputs: Limits
    max_exception_rate: float
    judge: UserJudge | None = None

    def one_overflow_fails(self, batches: int) -> bool:
        """Return True if a single batch with an overflow, among ``batches``, breaks the limit."""
        return too_many_exceptions(1, batches, self.max_exception_rate)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial.

    ``why``: the limit that broke first, "" if the trial passed. ``batch``: the index of the batch where that limit
    broke, None if it is a limit over all batches. ``crashed``: True if the worker process died, which may not happen
    again in another run. ``overflow``: the node that overflows, if that is the limit, else "". ``limit_share``: how
    much of a limit the outputs use in the batches that ran, more than 1 if one is broken; None if the outputs were not
    compared. ``kept_limit``: as of find_kept_limit, None if not all batches ran. An outcome from a state file has none
    of these three.
    """

    passed: bool
    why: str = ""
    batch: int | None = None
    crashed: bool = False
    overflow: str = ""
    limit_share: float | None = None
    kept_limit: float | None = None


def find_kept_limit(findings: Iterable[OutputFinding], limits: Limits) -> float | None:
    """Return the least limit of the normalized error with which outputs pass.

    Return None if they miss another limit, too, or if each index has to keep the limits by itself.
    """
    findings = list(findings)
    if limits.per_index is not None or any({*finding.failed_limits} - {"normalized"} for finding in findings):
        return None
    errors = [finding.normalized_error for finding in findings if finding.normalized_error is not None]
    return max(errors, default=None)


class TrialJudge:
    """Judges one trial, whose batches are added one by one.

    ``outputs``: an object without batches for each output. ``batch_count``: the number of batches of the trial.
    """

    def __init__(self, limits: TrialLimits, outputs: Sequence[OutputAccuracy], batch_count: int) -> None:
        self.limits, self.outputs, self.batch_count = limits, outputs, batch_count
        self.overflows = self.added = 0
        self.judge = JudgeMeasures(limits.judge)

    def add(self, index: int, batch: BatchResult) -> Outcome | None:
        """Add a batch. Return the outcome as soon as it is certain, None before that.

        A trial that ONNX Runtime refuses to run fails.
        """
        self.added += 1
        if batch.refusal is not None:
            place = f" on batch {index}" if self.batch_count > 1 else ""
            return Outcome(False, f"ONNX Runtime refuses it{place}, {batch.refusal}", index)
        if batch.overflow:
            # The rate is over all batches, so the trial fails once too many of them overflow, whatever the others do.
            self.overflows += 1
            if too_many_exceptions(self.overflows, self.batch_count, self.limits.max_exception_rate):
                share = f", in {self.overflows} or more of {self.batch_count} batches" if self.batch_count > 1 else ""
                return Outcome(False, f"overflow at {batch.overflow}{share}", index, overflow=batch.overflow)
        for output, in_batch in zip(self.outputs, batch.outputs, strict=True):
            output.merge(in_batch)
        for output in self.outputs:
            if output.cannot_pass(self.limits.outputs):  # whatever the remaining batches hold
                return self._measured(Outcome(False, _describe_broken_limits(output, self.limits.outputs), index))
        if batch.model_outputs is not None:
            # The judge runs in this process, so it need not be sent to the workers.
            self.judge.add(index, *batch.model_outputs)
            broken_limits = describe_broken_limits(self.judge.results())
            if broken_limits:
                return self._measured(Outcome(False, broken_limits[0], index))
        return self._measured(self._outcome_of_all()) if self.added == self.batch_count else None

    def _measured(self, outcome: Outcome) -> Outcome:
        """Return the outcome with what the outputs so far use of the limits."""
        findings = [output.finding(self.limits.outputs) for output in self.outputs]
        share = largest_share_of_limits(findings, self.limits.outputs.enabled())
        is_complete = self.added == self.batch_count and (outcome.passed or self.limits.judge is None)
        kept_limit = find_kept_limit(findings, self.limits.outputs) if is_complete else None
        return replace(outcome, limit_share=share, kept_limit=kept_limit)

    def _outcome_of_all(self) -> Outcome:
        """Return the outcome after the last batch: now the limits that are shares over all batches are certain too."""
        for output in self.outputs:
            if not output.finding(self.limits.outputs).passed:
                return Outcome(False, _describe_broken_limits(output, self.limits.outputs))
        return Outcome(True)


def _describe_broken_limits(output: OutputAccuracy, limits: Limits) -> str:
    finding = output.finding(limits)
    missed = describe_failed_limits(finding, limits)
    texts = (f"output {output.name!r}: {missed}{finding.place}" if missed else "", finding.collapse_text)
    return "; ".join(filter(None, texts))
