"""Write the report or the table that a command ends in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic


class _Report(Protocol):
    @property
    def warnings(self) -> tuple[Diagnostic, ...]: ...

    def to_json(self) -> Mapping[str, object]: ...


Report = TypeVar("Report", bound=_Report)


def write_report(
    report: Report,
    form: str,
    html: str | None,
    render: Callable[[Report], str],
    write_text: Callable[[Report, TextIO], None],
) -> None:
    """Write the report on standard output and as a page, its warnings on standard error."""
    from mixlist.report import html_page, terminal

    terminal.warn(report.warnings)
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


def write_result(report: Report, form: str, write_text: Callable[[Report, TextIO], None]) -> None:
    """Write a report on standard output, as JSON or for people."""
    from mixlist.report.json_output import write_json

    if form == "json":
        write_json(report.to_json(), sys.stdout)
    else:
        write_text(report, sys.stdout)
