"""The options of the commands that run models on data: the batches that they select, and what decides a verdict."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from mixlist.cli.command_files import load_input_model
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import build_options, declared_options, pop_type_hints
from mixlist.cli.parameters import OptionValues, options_on_command_line, parse_assignments
from mixlist.errors import UsageError
from mixlist.option_fields import command_line_forms, option

if TYPE_CHECKING:
    from mixlist.checker.options import JudgingOptions
    from mixlist.model.load import LoadedModel, Model
    from mixlist.progress import ProgressCallback
    from mixlist.run.feeds import Batches
    from mixlist.run.inputs import Input
    from mixlist.search.trials import Trial

Options = TypeVar("Options", bound="JudgingOptions")

# --- data ---


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The source of the batches: files, a Python function, or a random number generator."""

    data: tuple[str, ...] = option(
        (),
        "A .npz file of inputs by name (one batch), a directory with a .npy or .bin file for each input, a"
        " test_data_set directory of input_N.pb, for a model with one input a .npy or .bin file or an image, or a"
        " directory of these. Can be given more than once.",
        "input file",
        metavar="PATH",
        repeatable=True,
        group="data",
    )
    shapes: tuple[str, ...] = option(
        (),
        "The shape of a .bin file, whose values have the declared type and no header. The default is the declared"
        " shape.",
        flag="--shape",
        metavar="INPUT=2,8",
        repeatable=True,
        group="data",
    )
    mean: str | None = option(
        None, "For images: the numbers that are subtracted from the pixels (0 to 255).", metavar="X[,X,X]", group="data"
    )
    scale: str | None = option(
        None,
        "For images: the factors by which the pixels are multiplied then, such as 1/255.",
        metavar="X[,X,X]",
        group="data",
    )
    resize: str | None = option(
        None,
        "For images: how they get the model's size. crop and pad keep the proportions; without this option, another"
        " size is an error.",
        choices=("stretch", "crop", "pad"),
        group="data",
    )
    bgr: bool = option(False, "For images: the channels of the model are blue, green, red.", "flag", group="data")
    loader: str | None = option(
        None,
        "A Python function that yields the batches, each a dict of arrays by input name.",
        "python function",
        metavar="FILE.py:NAME",
        group="data",
    )
    random: int | None = option(
        None, "Make N batches of random data instead.", "integer", bounds=(1, None), group="data"
    )
    seed: int = option(0, "The seed of the random data.", "integer", bounds=(0, None), group="data")
    dims: tuple[str, ...] = option(
        (),
        "For random data and images, a size that the model leaves open, by its name or as INPUT.AXIS. In NAME, * and ?"
        " match as in a shell: 's*=32'. An exact name wins over a pattern, and the first pattern that matches wins.",
        flag="--dim",
        metavar="NAME=SIZE",
        repeatable=True,
        group="data",
    )
    ranges: tuple[str, ...] = option(
        (),
        "The smallest and the largest random value of an input. By default floats are standard normal, and integers"
        " have the range that the graph shows: an index of Gather is below the size of its axis. Other integers are 0"
        " or 1.",
        flag="--range",
        metavar="INPUT=LOW:HIGH",
        repeatable=True,
        group="data",
    )

    @property
    def has_source(self) -> bool:
        """Return True if the user gave data."""
        return bool(self.data) or self.loader is not None or self.random is not None


# The options of one source of data, and the source for messages.
_SOURCE_OF_OPTION = {
    "seed": "--random", "ranges": "--random", "dims": "--random and images",
    "mean": "images", "scale": "images", "resize": "images", "bgr": "images", "shapes": ".bin files",
}  # fmt: skip


def pop_data_options(option_values: OptionValues) -> DataOptions:
    """Remove the data options from ``option_values``, and return them.

    Raises UsageError for an option on the command line that the source of the data does not use.
    """
    options = build_options(DataOptions(), option_values)
    # Whether files are images is known later: ``batches_of_options`` looks at the others again.
    if options.data:
        _refuse_unused("the data comes from --data", "seed", "ranges")
    elif options.loader is not None:
        _refuse_unused("the data comes from --loader", *_SOURCE_OF_OPTION)
    elif options.random is not None:
        _refuse_unused("the data is random", "mean", "scale", "resize", "bgr", "shapes")
    return options


