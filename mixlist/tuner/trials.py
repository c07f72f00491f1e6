"""Trials: a choice of edits, run on batch after batch until a limit breaks or all have passed.

The first batch runs alone, since most choices fail there. Meanwhile the other workers begin with the first batch of
those choices that the search will ask for next if this one fails. The rest of the batches run side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from mixlist.runtime.executors import Workers, wait_for
from mixlist.runtime.worker_process import WorkerDied
from mixlist.tuner.candidates import Choice
from mixlist.tuner.trial_compiler import Rig
from mixlist.tuner.trial_log import Memory
from mixlist.tuner.trial_outcome import Goal, Judge, Outcome
from mixlist.tuner.trial_worker import Batch, trial

REFERENCE = "everything in float32"
Ahead = Callable[[int], Iterable[Choice]]


def _edits(choice: Choice | None) -> tuple[str, ...]:
    """The edits of a choice as sorted text; None is everything in float32."""
    return (REFERENCE,) if choice is None else tuple(sorted(map(str, choice)))


def _key(edits: tuple[str, ...]) -> str:
    """What the memory calls a choice of edits."""
    return "; ".join(edits)


def _nothing(_: int) -> tuple[Choice, ...]:
    return ()


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
        self._sent: dict[str, str | bytes] = {}
        self._begun: dict[Choice, tuple[int, Future[Batch]]] = {}  # guesses: a batch and its run

    def passes(self, choice: Choice, ahead: Ahead = _nothing) -> bool:
        """Whether the choice keeps all limits. ``ahead`` tells choices that are likely to be asked for next."""
        return self.outcome(choice, ahead).passed

    def outcome(self, choice: Choice, ahead: Ahead = _nothing) -> Outcome:
        """What came of a choice, tried now or before; ``ahead`` as above."""
        found = self._seen.get(choice)
        return found or self._tried(choice, ahead)

    @property
    def tried(self) -> tuple[Choice, ...]:
        """The choices of which it is known what came of them."""
        return tuple(self._seen)

    @property
    def passing(self) -> tuple[Choice, ...]:
        """The choices that keep all limits, as far as is known."""
        return tuple(choice for choice, outcome in self._seen.items() if outcome.passed)

    def reference(self) -> Outcome:
        """Everything in float32, tried: what fails here no list can mend."""
        return self._tried(None, _nothing)

    def forget(self, choice: Choice, why: str) -> None:
        """A choice that passed here has failed an independent check: it counts as failed.

        What else passed is not known any more, and trials watch every tensor from now on.
        """
        for passed in self.passing:
            del self._seen[passed]
            self.memory.drop(_key(_edits(passed)))
        self._begun.clear()
        self.rig.distrust()
        edits, found = _edits(choice), Outcome(False, why)
        self.memory.put(_key(edits), found)
        self._seen[choice] = found
        self._note(Trial(edits, found))

    def _tried(self, choice: Choice | None, ahead: Ahead) -> Outcome:
        """What came of a choice, from memory or tried now; a crash, which may not happen again, is not kept."""
        edits = _edits(choice)
        key = _key(edits)
        known = self.memory.get(key)
        found = known or self._run(choice, ahead)
        if known is None and not found.crashed:
            self.memory.put(key, found)
        self._bring_forward(found)
        if choice is not None:
            self._seen[choice] = found  # before it is told: who stops the search then has seen it
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

    def _run(self, choice: Choice | None, ahead: Ahead) -> Outcome:
        """Try a choice, or None for everything in float32."""
        judge = Judge(self.goal, self.rig.own, len(self.order))
        waiting = deque(self.order)
        first = waiting.popleft()
        flags = self.rig.flags(choice) if choice is not None else self.rig.no_flags()
        running = deque([(first, self._begin(choice, flags, first))])
        alone = self._guess(ahead)
        try:
            while waiting or running:
                while waiting and len(running) < self.workers.count and not alone:
                    at = waiting.popleft()
                    running.append((at, self._submit(flags, at)))
                alone = False
                at, future = running.popleft()
                batch = wait_for(future, partial(self._send_again, flags, at))
                settled = judge.add(at, batch if choice is None else self.rig.settle(choice, at, batch))
                if settled is not None:
                    return settled
        except WorkerDied as problem:
            return Outcome(False, f"ONNX Runtime crashed: {problem}", crashed=True)
        finally:
            for _, future in running:
                future.cancel()
        raise AssertionError("the last batch settles a trial")

    # --- guesses ---

    def _guess(self, ahead: Ahead) -> bool:
        """Begin with choices that may be asked for next, one for each other worker; whether any are begun."""
        others = self.workers.count - 1
        for choice in ahead(others) if others else ():
            flags = self.rig.flags_if_served(choice) if choice not in self._seen else None
            if flags is not None and choice not in self._begun:
                self._begun[choice] = self.order[0], self._submit(flags, self.order[0])
        return bool(self._begun)

    def _begin(self, choice: Choice | None, flags: bytes, batch: int) -> Future[Batch]:
        """The run of a choice's first batch, which may have begun as a guess; if it has not, the guesses were wrong."""
        at, run = self._begun.pop(choice, (None, None)) if choice is not None else (None, None)
        if run is not None and at == batch:
            return run
        for _, other in self._begun.values():
            other.cancel()
        self._begun.clear()
        return self._submit(flags, batch)

    def _send_again(self, flags: bytes, batch: int) -> Future[Batch]:
        self._sent.clear()
        return self._submit(flags, batch)

    def _submit(self, flags: bytes, batch: int) -> Future[Batch]:
        rig = self.rig
        if rig.token not in self._sent:
            self._sent = {rig.token: self.workers.send(rig.payload)}
        return self.workers.executor.submit(trial, rig.token, self._sent[rig.token], flags, batch)
