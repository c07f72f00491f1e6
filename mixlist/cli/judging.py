"""Share what commands with a verdict need besides their dataclasses of options."""

from __future__ import annotations

import click

from mixlist.checker.exception_rate import LARGE_BATCH_RATE_LIMIT
from mixlist.cli.parameters import Given, keep_one
from mixlist.errors import UsageError

LARGE_BATCH = click.Option(
    ["--large-batch"], is_flag=True, help="The exception rate for a large global batch: 0.1 % (--max-exception-rate)."
)


def apply_large_batch(given: Given) -> None:
    """Put the exception rate of a large global batch for ``--large-batch``; the command line wins over a file."""
    message = "--large-batch and --max-exception-rate are two exception rates"
    keep_one(given, "large_batch", "max_exception_rate", message)
    if given.pop("large_batch"):
        given["max_exception_rate"] = LARGE_BATCH_RATE_LIMIT


def refuse_two_workplaces(given: Given) -> None:
    """Raise UsageError for ``--jobs`` beside ``--scheduler``."""
    if given["jobs"] is not None and given["scheduler"] is not None:
        raise UsageError("--jobs is for this machine, and --scheduler has its own workers", hint="give one of them")
