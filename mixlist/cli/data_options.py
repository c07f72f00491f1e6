"""The data options that ``check``, ``bench`` and ``tune`` share, and the batches that they select."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.cli.declared_options import build_options
from mixlist.cli.parameters import OptionValues, keep_one_option, options_on_command_line, split_assignments
from mixlist.errors import UsageError
from mixlist.option_fields import command_line_forms, option

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.feeds import Batches


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The source of the batches: files, or a random number generator."""

    data: tuple[str, ...] = option(
        (),
        "A .npz file of inputs by name (one batch), a directory of them, a test_data_set directory of input_N.pb,"
        " or a .npy file for a model with one input. Can be given more than once.",
        "input file",
        metavar="PATH",
        repeatable=True,
    )
    random: int | None = option(None, "Make N batches of random data instead.", "integer", minimum=1)
    seed: int = option(0, "The seed of the random data.", "integer", minimum=0)
    dims: tuple[str, ...] = option(
        (),
        "For random data, a size that the model leaves open, by its name or as INPUT.AXIS. In NAME, * and ? match as in"
        " a shell: 's*=32'. An exact name wins over a pattern, and the first pattern that matches wins.",
        flag="--dim",
        metavar="NAME=SIZE",
        repeatable=True,
    )
    ranges: tuple[str, ...] = option(
        (),
        "The smallest and the largest random value of an input. By default floats are standard normal, and integers"
        " have the range that the graph shows: an index of Gather is below the size of its axis. Other integers are 0"
        " or 1.",
        flag="--range",
        metavar="INPUT=LOW:HIGH",
        repeatable=True,
    )


_RANDOM_ONLY = ("seed", "dims", "ranges")
_DIM_EXAMPLE, _RANGE_EXAMPLE = "--dim batch=4", "--range input_ids=0:30521"  # for the hints of errors


def pop_data_options(option_values: OptionValues) -> DataOptions:
    """Remove the data options from ``option_values``, and return them.

    The command line wins over a configuration: ``--random`` replaces the key ``data``, and ``--data`` replaces the key
    ``random``.

    Raises UsageError for two sources of data, and for ``--data`` if the command line also has an option of random data.
    """
    keep_one_option(option_values, "data", "random", "--data and --random are two sources of data")
    if option_values["data"]:
        # In a configuration these options may stay: it can serve several commands.
        for name in options_on_command_line(*_RANDOM_ONLY):
            flag = command_line_forms(DataOptions)[name].flag
            raise UsageError(f"{flag} is for --random, and the data comes from --data", hint=f"leave {flag} out")
    return build_options(DataOptions(), option_values)


def make_batches(options: DataOptions, proto: ModelProto) -> Batches:
    """Return the batches that the data options select. Raises UsageError if they select none."""
    from mixlist.runtime.feeds import make_random_batches, read_batches

    if options.data:
        return read_batches(options.data, proto)
    if options.random is None:
        raise UsageError(
            "there is no data to run the model on",
            hint="give data with --data batches/ (or a .npz file of inputs by name), or use random data: --random 4",
        )
    # Only random data needs sizes and ranges: the shapes and values of files are given.
    dims = parse_sizes(options.dims)
    ranges = split_assignments(options.ranges, "--range", "INPUT=LOW:HIGH", _RANGE_EXAMPLE)
    bounds = {name: _parse_bounds(text, name) for name, text in ranges}
    return make_random_batches(proto, options.random, options.seed, dims, bounds)


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Return the sizes of ``--dim NAME=SIZE`` by name. Raises UsageError for a text that is not a size."""
    sizes = {}
    for name, text in split_assignments(texts, "--dim", "NAME=SIZE", _DIM_EXAMPLE):
        # Sizes are int64, and every number of 18 digits is one.
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise UsageError(f"--dim {name}={text}: {text!r} is not a size", hint=f"for example {_DIM_EXAMPLE}")
        sizes[name] = int(text)
    return sizes


def _parse_bounds(text: str, name: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        bounds = _parse_number(low), _parse_number(high)
    except ValueError:
        message = f"--range {name}={text}: {text!r} is not LOW:HIGH in finite numbers"
        raise UsageError(message, hint=f"for example {_RANGE_EXAMPLE}") from None
    if bounds[0] > bounds[1]:
        raise UsageError(f"--range {name}={text}: {low} is more than {high}", hint=f"write {name}={high}:{low}")
    return bounds


def _parse_number(text: str) -> float:
    """Return the finite number in a text: an int where possible, because floats are not exact beyond 2^53."""
    number = float(text)
    if number - number != 0:  # infinite or not a number
        raise ValueError
    try:
        return int(text)
    except ValueError:
        return number
