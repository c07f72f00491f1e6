"""A check for people at a terminal: the verdict, the first offenders, the outputs, then the time it took."""

from __future__ import annotations

from collections import Counter
from typing import TextIO

from mixlist.checker.result import CheckReport, NodeFinding
from mixlist.report import check_view as words
from mixlist.report.terminal import Colour, clean, paint, table

MOST = 20  # rows of a table that nobody asked for in full
_COLOURS: dict[str, Colour] = {"failing": "red", "warning": "yellow", "note": "dim"}


def write_check(report: CheckReport, stream: TextIO) -> None:
    """Writes the whole report. Warnings are not part of it: they go to stderr."""
    _write_verdict(report, stream)
    first = words.first_offenders(report)
    if first:
        _heading("First offenders", stream)
        for found in first[:MOST]:
            _write_offender(found, report, stream)
        _write_rest(len(first) - MOST, stream)
    _write_others(report, stream)
    _write_outputs(report, stream)
    _write_counts(report, stream)
    _write_layerwise(report, stream)
    _write_timing(report, stream)


def _heading(text: str, stream: TextIO) -> None:
    stream.write(f"\n{paint(text, 'bold', stream)}\n")


def _write_verdict(report: CheckReport, stream: TextIO) -> None:
    colour: Colour = "green" if report.verdict == "pass" else "red"
    stream.write(f"{paint(report.verdict.upper(), colour, stream)}  {clean(words.headline(report))}\n")
    for reason in report.reasons:
        stream.write(f"      {clean(reason)}\n")
    stream.write(f"      {words.exceptions(report)}\n")
    for line in words.comparison(report):
        stream.write(f"      {clean(line)}\n")


def _write_offender(found: NodeFinding, report: CheckReport, stream: TextIO) -> None:
    kind = paint(found.kind, _COLOURS[words.KINDS[found.kind].weight], stream)
    name = paint(clean(str(found.ref)), "bold", stream)
    stream.write(f"  {kind}  {name} ({clean(found.op_type)})\n")
    values = f", {words.count(found.count, 'value')} in the worst" if found.count is not None else ""
    details = {
        "output": f"{found.tensor}: up to {words.figure(found.max_abs_fp32)} in float32,"
        f" {words.figure(found.max_abs_low)} in {report.precision}",
        "batches": words.in_batches(found, report) + values,
        "low by": words.made_low_by(found),
        "to keep it high": found.suggestion,
    }
    for title, text in details.items():
        if text:
            stream.write(f"      {title + ':':<16} {clean(text)}\n")


def _write_others(report: CheckReport, stream: TextIO) -> None:
    first = set(words.first_offenders(report))
    rest = words.by_weight(found for found in report.nodes if found not in first)
    if not rest:
        return
    _heading("Other findings", stream)
    counts = Counter(found.kind for found in rest)
    for kind, number in counts.items():
        stream.write(
            f"  {number} {paint(kind, _COLOURS[words.KINDS[kind].weight], stream)}: {words.KINDS[kind].text}\n"
        )
    stream.write("\n")
    rows = [
        (found.kind, str(found.ref), found.op_type, *words.magnitudes(found), words.in_batches(found, report))
        for found in rest[:MOST]
    ]
    table(("what", "node", "op", "float32", report.precision, "batches"), rows, stream)
    _write_rest(len(rest) - MOST, stream)


def _write_rest(number: int, stream: TextIO) -> None:
    if number > 0:
        stream.write(f"  ... and {number} more (--format json and --html FILE have all)\n")


def _write_outputs(report: CheckReport, stream: TextIO) -> None:
    _heading("Outputs", stream)
    table(words.OUTPUT_COLUMNS, [words.output_row(output) for output in report.outputs], stream)
    stream.write(f"  limits: {' '.join(words.limits_text(report.limits)) or 'none'}\n")
    if report.task is not None:
        before, after = words.share(report.task.reference), words.share(report.task.mixed)
        stream.write(f"  right answers: {before} before, {after} after, of {words.count(report.task.count, 'label')}\n")


def _write_counts(report: CheckReport, stream: TextIO) -> None:
    """What full statistics counted, in all low tensors and in the worst of them."""
    counts = [tensor.counts for tensor in report.tensors if tensor.counts is not None]
    if not counts:
        return
    _heading(f"Values held in {report.precision}", stream)
    total = sum(counts[1:], counts[0])
    told = words.counted(total) or "all in its best range"
    stream.write(f"  {words.count(total.values, 'value')} in {words.count(len(counts), 'tensor')}: {told}\n")
    worst = words.worst_counted(report)
    rows = [
        (each.qualified_name, each.op_type, words.figure(each.smallest), text)
        for each, text in ((each, words.counted(found)) for each, found in worst[:MOST])
    ]
    if rows:
        table(("tensor", "op", "smallest in float32", "values"), rows, stream)
    _write_rest(len(worst) - MOST, stream)


def _write_layerwise(report: CheckReport, stream: TextIO) -> None:
    if not report.layerwise:
        return
    _heading("Where error is born (normalised error that a node adds to exact inputs)", stream)
    rows = [(str(node.ref), node.op_type, words.figure(node.normalized_error)) for node in report.layerwise[:MOST]]
    table(("node", "op", "error"), rows, stream)
    _write_rest(len(report.layerwise) - MOST, stream)


def _write_timing(report: CheckReport, stream: TextIO) -> None:
    if not report.seconds:
        return
    _heading("Time", stream)
    for phase, seconds in report.seconds.items():
        stream.write(f"  {clean(phase):<24} {seconds:8.2f} s\n")