def _refuse_unused(reason: str, *names: str) -> None:
    """Raise UsageError for the first of these options that is on the command line, because nothing uses it."""
    # In a configuration these options may stay: it can serve several commands.
    for name in options_on_command_line(*names):
        flag = command_line_forms(DataOptions)[name].flag
        raise UsageError(f"{flag} is for {_SOURCE_OF_OPTION[name]}, and {reason}", hint=f"leave {flag} out")


def advise_real_values(options: DataOptions, inputs: Iterable[Input]) -> tuple[str, ...]:
    """Return the sentence that names the float inputs whose random values have no range from the user; () without."""
    from mixlist.model import dtypes

    given = {text.partition("=")[0] for text in options.ranges}
    names = [i.name for i in inputs if i.type in dtypes.FLOATS and not i.optional and i.name not in given]
    if options.random is None or not names:
        return ()
    inputs_text = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    return (
        f"the random values of {inputs_text} are around 0, with a standard deviation of 1: if real ones are larger,"
        f" check on them with --data, or give their range with --range {names[0]}=LOW:HIGH",
    )


def batches_of_options(options: DataOptions, model: Model, limit: int | None = None) -> Batches:
    """Return the batches that the data options select. Raises UsageError if they select none.

    ``limit``: the number of batches that the command uses at most; a loader is not asked for more.
    """
    from mixlist.model.load import load_model
    from mixlist.run.batch_files import IMAGE_SUFFIXES
    from mixlist.run.feeds import as_batches, random_batches

    if options.data:
        batches = read_files(options.data, options, model)
        suffixes = {path.suffix.lower() for path in batches.files()}
        if not suffixes & set(IMAGE_SUFFIXES):
            _refuse_unused("the data has no images", "dims", "mean", "scale", "resize", "bgr")
        if ".bin" not in suffixes:
            _refuse_unused("the data has none", "shapes")
        return batches
    if options.loader is not None:
        return as_batches(_read_loader(options.loader), load_model(model).proto, limit)
    if options.random is None:
        raise UsageError(
            "there is no data to run the model on",
            hint="give data with --data batches/ (or a .npz file of inputs by name), a Python function with --loader,"
            " or use random data: --random 4",
        )
    # Only random data needs sizes and ranges: the shapes and values of files are given.
    dims = parse_sizes(options.dims)
    bounds = parse_assignments(
        options.ranges,
        "--range",
        "INPUT=LOW:HIGH, from a finite number to one that is not less",
        "ids=0:30521",
        _parse_bounds,
    )
    return random_batches(model, options.random, seed=options.seed, dims=dims, ranges=dict(bounds))


def _read_loader(loader: str) -> Iterator[object]:
    """Yield the batches of a loader, with a progress bar without a total: its code may take long, or have no end."""
    from mixlist.progress import ProgressCounter
    from mixlist.run.python_function import run_loader
    from mixlist.show.progress_bar import bar

    with bar("reading data", "batches") as progress:
        counter = ProgressCounter(progress, "batches")
        for batch in run_loader(loader):
            counter.add()
            yield batch


