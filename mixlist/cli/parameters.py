"""Types of parameters, ``--config``, and questions about what the running command was given."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import click

from mixlist.errors import UsageError

Given: TypeAlias = dict[str, object]  # the values of a command's options by parameter name


Use: TypeAlias = Literal["reads", "reads model", "reads library", "edits", "writes", "appends", "writes into"]


class PathType(click.Path):
    """A path, and what the command does with the file there; ``command_files`` compares these files.

    ``reads``: a file, or the batches in a folder; ``reads model``: its weights in other files too; ``reads library``: a
    built-in library, a file, or the JSON files in a folder. ``edits``: reads it, and writes it in its place.
    ``writes``: replaces it whole; ``must_be_new``: only with --force; ``may_replace``: the parameter whose input it may
    be then; ``also``: more files that it writes because of this one. ``writes into``: replaces these ``files`` of a
    folder whole.
    """

    def __init__(
        self,
        use: Use,
        *,
        allow_dash: bool = False,
        must_be_new: bool = False,
        may_replace: str = "",
        also: Callable[[str], str] | None = None,
        files: tuple[str, ...] = (),
    ) -> None:
        super().__init__(allow_dash=allow_dash)
        self.use, self.must_be_new, self.may_replace = use, must_be_new, may_replace
        self._also, self._files = also, files

    @property
    def is_read(self) -> bool:
        """Return whether the file is an input."""
        return self.use in ("reads", "reads model", "reads library", "edits")

    def files_written(self, path: str) -> tuple[str, ...]:
        """Return the files that a command writes for this path, apart from one that it edits."""
        if self.use == "writes into":
            return tuple(os.path.join(path, name) for name in self._files)  # noqa: PTH118
        if self.use not in ("writes", "appends") or (path == "-" and self.allow_dash):
            return ()
        return (path,) if self._also is None else (path, self._also(path))

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if "\0" in os.fspath(value):  # click's own type fails at it, and a configuration can hold it
            self.fail("a path cannot hold a NUL character", param, ctx)
        return super().convert(value, param, ctx)


FILE = PathType("reads")
PATH = PathType("reads", allow_dash=True)  # '-' is standard input
MODEL = PathType("reads model")
LIBRARY = PathType("reads library", allow_dash=True)
OUTPUT = PathType("writes")
OUTPUT_OR_DASH = PathType("writes", allow_dash=True)  # '-' is standard output


class AliasedOption(click.Option):
    """An option that may have an older name, which works and is not shown."""

    def __init__(self, declarations: Sequence[str], alias: str = "", **attributes: Any) -> None:
        # Messages name an option by the last of its names.
        super().__init__([alias, *declarations] if alias else declarations, **attributes)
        self.alias = alias

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the row of the option in the help text, without the older name."""
        record = super().get_help_record(ctx)
        return None if record is None else (record[0].removeprefix(f"{self.alias}, "), record[1])

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name of the option for messages."""
        return f"'{self.opts[-1]}'"


class Choice(click.Choice[str]):
    """One of several words; ``aliases`` are older words for some of them, which work and are not shown."""

    def __init__(self, choices: Sequence[str], aliases: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._aliases = aliases

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._aliases.get(value, value), param, ctx)


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


def path_values(context: click.Context) -> Iterator[tuple[click.Parameter, PathType, str]]:
    """Yield each path that the running command was given, its configuration among them, with its parameter and type."""
    for parameter in context.command.params:
        kind = parameter.type
        if isinstance(kind, PathType):
            values = context.meta.get(_CONFIG) if parameter is CONFIG else context.params.get(parameter.name or "")
            paths = values if isinstance(values, tuple) else () if values is None else (values,)
            yield from ((parameter, kind, str(path)) for path in paths)


def one_standard_input() -> None:
    """Raise UsageError if two inputs of the running command are ``-``: standard input can be read once."""
    paths = path_values(click.get_current_context())
    if sum(path == "-" for _, kind, path in paths if kind.is_read and kind.allow_dash) > 1:
        raise UsageError(
            "'-' (standard input) is given twice", hint="it can be read once: put one of the two in a file"
        )


def _read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the options of a configuration the defaults of the command."""
    if path is not None:
        from mixlist.cli.config import defaults

        context.meta[_CONFIG] = path
        context.default_map = defaults(path, context)


_CONFIG = "mixlist.config"  # the key of the path in a context's ``meta``, since the command does not get it
CONFIG = click.Option(
    ["--config"],
    metavar="FILE",
    type=FILE,
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="A TOML file with any of these options; paths in it are relative to it, the command line wins.",
)
