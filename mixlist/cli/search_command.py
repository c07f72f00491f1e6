"""The parts that the commands ``tune`` and ``repair`` share: their data, and the report of trials on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import click

from mixlist.cli.data_options import DataOptions, make_batches, pop_data_options, read_files
from mixlist.cli.parameters import OptionValues
from mixlist.cli.verdict_options import apply_large_batch, keep_jobs_or_scheduler
from mixlist.errors import UsageError

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.progress import ProgressCallback
    from mixlist.runtime.feeds import Batches
    from mixlist.tuner.trials import Trial

TRACE = click.Option(["--trace"], is_flag=True, help="Write a line for every trial to standard error.")


def check_search_options(option_values: OptionValues, labels: str | None) -> DataOptions:
    """Refuse options that exclude each other, before anything is read; apply ``--large-batch``.

    Returns the data options, and removes them from ``option_values``.
    """
    apply_large_batch(option_values)
    keep_jobs_or_scheduler(option_values)
    if option_values["max_accuracy_loss"] is not None and labels is None:
        raise UsageError("--max-accuracy-loss needs the right answers", hint="give --labels FILE")
    return pop_data_options(option_values)


def read_search_data(
    data: DataOptions, validate_on: tuple[str, ...], proto: ModelProto, steps: object
) -> tuple[Batches, Batches | None]:
    """Return the batches of the search, at most ``steps``, and those of ``--validate-on``, None without this option."""
    batches = make_batches(data, proto, cast("int | None", steps))
    validation_batches = read_files(validate_on, data, proto) if validate_on else None
    _refuse_shared_data(batches, validation_batches)
    return batches, validation_batches


def _refuse_shared_data(batches: Batches, validation_batches: Batches | None) -> None:
    """Raise UsageError if a file is data of the search and of the validation."""
    searched = {path.resolve() for path in batches.files()}
    for path in validation_batches.files() if validation_batches is not None else ():
        if path.resolve() in searched:
            hint = "give data that the search does not use"
            raise UsageError(f"--validate-on: {path} is also data of the search", hint=hint)


@contextmanager
def report_trials(trace: bool) -> Iterator[ProgressCallback | None]:
    """Yield a ``progress`` callback that reports each trial: as a line of text, or on the progress bar."""
    from mixlist.report.progress import bar
    from mixlist.report.tune_terminal import trial_line

    if trace:
        yield lambda now: print(trial_line(now.done, cast("Trial", now.detail)), file=sys.stderr, flush=True)
        return
    with bar("trials", "trials") as progress:
        yield progress
