"""Progress of a long function: the counter that reports it to the ``progress`` callback, and the time of its phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Unit = Literal["bytes", "batches", "rounds", "trials", "steps"]


class Progress(NamedTuple):
    """The progress of a function: the argument of every ``progress`` callback.

    ``done`` counts in ``unit``: bytes of weights that were read (``resolve``) or written (``RewriteResult.save``),
    batches (``check``), rounds (``bench``), trials (``tune``), or steps of all training runs (``train``). ``total`` is
    the number at the end, or None if it is not known. ``detail`` is the latest ``mixlist.search.trials.Trial``
    (``tune``), ``mixlist.training.run.StepProgress`` (``train``) or the expected seconds of all rounds (``bench``), and
    None for the other functions.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(), progress=lambda step: print(step.done, step.unit))
    """

    done: int
    total: int | None
    unit: Unit
    detail: object = None


ProgressCallback: TypeAlias = Callable[[Progress], None]


@dataclass
class ProgressCounter:
    """A counter of finished units that calls ``callback``, unless it is None, after each change."""

    callback: ProgressCallback | None
    unit: Unit
    total: int | None = None
    done: int = field(default=0, init=False)

    def add(self, count: int = 1, detail: object = None) -> None:
        """Count more finished units and call the callback.

        An error that the callback raises, such as KeyboardInterrupt, passes through and so ends the work.
        """
        self.done += count
        if self.callback is not None:
            self.callback(Progress(self.done, self.total, self.unit, detail))


class PhaseTimer:
    """The seconds of each phase of a function, summed over all times that the phase is entered."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time inside the ``with`` to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
