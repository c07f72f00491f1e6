"""The files that a command writes, looked at before a long run, and the report that it ends in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

from mixlist.cli.parameters import FILE, PATH, values_of_type
from mixlist.errors import FileError, UsageError


class _Report(Protocol):
    @property
    def warnings(self) -> tuple[str, ...]: ...

    def to_json(self) -> Mapping[str, object]: ...


Report = TypeVar("Report", bound=_Report)


def check_outputs(
    outputs: Mapping[str, str | None], more_inputs: Iterable[Path] = (), *, new: Container[str] = ()
) -> None:
    """Raise before a long run where an output cannot be written, would replace an input, or exists.

    ``outputs`` are paths by the option that names them; those of the options in ``new`` must not exist.
    Inputs are the paths that the running command reads, and ``more_inputs``.
    """
    named = {option: path for option, path in outputs.items() if path is not None}
    if len({Path(path).resolve() for path in named.values()}) < len(named):
        raise UsageError(f"{' and '.join(named)} would write the same file", hint="name one file each")
    inputs = [*map(Path, values_of_type(FILE, PATH)), *more_inputs]
    for option, name in named.items():
        path = Path(name)
        if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
            raise UsageError(f"{option} {name} is an input", hint="name another file")
        if path.is_dir() or not path.parent.is_dir():
            what = "is a folder" if path.is_dir() else "cannot be written: its folder does not exist"
            raise FileError(f"{name}: {what}", hint="name a file in a folder that exists")
        if path.exists() and option in new:
            raise UsageError(f"{name} exists", hint="use --force to replace it")


def write_report(
    report: Report,
    form: str,
    html: str | None,
    render: Callable[[Report], str],
    write_text: Callable[[Report, TextIO], None],
) -> None:
    """Write the report on standard output and as a page, its warnings on standard error."""
    from mixlist.report import html_page, terminal

    write_warnings(report)
    try:
        if html is not None:
            html_page.write_page(render(report), html)
            sys.stderr.write(f"wrote {terminal.clean(html)}\n")
    finally:  # a page that cannot be written after all does not take the report of a long run with it
        write_result(report, form, write_text)


def write_table(
    form: str, columns: Sequence[str], rows: Sequence[Sequence[str]], as_json: Mapping[str, object]
) -> None:
    """Write rows on standard output as a table or as CSV, or what they come from as JSON."""
    from mixlist.report import csv_table, json_output, terminal

    if form == "json":
        json_output.write_json(as_json, sys.stdout)
    else:
        write = csv_table.write_csv if form == "csv" else terminal.table
        write(columns, rows, sys.stdout)


def write_warnings(report: _Report) -> None:
    """Write the warnings of a report on standard error."""
    from mixlist.report.terminal import clean, paint

    for warning in report.warnings:
        sys.stderr.write(f"{paint('warning', 'yellow', sys.stderr)}: {clean(warning)}\n")


def write_result(report: Report, form: str, write_text: Callable[[Report, TextIO], None]) -> None:
    """Write a report on standard output, as JSON or for people."""
    from mixlist.report.json_output import write_json

    if form == "json":
        write_json(report.to_json(), sys.stdout)
    else:
        write_text(report, sys.stdout)
