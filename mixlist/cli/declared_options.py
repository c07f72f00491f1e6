"""Make click options from dataclasses of options, and dataclasses from the values that the user gives.

A command that is also a function of the Python API has most of its options from the dataclass of that function.
``declared_options`` makes a click option of each field. ``build_options`` makes the dataclass from the values of a
command line. Options that only the command line has (outputs, formats) are in the module of the command.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mixlist.cli.name_completion import COMPLETER_OF_FIELD
from mixlist.cli.parameters import (
    INPUT,
    INPUT_OR_DASH,
    LIBRARY,
    MODEL,
    OUTPUT,
    PYTHON_FUNCTION,
    Number,
    OptionValues,
    PathType,
)
from mixlist.option_fields import CommandLineForm, command_line_forms

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


def declared_options(*options: type[DataclassInstance]) -> list[click.Parameter]:
    """Return a click option for each field of the dataclasses that has a command-line form.

    The click options have no defaults. A field that the user does not set keeps the default of its dataclass
    (``build_options``), so that a default is stated once.
    """
    return [_click_option(name, form) for kind in options for name, form in command_line_forms(kind).items()]


def prefixed_options(
    options: type[DataclassInstance], prefix: str, title: str, *, without: tuple[str, ...] = ()
) -> list[click.Parameter]:
    """Return the options of a dataclass under the names ``--PREFIX-NAME``, for a command that has them several times.

    ``title`` begins their help texts. ``without``: fields that get no option.
    """
    return [
        _click_option(
            f"{prefix}_{name}",
            replace(
                form,
                flag=f"--{prefix}-{form.flag.removeprefix('--')}",
                description=f"{title} {form.description}",
            ),
        )
        for name, form in command_line_forms(options).items()
        if name not in without
    ]


_FILE_TYPES = {
    "input file": INPUT,
    "model file": MODEL,
    "output file": OUTPUT,
    "appended file": PathType("appends"),
    "python function": PYTHON_FUNCTION,
}
# Options of these kinds show click's own metavar for their type, unless they state one.
_LIST_FILE_TYPES = {"list file": INPUT_OR_DASH, "library": LIBRARY}
_METAVARS = {"integer": "N", "number": "X", "output folder": "DIR"} | dict.fromkeys(_FILE_TYPES, "FILE")


def _click_option(name: str, form: CommandLineForm) -> click.Option:
    description = form.description
    if form.default not in (None, ()) and form.kind != "flag":
        shown = f"{form.default:g}" if isinstance(form.default, float) else form.default
        description += f"  [default: {shown}]"
    return click.Option(
        # The second name is that of the parameter, and so of the field: --dim has the field ``dims``.
        [form.flag, name],
        type=_click_type(form),
        metavar=form.metavar or _METAVARS.get(form.kind),
        default=None,
        # None and not False: with False, click would read the value -1 as an option.
        is_flag=True if form.kind == "flag" else None,
        multiple=form.repeatable,
        help=description,
        shell_complete=COMPLETER_OF_FIELD.get(name),
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
    return (_FILE_TYPES | _LIST_FILE_TYPES).get(form.kind)


def build_options(base: Options, option_values: OptionValues, **converted: object) -> Options:
    """Return ``base`` with the values that the user gave; remove these values from ``option_values``.

    ``converted``: more values by field, for fields whose type differs from that of the option, and for fields without
    an option.
    """
    values = {name: option_values.pop(name, None) for name in command_line_forms(type(base))}
    # click gives None, or () for a repeatable option, where the user gave no value.
    set_by_user = {name: value for name, value in values.items() if value is not None and value != ()}
    return replace(base, **set_by_user | converted)
