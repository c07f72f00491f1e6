"""A progress bar on standard error for work that takes long; nothing where standard error is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from mixlist.training.job import Progress as TrainingProgress

LONG = 256 * 2**20  # bytes below which a bar would only flicker


@contextmanager
def count_bar(doing: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None] | None]:
    """Yield a function to call with the steps or bytes done, or None where standard error is no terminal.

    ``total`` is None where the end is not known. Few bytes have no bar.
    """
    if not sys.stderr.isatty() or (in_bytes and total is not None and total < LONG):
        yield None
        return
    with _bars(in_bytes) as bars:
        task = bars.add_task(doing, total=total)
        yield lambda count: bars.advance(task, count)


@contextmanager
def training_bar(runs: int) -> Iterator[Callable[[TrainingProgress], None] | None]:
    """Yield a function to call after each step of a training, or None where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bars() as bars:
        task = bars.add_task("training", total=None)
        seeds: list[int] = []

        def show(now: TrainingProgress) -> None:
            if now.seed not in seeds:
                seeds.append(now.seed)
            trainings = 2 * seeds.index(now.seed) + (now.kind == "mixed")  # the trainings that are done
            text = f"seed {now.seed}, {now.kind}: loss {now.loss:.4g}"
            scale = f", scale {now.scale:g}" if now.kind == "mixed" else ""
            done = trainings * now.steps + now.step
            bars.update(task, completed=done, total=2 * runs * now.steps, description=text + scale)

        yield show


def _bars(in_bytes: bool = False) -> Progress:
    from rich import progress
    from rich.console import Console

    first = (progress.TextColumn("{task.description}"), progress.BarColumn())
    steps = (progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
    columns = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if in_bytes else steps
    return progress.Progress(*first, *columns, console=Console(stderr=True), transient=True)
