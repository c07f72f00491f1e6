"""Write the result of a command: a report or a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mixlist.show.document import Document


class Result(Protocol):
    """A result that has a form as JSON."""

    def to_json(self) -> Mapping[str, object]: ...


def write_report(result: Result, document: Document, output_format: str, html: str | None = None) -> None:
    """Write a report to standard output as JSON or text, and as a page to the file ``html``, if any."""
    from mixlist.show import json_output, terminal

    try:
        if html is not None:
            write_page_file(document, html)
    finally:  # the report of a long run is written even if the page cannot be written
        if output_format == "json":
            json_output.write_json(result.to_json(), sys.stdout)
        else:
            terminal.write_document(document, sys.stdout)


def write_page_file(document: Document, path: str) -> None:
    """Write the page of a report to a file, and say so on standard error."""
    from mixlist.show import html_page, terminal

    html_page.write_page(html_page.render_document(document), path)
    sys.stderr.write(f"wrote {terminal.escape_commands(path)}\n")


def write_rows(
    output_format: str, columns: Sequence[str], rows: Sequence[Sequence[str]], as_json: Mapping[str, object]
) -> None:
    """Write rows to standard output as a table or as CSV, or ``as_json`` as JSON."""
    from mixlist.show import csv_table, json_output, terminal
    from mixlist.show.document import Document, Section, Table, columns_of

    if output_format == "json":
        json_output.write_json(as_json, sys.stdout)
    elif output_format == "csv":
        csv_table.write_csv(columns, rows, sys.stdout)
    else:
        section = Section("rows", "", (Table(columns_of(*columns), rows),))
        terminal.write_document(Document("", (section,)), sys.stdout)
