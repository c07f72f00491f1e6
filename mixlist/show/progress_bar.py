"""Show a progress bar on standard error for long work, if standard error is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich import progress

    from mixlist.progress import Progress, ProgressCallback, Unit

# Fewer bytes are read or written too quickly for a bar.
_MIN_BYTES = 256 * 2**20


@contextmanager
def bar(activity: str, unit: Unit, size: int | None = None) -> Iterator[ProgressCallback | None]:
    """Yield a ``progress`` callback that shows a bar, or None if standard error is not a terminal.

    ``size``: the number of bytes to process, if known; below ``_MIN_BYTES`` there is no bar.
    """
    if not sys.stderr.isatty() or (size is not None and size < _MIN_BYTES):
        yield None
        return
    with _bars(unit) as bars:
        # The first call of ``show`` sets the total.
        task = bars.add_task(activity, total=None, left="")

        def show(state: Progress) -> None:
            # The detail of a step of a training says what the bar cannot: its seed, loss and scale.
            description = str(state.detail) if state.unit == "steps" else activity
            bars.update(task, completed=state.done, total=state.total, description=description, left=time_left(state))

        yield show


def time_left(state: Progress) -> str:
    """Return the time that the current search of ``tune`` still takes, as text; "" while it is not known."""
    seconds = state.seconds_left
    if seconds is None:
        return ""
    text = (
        f"{seconds / 3600:.0f} h"
        if seconds >= 5400
        else f"{seconds / 60:.0f} min"
        if seconds >= 90
        else f"{seconds:.0f} s"
    )
    return f"about {text} left in this search"


def _bars(unit: Unit) -> progress.Progress:
    from rich import progress
    from rich.console import Console

    first = (progress.TextColumn("{task.description}"), progress.BarColumn())
    # The number of trials is not known before the end, so the time of a search is forecast in another way.
    time = progress.TextColumn("{task.fields[left]}") if unit == "trials" else progress.TimeRemainingColumn()
    steps = (progress.MofNCompleteColumn(), time)
    columns = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if unit == "bytes" else steps
    # Transient: the bar disappears at the end, so that it does not stay above a report.
    return progress.Progress(*first, *columns, console=Console(stderr=True), transient=True)
