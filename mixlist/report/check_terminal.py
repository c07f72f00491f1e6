"""Write a check as text: the verdict, the first offenders, the outputs, then the time of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from typing import TextIO

from mixlist.checker.result import CheckReport
from mixlist.report import check_view as view
from mixlist.report.number_text import figure, pluralize, share
from mixlist.report.terminal import (
    MOST,
    Color,
    clean,
    heading,
    paint,
    table,
    write_omitted,
    write_seconds,
    write_verdict,
)

ALL = "--format json and --html FILE have"
_COLORS: dict[str, Color] = {"failing": "red", "warning": "yellow", "note": "dim"}


def write_check(report: CheckReport, stream: TextIO) -> None:
    """Write the report. Its warnings are not in this text, because they go to stderr."""
    lines = (*report.reasons, view.exceptions(report), *view.comparison(report))
    write_verdict(report.verdict, view.headline(report), lines, stream)
    first = view.first_offenders(report)
    if first:
        heading("First offenders", stream)
        for finding in first[:MOST]:
            write_offender(view.finding_texts(finding, report), report.precision, stream)
        write_omitted(len(first) - MOST, ALL, stream)
    _write_others(report, stream)
    _write_outputs(report, stream)
    _write_counts(report, stream)
    _write_layerwise(report, stream)
    if report.seconds:
        heading("Time", stream)
        write_seconds(report.seconds, stream)
    _write_advice(report, stream)


def write_offender(texts: Mapping[str, str], precision: str, stream: TextIO) -> None:
    """Write a node where an overflow starts: its tensor, the entry that puts it in low precision, and the remedy.

    ``texts`` are those of ``check_view.finding_texts``.
    """
    kind = paint(texts["kind"], _COLORS[texts["weight"]], stream)
    stream.write(f"  {kind}  {paint(clean(texts['node']), 'bold', stream)} ({clean(texts['operator'])})\n")
    details = {
        texts["place"]: f"{texts['tensor']}: up to {texts['reference']} in float32, {texts['mixed']} in {precision}",
        "batches": ", ".join(filter(None, (texts["batches"], texts["worst"]))),
        "low by": texts["low_by"],
        "to keep it high": texts["suggestion"],
    }
    _write_details(details, stream)


def _write_details(details: Mapping[str, str], stream: TextIO) -> None:
    """Write each detail that is not empty as a line."""
    for title, text in details.items():
        if text:
            stream.write(f"      {title + ':':<16} {clean(text)}\n")


def _write_others(report: CheckReport, stream: TextIO) -> None:
    first = set(view.first_offenders(report))
    other_findings = view.by_weight(finding for finding in report.nodes if finding not in first)
    if not other_findings:
        return
    heading("Other findings", stream)
    counts = Counter(finding.kind for finding in other_findings)
    for kind, number in counts.items():
        stream.write(f"  {number} {paint(kind, _COLORS[view.KINDS[kind].weight], stream)}: {view.KINDS[kind].text}\n")
    stream.write("\n")
    shown = itemgetter("kind", "node", "operator", "place", "reference", "mixed", "batches")
    rows = [shown(view.finding_texts(finding, report)) for finding in other_findings[:MOST]]
    table(("what", "node", "op", "of", "float32", report.precision, "batches"), rows, stream)
    write_omitted(len(other_findings) - MOST, ALL, stream)


def _write_outputs(report: CheckReport, stream: TextIO) -> None:
    heading("Outputs", stream)
    table(view.OUTPUT_COLUMNS, [view.output_row(output) for output in report.outputs], stream)
    stream.write(f"  limits: {' '.join(view.limits_text(report.limits)) or 'none'}\n")
    if report.task is not None:
        before, after = share(report.task.reference), share(report.task.mixed)
        stream.write(f"  right answers: {before} before, {after} after, of {pluralize(report.task.count, 'label')}\n")


def _write_counts(report: CheckReport, stream: TextIO) -> None:
    """Write the counts of ``--full-statistics``: of all low-precision tensors together, and of the worst tensors."""
    counts = [tensor.counts for tensor in report.tensors if tensor.counts is not None]
    if not counts:
        return
    heading(f"Values held in {report.precision}", stream)
    total = sum(counts[1:], counts[0])
    summary = view.describe_counts(total) or "all within its range"
    stream.write(f"  {pluralize(total.values, 'value')} in {pluralize(len(counts), 'tensor')}: {summary}\n")
    worst = view.tensors_by_loss(report)
    rows = [
        (tensor.qualified_name, tensor.op_type, figure(tensor.smallest), view.describe_counts(values))
        for tensor, values in worst[:MOST]
    ]
    if rows:
        table(("tensor", "op", "smallest in float32", "values"), rows, stream)
    write_omitted(len(worst) - MOST, ALL, stream)


def _write_layerwise(report: CheckReport, stream: TextIO) -> None:
    if not report.layerwise:
        return
    heading("Nodes by error (the normalized error that a node adds to exact inputs)", stream)
    rows = [(str(node.ref), node.op_type, figure(node.normalized_error)) for node in report.layerwise[:MOST]]
    table(("node", "op", "error"), rows, stream)
    write_omitted(len(report.layerwise) - MOST, ALL, stream)


def _write_advice(report: CheckReport, stream: TextIO) -> None:
    """Write the remedies: for the nodes that add the most error, and the command that searches a list."""
    worst = view.worst_nodes(report)
    if worst:
        heading("Nodes that add the most error", stream)
    for error in worst:
        name = paint(clean(str(error.ref)), "bold", stream)
        stream.write(f"  {figure(error.normalized_error, 2)}  {name} ({clean(error.op_type)})\n")
        _write_details({"low by": error.source, "to keep it high": error.suggestion}, stream)
    if report.next_command:
        heading("Search a list that passes", stream)
        stream.write(f"  {clean(report.next_command)}\n")
