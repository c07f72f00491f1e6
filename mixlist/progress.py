"""The value that every ``progress`` callback of the Python functions gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Unit = Literal["bytes", "batches", "rounds", "trials", "steps"]


@dataclass(frozen=True)
class Progress:
    """The progress of a function.

    ``done``: bytes of weights that were read (``resolve``) or written (``RewriteResult.save``), batches (``check``),
    rounds (``bench``), trials (``tune``) or steps of all trainings (``train``); ``unit`` says which. ``total`` is None
    if the end is not known. ``detail``: the ``mixlist.tuner.trials.Trial`` that was tried last, or the
    ``mixlist.training.job.TrainingStep`` that was made last.
    """

    done: int
    total: int | None
    unit: Unit
    detail: object = None


ProgressCallback: TypeAlias = Callable[[Progress], None]


@dataclass
class ProgressCounter:
    """Counts what is done, and calls ``callback``, if there is one, each time."""

    callback: ProgressCallback | None
    unit: Unit
    total: int | None = None
    done: int = field(default=0, init=False)

    def skip(self, count: int) -> None:
        """Count as done what an earlier run did."""
        self.done += count

    def add(self, count: int = 1, detail: object = None) -> None:
        """Count more as done. An error of the callback, such as KeyboardInterrupt, ends the work."""
        self.done += count
        if self.callback is not None:
            self.callback(Progress(self.done, self.total, self.unit, detail))
