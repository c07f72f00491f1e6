"""Show a progress bar on standard error for long work, if standard error is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mixlist.benchmark.result import LEAST_ROUNDS
from mixlist.number_text import format_duration
from mixlist.option_spelling import spell

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
        # The first call of ``show`` sets the total. Without one, few bytes show nothing.
        task = bars.add_task(activity, total=None, visible=unit != "bytes" or size is not None)
        fewest: int | None = None  # edits of a trial that passed

        def show(state: Progress) -> None:
            nonlocal fewest
            description = activity
            if state.unit == "steps":  # the detail of a step of a training has its seed, loss and scale
                description = str(state.detail)
            elif state.unit == "trials":
                fewest = _fewest_edits(state.detail, fewest)
                best = "none passed so far"
                if fewest is not None:
                    changed = "node or op type" if fewest == 1 else "nodes or op types"
                    best = f"the best that passed changes {fewest} {changed}"
                description = f"{state.done} trial{'s' * (state.done != 1)}, {best}"
            elif state.unit == "rounds" and state.done == 1 and isinstance(state.detail, float):
                # Above the bar, and it stays.
                fewer = f"; {spell('rounds', LEAST_ROUNDS)} takes less"
                bars.console.print(
                    f"{state.total} rounds of both models: about {format_duration(state.detail)}"
                    f"{fewer if (state.total or 0) > LEAST_ROUNDS else ''}",
                    highlight=False,
                )
            is_visible = unit != "bytes" or size is not None or state.done >= _MIN_BYTES
            bars.update(task, completed=state.done, total=state.total, description=description, visible=is_visible)

        yield show


def _fewest_edits(trial: object, fewest: int | None) -> int | None:
    """Return the number of edits of a trial if it passed with fewer edits than any before; else ``fewest``."""
    edits, outcome = getattr(trial, "edits", ()), getattr(trial, "outcome", None)
    has_fewer = fewest is None or len(edits) < fewest
    return len(edits) if has_fewer and getattr(outcome, "passed", False) else fewest


def _bars(unit: Unit) -> progress.Progress:
    from rich import progress
    from rich.console import Console

    text = progress.TextColumn("{task.description}")
    first: tuple[progress.ProgressColumn, ...] = (text, progress.BarColumn())
    columns: tuple[progress.ProgressColumn, ...] = (progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
    if unit == "bytes":
        columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    elif unit == "trials":  # their number is not known before the end: a bar would stand still
        first, columns = (progress.SpinnerColumn(), text), ()
    # Transient: the bar disappears at the end, so that it does not stay above a report.
    return progress.Progress(*first, *columns, console=Console(stderr=True), transient=True)
