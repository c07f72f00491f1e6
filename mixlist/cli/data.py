"""The data options that ``check``, ``bench`` and ``tune`` share, and the batches that are made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.options import FILE
from mixlist.errors import UsageError

if TYPE_CHECKING:
    from mixlist.runtime.feeds import Batches

LABELS = click.option(
    "--labels",
    metavar="FILE",
    type=FILE,
    help="A .npy or .npz file of integer labels, one per sample in the order of the data.",
)
PROVIDER = click.option(
    "--provider", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="What runs the models."
)
DATA_OPTIONS = (
    click.option(
        "--data",
        metavar="PATH",
        type=FILE,
        multiple=True,
        help="A .npz file of inputs by name (one batch), a directory of them, a test_data_set directory of input_N.pb,"
        " or a .npy file for a model with one input. Can be given more than once.",
    ),
    click.option("--random", metavar="N", type=click.IntRange(min=1), help="Make N batches of random data instead."),
    click.option("--seed", metavar="S", type=click.IntRange(min=0), help="Of the random data.  [default: 0]"),
    click.option(
        "--dim",
        "dims",
        metavar="NAME=SIZE",
        multiple=True,
        help="A size that the model leaves open, by its name or as INPUT.AXIS, for random data.",
    ),
    click.option(
        "--range",
        "ranges",
        metavar="INPUT=LOW:HIGH",
        multiple=True,
        help="Smallest and largest random value of an input; without it floats are standard normal and integers 0 or"
        " 1, since larger ones might be no valid index or token.",
    ),
    PROVIDER,
)
_RANDOM_ONLY = {"seed": "--seed", "dims": "--dim", "ranges": "--range"}
_NAMES = ("data", "random", *_RANDOM_ONLY)


def take_data(given: dict[str, Any]) -> dict[str, Any]:
    """Takes the data options out of all that were given, so that those of the policy are left."""
    return {name: given.pop(name) for name in _NAMES}


def batches_from(given: dict[str, Any], proto: Any) -> Batches:
    """The batches that the data options ask for, of a ModelProto; ``given`` is what ``take_data`` took.

    The command line wins over a configuration: ``--random`` over its data, ``--data`` over its random data.
    """
    from mixlist.runtime.feeds import random_batches, read_batches

    given = _decided(given)
    if given["data"]:
        return read_batches(given["data"], proto)
    if given["random"] is None:
        raise UsageError(
            "there is no data to run the model on",
            hint="give some with --data batches/ (or a .npz file of inputs by name), or make it up: --random 4",
        )
    dims = sizes_from(given["dims"])
    ranges = {name: _bounds(text, name) for name, text in _pairs(given["ranges"], "--range", "INPUT=LOW:HIGH")}
    return random_batches(proto, given["random"], given["seed"] or 0, dims, ranges)


def sizes_from(texts: Iterable[str]) -> dict[str, int]:
    """What ``--dim NAME=SIZE`` gave, by name; raises UsageError for what is no size."""
    return {name: _size(text, "--dim", name) for name, text in _pairs(texts, "--dim", "NAME=SIZE")}


def _decided(given: dict[str, Any]) -> dict[str, Any]:
    """Either data or random data. Raises UsageError for both, and for what only random data takes beside data."""
    context = click.get_current_context()
    said = {name for name in _NAMES if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    if given["data"] and given["random"] is not None:
        if {"data", "random"} <= said or not {"data", "random"} & said:
            raise UsageError("--data and --random are two sources of data", hint="give one of them")
        given = given | ({"random": None} if "data" in said else {"data": ()})
    if given["data"]:
        for name, option in _RANDOM_ONLY.items():
            if name in said:
                raise UsageError(
                    f"{option} is for --random, and the data comes from --data", hint=f"leave {option} out"
                )
    return given


def _pairs(texts: Iterable[str], option: str, form: str) -> Iterable[tuple[str, str]]:
    """Name and value; split at the last ``=``, since names of inputs may hold one."""
    for text in texts:
        name, sign, value = text.rpartition("=")
        if not (sign and name and value):
            raise UsageError(f"{option} {text}: this is not {form}", hint=f"for example {_EXAMPLES[option]}")
        yield name, value


_EXAMPLES = {"--dim": "--dim batch=4", "--range": "--range input_ids=0:30521"}


def _size(text: str, option: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{option} {name}={text}: {text!r} is no size", hint=f"for example {_EXAMPLES[option]}")
    return int(text)


def _bounds(text: str, name: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        bounds = _number(low), _number(high)
    except ValueError:
        message = f"--range {name}={text}: {text!r} is not LOW:HIGH in finite numbers"
        raise UsageError(message, hint=f"for example {_EXAMPLES['--range']}") from None
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
