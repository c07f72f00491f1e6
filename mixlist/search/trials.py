"""Run trials: a set of edits, on batch after batch until a limit breaks or all batches have passed.

A trial is always emulated (Rule S8.2). The batch that failed runs first in the next trials.

Most trials fail on their first batch, so it runs alone. The other batches run in parallel after it.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from mixlist.decide.solution import count_low_nodes
from mixlist.progress import ProgressCallback, ProgressCounter
from mixlist.run.executors import Workers, wait_for
from mixlist.search.edits import EditSet
from mixlist.search.search_state import SearchState
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trial_verdict import Outcome, TrialJudge
from mixlist.search.trial_worker import BatchResult, run_batch
from mixlist.worker_processes import WorkerDied

REFERENCE_TEXT = "everything in float32"  # the text of the trial that rounds nothing


@dataclass(frozen=True)
class Trial:
    """One entry of the search's log.

    ``edits``: the edits that were tried, as sorted text. ``remembered``: True if the outcome came from the state file.
    ``low_nodes``: the number of nodes in the low type. ``low_share``: the share of matrix and convolution work in the
    low type (0 to 1), None without such work. Both are counted if somebody asks for progress.
    """

    edits: tuple[str, ...]
    outcome: Outcome
    remembered: bool = False
    low_nodes: int = 0
    low_share: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the entry of the report's log."""
        passed, why = self.outcome.passed, self.outcome.why
        return {"edits": list(self.edits), "passed": passed, "why": why, "remembered": self.remembered}


class Trials:
    """Tries sets of edits, each set once.

    ``outcomes``: the outcomes so far, by the edits. ``search_state``: the outcomes of the state file. ``joined``: a
    digest of the held-out batches that joined the data of the trials, "" if none did. ``log``: every trial in order,
    for the report, with those of searches before batches joined. ``batch_order``: the indices of the batches in the
    order in which the next trial runs them. ``progress`` is called after each trial.
    """

    def __init__(
        self,
        compiler: TrialCompiler,
        workers: Workers,
        search_state: SearchState,
        progress: ProgressCallback | None = None,
        *,
        joined: str = "",
        log: list[Trial] | None = None,
    ) -> None:
        self.compiler, self.workers, self.search_state = compiler, workers, search_state
        self.progress = ProgressCounter(progress, "trials")
        self.joined = joined
        self.log: list[Trial] = [] if log is None else log
        self.progress.done = len(self.log)
        self.batch_order = list(compiler.judged_batches)
        self.outcomes: dict[EditSet, Outcome] = {}
        self._sent_payloads: dict[str, str | bytes] = {}  # by token

    def passes(self, edits: EditSet) -> bool:
        """Return True if the model keeps all limits under the edits."""
        return self.try_edits(edits).passed

    def try_edits(self, edits: EditSet) -> Outcome:
        """Return the outcome of a set of edits; run the trial if there is no outcome yet."""
        return self.outcomes.get(edits) or self._try(edits)

    @property
    def passing(self) -> tuple[EditSet, ...]:
        """The sets of edits that passed their trials."""
        return tuple(edits for edits, outcome in self.outcomes.items() if outcome.passed)

    def try_reference(self) -> Outcome:
        """Try every node in float32. If this fails, no list can pass."""
        return self._try(None)

    def reject(self, edits: EditSet, why: str) -> None:
        """Mark edits as failed that passed their trial but failed the final check.

        The statistics of trials missed something. So every other outcome that passed is forgotten, and from now on all
        tensors have statistics.
        """
        # The lines of forgotten outcomes stay in the state file. A later line for the same edits replaces them.
        for passed in self.passing:
            del self.outcomes[passed]
            self.search_state.outcomes.pop(self._state_key(passed), None)
        self.compiler.use_all_statistics()
        self._add_outcome(edits, Outcome(False, why), remembered=False)

    def _try(self, edits: EditSet | None) -> Outcome:
        """Return the outcome from the state file, or run the trial. None for ``edits`` is the reference."""
        remembered = self.search_state.outcomes.get(self._state_key(edits))
        outcome = remembered or self._run(edits)
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
        trial = Trial(_edit_texts(edits), outcome, remembered)
        if edits is not None and self.progress.callback is not None:
            low_nodes = count_low_nodes(self.compiler.solution(edits), self.compiler.base.mode.low)
            trial = replace(trial, low_nodes=low_nodes, low_share=self.compiler.low_share(edits))
        self.log.append(trial)
        self.progress.add(detail=self.log[-1])

    def _run(self, edits: EditSet | None) -> Outcome:
        """Run the trial of a set of edits, or of the reference for None."""
        judge = TrialJudge(self.compiler.limits, self.compiler.new_accuracies(), len(self.batch_order))
        pending = deque(self.batch_order)
        flags = self.compiler.build_flags(edits)
        running: deque[tuple[int, Future[BatchResult]]] = deque()
        most_running = 1  # while the first batch runs
        try:
            while pending or running:
                while pending and len(running) < most_running:
                    index = pending.popleft()
                    running.append((index, self._submit(flags, index)))
                most_running = self.workers.count
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


def most_workers(batch_count: int) -> int:
    """Return the most workers that trials of so many batches have by default.

    The batches after the first one run at the same time, with two threads or more each.
    """
    return max(1, min((os.cpu_count() or 1) // 2, batch_count - 1))


def _edit_texts(edits: EditSet | None) -> tuple[str, ...]:
    """Return the edits as sorted text."""
    return (REFERENCE_TEXT,) if edits is None else tuple(sorted(map(str, edits)))
