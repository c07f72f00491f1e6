"""Declare an option once: as a field of a frozen dataclass, made by ``option``.

The commands check, tune, train and bench have one such dataclass each: ``checker/options.py``, ``tuner/options.py``,
``training/options.py`` and ``benchmark/options.py``. Its fields are the keyword arguments of the Python function. Those
that ``option`` makes are options of the command too (``cli/declared.py`` makes click options of them), and keys of a
``--config`` file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Default = TypeVar("Default")
Kind = Literal["flag", "text", "integer", "number", "input file", "output file"]


@dataclass(frozen=True)
class CommandLineForm:
    """The form of an option on the command line and in a TOML file.

    ``flag``: the long option, "" for the field's name with dashes, ``--x/--no-x`` for a flag that is on by default.
    ``least`` and ``most`` bound an integer or a number, both included. ``repeatable``: the option can be given several
    times, and the value is a tuple.
    """

    default: object
    description: str
    kind: Kind
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    repeatable: bool = False


def option(
    default: Default,
    description: str,
    kind: Kind = "text",
    *,
    flag: str = "",
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    repeatable: bool = False,
) -> Default:
    """Return a field of an options dataclass that the command line has too."""
    form = CommandLineForm(default, description, kind, flag, metavar, choices, least, most, repeatable)
    return field(default=default, metadata={"command line": form})


def command_line_forms(options: type[DataclassInstance]) -> dict[str, CommandLineForm]:
    """Return how the fields of an options dataclass are written, by field; fields without such a form are left out."""
    forms = {each.name: each.metadata.get("command line") for each in fields(options)}
    return {
        name: replace(form, flag=form.flag or f"--{name.replace('_', '-')}")
        for name, form in forms.items()
        if form is not None
    }
