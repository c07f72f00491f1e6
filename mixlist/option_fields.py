"""Declare an option once: ``option`` makes a field of a frozen dataclass.

Each of the commands check, tune, train and bench has one such dataclass: ``checker/options.py``,
``search/options.py``, ``training/options.py`` and ``benchmark/options.py``. The options of a policy are in
``lists/policy.py``. The fields of a dataclass are the arguments of its Python function. A field that ``option`` makes
is also an option of the command (``cli/options.py`` makes click options from these fields) and a key of a
``--config`` file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from functools import update_wrapper
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Arguments = ParamSpec("Arguments")
Default = TypeVar("Default")
Result = TypeVar("Result")
Options = TypeVar("Options")
# The kinds of values. ``cli/options.py`` gives each kind a click type, which also says whether the command
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
# The groups of options in help texts, in their order: the lists of a policy, the data, what makes a verdict, how the
# command works, and what it writes. "other" is for the help and the configuration.
OptionGroup = Literal["lists", "data", "limits", "run", "output", "other"]
Bounds: TypeAlias = tuple[float | None, float | None]


class CommandLineForm(NamedTuple):
    """The form of an option on the command line and in a TOML file.

    - ``description``: the help text.
    - ``kind``: the kind of value. ``-`` as a "list file" or a "library" means standard input. A "python function" has
      the form ``FILE.py:NAME`` or ``MODULE:NAME``.
    - ``group``: the group of the option in help texts.
    - ``flag``: the long name of the option, such as ``--op-names``; "" means ``--`` and the field's name with dashes.
      An option of the kind "flag" that is on by default has the form ``--x/--no-x``.
    - ``metavar``: the word for the value in the help text.
    - ``choices``: the allowed values; empty if there are no such limits.
    - ``bounds``: the smallest and the largest value of an integer or a number; None is no bound.
    - ``repeatable``: if True, the option can be given several times, and its value is a tuple.
    """

    default: object
    description: str
    kind: ValueKind
    group: OptionGroup = "run"
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    bounds: Bounds = (None, None)
    repeatable: bool = False


def option(
    default: Default,
    description: str,
    kind: ValueKind = "text",
    *,
    group: OptionGroup = "run",
    flag: str = "",
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    bounds: Bounds = (None, None),
    repeatable: bool = False,
) -> Default:
    """Return a dataclass field that is also an option of the command line.

    The arguments are those of ``CommandLineForm``.
    """
    form = CommandLineForm(default, description, kind, group, flag, metavar, choices, bounds, repeatable)
    # The declared return type is that of the default, as in dataclasses.field: type checkers compare it with the field.
    return field(default=default, metadata={"command line": form})


def command_line_forms(options_class: type[DataclassInstance]) -> dict[str, CommandLineForm]:
    """Return the command-line form of each field that ``option`` made, by field name; other fields are left out."""
    forms = {declared.name: declared.metadata.get("command line") for declared in fields(options_class)}
    return {
        name: form._replace(flag=form.flag or f"--{name.replace('_', '-')}")
        for name, form in forms.items()
        if form is not None
    }


def _require_known_keywords(
    function_name: str, leading: Sequence[str], options_class: Any, keywords: Mapping[str, object]
) -> None:
    """Raise TypeError for an unknown keyword: with the most similar one, or the object of another keyword that has it.

    Example: ``check(..., max_normalized_error=0.05)`` belongs into ``limits=mixlist.Limits(normalized=...)``. The field
    ``limits`` names the class of its object in its metadata, as "held class". ``leading``: the arguments that are no
    options.
    """
    known_names = {declared.name for declared in fields(options_class)}
    held_classes = {f.name: f.metadata["held class"] for f in fields(options_class) if "held class" in f.metadata}
    for keyword in keywords.keys() - known_names:
        for holder, held_class in held_classes.items():
            for name, form in command_line_forms(held_class).items():
                if keyword in (name, form.flag.removeprefix("--").replace("-", "_")):
                    raise TypeError(
                        f"{function_name}() got an unexpected keyword argument {keyword!r}: write "
                        f"{holder}=mixlist.{held_class.__name__}({name}=...)"
                    )
        from difflib import get_close_matches  # importing it takes time

        similar = get_close_matches(keyword, [*leading, *sorted(known_names)], 1)
        question = f": did you mean {similar[0]}?" if similar else ""
        raise TypeError(f"{function_name}() got an unexpected keyword argument {keyword!r}{question}")


def with_known_keywords(options_class: type[Options]) -> type[Options]:
    """Return an options dataclass of which an unknown keyword is a TypeError with the most similar one."""
    declared: Any = options_class
    initialize = declared.__init__

    def initialize_with_known(self: Options, *positional: Any, **keywords: Any) -> None:
        _require_known_keywords(options_class.__name__, (), options_class, keywords)
        initialize(self, *positional, **keywords)

    declared.__init__ = update_wrapper(initialize_with_known, initialize)
    return options_class


def with_fields(
    arguments: Callable[Arguments, object],
) -> Callable[[Callable[..., Result]], Callable[Arguments, Result]]:
    """Return a decorator that lets a function take the fields of an options dataclass in place of its last parameter.

    Example: ``check(model, policy, data, options: CheckOptions)`` becomes ``check(model, policy, data, *,
    layerwise=False, ...)``. ``help``, editors and type checkers show each keyword with its default. The other arguments
    can be keywords, too. An unknown keyword is a TypeError, and the dataclass raises UsageError for options that
    contradict.

    ``arguments`` is the options dataclass. For type checkers alone, it is a subclass with the other arguments as
    fields: only the constructor of such a class has all of them, each by its position or its name (PEP 612).
    """
    options_class: Any = arguments

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        declared = signature(function)
        *leading, last = declared.parameters

        def public_function(*positional: Any, **keywords: Any) -> Result:
            named = {name: keywords.pop(name) for name in leading[len(positional) :] if name in keywords}
            _require_known_keywords(function.__name__, leading, options_class, keywords)
            options = options_class(*positional[len(leading) :], **keywords)
            return function(*positional[: len(leading)], **named, **{last: options})

        # help() and editors then show the fields of the dataclass, and not ``*positional, **keywords``:
        # f(model, options: CheckOptions) -> f(model, provider=..., limits=..., ...)
        shown = [*(declared.parameters[name] for name in leading), *signature(options_class).parameters.values()]
        public_function.__signature__ = declared.replace(parameters=shown)  # type: ignore[attr-defined]
        return update_wrapper(public_function, function)

    return decorate
