"""Find the configuration of a project: ``mixlist.toml``, or the table ``[tool.mixlist]`` of ``pyproject.toml``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from mixlist.errors import UsageError

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

    Such a file belongs to other tools too. If it cannot be read and shows no header of the table, it is theirs to
    complain.
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
