"""Write a check as text: the verdict, the first offenders, the outputs, then the time of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from typing import TextIO

from mixlist.checker.result import CheckReport
from mixlist.report import check_texts
from mixlist.report.number_text import format_number, format_share, pluralize
from mixlist.report.terminal import (
    MAX_ROWS,
    Color,
    escape_commands,
    paint,
    write_heading,
    write_omitted,
    write_seconds,
    write_table,
    write_verdict,
)

# The end of the sentence with which ``write_omitted`` says how many rows are missing.
FORMATS_WITH_ALL_ROWS = "--format json and --html FILE have all"
_COLORS: dict[str, Color] = {"failing": "red", "warning": "yellow", "note": "dim"}


def write_check(report: CheckReport, stream: TextIO) -> None:
    """Write the report. Its warnings are not in this text, because they go to stderr."""
    lines = (
        *report.reasons,
        check_texts.describe_exceptions(report),
        *check_texts.describe_segments(report),
        *check_texts.describe_emulation(report),
    )
    write_verdict(report.verdict, check_texts.headline(report), lines, stream)
    # From the cause to the details: where overflow starts, the other findings, the outputs, then counts and errors.
    first = check_texts.first_offenders(report)
    if first:
        write_heading("First offenders", stream)
        for finding in first[:MAX_ROWS]:
            write_offender(check_texts.finding_texts(finding, report), report.precision, stream)
        write_omitted(len(first) - MAX_ROWS, FORMATS_WITH_ALL_ROWS, stream)
    _write_others(report, stream)
    _write_outputs(report, stream)
    _write_counts(report, stream)
    _write_layerwise(report, stream)
    if report.seconds:
        write_heading("Time", stream)
        write_seconds(report.seconds, stream)
    _write_advice(report, stream)


def write_offender(texts: Mapping[str, str], precision: str, stream: TextIO) -> None:
    """Write a node where an overflow starts: its tensor, the entry that puts it in low precision, and the remedy.

    ``texts`` are those of ``check_texts.finding_texts``.
    """
    kind = paint(texts["kind"], _COLORS[texts["severity"]], stream)
    stream.write(
        f"  {kind}  {paint(escape_commands(texts['node']), 'bold', stream)} ({escape_commands(texts['operator'])})\n"
    )
    details = {
        texts["place"]: f"{texts['tensor']}: up to {texts['reference']} {texts['reference_title']},"
        f" {texts['mixed']} in {precision}",
        "batches": ", ".join(filter(None, (texts["batches"], texts["worst"]))),
        "low by": texts["low_by"],
        "to keep it high": texts["suggestion"],
    }
    _write_details(details, stream)


def _write_details(details: Mapping[str, str], stream: TextIO) -> None:
    """Write each detail that is not empty as a line."""
    for title, text in details.items():
        if text:
            stream.write(f"      {title + ':':<16} {escape_commands(text)}\n")


def _write_others(report: CheckReport, stream: TextIO) -> None:
    # The first offenders have their own section.
    first = set(check_texts.first_offenders(report))
    other_findings = check_texts.sort_by_kind(finding for finding in report.nodes if finding not in first)
    if not other_findings:
        return
    write_heading("Other findings", stream)
    counts = Counter(finding.kind for finding in other_findings)
    for kind, number in counts.items():
        description = check_texts.KINDS[kind]
        stream.write(f"  {number} {paint(kind, _COLORS[description.severity], stream)}: {description.text}\n")
    stream.write("\n")
    shown = itemgetter("kind", "node", "operator", "place", "reference", "mixed", "batches")
    rows = [shown(check_texts.finding_texts(finding, report)) for finding in other_findings[:MAX_ROWS]]
    write_table(("what", "node", "op", "of", "float32", report.precision, "batches"), rows, stream)
    write_omitted(len(other_findings) - MAX_ROWS, FORMATS_WITH_ALL_ROWS, stream)


def _write_outputs(report: CheckReport, stream: TextIO) -> None:
    write_heading("Outputs", stream)
    write_table(check_texts.OUTPUT_COLUMNS, [check_texts.output_row(output) for output in report.outputs], stream)
    stream.write(f"  limits: {' '.join(check_texts.limits_text(report.limits)) or 'none'}\n")
    if report.task is not None:
        before, after = format_share(report.task.reference), format_share(report.task.mixed)
        stream.write(f"  right answers: {before} before, {after} after, of {pluralize(report.task.count, 'label')}\n")


def _write_counts(report: CheckReport, stream: TextIO) -> None:
    """Write the counts of ``--full-statistics``: of all low-precision tensors together, and of the worst tensors."""
    counts = [tensor.counts for tensor in report.tensors if tensor.counts is not None]
    if not counts:
        return
    write_heading(f"Values held in {report.precision}", stream)
    # sum() starts at 0 by default, which cannot be added to ValueCounts.
    total = sum(counts[1:], counts[0])
    summary = check_texts.describe_counts(total) or "all within its range"
    stream.write(f"  {pluralize(total.values, 'value')} in {pluralize(len(counts), 'tensor')}: {summary}\n")
    worst = check_texts.tensors_by_lost_values(report)
    rows = [
        (tensor.qualified_name, tensor.op_type, format_number(tensor.smallest), check_texts.describe_counts(values))
        for tensor, values in worst[:MAX_ROWS]
    ]
    if rows:
        write_table(("tensor", "op", "smallest in float32", "values"), rows, stream)
    write_omitted(len(worst) - MAX_ROWS, FORMATS_WITH_ALL_ROWS, stream)


def _write_layerwise(report: CheckReport, stream: TextIO) -> None:
    if not report.layerwise:
        return
    write_heading("Nodes by error (the normalized error that a node adds to exact inputs)", stream)
    rows = [(str(node.ref), node.op_type, format_number(node.normalized_error)) for node in report.layerwise[:MAX_ROWS]]
    write_table(("node", "op", "error"), rows, stream)
    write_omitted(len(report.layerwise) - MAX_ROWS, FORMATS_WITH_ALL_ROWS, stream)


def _write_advice(report: CheckReport, stream: TextIO) -> None:
    """Write the remedies: for the nodes that add the most error, and the command that searches for a list."""
    worst = check_texts.worst_nodes(report)
    if worst:
        write_heading("Nodes that add the most error", stream)
    for error in worst:
        name = paint(escape_commands(str(error.ref)), "bold", stream)
        stream.write(f"  {format_number(error.normalized_error, 2)}  {name} ({escape_commands(error.op_type)})\n")
        _write_details({"low by": error.source, "to keep it high": error.suggestion}, stream)
    if report.next_command:
        write_heading("Search a list that passes", stream)
        stream.write(f"  {escape_commands(report.next_command)}\n")
