"""The parts that the commands ``tune`` and ``repair`` share: options, input, and what standard error shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

import click

from mixlist.checker.limits import Limits
from mixlist.cli.command_files import load_input_model
from mixlist.cli.data_options import (
    DataOptions,
    apply_large_batch,
    batches_of_options,
    judging_options,
    keep_jobs_or_scheduler,
    pop_data_options,
    pop_judge,
    read_files,
)
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import build_options, format_option, pop_type_hints
from mixlist.cli.parameters import OptionValues
from mixlist.errors import UsageError
from mixlist.search.options import SearchOptions

if TYPE_CHECKING:
    from mixlist.model.load import LoadedModel
    from mixlist.progress import ProgressCallback
    from mixlist.run.feeds import Batches
    from mixlist.search.trials import Trial

OptionsOfSearch = TypeVar("OptionsOfSearch", bound=SearchOptions)


def search_options(options: type[SearchOptions]) -> list[click.Parameter]:
    """Return the options of a search: those of ``options``, of its data and limits, and of its report."""
    trace = GroupedOption(
        ["--trace"], group="output", is_flag=True, help="Write a line for every trial to standard error."
    )
    return [*judging_options(options), trace, format_option("text", "json")]


def check_search_options(option_values: OptionValues) -> DataOptions:
    """Refuse options that exclude each other, before anything is read; apply ``--large-batch``.

    Returns the data options, and removes them from ``option_values``.
    """
    apply_large_batch(option_values)
    keep_jobs_or_scheduler(option_values)
    return pop_data_options(option_values)


def read_search(
    model: str, data: DataOptions, base: OptionsOfSearch, option_values: OptionValues
) -> tuple[LoadedModel, Batches, OptionsOfSearch]:
    """Read the files of a search; return the model, the batches, and ``base`` with the values of the command line."""
    type_hints = pop_type_hints(option_values)
    judge = pop_judge(option_values)
    source = load_input_model(model)
    batches = batches_of_options(data, source, cast("int | None", option_values["max_batches"]))
    validation_paths = cast("tuple[str, ...]", option_values["validate_on"])
    validation_batches = read_files(validation_paths, data, source) if validation_paths else None
    _refuse_shared_data(batches, validation_batches)
    options = build_options(
        base,
        option_values,
        limits=build_options(Limits(), option_values),
        validate_on=validation_batches,
        type_hints=type_hints,
        **judge,
    )
    return source, batches, options


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
    from mixlist.show.progress_bar import bar
    from mixlist.show.tune_document import trial_line

    if trace:
        yield lambda now: print(trial_line(now.done, cast("Trial", now.detail)), file=sys.stderr, flush=True)
        return
    with bar("trials", "trials") as progress:
        yield progress
