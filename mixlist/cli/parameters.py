"""The types of parameters, and functions for the values of the running command's options."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from mixlist.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NO_CONFIG = "none"  # the value of --config for no configuration
CONFIG_KEY = "mixlist.config"  # of the path of the configuration, in ``context.meta``
OptionValues: TypeAlias = dict[str, object]  # the values of a command's options by parameter name
FileUse: TypeAlias = Literal["reads", "reads model", "reads library", "edits", "writes", "appends", "writes into"]


class PathType(click.Path):
    """A path, and how the command uses the file there. ``command_files`` compares these files before any work.

    The uses are:

    - ``reads``: a file, or the batches in a folder.
    - ``reads model``: a model, and the other files with its weights.
    - ``reads library``: the name of a built-in library, a file, or the JSON files in a folder.
    - ``edits``: a file that the command reads, and replaces.
    - ``writes``: a file that the command creates or replaces.
    - ``appends``: a file that the command creates or extends.
    - ``writes into``: a folder in which the command creates or replaces the files ``files``.

    ``must_be_new``: the command replaces an existing file only with ``--force``. ``replaceable_input``: the name of a
    parameter whose input file the output may replace with ``--force``. ``other_output``: returns a second file that the
    command may write, such as ``modify.partial.json`` for ``modify.json``.
    """

    def __init__(
        self,
        use: FileUse,
        *,
        allow_dash: bool = False,
        must_be_new: bool = False,
        replaceable_input: str = "",
        other_output: Callable[[str], str] | None = None,
        files: tuple[str, ...] = (),
    ) -> None:
        super().__init__(allow_dash=allow_dash)
        self.use, self.must_be_new, self.replaceable_input = use, must_be_new, replaceable_input
        self._other_output, self._files = other_output, files

    @property
    def is_read(self) -> bool:
        """Return whether the file is an input."""
        return self.use in ("reads", "reads model", "reads library", "edits")

    def files_written(self, path: str) -> tuple[str, ...]:
        """Return the files that the command writes because of this path.

        An edited file is not among them: the command replaces this input on purpose.
        """
        if self.use == "writes into":
            return tuple(os.path.join(path, name) for name in self._files)  # noqa: PTH118
        if self.use not in ("writes", "appends") or (path == "-" and self.allow_dash):
            return ()
        return (path,) if self._other_output is None else (path, self._other_output(path))

    def path_in(self, value: str) -> str:
        """Return the path in a value of the parameter; "" if there is none."""
        return value

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        # A configuration can hold this character, for which click's own type raises ValueError.
        if "\0" in os.fspath(value):
            self.fail("a path cannot hold a NUL character", param, ctx)
        return super().convert(value, param, ctx)


class PythonFunctionType(PathType):
    """``FILE.py:NAME`` or ``MODULE:NAME``. The command reads the file. Modules are not compared with its outputs."""

    def path_in(self, value: str) -> str:
        module = value.rpartition(":")[0]
        return module if module.endswith(".py") else ""


class LibraryType(PathType):
    """The name of a built-in library, or the path of another one."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names of the built-in libraries for the completion of a shell, or let it complete a path."""
        from mixlist.cli.name_completion import complete_library

        return complete_library(ctx, param, incomplete)


class TargetType(PathType):
    """The name of a target with a table, or the path of a table."""

    def path_in(self, value: str) -> str:
        from mixlist.targets.target import TARGETS

        return "" if value in TARGETS else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names of the targets for the completion of a shell, or let it complete a path."""
        from click.shell_completion import CompletionItem

        from mixlist.targets.target import TARGETS

        names = [CompletionItem(name) for name in TARGETS if name.startswith(incomplete)]
        return names or super().shell_complete(ctx, param, incomplete)


INPUT = PathType("reads")
INPUT_OR_DASH = PathType("reads", allow_dash=True)  # '-' is standard input
MODEL = PathType("reads model")
PYTHON_FUNCTION = PythonFunctionType("reads")
TARGET = TargetType("reads")
LIBRARY = LibraryType("reads library", allow_dash=True)
OUTPUT = PathType("writes")
OUTPUT_OR_DASH = PathType("writes", allow_dash=True)  # '-' is standard output


class Number(click.FloatRange):
    """A number or infinity. NaN is refused: every comparison with it is false, so it cannot be a limit."""

    name = "number"

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("NaN is not allowed", param, ctx)
        return number

    def _describe_range(self) -> str:
        # click would describe a number without bounds as "x<=None".
        return "" if self.min is None and self.max is None else super()._describe_range()


def options_on_command_line(*names: str) -> list[str]:
    """Return those of the parameters that the command line sets, not a configuration or a default."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    return [name for name in names if context.get_parameter_source(name) is source]


def keep_one_option(option_values: OptionValues, first: str, second: str, message: str) -> None:
    """Keep one of two options that exclude each other: the command line wins over a configuration.

    The other option becomes None. Raises UsageError with ``message`` if both options come from the same place.
    """
    values = option_values[first], option_values[second]
    # None, False (a flag) and () (a repeatable option) mean that the option is not set.
    if any(value is None or value is False or value == () for value in values):
        return
    # Both are set. With one of them on the command line, the other one is from a configuration and loses.
    explicit = options_on_command_line(first, second)
    if len(explicit) != 1:
        raise UsageError(message, hint="give one of them")
    drop_option(option_values, second if explicit == [first] else first)


def drop_option(option_values: OptionValues, name: str) -> None:
    """Give an option no value; a command line that ``next_command`` writes does not have it either."""
    option_values[name] = None
    click.get_current_context().params[name] = None


def split_assignments(texts: Iterable[str], option: str, form: str, example: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each NAME=VALUE, split at the last ``=``: a name may contain one.

    Raises UsageError, with ``form`` and ``example`` in its text, for a text without a name, ``=`` or a value.
    """
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (equals and name and value):
            raise UsageError(f"{option} {text}: this is not {form}", hint=f"for example {example}")
        yield name, value


def used_paths(context: click.Context) -> Iterator[tuple[click.Parameter, PathType, str]]:
    """Yield (parameter, type, path) for each path of the running command, and for its configuration file."""
    for parameter in context.command.params:
        kind = parameter.type
        if isinstance(kind, PathType):
            name = parameter.name or ""
            # Commands do not get --config as a parameter, so its path is in ``context.meta``.
            values = context.params.get(name) if parameter.expose_value else context.meta.get(CONFIG_KEY)
            # A repeatable parameter has a tuple, another one a path or None.
            paths = values if isinstance(values, tuple) else () if values is None else (values,)
            yield from ((parameter, kind, path) for value in paths if (path := kind.path_in(str(value))))


def refuse_second_standard_input() -> None:
    """Raise UsageError if two inputs of the running command are ``-``, because standard input can be read only once."""
    paths = used_paths(click.get_current_context())
    if sum(path == "-" for _, kind, path in paths if kind.is_read and kind.allow_dash) > 1:
        raise UsageError(
            "'-' (standard input) is given twice", hint="it can be read only once: put one of the two inputs in a file"
        )
