"""Trials: a choice of edits, run on batch after batch until a limit breaks or all have passed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from mixlist.runtime.executors import Workers, is_loss
from mixlist.runtime.pool import WorkerDied
from mixlist.tuner.candidates import Choice
from mixlist.tuner.memory import Memory
from mixlist.tuner.outcome import Goal, Judge, Outcome
from mixlist.tuner.rig import Rig
from mixlist.tuner.station import Batch, trial

REFERENCE = "everything in float32"


@dataclass(frozen=True)
class Trial:
    """One line of the search's log: the edits that were tried, as sorted text, and what came of it."""

    edits: tuple[str, ...]
    outcome: Outcome
    remembered: bool = False


class Trials:
    """Tries choices, each once. ``log`` holds every trial in order; ``told`` is called with each."""

    def __init__(
        self, rig: Rig, goal: Goal, workers: Workers, memory: Memory, told: Callable[[Trial], None] | None = None
    ) -> None:
        self.rig, self.goal, self.workers, self.memory = rig, goal, workers, memory
        self.told = told
        self.log: list[Trial] = []
        self.order = list(range(len(rig.feeds)))  # what failed last goes first
        self._seen: dict[Choice, Outcome] = {}
        self._sent: dict[str, Any] = {}

    def passes(self, choice: Choice) -> bool:
        """Whether the choice keeps all limits."""
        return self.outcome(choice).passed

    def outcome(self, choice: Choice) -> Outcome:
        """What came of a choice, tried now or before."""
        found = self._seen.get(choice)
        if found is None:
            found = self._tried(tuple(sorted(map(str, choice))), choice)
            self._seen[choice] = found
        return found

    @property
    def passing(self) -> tuple[Choice, ...]:
        """The choices that keep all limits, as far as is known."""
        return tuple(choice for choice, outcome in self._seen.items() if outcome.passed)

    def reference(self) -> Outcome:
        """Everything in float32, tried: what fails here no list can mend."""
        return self._tried((REFERENCE,), None)

    def forget(self, choice: Choice, why: str) -> None:
        """A choice that passed here has failed an independent check: it counts as failed."""
        edits = tuple(sorted(map(str, choice)))
        found = Outcome(False, why)
        self.memory.put("; ".join(edits), found)
        self._seen[choice] = found
        self._note(Trial(edits, found))

    def _tried(self, edits: tuple[str, ...], choice: Choice | None) -> Outcome:
        """What came of ``edits``, from memory or tried now; a crash, which may not happen again, is not kept."""
        key = "; ".join(edits)
        known = self.memory.get(key)
        found = known or self._run(choice)
        if known is None and not found.crashed:
            self.memory.put(key, found)
        self._bring_forward(found)
        self._note(Trial(edits, found, known is not None))
        return found

    def _note(self, made: Trial) -> None:
        self.log.append(made)
        if self.told is not None:
            self.told(made)

    def _bring_forward(self, outcome: Outcome) -> None:
        """The batch that failed goes first from now on; a remembered one too, so that a resumed search goes alike."""
        if outcome.batch is not None and outcome.batch in self.order:
            self.order.remove(outcome.batch)
            self.order.insert(0, outcome.batch)

    def _run(self, choice: Choice | None) -> Outcome:
        """Try a choice, or None for everything in float32."""
        flags = self.rig.no_flags() if choice is None else self.rig.flags(choice)
        judge = Judge(self.goal, self.rig.own, len(self.order))
        waiting = deque(self.order)
        running: deque[tuple[int, Future[Batch]]] = deque()
        try:
            while waiting or running:
                while waiting and len(running) < self.workers.count:
                    at = waiting.popleft()
                    running.append((at, self._submit(flags, at)))
                at, future = running.popleft()
                batch = future.result()
                settled = judge.add(at, batch if choice is None else self.rig.settle(choice, at, batch))
                if settled is not None:
                    return settled
        except Exception as problem:
            if isinstance(problem, WorkerDied) or is_loss(problem):
                return Outcome(False, f"ONNX Runtime crashed: {problem}", crashed=True)
            raise
        finally:
            for _, future in running:
                future.cancel()
        raise AssertionError("the last batch settles a trial")

    def _submit(self, flags: bytes, batch: int) -> Future[Batch]:
        rig = self.rig
        if rig.token not in self._sent:
            self._sent = {rig.token: self.workers.send(rig.payload)}
        return self.workers.executor.submit(trial, rig.token, self._sent[rig.token], flags, batch)
