"""A progress bar on standard error for work that takes long; nothing where standard error is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich import progress

    from mixlist.progress import Progress, ProgressCallback, Unit
    from mixlist.training.job import TrainingStep

LONG = 256 * 2**20  # bytes below which a bar would only flicker


@contextmanager
def bar(doing: str, unit: Unit, size: int | None = None) -> Iterator[ProgressCallback | None]:
    """Yield a ``progress`` callback that shows a bar, or None where standard error is no terminal.

    ``size``: the bytes to come; few have no bar.
    """
    if not sys.stderr.isatty() or (size is not None and size < LONG):
        yield None
        return
    with _bars(unit) as bars:
        task = bars.add_task(doing, total=None)

        def show(now: Progress) -> None:
            bars.update(task, completed=now.done, total=now.total, description=_description(now) or doing)

        yield show


def _description(now: Progress) -> str:
    """Return the text of the bar of a training; "" for others."""
    if now.unit != "steps":
        return ""
    step = cast("TrainingStep", now.detail)
    scale = f", scale {step.scale:g}" if step.kind == "mixed" else ""
    return f"seed {step.seed}, {step.kind}: loss {step.loss:.4g}{scale}"


def _bars(unit: Unit) -> progress.Progress:
    from rich import progress
    from rich.console import Console

    first = (progress.TextColumn("{task.description}"), progress.BarColumn())
    steps = (progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
    columns = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if unit == "bytes" else steps
    return progress.Progress(*first, *columns, console=Console(stderr=True), transient=True)
