"""Write a diff of two policies as text: totals, accuracy and cost, then nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from mixlist.report import csv_table
from mixlist.report.diff_texts import describe_settings, headline, reasons, side_rows
from mixlist.report.resolve_output import operators_text
from mixlist.report.terminal import escape_commands, paint, write_omitted, write_table

if TYPE_CHECKING:
    from mixlist.comparison.result import DiffReport

_NODE_COLUMNS = ("node", "op", "base", "target", "reason under the target")
_CSV_COLUMNS = ("scope", "name", "op_type", "base", "target", "reason")
_NOT_THERE = "-"  # the precision of a node that the model of the base lacks


def write_diff(report: DiffReport, max_nodes: int | None, stream: TextIO) -> None:
    """Write the report with at most ``max_nodes`` nodes (None: all)."""
    stream.write(paint(escape_commands(headline(report)), "bold", stream) + "\n")
    if changes := report.count_changes():
        rows = [
            (base or _NOT_THERE, target, str(operators.total()), operators_text(operators))
            for (base, target), operators in changes.items()
        ]
        stream.write("\n")
        write_table(("base", "target", "nodes", "operators"), rows, stream)
    if text := describe_settings(report.settings):
        stream.write(f"\n{escape_commands(text)}\n")
    if measures := side_rows(report):
        stream.write("\n")
        write_table(("", "base", "target"), measures, stream)
    if lines := reasons(report):
        stream.write("\n")
        stream.writelines(f"{escape_commands(line)}\n" for line in lines)
    if report.nodes:
        shown = report.nodes[:max_nodes]
        stream.write("\n")
        cells = [(str(n.ref), n.operator, n.base or _NOT_THERE, n.target, n.reason) for n in shown]
        write_table(_NODE_COLUMNS, cells, stream)
        write_omitted(len(report.nodes) - len(shown), "--all shows them", stream)


def write_diff_csv(report: DiffReport, stream: TextIO) -> None:
    """Write a row for each node that changes."""
    rows = [(n.scope, n.name, n.op_type, n.base, n.target, n.reason) for n in report.nodes]
    csv_table.write_csv(_CSV_COLUMNS, rows, stream)
