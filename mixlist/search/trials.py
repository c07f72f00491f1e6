"""Run trials: a set of edits, on batch after batch until a limit breaks or all batches have passed.

A trial is always emulated (Rule S8.2). The batch that failed runs first in the next trials.

Most trials fail on their first batch. While it runs, idle workers speculate: they run the first batch of the sets of
edits that the search will try next if this one fails. The other batches run in parallel after it. A trial without such
next sets runs all its batches at once.

The time that a search still takes is forecast from the trials so far. A search of ``tune`` is a sequence of steps, each
of which finds one minimal set. The number of trials of a step is roughly known once a trial of it has passed, because
then a passing prefix of the candidates bounds it. For later steps, the forecast takes the mean of the finished ones.
Where neither is known, there is no forecast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from mixlist.progress import ProgressCallback, ProgressCounter
from mixlist.run.executors import Workers, wait_for
from mixlist.search.edits import EditSet
from mixlist.search.search_state import SearchState
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trial_verdict import Outcome, TrialJudge, TrialLimits
from mixlist.search.trial_worker import BatchResult, run_batch
from mixlist.worker_processes import WorkerDied

# A step that may need more trials than this has no forecast: it would be far too high, and predicting it takes long.
MAX_PREDICTED = 200
RECENT_TRIALS = 30  # the trials whose mean time counts
REFERENCE_TEXT = "everything in float32"  # the text of the trial that rounds nothing
# Takes a number n. Returns n sets of edits that the search is likely to try next.
NextTrials = Callable[[int], Iterable[EditSet]]


@dataclass(frozen=True)
class Trial:
    """One entry of the search's log.

    ``edits``: the edits that were tried, as sorted text. ``remembered``: True if the outcome came from the state file.
    """

    edits: tuple[str, ...]
    outcome: Outcome
    remembered: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the entry of the report's log."""
        passed, why = self.outcome.passed, self.outcome.why
        return {"edits": list(self.edits), "passed": passed, "why": why, "remembered": self.remembered}


