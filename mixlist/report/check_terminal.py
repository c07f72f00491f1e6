"""A check for people at a terminal: the verdict, the first offenders, the outputs, then the time it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from typing import TextIO

from mixlist.checker.result import CheckReport
from mixlist.report import check_view as words
from mixlist.report.number_text import figure, pluralize, share
from mixlist.report.terminal import MOST, Color, clean, heading, paint, table, write_rest, write_seconds, write_verdict

ALL = "--format json and --html FILE have"
_COLORS: dict[str, Color] = {"failing": "red", "warning": "yellow", "note": "dim"}


def write_check(report: CheckReport, stream: TextIO) -> None:
    """Write the whole report. Warnings are not part of it: they go to stderr."""
    lines = (*report.reasons, words.exceptions(report), *words.comparison(report))
    write_verdict(report.verdict, words.headline(report), lines, stream)
    first = words.first_offenders(report)
    if first:
        heading("First offenders", stream)
        for found in first[:MOST]:
            write_offender(words.finding_texts(found, report), report.precision, stream)
        write_rest(len(first) - MOST, ALL, stream)
    _write_others(report, stream)
    _write_outputs(report, stream)
    _write_counts(report, stream)
    _write_layerwise(report, stream)
    if report.seconds:
        heading("Time", stream)
        write_seconds(report.seconds, stream)
    _write_advice(report, stream)


def write_offender(found: Mapping[str, str], precision: str, stream: TextIO) -> None:
    """Write a node where an overflow starts, in words: its tensor, what made it low, and what would keep it high."""
    kind = paint(found["kind"], _COLORS[found["weight"]], stream)
    stream.write(f"  {kind}  {paint(clean(found['node']), 'bold', stream)} ({clean(found['operator'])})\n")
    details = {
        found["place"]: f"{found['tensor']}: up to {found['reference']} in float32, {found['mixed']} in {precision}",
        "batches": ", ".join(filter(None, (found["batches"], found["worst"]))),
        "low by": found["low_by"],
        "to keep it high": found["suggestion"],
    }
    _write_details(details, stream)


def _write_details(details: Mapping[str, str], stream: TextIO) -> None:
    """Write those details that have a text, a line each."""
    for title, text in details.items():
        if text:
            stream.write(f"      {title + ':':<16} {clean(text)}\n")


def _write_others(report: CheckReport, stream: TextIO) -> None:
    first = set(words.first_offenders(report))
    rest = words.by_weight(found for found in report.nodes if found not in first)
    if not rest:
        return
    heading("Other findings", stream)
    counts = Counter(found.kind for found in rest)
    for kind, number in counts.items():
        stream.write(f"  {number} {paint(kind, _COLORS[words.KINDS[kind].weight], stream)}: {words.KINDS[kind].text}\n")
    stream.write("\n")
    shown = itemgetter("kind", "node", "operator", "place", "reference", "mixed", "batches")
    rows = [shown(words.finding_texts(found, report)) for found in rest[:MOST]]
    table(("what", "node", "op", "of", "float32", report.precision, "batches"), rows, stream)
    write_rest(len(rest) - MOST, ALL, stream)


def _write_outputs(report: CheckReport, stream: TextIO) -> None:
    heading("Outputs", stream)
    table(words.OUTPUT_COLUMNS, [words.output_row(output) for output in report.outputs], stream)
    stream.write(f"  limits: {' '.join(words.limits_text(report.limits)) or 'none'}\n")
    if report.task is not None:
        before, after = share(report.task.reference), share(report.task.mixed)
        stream.write(f"  right answers: {before} before, {after} after, of {pluralize(report.task.count, 'label')}\n")


def _write_counts(report: CheckReport, stream: TextIO) -> None:
    """Write the counts of full statistics, for all low tensors and for the worst of them."""
    counts = [tensor.counts for tensor in report.tensors if tensor.counts is not None]
    if not counts:
        return
    heading(f"Values held in {report.precision}", stream)
    total = sum(counts[1:], counts[0])
    told = words.counted(total) or "all in its best range"
    stream.write(f"  {pluralize(total.values, 'value')} in {pluralize(len(counts), 'tensor')}: {told}\n")
    worst = words.worst_counted(report)
    rows = [
        (tensor.qualified_name, tensor.op_type, figure(tensor.smallest), words.counted(values))
        for tensor, values in worst[:MOST]
    ]
    if rows:
        table(("tensor", "op", "smallest in float32", "values"), rows, stream)
    write_rest(len(worst) - MOST, ALL, stream)


def _write_layerwise(report: CheckReport, stream: TextIO) -> None:
    if not report.layerwise:
        return
    heading("Where error is born (normalised error that a node adds to exact inputs)", stream)
    rows = [(str(node.ref), node.op_type, figure(node.normalized_error)) for node in report.layerwise[:MOST]]
    table(("node", "op", "error"), rows, stream)
    write_rest(len(report.layerwise) - MOST, ALL, stream)


def _write_advice(report: CheckReport, stream: TextIO) -> None:
    """Write what to do: about the nodes that add most error, and the command that searches a list."""
    worst = words.worst_nodes(report)
    if worst:
        heading("These nodes add most error", stream)
    for error in worst:
        name = paint(clean(str(error.ref)), "bold", stream)
        stream.write(f"  {figure(error.normalized_error, 2)}  {name} ({clean(error.op_type)})\n")
        _write_details({"low by": error.source, "to keep it high": error.suggestion}, stream)
    if report.next_command:
        heading("To search a list that passes", stream)
        stream.write(f"  {clean(report.next_command)}\n")
