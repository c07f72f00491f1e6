"""Parameters of commands as click has them: their types, and the options that dataclasses declare.

A command that has a Python function takes most of its options from the function's dataclass: ``declared`` makes click
options of the fields, and ``build`` makes the dataclass of what the user gave. Options that only the command line has
(outputs, formats) are click options of the command's own module.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from mixlist.errors import UsageError
from mixlist.option_fields import CommandLineForm, command_line_forms

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Given: TypeAlias = dict[str, object]  # the values of a command's options by parameter name
Options = TypeVar("Options", bound="DataclassInstance")


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


def declared(*options: type[DataclassInstance]) -> list[click.Parameter]:
    """Return click options for the fields of dataclasses that have a command-line form.

    They have no default of their own: what the user does not give keeps the dataclass's (``build``).
    """
    return [_click_option(name, form) for each in options for name, form in command_line_forms(each).items()]


_METAVARS = {"integer": "N", "number": "X", "input file": "FILE", "output file": "FILE"}


def _click_option(name: str, form: CommandLineForm) -> click.Option:
    description = form.description
    if form.default not in (None, ()) and form.kind != "flag":
        shown = f"{form.default:g}" if isinstance(form.default, float) else form.default
        description += f"  [default: {shown}]"
    return click.Option(
        [form.flag, name],
        type=_click_type(form),
        metavar=form.metavar or _METAVARS.get(form.kind),
        is_flag=True if form.kind == "flag" else None,  # with False, click would not take -1 for a value
        multiple=form.repeatable,
        help=description,
    )


def _click_type(form: CommandLineForm) -> click.ParamType[Any] | None:
    if form.kind == "integer":
        least, most = (None if bound is None else int(bound) for bound in (form.least, form.most))
        return click.IntRange(least, most)
    if form.kind == "number":
        return Number(form.least, form.most)
    if form.kind == "text":
        return click.Choice(form.choices) if form.choices else click.STRING
    return {"input file": FILE, "output file": OUTPUT}.get(form.kind)


def build(options: type[Options], given: Given, **converted: object) -> Options:
    """Return a dataclass of what the user gave, taken out of ``given``, and of values in another form than given."""
    return options(**_asked(options, given) | converted)


def change(base: Options, given: Given) -> Options:
    """Return a dataclass with what the user gave, taken out of ``given``, in place of its own values."""
    return replace(base, **_asked(type(base), given))


def _asked(options: type[DataclassInstance], given: Given) -> Given:
    """Take the fields of a dataclass out of ``given``; return those that the user gave a value."""
    values = {name: given.pop(name, None) for name in command_line_forms(options)}
    return {name: value for name, value in values.items() if value is not None and value != ()}


def on_command_line(*names: str) -> list[str]:
    """Return those parameters of the running command that the command line gives, not a configuration or a default."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    return [name for name in names if context.get_parameter_source(name) is source]


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