class Trials:
    """Tries sets of edits, each set once.

    ``outcomes``: the outcomes so far, by the edits. ``search_state``: the outcomes of the state file. ``joined``: a
    digest of the held-out batches that joined the data of the trials, "" if none did. ``log``: every trial in order,
    for the report, with those of searches before batches joined. ``batch_order``: the indices of the batches in the
    order in which the next trial runs them. ``progress`` is called after each trial. ``forecast``: the time that the
    search still takes.
    """

    def __init__(
        self,
        compiler: TrialCompiler,
        limits: TrialLimits,
        workers: Workers,
        search_state: SearchState,
        progress: ProgressCallback | None = None,
        *,
        joined: str = "",
        log: list[Trial] | None = None,
    ) -> None:
        self.compiler, self.limits, self.workers, self.search_state = compiler, limits, workers, search_state
        self.progress = ProgressCounter(progress, "trials")
        self.forecast = TrialForecast()
        self.joined = joined
        self.log: list[Trial] = [] if log is None else log
        self.progress.done = len(self.log)
        self.batch_order = list(compiler.judged_batches)
        self.outcomes: dict[EditSet, Outcome] = {}
        self._sent_payloads: dict[str, str | bytes] = {}  # by token
        # The runs that are started ahead: for each set of edits the batch and the result to come.
        self._speculative_runs: dict[EditSet, tuple[int, Future[BatchResult]]] = {}

    def passes(self, edits: EditSet, next_trials: NextTrials | None = None) -> bool:
        """Return True if the model keeps all limits under the edits."""
        # The prediction of all further trials takes time, and only a progress bar needs it.
        if edits not in self.outcomes and self.progress.callback is not None:
            trials_left = None
            if next_trials is not None:
                trials_left = sum(trial not in self.outcomes for trial in next_trials(MAX_PREDICTED))
            self.forecast.begin_trial(trials_left)
        passed = self.try_edits(edits, next_trials).passed
        self.forecast.end_trial(passed=passed)
        return passed

    def try_edits(self, edits: EditSet, next_trials: NextTrials | None = None) -> Outcome:
        """Return the outcome of a set of edits; run the trial if there is no outcome yet."""
        return self.outcomes.get(edits) or self._try(edits, next_trials)

    @property
    def passing(self) -> tuple[EditSet, ...]:
        """The sets of edits that passed their trials."""
        return tuple(edits for edits, outcome in self.outcomes.items() if outcome.passed)

    def try_reference(self) -> Outcome:
        """Try every node in float32. If this fails, no list can pass (Rule S9.4)."""
        return self._try(None, None)

    def reject(self, edits: EditSet, why: str) -> None:
        """Mark edits as failed that passed their trial but failed the final check.

        The statistics of trials missed something. So every other outcome that passed is forgotten, and from now on all
        tensors have statistics.
        """
        # The lines of forgotten outcomes stay in the state file. A later line for the same edits replaces them.
        for passed in self.passing:
            del self.outcomes[passed]
            self.search_state.outcomes.pop(self._state_key(passed), None)
        self._speculative_runs.clear()
        self.compiler.use_all_statistics()
        self._add_outcome(edits, Outcome(False, why), remembered=False)

    def _try(self, edits: EditSet | None, next_trials: NextTrials | None) -> Outcome:
        """Return the outcome from the state file, or run the trial. None for ``edits`` is the reference."""
        remembered = self.search_state.outcomes.get(self._state_key(edits))
        start = perf_counter()
        outcome = remembered or self._run(edits, next_trials)
        if remembered is None:
            self.forecast.add_seconds(perf_counter() - start)
        # The batch that failed goes first next time, because the next trial is likely to fail there too. This also
        # happens for a remembered outcome, so that a search that continues from a state file takes the same course as
        # one without a break.
        if outcome.batch in self.batch_order:
            self.batch_order.remove(outcome.batch)
            self.batch_order.insert(0, outcome.batch)
        self._add_outcome(edits, outcome, remembered=remembered is not None)
        return outcome

    def _add_outcome(self, edits: EditSet | None, outcome: Outcome, *, remembered: bool) -> None:
        """Store an outcome and report progress.

        A crash may not happen again, so it is not written to the state file.
        """
        if not remembered and not outcome.crashed:
            self.search_state.put(self._state_key(edits), outcome)
        if edits is not None:
            self.outcomes[edits] = outcome  # before the callback, which may stop the search with Ctrl-C
        self.log.append(Trial(_edit_texts(edits), outcome, remembered))
        self.progress.add(detail=self.log[-1], seconds_left=self.forecast.seconds_left)

    def _run(self, edits: EditSet | None, next_trials: NextTrials | None) -> Outcome:
        """Run the trial of a set of edits, or of the reference for None."""
        judge = TrialJudge(self.limits, self.compiler.new_accuracies(), len(self.batch_order))
        pending = deque(self.batch_order)
        first = pending.popleft()
        flags = self.compiler.build_flags(edits)
        running = deque([(first, self._start_first_batch(edits, flags, first))])
        first_runs_alone = self._speculate(next_trials)
        try:
            while pending or running:
                # Keep every worker busy, except while the first batch runs and the other workers speculate.
                while pending and len(running) < self.workers.count and not first_runs_alone:
                    index = pending.popleft()
                    running.append((index, self._submit(flags, index)))
                first_runs_alone = False
                # Judge the batches in the order of ``batch_order``, not as they end: otherwise the limit that is
                # reported would depend on the speed of the workers.
                index, future = running.popleft()
                result = wait_for(future, partial(self._resend, flags, index))
                if edits is not None:
                    result = self.compiler.complete_result(edits, index, result)
                outcome = judge.add(index, result)
                if outcome is not None:
                    return outcome
        except WorkerDied as problem:
            return Outcome(False, f"ONNX Runtime crashed: {problem}", crashed=True)
        finally:
            # The outcome is certain, so the other batches are of no use. A batch that has started may still run on.
            for _, future in running:
                future.cancel()
        raise AssertionError("the last batch decides a trial")

    def _state_key(self, edits: EditSet | None) -> str:
        """Return the text that identifies a trial in a state file: its edits and the batches that joined its data."""
        return "; ".join((*_edit_texts(edits), *([f"with {self.joined}"] if self.joined else [])))

    # --- speculation ---

    def _speculate(self, next_trials: NextTrials | None) -> bool:
        """Start the first batch of sets of edits that may be tried next, one for each idle worker.

        Return True if there are such runs. A set of edits for which gates are missing is left out.
        """
        idle_workers = self.workers.count - 1  # one worker runs the first batch of the trial
        for edits in next_trials(idle_workers) if next_trials is not None and idle_workers else ():
            # Not ``build_flags``: it would replace the gated graph, which the current trial uses.
            flags = self.compiler.find_flags(edits) if edits not in self.outcomes else None
            if flags is not None and edits not in self._speculative_runs:
                self._speculative_runs[edits] = self.batch_order[0], self._submit(flags, self.batch_order[0])
        return bool(self._speculative_runs)

    def _start_first_batch(self, edits: EditSet | None, flags: bytes, batch: int) -> Future[BatchResult]:
        """Return the run of the first batch, which may have been started ahead.

        If it was not, the search took another course than predicted, and all speculative runs are canceled.
        """
        started_batch, run = self._speculative_runs.pop(edits, (None, None)) if edits is not None else (None, None)
        if run is not None and started_batch == batch:
            return run
        for _, useless in self._speculative_runs.values():
            useless.cancel()
        self._speculative_runs.clear()
        return self._submit(flags, batch)

    # --- workers ---

    def _resend(self, flags: bytes, batch: int) -> Future[BatchResult]:
        """Send the payload again after a cluster has lost it, and start the batch once more."""
        self._sent_payloads.clear()
        return self._submit(flags, batch)

    def _submit(self, flags: bytes, batch: int) -> Future[BatchResult]:
        """Start a batch in a worker; send the payload if the workers do not have the current one."""
        token, payload_path = self.compiler.token, self.compiler.payload_path
        # The token changes with the gated graph. Only the current payload is kept, because it is large.
        if token not in self._sent_payloads:
            self._sent_payloads = {token: self.workers.send_file(payload_path)}
        return self.workers.executor.submit(run_batch, token, self._sent_payloads[token], flags, batch)


