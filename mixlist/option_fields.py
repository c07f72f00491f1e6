"""Declare an option once: as a field of a frozen dataclass, made by ``option``.

The commands check, tune, train and bench have one such dataclass each: ``checker/options.py``, ``tuner/options.py``,
``training/options.py`` and ``benchmark/options.py``; that of a policy is in ``lists/options.py``. Its fields are the
arguments of the Python function. Those that ``option`` makes are options of the command too (``cli/declared.py`` makes
click options of them), and keys of a ``--config`` file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import update_wrapper
from inspect import Signature, signature
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Arguments = ParamSpec("Arguments")
Default = TypeVar("Default")
Options = TypeVar("Options")
Result = TypeVar("Result")
ValueKind = Literal[
    "flag",
    "text",
    "integer",
    "number",
    "input file",
    "list file",
    "library",
    "model file",
    "output file",
    "appended file",
    "output folder",
]


@dataclass(frozen=True)
class CommandLineForm:
    """The form of an option on the command line and in a TOML file.

    ``kind``: the type of the value; a "list file" or a "library" may be ``-`` for standard input. ``flag``: the long
    option, "" for the field's name with dashes, ``--x/--no-x`` for a flag that is on by default. ``least`` and ``most``
    bound an integer or a number, both included. ``repeatable``: the option can be given several times, and the value is
    a tuple. ``files``: the names that are written into an output folder; existing files need --force. ``alias``: an
    older name of the option, which works and is not shown.
    """

    default: object
    description: str
    kind: ValueKind
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    repeatable: bool = False
    files: tuple[str, ...] = ()
    alias: str = ""


def option(
    default: Default,
    description: str,
    kind: ValueKind = "text",
    *,
    flag: str = "",
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    repeatable: bool = False,
    files: tuple[str, ...] = (),
) -> Default:
    """Return a field of an options dataclass that the command line has too.

    ``flag`` may have an older name before it: ``--old --new``.
    """
    alias, _, flag = flag.rpartition(" ")
    form = CommandLineForm(default, description, kind, flag, metavar, choices, least, most, repeatable, files, alias)
    return field(default=default, metadata={"command line": form})


def command_line_forms(options: type[DataclassInstance]) -> dict[str, CommandLineForm]:
    """Return how the fields of an options dataclass are written, by field; fields without such a form are left out."""
    forms = {each.name: each.metadata.get("command line") for each in fields(options)}
    return {
        name: replace(form, flag=form.flag or f"--{name.replace('_', '-')}")
        for name, form in forms.items()
        if form is not None
    }


def with_fields(
    options_class: Callable[Arguments, Options],
) -> Callable[[Callable[[Options], Result]], Callable[Arguments, Result]]:
    """Decorate a function of an options dataclass, so that it takes the fields as arguments instead."""

    def decorate(function: Callable[[Options], Result]) -> Callable[Arguments, Result]:
        def public(*positional: Arguments.args, **keywords: Arguments.kwargs) -> Result:
            return function(options_class(*positional, **keywords))

        public.__signature__ = field_signature(function, options_class)  # type: ignore[attr-defined]
        return update_wrapper(public, function)

    return decorate


def field_signature(function: Callable[..., object], options_class: Callable[..., object]) -> Signature:
    """Return the signature of a function with the fields of an options dataclass in place of its last parameter."""
    own = signature(function)
    leading = list(own.parameters.values())[:-1]
    return own.replace(parameters=[*leading, *signature(options_class).parameters.values()])
