"""The option ``--config``: find the configuration of a project, and read its options, which are in TOML.

Without the option, the configuration is ``mixlist.toml``, or the table ``[tool.mixlist]`` of ``pyproject.toml``, in the
working folder or the nearest folder above.

The keys are the long options of the commands without their dashes (``ops-info``; ``ops_info`` works too). Options of a
policy are at the top of the file or in the table of a command. Options of a command are in its table. The table wins
over the top, and the command line wins over both. ``no-holdout = true`` means ``holdout = false``. Paths are relative
to the file. In ``pyproject.toml`` all of this is in the table ``[tool.mixlist]``.

A configuration is found in a folder that can belong to someone else, for example in a pull request. So it names no code
and no outputs: such options come from the command line only.
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
from mixlist.cli.options import POLICY_OPTIONS, SIDES
from mixlist.cli.parameters import CONFIG_KEY, INPUT, LIBRARY, NO_CONFIG, PYTHON_FUNCTION, PathType
from mixlist.errors import UsageError
from mixlist.files.list_text import read_text, shown_path
from mixlist.lists.suggestions import did_you_mean

# --- the option ---


def _read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the values of a configuration the defaults of the command's options."""
    if path == NO_CONFIG or context.resilient_parsing:  # resilient: a shell asks for completions
        return
    used_path = path or find_project_config()
    if used_path is not None:
        context.meta[CONFIG_KEY] = used_path
        context.default_map = read_config(used_path, context)
        context.meta[_NAMED_KEY] = path is not None or not context.default_map


def write_found_config(context: click.Context) -> None:
    """Name the configuration whose options the command uses, unless the user named it or asked for quiet."""
    if not context.meta.get(_NAMED_KEY, True) and not context.params.get("quiet"):
        from mixlist.show.terminal import escape_commands

        sys.stderr.write(f"options from {escape_commands(context.meta[CONFIG_KEY])}\n")


# The key, in ``context.meta``, of whether the user needs not be told which configuration the command uses.
_NAMED_KEY = "mixlist.config_named"
CONFIG = GroupedOption(
    "--config",
    "other",
    "A TOML file with any of these options. Its paths are relative to the file. The command line wins."
    " [default: mixlist.toml, or pyproject.toml with [tool.mixlist], in this folder or the nearest one above;"
    " none: no file]",
    metavar="FILE",
    type=INPUT,
    # Eager, because the values of the file must be defaults before click reads the other options.
    is_eager=True,
    expose_value=False,
    callback=_read_config,
)


# --- find the configuration of a project ---

FILE_NAME = "mixlist.toml"
PROJECT_FILE_NAME = "pyproject.toml"


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
    """Return True if a ``pyproject.toml`` has the table. Other tools report what is wrong in the rest of the file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    if "mixlist" not in text:
        return False
    import tomllib

    try:
        return _project_table(tomllib.loads(text)) is not None
    except (tomllib.TOMLDecodeError, RecursionError):
        return "[tool.mixlist" in text  # ``read_config`` says where the error is


def _project_table(content: Mapping[str, object]) -> dict[str, object] | None:
    tool = content.get("tool")
    table = tool.get("mixlist") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


# --- read a configuration ---


# Flags that let a command replace files, and an address: Dask runs the code that a scheduler sends.
_UNSAFE_VALUES = {"force": "replaces files", "fix": "replaces files", "scheduler": "can run code"}


def _danger_of(option: click.Option) -> str | None:
    """Return why an option comes from the command line only; None for an option that a configuration may have."""
    if isinstance(option.type, PathType) and not option.type.is_read:
        return "writes files"
    return "runs code" if option.type is PYTHON_FUNCTION else _UNSAFE_VALUES.get(option.name or "")


def keys_of(*options: click.Parameter) -> dict[str, click.Option]:
    """Return the options by their keys in a configuration; an option with an off form (``--no-...``) has two keys."""
    return {key: option for key, option in _long_options(options) if _danger_of(option) is None}


def _long_options(parameters: Iterable[click.Parameter]) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of a command, except for ``--config``, with each of their long names without dashes."""
    for option in parameters:
        if isinstance(option, click.Option) and option is not CONFIG:
            spellings = (*option.opts, *option.secondary_opts)
            yield from ((spelling[2:], option) for spelling in spellings if spelling.startswith("--"))


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


def read_config(path: str | os.PathLike[str], context: click.Context) -> dict[str, object]:
    """Return the values that a configuration file gives the running command, by parameter name.

    Raises FileError if the file cannot be read, ListError if it is not UTF-8, and UsageError, with the line, if the
    file is not TOML, has an unknown key, or has a value that the option of the command cannot have.
    """
    shown, text = shown_path(path), read_text(path)
    content, prefix = _parse(text, shown), ""  # before the names of tables
    if Path(path).name == PROJECT_FILE_NAME:
        table, prefix = _project_table(content), "tool.mixlist."
        if table is None:
            raise UsageError(
                f"{shown}: there is no table [tool.mixlist]", hint="put the options of mixlist in this table"
            )
        content = table
    tables = {key: value for key, value in content.items() if isinstance(value, dict) and command_keys(key)}
    own_keys = keys_of(*context.command.params)
    values: dict[str, object] = {}
    # The top comes first, so that the table of the command overwrites its values. The keys of other commands are
    # checked, too: a wrong key is an error whichever command runs.
    for command, entries in (("", {k: v for k, v in content.items() if k not in tables}), *tables.items()):
        # A setting of both sides comes first, so that the one of a side overwrites it.
        for key, value in sorted(entries.items(), key=lambda entry: entry[0].replace("_", "-") in own_keys):
            name = key.replace("_", "-")
            place = f"{shown}:{_line_of(text, prefix + command if command else prefix[:-1], prefix + key, key)}"
            if name not in (command_keys(command) if command else POLICY_KEYS):
                message, hint = _describe_unknown_key(command, name, value, prefix)
                raise UsageError(f"{place}: {message}", hint=hint)
            for option in _options_of(name, own_keys) if command in ("", context.command.name) else ():
                checked = _convert(context, option, value, f"{place}: {name}", Path(path).parent)
                values[option.name or name] = not checked if f"--{name}" in option.secondary_opts else checked
    return values


