"""Write a repair as text: the verdict, where overflow starts, the edits, the errors of the outputs, and the search."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from mixlist.report.check_texts import finding_texts
from mixlist.report.number_text import format_cosine, format_number, format_share, pluralize
from mixlist.report.terminal import (
    MAX_ROWS,
    write_heading,
    write_omitted,
    write_seconds,
    write_table,
    write_verdict,
)

if TYPE_CHECKING:
    from mixlist.checker.result import NodeFinding, OutputFinding
    from mixlist.repairer.result import OutputErrors, RepairEdit, RepairReport

_OFFENDER_COLUMNS = ("what", "node", "op", "where", "float32")
_EDIT_COLUMNS = ("edit", "what", "op", "matrix work", "why", "without it")
_ERROR_COLUMNS = ("output", "error before", "error after", "cosine before", "cosine after")


def write_repair(report: RepairReport, stream: TextIO) -> None:
    """Write the report. Its warnings are not in this text, because they go to stderr."""
    write_verdict(report.verdict, _headline(report), report.reasons, stream)
    if report.first_offenders:
        title = f"Where the overflow starts in the {report.precision} model"
        _write_rows(title, _OFFENDER_COLUMNS, [_offender_row(f) for f in report.first_offenders], stream)
    if report.edits:
        title = f"{pluralize(len(report.edits), 'edit')}: connected nodes that are raised to float32"
        if any(edit.kind == "clip" for edit in report.edits):
            title += ", and Clips of tensors"
        rows = [row for number, edit in enumerate(report.edits, start=1) for row in _edit_rows(number, edit)]
        _write_rows(title, _EDIT_COLUMNS, rows, stream)
        _write_low_share(report, stream)
    if report.errors:
        rows = [_error_row(errors) for errors in report.errors]
        _write_rows("Outputs, against the model in float32", _ERROR_COLUMNS, rows, stream)
    write_heading("Search", stream)
    remembered = f", {report.remembered} more read from the state" if report.remembered else ""
    stream.write(f"  {pluralize(report.trials, 'trial')}{remembered}\n")
    write_seconds(report.seconds, stream)


def _headline(report: RepairReport) -> str:
    if report.rewritten is None:
        return f"{report.model}: no repair"
    if not report.edits:
        return f"{report.model}: nothing to repair"
    nodes = f"{report.raised_nodes} of {pluralize(report.low_nodes, f'{report.precision} node')}"
    return f"{report.model}: {pluralize(len(report.edits), 'edit')}, {nodes} raised to float32"


def _write_rows(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], stream: TextIO) -> None:
    write_heading(title, stream)
    write_table(columns, rows[:MAX_ROWS], stream)
    write_omitted(len(rows) - MAX_ROWS, "--format json has all", stream)


def _offender_row(finding: NodeFinding) -> tuple[str, ...]:
    texts = finding_texts(finding)
    return finding.kind, str(finding.ref), finding.op_type, f"{texts['place']} {texts['tensor']}", texts["reference"]


def _edit_rows(number: int, edit: RepairEdit) -> list[tuple[str, ...]]:
    """Return a row for each node of an edit; the first one has the texts of the edit."""
    if edit.kind == "clip":
        return [
            (str(number), f"{edit.tensor} between +-{format_number(edit.limit)}", "Clip", "-", edit.why or "-", "-")
        ]
    cost = "-" if edit.cost is None else format_share(edit.cost)
    texts = [(str(number), cost, edit.why or "-", edit.without or "-"), *[("", "", "", "")] * (len(edit.nodes) - 1)]
    return [
        (count, str(node.ref), node.op_type, work, why, without)
        for node, (count, work, why, without) in zip(edit.nodes, texts, strict=True)
    ]


def _write_low_share(report: RepairReport, stream: TextIO) -> None:
    before, after = report.low_share["base"], report.low_share["repaired"]
    if before is not None:
        shares = f"{format_share(before)} of the work before, {format_share(after)} after"
        stream.write(f"\nMatrix products and convolutions in low precision: {shares}\n")


def _error_row(errors: OutputErrors) -> tuple[str, ...]:
    def texts(output: OutputFinding | None) -> tuple[str, str]:
        if output is None:
            return "-", "-"
        return format_number(output.normalized_error), format_cosine(output.cosine)

    (error_before, cosine_before), (error_after, cosine_after) = texts(errors.before), texts(errors.after)
    return errors.name, error_before, error_after, cosine_before, cosine_after
