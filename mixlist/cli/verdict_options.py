"""The option ``--large-batch`` of ``check``, ``tune`` and ``train``, and checks of options that exclude each other."""

from __future__ import annotations

import click

from mixlist.checker.exception_rate import LARGE_BATCH_RATE_LIMIT
from mixlist.cli.parameters import OptionValues, keep_one_option
from mixlist.errors import UsageError

LARGE_BATCH = click.Option(
    ["--large-batch"], is_flag=True, help="Set --max-exception-rate for a large global batch: 0.1 %."
)


def apply_large_batch(option_values: OptionValues) -> None:
    """Replace ``--large-batch`` by ``--max-exception-rate 0.001``; the command line wins over a configuration."""
    message = "--large-batch and --max-exception-rate both set the exception rate"
    keep_one_option(option_values, "large_batch", "max_exception_rate", message)
    if option_values.pop("large_batch"):
        option_values["max_exception_rate"] = LARGE_BATCH_RATE_LIMIT


def refuse_jobs_with_scheduler(option_values: OptionValues) -> None:
    """Raise UsageError if both ``--jobs`` and ``--scheduler`` are given."""
    if option_values["jobs"] is not None and option_values["scheduler"] is not None:
        raise UsageError("--jobs is for this machine, and --scheduler has its own workers", hint="give one of them")