def _parse(text: str, shown: str) -> Mapping[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # tomllib gives the position as text only, at the end of its message (Python 3.11 to 3.13).
        message, _, position = str(error).partition(" (at ")
        place = ":".join(re.findall(r"\d+", position))
        raise UsageError(
            f"{shown}{place and ':'}{place}: this is not TOML: {message}", hint="strings need quotes"
        ) from None
    except RecursionError:
        raise UsageError(f"{shown}: nested too deeply for a configuration") from None


def _options_of(key: str, own_keys: Mapping[str, click.Option]) -> list[click.Option]:
    """Return the options that a key sets. ``diff`` has each option of a policy once for each side."""
    if key in own_keys:
        return [own_keys[key]]
    return [own_keys[f"{side}-{key}"] for side in SIDES if f"{side}-{key}" in own_keys]


def _describe_unknown_key(command: str, name: str, value: object, prefix: str) -> tuple[str, str]:
    """Return the message and the hint for a wrong key. ``prefix`` is before the names of tables."""
    if not command and isinstance(value, dict):
        hint = _hint(name, "tables are", configurable_commands())
        return f"the table [{prefix}{name}] is not named after a command", hint
    if not command and (owners := [other for other in configurable_commands() if name in command_keys(other)]):
        tables = " or ".join(f"[{prefix}{owner}]" for owner in owners)
        return f"{name} is an option of some commands only", f"put it in the table {tables}"
    commands = [command] if command else configurable_commands()
    options = dict(pair for other in commands for pair in _long_options(command_index.load_command(other).params))
    if name in options and (danger := _danger_of(options[name])):
        return f"{name} {danger}, so a configuration cannot set it", f"give --{name} on the command line"
    where, keys = (f"the command {command}", command_keys(command)) if command else ("a configuration", POLICY_KEYS)
    return f"{where} has no option {name!r}", _hint(name, "it has", keys)


def _hint(name: str, introduction: str, allowed: Iterable[str]) -> str:
    return did_you_mean(name, allowed) or f"{introduction} {', '.join(sorted(allowed))}"


def _line_of(text: str, table: str, subtable: str, key: str) -> int:
    """Return the line of a key of a table, or of the table ``subtable`` that it names; tomllib gives no positions.

    It is the line of the table, or 1, if a search in the text does not find the key.
    """
    header, entry = r"(?m)^[ \t]*\[+[ \t]*{}[ \t]*\]", r"(?m)^[ \t]*[\"']?{}[\"']?[ \t]*[.=]"
    start = re.search(header.format(re.escape(table)), text) if table else None
    offset = start.end() if start else 0
    found = re.compile(entry.format(re.escape(key))).search(text, offset)
    found = found or re.search(header.format(re.escape(subtable)), text)
    return text.count("\n", 0, found.start() if found else offset) + 1


def _convert(context: click.Context, option: click.Option, value: object, where: str, folder: Path) -> object:
    """Return a value as click takes it, with paths joined to the folder of the configuration.

    Raises UsageError, with the file and the key, for a value that the option cannot have.
    """
    items = value if isinstance(value, list) and option.multiple else [value]
    kinds: dict[type, str] = {str: "a string"}
    if option.is_flag:
        kinds = {bool: "true or false"}
    elif isinstance(option.type, click.types.FloatParamType):
        kinds = {float: "a number", int: ""}
    elif isinstance(option.type, click.types.IntParamType):
        kinds = {int: "a whole number"}
    # type() and not isinstance(): a bool is an instance of int.
    if not all(type(item) in kinds for item in items):
        kind = next(iter(kinds.values()))
        raise UsageError(f"{where} takes {kind}{' or a list of them' * option.multiple}, not {value!r}")
    if isinstance(option.type, PathType):
        items = [_join_folder(option.type, str(item), folder) for item in items]
    converted = items if option.multiple else items[0]
    try:
        option.type_cast_value(context, converted)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None
    return converted


def _join_folder(kind: PathType, value: str, folder: Path) -> str:
    """Return a path joined to a folder; standard input and a name, such as that of a built-in library, as it is."""
    if kind.path_in(value) in ("", "-"):
        return value
    path = folder / value
    # Perhaps a misspelled built-in library: the error for its name lists similar names.
    is_name = kind is LIBRARY and not os.path.dirname(value) and not os.path.lexists(path)  # noqa: PTH120
    return value if is_name else os.fspath(path)
