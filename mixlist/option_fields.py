"""Declare an option once: ``option`` makes a field of a frozen dataclass.

Each of the commands check, tune, train and bench has one such dataclass: ``checker/options.py``, ``tuner/options.py``,
``training/options.py`` and ``benchmark/options.py``. The options of a policy are in ``lists/options.py``. The fields of
a dataclass are the arguments of its Python function. A field that ``option`` makes is also an option of the command
(``cli/declared_options.py`` makes click options from these fields) and a key of a ``--config`` file.
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
# The kinds of values. ``cli/declared_options.py`` gives each kind a click type, which also says whether the command
# reads or writes the file.
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
    "python function",
]


@dataclass(frozen=True)
class CommandLineForm:
    """The form of an option on the command line and in a TOML file.

    - ``description``: the help text.
    - ``kind``: the kind of value. ``-`` as a "list file" or a "library" means standard input. A "python function" has
      the form ``FILE.py:NAME`` or ``MODULE:NAME``.
    - ``flag``: the long name of the option, such as ``--op-names``; "" means ``--`` and the field's name with dashes.
      An option of the kind "flag" that is on by default has the form ``--x/--no-x``.
    - ``metavar``: the word for the value in the help text.
    - ``choices``: the allowed values; empty if there are no such limits.
    - ``minimum`` and ``maximum``: the bounds of an integer or a number; both are allowed values.
    - ``repeatable``: if True, the option can be given several times, and its value is a tuple.
    - ``files``: the names of the files that the command writes into an output folder; existing files need --force.
    - ``alias``: an older name of the option, which still works and which --help does not show.
    """

    default: object
    description: str
    kind: ValueKind
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
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
    minimum: float | None = None,
    maximum: float | None = None,
    repeatable: bool = False,
    files: tuple[str, ...] = (),
) -> Default:
    """Return a dataclass field that is also an option of the command line.

    The arguments are those of ``CommandLineForm``. ``flag`` can hold two names, the older one first: ``--old --new``.
    """
    # "--old --new" -> alias "--old" and flag "--new"; "--new" -> alias "" and flag "--new".
    alias, _, flag = flag.rpartition(" ")
    form = CommandLineForm(
        default, description, kind, flag, metavar, choices, minimum, maximum, repeatable, files, alias
    )
    # The declared return type is that of the default, as in dataclasses.field: type checkers compare it with the field.
    return field(default=default, metadata={"command line": form})


def command_line_forms(options_class: type[DataclassInstance]) -> dict[str, CommandLineForm]:
    """Return the command-line form of each field that ``option`` made, by field name; other fields are left out."""
    forms = {declared.name: declared.metadata.get("command line") for declared in fields(options_class)}
    return {
        name: replace(form, flag=form.flag or f"--{name.replace('_', '-')}")
        for name, form in forms.items()
        if form is not None
    }


def with_fields(
    options_class: Callable[Arguments, Options],
) -> Callable[[Callable[[Options], Result]], Callable[Arguments, Result]]:
    """Return a decorator that lets a function take the fields of an options dataclass as arguments.

    Example: ``load_policy(options: PolicyOptions)`` becomes ``load_policy(ops_info="onnx", mixlist=None, ...)``.
    """

    def decorate(function: Callable[[Options], Result]) -> Callable[Arguments, Result]:
        def public_function(*positional: Arguments.args, **keywords: Arguments.kwargs) -> Result:
            return function(options_class(*positional, **keywords))

        # help() and editors then show the fields of the dataclass, and not ``*positional, **keywords``.
        public_function.__signature__ = field_signature(function, options_class)  # type: ignore[attr-defined]
        return update_wrapper(public_function, function)

    return decorate


def field_signature(function: Callable[..., object], options_class: Callable[..., object]) -> Signature:
    """Return the signature of a function, with the fields of an options dataclass in place of its last parameter."""
    declared = signature(function)
    # f(model, options: CheckOptions) -> f(model, provider=..., limits=..., ...)
    leading = list(declared.parameters.values())[:-1]
    return declared.replace(parameters=[*leading, *signature(options_class).parameters.values()])