def _edit_texts(edits: EditSet | None) -> tuple[str, ...]:
    """Return the edits as sorted text."""
    return (REFERENCE_TEXT,) if edits is None else tuple(sorted(map(str, edits)))


# --- forecast the time ---


class TrialForecast:
    """The number of trials that a search needs, and their time.

    ``steps_after``: the number of steps after the current one, None if it is not known.
    """

    def __init__(self) -> None:
        self.steps_after: int | None = None
        self._finished_steps: list[int] = []  # the number of trials of each
        self._trials_of_step = 0
        self._has_passed = False
        self._left_in_step: int | None = None  # if all further trials fail
        # Later trials are often faster, because the batch that fails runs first.
        self._seconds: deque[float] = deque(maxlen=RECENT_TRIALS)

    def begin_step(self, steps_after: int, *, is_bounded: bool = False) -> None:
        """Begin a step, which ends when the next one begins.

        ``is_bounded``: all trials of the step are known at its start if each of them fails.
        """
        if self._trials_of_step:
            self._finished_steps.append(self._trials_of_step)
        self.steps_after = steps_after
        self._trials_of_step, self._has_passed, self._left_in_step = 0, is_bounded, None

    def begin_trial(self, trials_left: int | None) -> None:
        """Count a trial of the step.

        ``trials_left``: the trials after it if it and all others of the step fail, None if they are not known.
        """
        self._trials_of_step += 1
        is_known = trials_left is not None and self._has_passed and trials_left < MAX_PREDICTED
        self._left_in_step = trials_left if is_known else None

    def end_trial(self, *, passed: bool) -> None:
        """Note the outcome of a test of the step, also of one that needed no trial."""
        self._has_passed = self._has_passed or passed

    def add_seconds(self, seconds: float) -> None:
        """Add the time of a trial that ran."""
        self._seconds.append(seconds)

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the search ends; None if they cannot be known yet."""
        if self.steps_after is None or not self._seconds:
            return None
        mean_step = _mean(self._finished_steps)
        left = self._left_in_step
        if left is None and mean_step is not None:
            left = max(round(mean_step) - self._trials_of_step, 1)
        if left is None:
            return None
        # A step of the same search takes about as many trials as this one.
        later_step = mean_step if mean_step is not None else self._trials_of_step + left
        return (left + self.steps_after * later_step) * (_mean(self._seconds) or 0.0)


def _mean(numbers: Iterable[float]) -> float | None:
    values = list(numbers)
    return sum(values) / len(values) if values else None
