"""``--config FILE``: options in TOML.

The options of a policy stand at the top or in the table of a command, those of a command in its
table; the table wins over the top. A key is the long option without its dashes (``ops-info``; ``ops_info``
is read too), and ``no-keep-io-types = true`` is ``keep-io-types = false``. Paths are relative to the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixlist.errors import UsageError
from mixlist.files.jsonc import read_text, shown_path
from mixlist.lists import presets
from mixlist.lists.suggestions import closest

POLICY = frozenset(
    {"ops-info", "mixlist", "precision-mode", "precision-mode-v2", "keep-dtype", "customize-dtypes"}
    | {"op-names", "gray-policy", "constants"}
)
DATA = frozenset({"data", "random", "seed", "dim", "range", "provider"})  # what check, bench and tune run on
# What check and tune judge by.
LIMITS = frozenset(
    {"overflow-mode", "steps", "large-batch", "max-exception-rate", "labels", "max-abs-error", "max-rel-error"}
    | {"max-normalized-error", "min-cosine", "min-snr", "min-top1", "max-mismatch"}
)
# What each command takes besides: a test holds this to the command line.
COMMANDS: dict[str, frozenset[str]] = {
    "validate": frozenset({"kind", "output-format", "strict", "model"}),
    "lists": frozenset({"format"}),
    "resolve": frozenset({"format", "explain", "provider", "type-hints"}),
    "apply": frozenset(
        {"output", "keep-io-types", "no-keep-io-types", "keep-io", "external-data", "inline-functions", "opset"}
        | {"force", "dry-run", "report", "type-hints"}
    ),
    "diff": frozenset({"base-mixlist", "target-mixlist", "model", "format"}),
    "check": DATA
    | LIMITS
    | {"against", "full-statistics", "baseline", "layerwise", "per-tensor", "format", "html", "type-hints"}
    | {"jobs", "scheduler", "compare-emulated"},
    "bench": DATA | {"rounds", "warmup", "transfers", "threads", "estimate", "profile", "format", "type-hints"},
    "tune": DATA
    | LIMITS
    | {"output", "node-rules", "force", "objective", "type-hints", "validate-on", "max-accuracy-loss", "state"}
    | {"jobs", "scheduler", "trace", "format"},
    "train": frozenset(
        {"data", "eval-data", "batch-size", "steps", "epochs", "init", "runs", "seed", "metric", "optimizer", "lr"}
        | {"momentum", "nesterov", "beta1", "beta2", "eps", "weight-decay", "lr-schedule", "warmup-steps", "lr-decay"}
        | {"lr-decay-steps", "provider", "loss-scaler", "loss-scale", "scaler-arg", "advance-on-skip", "large-batch"}
        | {"max-exception-rate", "tolerance", "trace-overflow", "tune-scale", "resume", "format", "html"}
    ),
}
_PATHS = frozenset({"ops-info", "mixlist", "keep-dtype", "customize-dtypes", "model", "output", "report"}) | {
    "type-hints",
    "base-mixlist",
    "target-mixlist",
    "data",
    "labels",
    "profile",
    "against",
    "html",
    "node-rules",
    "validate-on",
    "state",
    "eval-data",
    "init",
    "resume",
}


def load_config(path: str | os.PathLike[str], command: str) -> dict[str, object]:
    """The options that a configuration file gives to a command, by long option with underscores.

    Policy options that the command does not take are among them. Values are strings, booleans,
    numbers or lists of these. Raises FileError if the file cannot be read, ListError if it is not
    UTF-8 and UsageError, with line and nearest names, for what is no TOML or no option.
    """
    text, shown = read_text(path), shown_path(path)
    data = _parse(text, shown)
    home = Path(os.fspath(path)).parent
    options: dict[str, object] = {}
    for table, key, value in _entries(data):
        name = key.replace("_", "-")
        if problem := _problem(table, name, value):
            message, hint = problem
            raise UsageError(f"{shown}:{_line(text, table, key)}: {message}", hint=hint)
        if table in (None, command):
            name, value = (name[3:], not value) if name.startswith("no-") else (name, value)
            options[name.replace("-", "_")] = _resolved(name, value, home)
    return options


def _parse(text: str, shown: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        place = f":{at[1]}:{at[2]}" if at and at[1] else ""
        message = str(error)[: at.start()] if at else str(error)
        raise UsageError(f"{shown}{place}: this is not TOML: {message}", hint="strings need quotes") from None
    except RecursionError:
        raise UsageError(f"{shown}: nested too deeply for a configuration") from None


def _entries(data: dict[str, Any]) -> Iterator[tuple[str | None, str, object]]:
    """(table, key, value); the top first, with None as its table, so that a command's table wins."""
    for key, value in data.items():
        if not (isinstance(value, dict) and key in COMMANDS):
            yield None, key, value
    for table, values in data.items():
        if isinstance(values, dict) and table in COMMANDS:
            for key, value in values.items():
                yield table, key, value


def _problem(table: str | None, name: str, value: object) -> tuple[str, str] | None:
    """What is wrong with an entry, and what to do about it."""
    allowed = POLICY if table is None else POLICY | COMMANDS[table]
    if name not in allowed:
        return _unknown(table, name, value)
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | bool | int | float) for item in items):
        return f"{name} is not a string, a number, true or false, or a list of these", f'write {name} = "..."'
    if name.startswith("no-") and not isinstance(value, bool):
        return f"{name} is true or false", f"write {name} = true"
    if name in _PATHS and not all(isinstance(item, str) for item in items):
        return f"{name} is a path", f'write {name} = "..."'
    return None


def _unknown(table: str | None, name: str, value: object) -> tuple[str, str]:
    if table is None and isinstance(value, dict):
        near = closest(name, COMMANDS)
        return f"there is no command {name!r} to have a table", _hint(near, "tables are", sorted(COMMANDS))
    if table is None and (homes := [command for command, names in COMMANDS.items() if name in names]):
        return f"{name} is no option of every command", f"put it in the table [{'] or ['.join(homes)}]"
    allowed = POLICY if table is None else POLICY | COMMANDS[table]
    where = f"the command {table}" if table else "a configuration"
    return f"{where} has no option {name!r}", _hint(closest(name, allowed), "it has", sorted(allowed))


def _hint(near: list[str], lead: str, allowed: list[str]) -> str:
    return f"did you mean {' or '.join(near)}?" if near else f"{lead} {', '.join(allowed)}"


def _line(text: str, table: str | None, key: str) -> int:
    """The line of a key, as far as it can be told without a TOML parser that keeps places; else the table's, else 1."""
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


def _resolved(name: str, value: object, home: Path) -> object:
    """The value, a path relative to the configuration's folder."""
    if name not in _PATHS:
        return value
    if isinstance(value, list):
        return [_resolved(name, item, home) for item in value]
    text = str(value)
    if text == "-" or (name == "ops-info" and text in presets.names()):
        return text
    path = home / text
    if name == "ops-info" and "/" not in text and not path.exists():
        return text  # a misspelt built-in library: its message has the nearest names
    return os.fspath(path)
