"""A progress bar on standard error for work that takes long; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 256 * 2**20  # bytes below which a bar would only flicker


@contextmanager
def byte_bar(doing: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Yields a function that is told the bytes done, or None where standard error is no terminal or little is to do.

    ``total`` is None where the end is not known.
    """
    if not sys.stderr.isatty() or (total is not None and total < LONG):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def count_bar(doing: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Yields a function that is told the steps done, or None where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda count: progress.advance(task, count)