def read_files(paths: tuple[str, ...], options: DataOptions, model: Model) -> Batches:
    """Return the batches in files and directories, read as the data options say."""
    from mixlist.run.feeds import read_data

    return read_data(
        model,
        paths,
        shapes=dict(parse_assignments(options.shapes, "--shape", "INPUT=SIZE,SIZE", "x=2,8", _parse_shape)),
        mean=_parse_numbers(options.mean, "--mean"),
        scale=_parse_numbers(options.scale, "--scale"),
        resize=options.resize,
        bgr=options.bgr,
        dims=parse_sizes(options.dims),
    )


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Return the sizes of ``--dim NAME=SIZE`` by name. Raises UsageError for a text that is not a size."""
    return dict(parse_assignments(texts, "--dim", "NAME=SIZE", "batch=4", _parse_size))


def _parse_size(text: str) -> int:
    # Sizes are int64, and every number of 18 digits is one.
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError
    return int(text)


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(_parse_size(size.strip()) for size in text.split(","))


def _parse_bounds(text: str) -> tuple[float, float]:
    low, high = (_parse_number(number) for number in text.split(":"))
    if low > high:
        raise ValueError
    return low, high


def _parse_number(text: str) -> float:
    """Return a finite number or fraction, such as ``1/255``; an int if it is one: floats are not exact beyond 2^53."""
    numerator, _, denominator = text.partition("/")
    number = float(numerator) / (float(denominator or 1) or math.nan)
    if not math.isfinite(number):
        raise ValueError
    return int(text) if text.strip("+- ").isdecimal() else number


def _parse_numbers(text: str | None, flag: str) -> tuple[float, ...]:
    """Return the numbers in a text with commas. Raises UsageError."""
    try:
        return tuple(map(_parse_number, text.split(","))) if text is not None else ()
    except ValueError:
        hint = "for example --scale 1/255, or one number for each channel"
        raise UsageError(f"{flag} {text}: not all of these are finite numbers", hint=hint) from None


# --- verdict ---

LARGE_BATCH = GroupedOption(
    "--large-batch", "limits", "Set --max-exception-rate for a large global batch: 0.1 %.", is_flag=True
)


def judging_options(options: type[JudgingOptions]) -> list[click.Parameter]:
    """Return the options of a command that runs models on data and judges them: data, ``options``, and limits."""
    from mixlist.checker.limits import Limits

    return [*declared_options(DataOptions, options), LARGE_BATCH, *declared_options(Limits)]


def apply_large_batch(option_values: OptionValues) -> None:
    """Replace ``--large-batch`` by ``--max-exception-rate 0.001``."""
    from mixlist.checker.limits import LARGE_BATCH_RATE_LIMIT

    if option_values.pop("large_batch"):
        option_values["max_exception_rate"] = LARGE_BATCH_RATE_LIMIT


def build_judging_options(base: Options, option_values: OptionValues) -> Options:
    """Return ``base`` with the values that the user gave; the file of ``--judge`` is imported."""
    from mixlist.checker.limits import Limits

    apply_large_batch(option_values)
    limits, hints = build_options(Limits(), option_values), pop_type_hints(option_values)
    return build_options(base, option_values, limits=limits, type_hints=hints, **_pop_judge(option_values))


def read_run(
    model: str,
    data: DataOptions,
    base: Options,
    option_values: OptionValues,
    prepare: Callable[[LoadedModel, Options], LoadedModel] = lambda source, _: source,
    needs_data: Callable[[LoadedModel, Options], bool] = lambda source, options: True,
) -> tuple[LoadedModel, Batches, Options]:
    """Return the model, the batches, and ``base`` with the options of a command that judges a model.

    ``prepare`` returns the model for which the data is made, from the model of the file and the options.
    Where ``needs_data`` is False for it, there may be no data.

    Raises UsageError for wrong options, and for a file that is data of the run and of its validation.
    """
    validation_paths = cast("tuple[str, ...]", option_values.pop("validate_on", ()))
    options = build_judging_options(base, option_values)
    source = prepare(load_input_model(model), options)
    if not (data.has_source or validation_paths or needs_data(source, options)):
        from mixlist.run.feeds import Batches

        return source, Batches((), ()), options
    batches = batches_of_options(data, source, options.max_batches)
    if validation_paths:
        validation: dict[str, Any] = {"validate_on": read_files(validation_paths, data, source)}
        searched = {path.resolve() for path in batches.files()}
        if shared := [path for path in validation["validate_on"].files() if path.resolve() in searched]:
            hint = "give data that the search does not use"
            raise UsageError(f"--validate-on: {shared[0]} is also data of the search", hint=hint)
        options = replace(options, **validation)
    return source, batches, options


def _pop_judge(option_values: OptionValues) -> dict[str, Any]:
    """Remove ``--judge`` and ``--limit`` from ``option_values``; return the function and its limits by field."""
    from mixlist.run.python_function import load_function

    text = option_values.pop("judge")
    judge = text if text in (None, "boxes") else load_function(str(text), f"--judge {text}", "--judge judge.py:compare")
    limits: dict[str, float] = {}
    texts = cast("tuple[str, ...] | None", option_values.pop("judge_limits")) or ()
    for name, limit in parse_assignments(texts, "--limit", "NAME=X", "boxes_lost=0.01", float):
        if name in limits:
            raise UsageError(f"--limit {name} is given twice", hint="give it once")
        limits[name] = limit
    return {"judge": judge, "judge_limits": limits or None}


# --- searches ---

TRACE = GroupedOption("--trace", "output", "Write a line for every trial to standard error.", is_flag=True)


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
