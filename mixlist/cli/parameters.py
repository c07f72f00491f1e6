"""Types of parameters, ``--config``, and questions about what the running command was given."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import click

from mixlist.errors import UsageError

Given: TypeAlias = dict[str, object]  # the values of a command's options by parameter name


class PathType(click.Path):
    """A path as the user wrote it; click's own type fails at a NUL, which a configuration can hold."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if "\0" in os.fspath(value):
            self.fail("a path cannot hold a NUL character", param, ctx)
        return super().convert(value, param, ctx)


FILE = PathType()
PATH = PathType(allow_dash=True)  # '-' is standard input
OUTPUT = PathType()
OUTPUT_OR_DASH = PathType(allow_dash=True)  # '-' is standard output


class Number(click.FloatRange):
    """A number, infinity included; NaN would keep every limit or none."""

    name = "number"

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("NaN is no limit", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


def on_command_line(*names: str) -> list[str]:
    """Return those parameters of the running command that the command line gives, not a configuration or a default."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    return [name for name in names if context.get_parameter_source(name) is source]


def keep_one(given: Given, first: str, second: str, message: str) -> None:
    """Keep one of two options that exclude each other: that of the command line, where a configuration has the other.

    Raises UsageError with the message where both come from the same place.
    """
    values = given[first], given[second]
    if any(value is None or value is False or value == () for value in values):
        return
    said = on_command_line(first, second)
    if len(said) != 1:
        raise UsageError(message, hint="give one of them")
    given[second if said == [first] else first] = None


def names_and_values(texts: Iterable[str], option: str, form: str, example: str) -> Iterator[tuple[str, str]]:
    """Yield what each NAME=VALUE says, split at the last ``=``: names of inputs may hold one.

    Raises UsageError, with the form and an example, for a text without name, sign or value.
    """
    for text in texts:
        name, sign, value = text.rpartition("=")
        if not (sign and name and value):
            raise UsageError(f"{option} {text}: this is not {form}", hint=f"for example {example}")
        yield name, value


def values_of_type(*types: PathType) -> Iterator[str]:
    """Return the paths of these types that the running command was given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.type in types:
            value = context.params.get(parameter.name or "")
            yield from value if isinstance(value, tuple) else (() if value is None else (value,))


def one_standard_input() -> None:
    """Raise UsageError if two inputs of the running command are ``-``: standard input can be read once."""
    if list(values_of_type(PATH)).count("-") > 1:
        raise UsageError(
            "'-' (standard input) is given twice", hint="it can be read once: put one of the two in a file"
        )


def _read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the options of a configuration the defaults of the command."""
    if path is not None:
        from mixlist.cli.config import defaults

        context.default_map = defaults(path, context)


CONFIG = click.Option(
    ["--config"],
    metavar="FILE",
    type=FILE,
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="A TOML file with any of these options; paths in it are relative to it, the command line wins.",
)
