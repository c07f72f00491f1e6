"""The option ``--config``: find the configuration of a project, and read its options, which are in TOML.

Without the option, the configuration is ``mixlist.toml``, or the table ``[tool.mixlist]`` of ``pyproject.toml``, in the
working folder or the nearest folder above.

The keys are the long options of the commands without their dashes (``ops-info``; ``ops_info`` works too). Options of a
policy are at the top of the file or in the table of a command. Options of a command are in its table. The table wins
over the top, and the command line wins over both. ``no-keep-io-types = true`` means ``keep-io-types = false``. Paths
are relative to the file. In ``pyproject.toml`` all of this is in the table ``[tool.mixlist]``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import click

from mixlist.cli import command_index
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import POLICY_OPTIONS
from mixlist.cli.parameters import CONFIG_KEY, INPUT, NO_CONFIG, PathType
from mixlist.errors import UsageError
from mixlist.files.list_text import read_text, shown_path
from mixlist.lists import presets
from mixlist.lists.suggestions import did_you_mean

# --- the option ---


def _read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the values of a configuration the defaults of the command's options.

    Without ``--config``, the configuration of the project is used, if there is one.
    """
    if path == NO_CONFIG or context.resilient_parsing:  # resilient: a shell asks for completions
        return
    is_found = path is None
    if path is None:
        path = find_project_config()
    if path is not None:
        context.meta[CONFIG_KEY] = path
        context.default_map = read_defaults(path, context)
        if is_found and context.default_map:
            context.meta[_FOUND_CONFIG_KEY] = path


def write_found_config(context: click.Context) -> None:
    """Name the configuration whose options the command uses, unless the user named it or asked for quiet."""
    path = context.meta.get(_FOUND_CONFIG_KEY)
    if path is not None and not context.params.get("quiet"):
        from mixlist.show.terminal import escape_commands

        sys.stderr.write(f"options from {escape_commands(path)}\n")


# The key, in ``context.meta``, of the path of a configuration that the user did not name.
_FOUND_CONFIG_KEY = "mixlist.found_config"
CONFIG = GroupedOption(
    ["--config"],
    group="other",
    metavar="FILE",
    type=INPUT,
    # Eager, because the values of the file must be defaults before click reads the other options.
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="A TOML file with any of these options. Its paths are relative to the file. The command line wins."
    " [default: mixlist.toml, or pyproject.toml with [tool.mixlist], in this folder or the nearest one above;"
    " none: no file]",
)


# --- find the configuration of a project ---

FILE_NAME = "mixlist.toml"
PROJECT_FILE_NAME = "pyproject.toml"
_TABLE_HEADER = re.compile(r"^[ \t]*\[[ \t]*[\"']?tool[\"']?[ \t]*\.[ \t]*[\"']?mixlist[\"']?[ \t]*[.\]]", re.MULTILINE)


def find_project_config() -> str | None:
    """Return the configuration in the working folder, or else in the nearest folder above; None if there is none.

    In one folder, ``mixlist.toml`` wins over ``pyproject.toml``, which counts only if it has the table. The path is
    relative to the working folder.
    """
    try:
        folder = Path.cwd()
    except OSError:  # the working folder does not exist any more
        return None
    for directory in (folder, *folder.parents):
        for name in (FILE_NAME, PROJECT_FILE_NAME):
            path = directory / name
            if path.is_file() and (name == FILE_NAME or _has_table(path)):
                return os.path.relpath(path, folder)
    return None


