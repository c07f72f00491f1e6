"""Options of commands that dataclasses declare.

A command that has a Python function takes most of its options from the function's dataclass: ``declared`` makes click
options of the fields, and ``build`` makes the dataclass of what the user gave. Options that only the command line has
(outputs, formats) are click options of the command's own module.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mixlist.cli.parameters import FILE, LIBRARY, MODEL, OUTPUT, PATH, AliasedOption, Given, Number, PathType
from mixlist.option_fields import CommandLineForm, command_line_forms

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


def declared(*options: type[DataclassInstance]) -> list[click.Parameter]:
    """Return click options for the fields of dataclasses that have a command-line form.

    They have no default of their own: what the user does not give keeps the dataclass's (``build``).
    """
    return [_click_option(name, form) for each in options for name, form in command_line_forms(each).items()]


_FILES = {"input file": FILE, "model file": MODEL, "output file": OUTPUT, "appended file": PathType("appends")}
_LISTS = {"list file": PATH, "library": LIBRARY}
_METAVARS = {"integer": "N", "number": "X", "output folder": "DIR"} | dict.fromkeys(_FILES, "FILE")


def _click_option(name: str, form: CommandLineForm) -> click.Option:
    description = form.description
    if form.default not in (None, ()) and form.kind != "flag":
        shown = f"{form.default:g}" if isinstance(form.default, float) else form.default
        description += f"  [default: {shown}]"
    return AliasedOption(
        [form.flag, name],
        form.alias,
        type=_click_type(form),
        metavar=form.metavar or _METAVARS.get(form.kind),
        default=None,
        is_flag=True if form.kind == "flag" else None,  # with False, click would not take -1 for a value
        multiple=form.repeatable,
        help=description,
    )


def _click_type(form: CommandLineForm) -> click.ParamType[Any] | None:
    if form.kind == "integer":
        minimum, maximum = (None if bound is None else int(bound) for bound in (form.minimum, form.maximum))
        return click.IntRange(minimum, maximum)
    if form.kind == "number":
        return Number(form.minimum, form.maximum)
    if form.kind == "text":
        return click.Choice(form.choices) if form.choices else click.STRING
    if form.kind == "output folder":
        return PathType("writes into", must_be_new=True, files=form.files)
    return (_FILES | _LISTS).get(form.kind)


def build(base: Options, given: Given, **converted: object) -> Options:
    """Return the options with what the user gave, taken out of ``given``, in place of their own values.

    ``converted``: values in another form than given.
    """
    values = {name: given.pop(name, None) for name in command_line_forms(type(base))}
    asked = {name: value for name, value in values.items() if value is not None and value != ()}
    return replace(base, **asked | converted)
