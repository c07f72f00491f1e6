"""The options that decide a verdict, which several commands share, and checks of options that exclude each other."""

from __future__ import annotations

import click

from mixlist.checker.limits import LARGE_BATCH_RATE_LIMIT, Limits
from mixlist.checker.options import JudgingOptions
from mixlist.cli.data_options import DataOptions
from mixlist.cli.options import declared_options
from mixlist.cli.parameters import OptionValues, keep_one_option

LARGE_BATCH = click.Option(
    ["--large-batch"], is_flag=True, help="Set --max-exception-rate for a large global batch: 0.1 %."
)


def judging_options(options: type[JudgingOptions]) -> list[click.Parameter]:
    """Return the options of a command that runs models on data and judges them: data, ``options``, and limits."""
    return [*declared_options(DataOptions, options), LARGE_BATCH, *declared_options(Limits)]


def apply_large_batch(option_values: OptionValues) -> None:
    """Replace ``--large-batch`` by ``--max-exception-rate 0.001``; the command line wins over a configuration."""
    message = "--large-batch and --max-exception-rate both set the exception rate"
    keep_one_option(option_values, "large_batch", "max_exception_rate", message)
    if option_values.pop("large_batch"):
        option_values["max_exception_rate"] = LARGE_BATCH_RATE_LIMIT


def keep_jobs_or_scheduler(option_values: OptionValues) -> None:
    """Keep one of ``--jobs`` and ``--scheduler``; the command line wins over a configuration."""
    message = "--jobs is for this machine, and --scheduler has its own workers"
    keep_one_option(option_values, "jobs", "scheduler", message)
