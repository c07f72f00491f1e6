"""Write a benchmark as text: the ratio first, then the figures of both models, the time of each operator, and notes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from mixlist.report import bench_texts
from mixlist.report.terminal import escape_commands, paint, write_table

if TYPE_CHECKING:
    from mixlist.benchmark.result import BenchReport
    from mixlist.cost.estimate import Work


def write_bench(report: BenchReport, stream: TextIO) -> None:
    """Write the report."""
    stream.write(paint(escape_commands(bench_texts.headline(report)), "bold", stream) + "\n")
    stream.write(bench_texts.conditions(report) + "\n\n")
    write_table(("", "original", "other"), bench_texts.figure_rows(report), stream)
    for name, model in (("original", report.original), ("other", report.other)):
        added = bench_texts.added_operators(model)
        if added:
            stream.write(f"\nONNX Runtime added to the {name}: {escape_commands(added)}\n")
    times = bench_texts.operator_times(report)
    if times:
        stream.write("\nTime by operator, per run (the profile slows the model down)\n\n")
        rows = [(title, *map(bench_texts.format_time, seconds)) for title, seconds in times]
        write_table(("operator", "original", "other"), rows, stream)
    for model in (report.original, report.other):
        if model.failure:
            failed = paint("not timed", "red", stream)
            stream.write(f"\n{escape_commands(model.name)}: {failed}: {escape_commands(model.failure)}\n")
    _write_notes(report.notes, stream)


def write_estimate(original: Work, other: Work, stream: TextIO) -> None:
    """Write the estimated work of both models side by side."""
    headline = escape_commands(bench_texts.estimate_headline(original, other))
    stream.write(paint(headline, "bold", stream) + "\n\n")
    write_table(bench_texts.WORK_COLUMNS, bench_texts.work_rows(original, other), stream)
    _write_notes(bench_texts.estimate_notes((original, other)), stream)


def _write_notes(notes: Iterable[str], stream: TextIO) -> None:
    for note in notes:
        stream.write(f"\n{paint('note', 'yellow', stream)}: {escape_commands(note)}\n")
