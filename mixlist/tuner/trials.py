"""Run trials: a set of edits, on batch after batch until a limit breaks or all batches have passed (Rule S9.2).

The first batch runs alone, since most trials fail there. Meanwhile the other workers begin with the first batch of
those sets of edits that the search will try next if this one fails. The rest of the batches run side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from mixlist.progress import ProgressCallback, ProgressCounter
from mixlist.runtime.executors import Workers, wait_for
from mixlist.runtime.worker_process import WorkerDied
from mixlist.tuner.candidates import EditSet
from mixlist.tuner.trial_compiler import TrialCompiler
from mixlist.tuner.trial_log import TrialLog
from mixlist.tuner.trial_verdict import Outcome, TrialLimits, TrialVerdict
from mixlist.tuner.trial_worker import BatchResult, run_batch

REFERENCE = "everything in float32"
Lookahead = Callable[[int], Iterable[EditSet]]  # so many sets of edits that are likely to be tried next


@dataclass(frozen=True)
class Trial:
    """One line of the search's log: the edits that were tried, as sorted text, and what came of them."""

    edits: tuple[str, ...]
    outcome: Outcome
    remembered: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the entry in the report's log."""
        passed, why = self.outcome.passed, self.outcome.why
        return {"edits": list(self.edits), "passed": passed, "why": why, "remembered": self.remembered}


class Trials:
    """Tries sets of edits, each once. ``outcomes`` are the known ones by their edits.

    ``log`` holds every trial in order; ``progress`` is called after each.
    """

    def __init__(
        self,
        compiler: TrialCompiler,
        limits: TrialLimits,
        workers: Workers,
        trial_log: TrialLog,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.compiler, self.limits, self.workers, self.trial_log = compiler, limits, workers, trial_log
        self.progress = ProgressCounter(progress, "trials")
        self.log: list[Trial] = []
        self.order = list(compiler.judged_batches)  # the batch where the last trial failed goes first
        self.outcomes: dict[EditSet, Outcome] = {}
        self._sent: dict[str, str | bytes] = {}
        self._begun: dict[EditSet, tuple[int, Future[BatchResult]]] = {}  # guesses: a batch and its run

    def passes(self, edits: EditSet, lookahead: Lookahead | None = None) -> bool:
        """Return whether the edits keep all limits."""
        return self.try_edits(edits, lookahead).passed

    def try_edits(self, edits: EditSet, lookahead: Lookahead | None = None) -> Outcome:
        """Return what comes of the edits, which are tried if they were not before."""
        return self.outcomes.get(edits) or self._try(edits, lookahead)

    @property
    def passing(self) -> tuple[EditSet, ...]:
        """The sets of edits that are known to keep all limits."""
        return tuple(edits for edits, outcome in self.outcomes.items() if outcome.passed)

    def try_reference(self) -> Outcome:
        """Try everything in float32: no list can pass where this fails (Rule S9.4)."""
        return self._try(None, None)

    def reject(self, edits: EditSet, why: str) -> None:
        """Let edits that passed here and failed an independent check count as failed.

        Other trials that passed are forgotten, and all tensors have statistics from now on.
        """
        for passed in self.passing:
            del self.outcomes[passed]
            self.trial_log.outcomes.pop(_key(passed), None)
        self._begun.clear()
        self.compiler.collect_all_statistics()
        self._add(edits, Outcome(False, why), remembered=False)

    def _try(self, edits: EditSet | None, lookahead: Lookahead | None) -> Outcome:
        """Return the outcome, remembered or tried now."""
        known = self.trial_log.outcomes.get(_key(edits))
        outcome = known or self._run(edits, lookahead)
        if outcome.batch in self.order:  # of a remembered one too, so that a resumed search goes alike
            self.order.remove(outcome.batch)
            self.order.insert(0, outcome.batch)
        self._add(edits, outcome, remembered=known is not None)
        return outcome

    def _add(self, edits: EditSet | None, outcome: Outcome, *, remembered: bool) -> None:
        """Keep an outcome and report it. A crash, which may not happen again, is not kept for later searches."""
        if not remembered and not outcome.crashed:
            self.trial_log.put(_key(edits), outcome)
        if edits is not None:
            self.outcomes[edits] = outcome  # before progress is called, which may stop the search
        self.log.append(Trial(_names(edits), outcome, remembered))
        self.progress.add(detail=self.log[-1])

    def _run(self, edits: EditSet | None, lookahead: Lookahead | None) -> Outcome:
        """Try some edits, or None for everything in float32."""
        verdict = TrialVerdict(self.limits, self.compiler.output_names, len(self.order))
        waiting = deque(self.order)
        first = waiting.popleft()
        flags = self.compiler.build_flags(edits)
        running = deque([(first, self._begin(edits, flags, first))])
        alone = self._guess(lookahead)
        try:
            while waiting or running:
                while waiting and len(running) < self.workers.count and not alone:
                    at = waiting.popleft()
                    running.append((at, self._submit(flags, at)))
                alone = False
                at, future = running.popleft()
                batch = wait_for(future, partial(self._send_again, flags, at))
                outcome = verdict.add(at, batch if edits is None else self.compiler.classify(edits, at, batch))
                if outcome is not None:
                    return outcome
        except WorkerDied as problem:
            return Outcome(False, f"ONNX Runtime crashed: {problem}", crashed=True)
        finally:
            for _, future in running:
                future.cancel()
        raise AssertionError("the last batch decides a trial")

    # --- guesses ---

    def _guess(self, lookahead: Lookahead | None) -> bool:
        """Begin with edits that may be tried next, one set for each other worker; return whether any are begun."""
        others = self.workers.count - 1
        for edits in lookahead(others) if lookahead is not None and others else ():
            flags = self.compiler.find_flags(edits) if edits not in self.outcomes else None
            if flags is not None and edits not in self._begun:
                self._begun[edits] = self.order[0], self._submit(flags, self.order[0])
        return bool(self._begun)

    def _begin(self, edits: EditSet | None, flags: bytes, batch: int) -> Future[BatchResult]:
        """Return the run of the first batch, which may have begun as a guess; if not, the guesses were wrong."""
        at, run = self._begun.pop(edits, (None, None)) if edits is not None else (None, None)
        if run is not None and at == batch:
            return run
        for _, other in self._begun.values():
            other.cancel()
        self._begun.clear()
        return self._submit(flags, batch)

    def _send_again(self, flags: bytes, batch: int) -> Future[BatchResult]:
        self._sent.clear()
        return self._submit(flags, batch)

    def _submit(self, flags: bytes, batch: int) -> Future[BatchResult]:
        token, payload = self.compiler.token, self.compiler.payload
        if token not in self._sent:
            self._sent = {token: self.workers.send_file(payload)}
        return self.workers.executor.submit(run_batch, token, self._sent[token], flags, batch)


def _names(edits: EditSet | None) -> tuple[str, ...]:
    """Return the edits as sorted text."""
    return (REFERENCE,) if edits is None else tuple(sorted(map(str, edits)))


def _key(edits: EditSet | None) -> str:
    """Return the edits as the state of a search names them."""
    return "; ".join(_names(edits))
