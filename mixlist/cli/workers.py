"""Where ``check`` and ``tune`` run what takes long: processes of this machine, or a Dask cluster."""

from __future__ import annotations

from typing import Any

import click

from mixlist.errors import UsageError


def worker_options(what: str, default: str) -> tuple[Any, ...]:
    """``--jobs`` and ``--scheduler``; ``what`` runs there, ``default`` says where it does without them."""
    return (
        click.option(
            "--jobs", metavar="N", type=click.IntRange(min=1), help=f"Processes that run {what}.  [{default}]"
        ),
        click.option(
            "--scheduler", metavar="ADDRESS", help=f"Run {what} on the workers of this Dask scheduler instead."
        ),
    )


def take_workers(given: dict[str, Any]) -> dict[str, Any]:
    """The two options out of what was given; raises UsageError for both."""
    jobs, scheduler = given.pop("jobs"), given.pop("scheduler")
    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs is for this machine, and --scheduler has its own workers", hint="give one of them")
    return {"jobs": jobs, "scheduler": scheduler}
