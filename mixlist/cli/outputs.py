"""Files that a command will write, looked at before a long run: they must not be inputs, and must be writable."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mixlist.errors import FileError, UsageError


def check_output(option: str, name: str, inputs: Iterable[object], *, force: bool = True) -> None:
    """Raises where the file cannot be written, would replace an input, or exists (without ``force``).

    ``inputs`` are what the command's options hold: those that are no path of a file are left aside.
    """
    path = Path(name)
    if path.exists():
        for given in inputs:
            if isinstance(given, str | Path) and Path(given).exists() and path.samefile(given):
                raise UsageError(f"{option} {name} is an input", hint="name another file")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "cannot be written: its folder does not exist"
        raise FileError(f"{name}: {what}", hint="name a file in a folder that exists")
    if path.exists() and not force:
        raise UsageError(f"{name} exists", hint="use --force to replace it")
