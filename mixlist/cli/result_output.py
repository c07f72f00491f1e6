"""Write the result of a command: a report or a table."""

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


def write_report_and_page(
    report: Report,
    output_format: str,
    html: str | None,
    render_html: Callable[[Report], str],
    write_text: Callable[[Report, TextIO], None],
) -> None:
    """Write the page to the file ``html``, if any, and the report to standard output.

    ``render_html`` returns the page. ``write_text`` writes the report as text.
    """
    try:
        if html is not None:
            write_page_file(render_html(report), html)
    finally:  # the report of a long run is written even if the page cannot be written
        write_report(report, output_format, write_text)


def write_page_file(page: str, path: str) -> None:
    """Write a page to a file, and say so on standard error."""
    from mixlist.report import html_page, terminal

    html_page.write_page(page, path)
    sys.stderr.write(f"wrote {terminal.escape_commands(path)}\n")


def write_rows(
    output_format: str, columns: Sequence[str], rows: Sequence[Sequence[str]], as_json: Mapping[str, object]
) -> None:
    """Write rows to standard output as a table or as CSV, or ``as_json`` as JSON."""
    from mixlist.report import csv_table, json_output, terminal

    if output_format == "json":
        json_output.write_json(as_json, sys.stdout)
    else:
        writers = {"csv": csv_table.write_csv, "text": terminal.write_table}
        writers[output_format](columns, rows, sys.stdout)


def write_report(report: Report, output_format: str, write_text: Callable[[Report, TextIO], None]) -> None:
    """Write a report to standard output, as JSON or as text."""
    from mixlist.report.json_output import write_json

    if output_format == "json":
        write_json(report.to_json(), sys.stdout)
    else:
        write_text(report, sys.stdout)
