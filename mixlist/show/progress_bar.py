"""Show a progress bar on standard error for long work, if standard error is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mixlist.number_text import format_duration, format_share, pluralize
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from rich import progress

    from mixlist.progress import Progress, ProgressCallback, Unit
    from mixlist.search.trials import Trial

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
        best: Trial | None = None  # of the trials that passed

        def show(state: Progress) -> None:
            nonlocal best
            description = activity
            if state.unit == "steps":  # the detail of a step of a training has its seed, loss and scale
                description = str(state.detail)
            elif state.unit == "trials":
                best = _better_trial(state.detail, best)
                trials = pluralize(state.done, "trial")
                trials = trials if state.total is None else f"{state.done} of at most {pluralize(state.total, 'trial')}"
                description = f"{trials}, {_describe_best(best)}"
            elif state.unit == "rounds" and state.done == 1 and isinstance(state.detail, float):
                from mixlist.benchmark.result import LEAST_ROUNDS

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


def _better_trial(trial: object, best: Trial | None) -> Trial | None:
    """Return a trial if it passed with more in low precision than the best one before; else the best one."""
    from mixlist.search.trials import Trial

    if not isinstance(trial, Trial) or not trial.outcome.passed or not trial.low_nodes:
        return best
    is_better = best is None or (trial.low_share or 0, trial.low_nodes) > (best.low_share or 0, best.low_nodes)
    return trial if is_better else best


def _describe_best(best: Trial | None) -> str:
    """Return how much the best trial has in low precision, and how much of a limit its errors use."""
    if best is None:
        return "none with a low node passed so far"
    low = f"{best.low_nodes} nodes" if best.low_share is None else f"{format_share(best.low_share)} of the matrix work"
    share = best.outcome.limit_share
    used = "" if share is None else f" with {format_share(share)} of a limit"
    return f"the best has {low} low{used}"


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