def _has_table(path: Path) -> bool:
    """Return True if a ``pyproject.toml`` has the table.

    Such a file belongs to other tools too. If it cannot be read and shows no header of the table, those tools report
    the error.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    if _TABLE_HEADER.search(text):
        return True  # also in a file with an error: reading it says where the error is
    if "mixlist" not in text:
        return False
    import tomllib

    try:
        return _table_of(tomllib.loads(text)) is not None  # another spelling, such as mixlist.strict = true in [tool]
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def project_table(content: Mapping[str, object], path: str) -> Mapping[str, object]:
    """Return the table of mixlist in the content of a ``pyproject.toml``; raise UsageError if it has none."""
    table = _table_of(content)
    if table is None:
        raise UsageError(f"{path}: there is no table [tool.mixlist]", hint="put the options of mixlist in this table")
    return table


def _table_of(content: Mapping[str, object]) -> dict[str, object] | None:
    tool = content.get("tool")
    table = tool.get("mixlist") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


# --- read a configuration ---


def keys_of(*options: click.Parameter) -> dict[str, click.Option]:
    """Return the options by their keys in a configuration; an option with an off form (``--no-...``) has two keys."""
    return {
        spelling.removeprefix("--"): option
        for option in options
        if isinstance(option, click.Option) and option is not CONFIG
        for spelling in (*option.opts, *option.secondary_opts)
        if spelling.startswith("--")
    }


POLICY_KEYS = keys_of(*POLICY_OPTIONS)


@cache
def command_keys(command: str) -> Mapping[str, click.Option]:
    """Return the options of a command by key, policy options included; {} if the command has no ``--config``."""
    if command not in command_index.COMMANDS:
        return {}
    parameters = command_index.load_command(command).params
    return {**POLICY_KEYS, **keys_of(*parameters)} if CONFIG in parameters else {}


def configurable_commands() -> list[str]:
    """Return the commands that have ``--config``. This imports every command, so use it for messages only."""
    return [command for command in command_index.COMMANDS if command_keys(command)]


def read_defaults(path: str, context: click.Context) -> dict[str, object]:
    """Return the values that a configuration gives the running command, by parameter name.

    Raises the errors of ``read_values``, and UsageError for a value that an option cannot have.
    """
    command = context.command
    values: dict[str, object] = {}
    for key, (value, place) in read_values(path, command.name or "").items():
        option = keys_of(*command.params).get(key.replace("_", "-"))
        if option is not None:  # None: a policy option that this command does not have
            _check_value(context, option, value, f"{place}: {key.replace('_', '-')}")
            # click needs a list for an option that can be given more than once.
            values[option.name or key] = [value] if option.multiple and not isinstance(value, list) else value
    return values


def read_values(path: str | os.PathLike[str], command: str) -> dict[str, tuple[object, str]]:
    """Return the values that a configuration file gives a command, each with its place, by option with underscores.

    They include policy options that the command does not have. Values are strings, booleans, numbers or lists of these.
    Raises FileError if the file cannot be read, ListError if it is not UTF-8, and UsageError, with the line and similar
    names, if the file is not TOML or has an unknown option.
    """
    shown, text = shown_path(path), read_text(path)
    folder, content = Path(os.fspath(path)).parent, _parse(text, shown)
    prefix = ""  # of the names of tables
    if os.path.basename(path) == PROJECT_FILE_NAME:  # noqa: PTH119
        prefix, content = "tool.mixlist.", project_table(content, shown)
    options: dict[str, tuple[object, str]] = {}
    for table, key, value in _entries(content):
        # Every entry is checked, also one of another command: a wrong key is an error whichever command runs.
        name = key.replace("_", "-")
        keys = POLICY_KEYS if table is None else command_keys(table)
        place = f"{shown}:{_line_of_key(text, prefix, table, key)}"
        if problem := _find_problem(table, name, value, keys, prefix):
            message, hint = problem
            raise UsageError(f"{place}: {message}", hint=hint)
        # The top comes first in ``_entries``, so the table of the command overwrites its values.
        if table in (None, command):
            option = keys[name]
            if f"--{name}" in option.secondary_opts:  # the off form: no-keep-io-types = true
                name, value = option.opts[0].removeprefix("--"), not value
            kind = option.type
            # The name of a Python module is no path, and stays as it is.
            is_path = isinstance(kind, PathType) and (isinstance(value, list) or kind.path_in(str(value)) != "")
            value = _join_folder(name, value, folder) if is_path else value
            options[name.replace("-", "_")] = value, place
    return options


def _parse(text: str, shown: str) -> Mapping[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # tomllib gives the position as text only, at the end of its message (Python 3.11 to 3.13).
        position = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        place = f":{position[1]}:{position[2]}" if position and position[1] else ""
        message = str(error)[: position.start()] if position else str(error)
        raise UsageError(f"{shown}{place}: this is not TOML: {message}", hint="strings need quotes") from None
    except RecursionError:
        raise UsageError(f"{shown}: nested too deeply for a configuration") from None


def _entries(data: Mapping[str, object]) -> Iterator[tuple[str | None, str, object]]:
    """Yield (table, key, value). The top comes first, with None as its table, so that the table of a command wins."""
    # A table under another name stays an entry of the top, and ``_find_problem`` reports it.
    tables = {key: value for key, value in data.items() if isinstance(value, dict) and command_keys(key)}
    yield from ((None, key, value) for key, value in data.items() if key not in tables)
    yield from ((table, key, value) for table, values in tables.items() for key, value in values.items())


def _find_problem(
    table: str | None, name: str, value: object, keys: Mapping[str, click.Option], prefix: str
) -> tuple[str, str] | None:
    """Return the message and the hint for a wrong entry, or None for a right one.

    ``prefix`` is before the names of tables.
    """
    option = keys.get(name)
    if option is None:
        return _describe_unknown_key(table, name, value, keys, prefix)
    # Only what every option refuses, because this also runs for the options of other commands. ``_check_value``
    # compares a value with the type of its option.
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | bool | int | float) for item in items):
        return f"{name} is not a string, a number, true or false, or a list of these", f'write {name} = "..."'
    if f"--{name}" in option.secondary_opts and not isinstance(value, bool):
        return f"{name} is true or false", f"write {name} = true"
    if isinstance(option.type, PathType) and not all(isinstance(item, str) for item in items):
        return f"{name} is a path", f'write {name} = "..."'
    return None


def _describe_unknown_key(
    table: str | None, name: str, value: object, keys: Mapping[str, click.Option], prefix: str
) -> tuple[str, str]:
    if table is None and isinstance(value, dict):
        return f"the table [{prefix}{name}] is not named after a command", _hint(
            name, "tables are", configurable_commands()
        )
    if table is None and (owners := [command for command in configurable_commands() if name in command_keys(command)]):
        return (
            f"{name} is an option of some commands only",
            f"put it in the table {' or '.join(f'[{prefix}{owner}]' for owner in owners)}",
        )
    where = f"the command {table}" if table else "a configuration"
    return f"{where} has no option {name!r}", _hint(name, "it has", keys)


def _hint(name: str, introduction: str, allowed: Iterable[str]) -> str:
    return did_you_mean(name, allowed) or f"{introduction} {', '.join(sorted(allowed))}"


def _line_of_key(text: str, prefix: str, table: str | None, key: str) -> int:
    """Return the line of a key if a search in the text finds it, otherwise the line of its table, otherwise 1.

    ``prefix`` is before the names of tables. tomllib gives no positions. The search reads headers (``[table]``) and
    assignments (``key =``) line by line.
    """
    prefix_parts = prefix.split(".")[:-1]
    other_table = "\n"  # a table of another tool; no line holds this name
    current: str | None = other_table if prefix_parts else None
    table_line = 1
    for number, line in enumerate(text.split("\n"), start=1):
        # [check] and [check.sub] are the table check.
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            parts = [part.strip(" \t\"'") for part in header[1].split(".")]
            is_own = parts[: len(prefix_parts)] == prefix_parts
            own_parts = parts[len(prefix_parts) :]
            current = (own_parts[0] if own_parts else None) if is_own else other_table
            if (table is None and current == key) or current == table:
                table_line = number
        elif current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
            return number
    return table_line


def _join_folder(name: str, value: object, folder: Path) -> object:
    """Return a path, or a list of paths, joined to the folder of the configuration."""
    if isinstance(value, list):
        return [_join_folder(name, item, folder) for item in value]
    # Standard input and a built-in library have no folder.
    text = str(value)
    if text == "-" or (name == "ops-info" and text in presets.names()):
        return text
    path = folder / text
    if name == "ops-info" and not os.path.dirname(text) and not path.exists():  # noqa: PTH120
        return text  # perhaps a misspelled built-in library: the error for its name lists similar names
    return os.fspath(path)


def _check_value(context: click.Context, option: click.Option, value: object, where: str) -> None:
    """Raise UsageError, with the file and the key, for a value that the option cannot have."""
    items = value if isinstance(value, list) else [value]
    types = _toml_types(option)
    # type() and not isinstance(): a bool is an instance of int.
    if (isinstance(value, list) and not option.multiple) or not all(type(item) in types for item in items):
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
        raise UsageError(f"{where} takes {names[types[0]]}{' or a list of them' * option.multiple}, not {value!r}")
    try:
        option.type_cast_value(context, items if option.multiple else value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None


def _toml_types(option: click.Option) -> tuple[type, ...]:
    """Return the types that an option's value may have in TOML; messages name the first."""
    if option.is_flag:
        return (bool,)
    if isinstance(option.type, click.types.FloatParamType):
        return (float, int)
    return (int,) if isinstance(option.type, click.types.IntParamType) else (str,)
