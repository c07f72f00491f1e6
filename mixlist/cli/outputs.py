"""What a command writes: files, looked at before a long run (no inputs, and writable), and its report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

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


def write_report(
    report: Any,
    form: str,
    html: str | None,
    page: Callable[[Any, str], None],
    text: Callable[[Any, TextIO], None],
) -> None:
    """The report on standard output and as a page, its warnings on standard error."""
    from mixlist.report import json_output, terminal

    for warning in report.warnings:
        sys.stderr.write(f"{terminal.paint('warning', 'yellow', sys.stderr)}: {terminal.clean(warning)}\n")
    try:
        if html is not None:
            page(report, html)
            sys.stderr.write(f"wrote {terminal.clean(html)}\n")
    finally:  # a page that cannot be written after all does not take the report of a long run with it
        if form == "json":
            json_output.write_json(report.to_json(), sys.stdout)
        else:
            text(report, sys.stdout)
