"""The data options that ``check``, ``bench`` and ``tune`` share, and the batches that are made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.cli.declared import build
from mixlist.cli.parameters import Given, keep_one, names_and_values, on_command_line
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
    seed: int = option(0, "Of the random data.", "integer", minimum=0)
    dims: tuple[str, ...] = option(
        (),
        "A size that the model leaves open, by its name or as INPUT.AXIS, for random data. In NAME, * and ? match as in"
        " a shell: 's*=32'. An exact name wins over a pattern, and the first pattern that matches wins.",
        flag="--dim",
        metavar="NAME=SIZE",
        repeatable=True,
    )
    ranges: tuple[str, ...] = option(
        (),
        "Smallest and largest random value of an input; without it floats are standard normal, and integers have the"
        " range that the graph shows (the rows of a table, positions, flags), or are 0 or 1.",
        flag="--range",
        metavar="INPUT=LOW:HIGH",
        repeatable=True,
    )


_RANDOM_ONLY = ("seed", "dims", "ranges")


def take_data(given: Given) -> DataOptions:
    """Take the data options out of ``given``.

    The command line wins over a configuration: ``--random`` over its data, ``--data`` over its random data. Raises
    UsageError for two sources of data, and for what only random data takes beside data.
    """
    keep_one(given, "data", "random", "--data and --random are two sources of data")
    if given["data"]:
        for name in on_command_line(*_RANDOM_ONLY):
            flag = command_line_forms(DataOptions)[name].flag
            raise UsageError(f"{flag} is for --random, and the data comes from --data", hint=f"leave {flag} out")
    return build(DataOptions(), given)


def batches_from(options: DataOptions, proto: ModelProto) -> Batches:
    """Return the batches that the data options ask for."""
    from mixlist.runtime.feeds import make_random_batches, read_batches

    if options.data:
        return read_batches(options.data, proto)
    if options.random is None:
        raise UsageError(
            "there is no data to run the model on",
            hint="give some with --data batches/ (or a .npz file of inputs by name), or make it up: --random 4",
        )
    dims = sizes_from(options.dims)
    ranges = names_and_values(options.ranges, "--range", "INPUT=LOW:HIGH", _RANGE)
    bounds = {name: _bounds(text, name) for name, text in ranges}
    return make_random_batches(proto, options.random, options.seed, dims, bounds)


def sizes_from(texts: Iterable[str]) -> dict[str, int]:
    """Return what ``--dim NAME=SIZE`` gave, by name; raises UsageError for what is no size."""
    sizes = {}
    for name, text in names_and_values(texts, "--dim", "NAME=SIZE", _DIM):
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise UsageError(f"--dim {name}={text}: {text!r} is no size", hint=f"for example {_DIM}")
        sizes[name] = int(text)
    return sizes


_DIM, _RANGE = "--dim batch=4", "--range input_ids=0:30521"  # examples in messages


def _bounds(text: str, name: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        bounds = _number(low), _number(high)
    except ValueError:
        message = f"--range {name}={text}: {text!r} is not LOW:HIGH in finite numbers"
        raise UsageError(message, hint=f"for example {_RANGE}") from None
    if bounds[0] > bounds[1]:
        raise UsageError(f"--range {name}={text}: {low} is more than {high}", hint=f"write {name}={high}:{low}")
    return bounds


def _number(text: str) -> float:
    """A finite number; whole ones exactly, which floats are not beyond 2^53."""
    number = float(text)
    if number - number != 0:  # infinite or not a number
        raise ValueError
    try:
        return int(text)
    except ValueError:
        return number
