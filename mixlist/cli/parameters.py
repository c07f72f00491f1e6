"""The types of parameters, and functions for the values of the running command's options."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias, TypeVar

import click

from mixlist.errors import UsageError
from mixlist.lists import presets

Value = TypeVar("Value")

NO_CONFIG = "none"  # the value of --config for no configuration
CONFIG_KEY = "mixlist.config"  # of the path of the configuration, in ``context.meta``
OptionValues: TypeAlias = dict[str, object]  # the values of a command's options by parameter name
FileUse: TypeAlias = Literal["reads", "reads model", "reads library", "edits", "writes", "appends", "writes into"]


class PathType(click.Path):
    """A path, and how the command uses the file there. ``command_files`` compares these files before any work.

    The uses are:

    - ``reads``: a file, or the batches in a folder.
    - ``reads model``: a model, and the other files with its weights.
    - ``reads library``: a file, or the JSON files in a folder.
    - ``edits``: a file that the command reads, and replaces.
    - ``writes``: a file that the command creates or replaces.
    - ``appends``: a file that the command creates or extends.
    - ``writes into``: a folder in which the command creates or replaces the files ``files``.

    ``must_be_new``: the command replaces an existing file only with ``--force``. ``replaceable_input``: the name of a
    parameter whose input file the output may replace with ``--force``. ``other_output``: returns a second file that the
    command may write, such as ``modify.partial.json`` for ``modify.json``. ``path_in``: returns the path in a value, or
    "" for a value that names something else, such as a built-in library.
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
        path_in: Callable[[str], str] = str,
    ) -> None:
        super().__init__(allow_dash=allow_dash)
        self.use, self.must_be_new, self.replaceable_input = use, must_be_new, replaceable_input
        self.path_in, self._other_output, self._files = path_in, other_output, files

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

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        # A configuration can hold this character, for which click's own type raises ValueError.
        if "\0" in os.fspath(value):
            self.fail("a path cannot hold a NUL character", param, ctx)
        return super().convert(value, param, ctx)


def _script_of(function: str) -> str:
    """Return the file of ``FILE.py:NAME``; "" for ``MODULE:NAME``. Modules are not compared with outputs."""
    module = function.rpartition(":")[0]
    return module if module.endswith(".py") else ""


def _table_of(target: str) -> str:
    from mixlist.targets.target import TARGETS

    return "" if target in TARGETS else target


INPUT = PathType("reads")
INPUT_OR_DASH = PathType("reads", allow_dash=True)  # '-' is standard input
MODEL = PathType("reads model")
PYTHON_FUNCTION = PathType("reads", path_in=_script_of)
TARGET = PathType("reads", path_in=_table_of)
LIBRARY = PathType(
    "reads library", allow_dash=True, path_in=lambda library: "" if library in presets.names() else library
)
OUTPUT = PathType("writes")
OUTPUT_OR_DASH = PathType("writes", allow_dash=True)  # '-' is standard output
NEW_OUTPUT = PathType("writes", must_be_new=True)


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


# Parameters that exclude each other, and the error if both come from the same place. Two modes are an error of the
# policy, which Python can raise, too.
_EXCLUSIVE = (
    ("data", "loader", "--data and --loader are two sources of data"),
    ("data", "random", "--data and --random are two sources of data"),
    ("loader", "random", "--loader and --random are two sources of data"),
    ("large_batch", "max_exception_rate", "--large-batch and --max-exception-rate both set the exception rate"),
    ("jobs", "scheduler", "--jobs is for this machine, and --scheduler has its own workers"),
    *((f"{side}precision_mode", f"{side}precision_mode_v2", "") for side in ("", "base_", "other_")),
)


def keep_one_of_exclusive_options(context: click.Context) -> None:
    """Keep one of two options that exclude each other: the command line wins over a configuration.

    The other option becomes None. Raises UsageError if both options come from the same place.
    """
    values = context.params
    for first, second, message in _EXCLUSIVE:
        # None, False (a flag) and () (a repeatable option) mean that the option is not set.
        if any(value is None or value is False or value == () for value in map(values.get, (first, second))):
            continue
        explicit = options_on_command_line(first, second)
        if len(explicit) == 1:
            values[second if explicit == [first] else first] = None
        elif message:
            raise UsageError(message, hint="give one of them")


def parse_assignments(
    texts: Iterable[str], option: str, form: str, example: str, parse: Callable[[str], Value]
) -> Iterator[tuple[str, Value]]:
    """Yield the name and the parsed value of each NAME=VALUE, split at the last ``=``: a name may contain one.

    Raises UsageError, with ``form`` and ``example`` in its text, for a text without a name, ``=`` or a value, and where
    ``parse`` raises a ValueError.
    """
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            if not (name and value):
                raise ValueError
            yield name, parse(value)
        except ValueError:
            message = f"{option} {text}: this is not {form}"
            raise UsageError(message, hint=f"for example {option} {example}") from None


def used_paths(context: click.Context) -> Iterator[tuple[click.Parameter, PathType, str]]:
    """Yield (parameter, type, path) for each path of the running command, and for its configuration file."""
    for parameter in context.command.params:
        kind = parameter.type
        if isinstance(kind, PathType):
            # Commands do not get --config as a parameter, so its path is in ``context.meta``.
            value = context.params.get(parameter.name or "") if parameter.expose_value else context.meta.get(CONFIG_KEY)
            # A repeatable parameter has a tuple, another one a path or None.
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            yield from ((parameter, kind, path) for value in values if (path := kind.path_in(str(value))))
