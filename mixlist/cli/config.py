"""``--config FILE``: options in TOML.

The keys are the long options of the commands without their dashes (``ops-info``; ``ops_info`` is read too). Options of
a policy are at the top or in the table of a command, those of a command in its table; the table wins over the top, and
the command line over both. ``no-keep-io-types = true`` is ``keep-io-types = false``. Paths are relative to the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import click

from mixlist.cli import index
from mixlist.cli.options import POLICY_OPTIONS
from mixlist.cli.parameters import CONFIG, PathType
from mixlist.errors import UsageError
from mixlist.files.jsonc import read_text, shown_path
from mixlist.lists import presets
from mixlist.lists.suggestions import did_you_mean


def keys_of(*options: click.Parameter) -> dict[str, click.Option]:
    """Return options by their keys in a configuration; an option that can be switched off has two."""
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
    """Return the keys of a command's table, those of a policy among them; {} where it takes no configuration."""
    if command not in index.COMMANDS:
        return {}
    parameters = index.load_command(command).params
    return {**POLICY_KEYS, **keys_of(*parameters)} if CONFIG in parameters else {}


def tables() -> list[str]:
    """Return the commands that take a configuration. All of them are imported: this is for messages."""
    return [command for command in index.COMMANDS if command_keys(command)]


def defaults(path: str, context: click.Context) -> dict[str, object]:
    """Return what a configuration says about the running command, by parameter name; raises as ``load_config``."""
    command = context.command
    found: dict[str, object] = {}
    for key, value in load_config(path, command.name or "").items():
        option = keys_of(*command.params).get(key.replace("_", "-"))
        if option is not None:  # else an option of a policy that this command does not take
            _check_value(context, option, value, f"{path}: {key.replace('_', '-')}")
            found[option.name or key] = [value] if option.multiple and not isinstance(value, list) else value
    return found


def load_config(path: str | os.PathLike[str], command: str) -> dict[str, object]:
    """Return the options that a configuration file gives to a command, by long option with underscores.

    Policy options that the command does not take are among them. Values are strings, booleans, numbers or lists of
    these. Raises FileError if the file cannot be read, ListError if it is not UTF-8 and UsageError, with line and
    nearest names, for what is no TOML or no option.
    """
    text, shown = read_text(path), shown_path(path)
    folder = Path(os.fspath(path)).parent
    options: dict[str, object] = {}
    for table, key, value in _entries(_parse(text, shown)):
        name = key.replace("_", "-")
        keys = POLICY_KEYS if table is None else command_keys(table)
        if problem := _problem(table, name, value, keys):
            message, hint = problem
            raise UsageError(f"{shown}:{_line(text, table, key)}: {message}", hint=hint)
        if table in (None, command):
            option = keys[name]
            if f"--{name}" in option.secondary_opts:
                name, value = option.opts[0].removeprefix("--"), not value
            is_path = isinstance(option.type, PathType)
            options[name.replace("-", "_")] = _absolute(name, value, folder) if is_path else value
    return options


def _parse(text: str, shown: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        place = f":{at[1]}:{at[2]}" if at and at[1] else ""
        message = str(error)[: at.start()] if at else str(error)
        raise UsageError(f"{shown}{place}: this is not TOML: {message}", hint="strings need quotes") from None
    except RecursionError:
        raise UsageError(f"{shown}: nested too deeply for a configuration") from None


def _entries(data: Mapping[str, object]) -> Iterator[tuple[str | None, str, object]]:
    """Yield (table, key, value); the top first, with None as its table, so that a command's table wins."""
    entries = {key: value for key, value in data.items() if isinstance(value, dict) and command_keys(key)}
    yield from ((None, key, value) for key, value in data.items() if key not in entries)
    yield from ((table, key, value) for table, values in entries.items() for key, value in values.items())


def _problem(table: str | None, name: str, value: object, keys: Mapping[str, click.Option]) -> tuple[str, str] | None:
    """Return what is wrong with an entry, and what to do about it."""
    option = keys.get(name)
    if option is None:
        return _unknown(table, name, value, keys)
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | bool | int | float) for item in items):
        return f"{name} is not a string, a number, true or false, or a list of these", f'write {name} = "..."'
    if f"--{name}" in option.secondary_opts and not isinstance(value, bool):
        return f"{name} is true or false", f"write {name} = true"
    if isinstance(option.type, PathType) and not all(isinstance(item, str) for item in items):
        return f"{name} is a path", f'write {name} = "..."'
    return None


def _unknown(table: str | None, name: str, value: object, keys: Mapping[str, click.Option]) -> tuple[str, str]:
    if table is None and isinstance(value, dict):
        return f"there is no command {name!r} to have a table", _hint(name, "tables are", tables())
    if table is None and (homes := [command for command in tables() if name in command_keys(command)]):
        return f"{name} is no option of every command", f"put it in the table [{'] or ['.join(homes)}]"
    where = f"the command {table}" if table else "a configuration"
    return f"{where} has no option {name!r}", _hint(name, "it has", keys)


def _hint(name: str, lead: str, allowed: Iterable[str]) -> str:
    return did_you_mean(name, allowed) or f"{lead} {', '.join(sorted(allowed))}"


def _line(text: str, table: str | None, key: str) -> int:
    """Return the line of a key, as far as a search in the text finds it; else the line of its table, else 1."""
    current: str | None = None
    found = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[+\s*\"?([^\]\"]+?)\"?\s*\]+", line):
            current = header[1].split(".")[0].strip(' "')
            if (table is None and current == key) or current == table:
                found = number
        elif current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
            return number
    return found


def _absolute(name: str, value: object, folder: Path) -> object:
    """Return a path, or a list of paths, relative to the configuration's folder."""
    if isinstance(value, list):
        return [_absolute(name, item, folder) for item in value]
    text = str(value)
    if text == "-" or (name == "ops-info" and text in presets.names()):
        return text
    path = folder / text
    if name == "ops-info" and not os.path.dirname(text) and not path.exists():  # noqa: PTH120
        return text  # a misspelt built-in library: its message has the nearest names
    return os.fspath(path)


def _check_value(context: click.Context, option: click.Option, value: object, where: str) -> None:
    """Raise UsageError, with the file and the key, for a value that the option cannot have."""
    items = value if isinstance(value, list) else [value]
    types = _toml_types(option)
    if (isinstance(value, list) and not option.multiple) or not all(type(item) in types for item in items):
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
        raise UsageError(f"{where} takes {names[types[0]]}{' or a list of them' * option.multiple}, not {value!r}")
    try:
        option.type_cast_value(context, items if option.multiple else value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None


def _toml_types(option: click.Option) -> tuple[type, ...]:
    """Return the types that an option's value may have in TOML, the one to name first."""
    if option.is_flag:
        return (bool,)
    if isinstance(option.type, click.types.FloatParamType):
        return (float, int)
    return (int,) if isinstance(option.type, click.types.IntParamType) else (str,)
