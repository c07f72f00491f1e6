"""Write a training as text: the verdict and its reasons, the runs, the underflow of gradients, and findings."""

from __future__ import annotations

from typing import TextIO

from mixlist.report import train_texts
from mixlist.report.number_text import pluralize
from mixlist.report.terminal import (
    MAX_ROWS,
    escape_commands,
    write_heading,
    write_omitted,
    write_seconds,
    write_table,
    write_verdict,
)
from mixlist.training.result import TrainReport

FORMATS_WITH_ALL_ROWS = "--format json has all"


def write_train(report: TrainReport, stream: TextIO) -> None:
    """Write the report. Its warnings are not in this text, because they go to stderr."""
    hints = [f"hint: {remedy}" for remedy in train_texts.remedies(report)]
    lines = (*report.reasons, train_texts.describe_exceptions(report), *hints, *report.notes)
    write_verdict(report.verdict, train_texts.headline(report), lines, stream)
    write_heading("Runs", stream)
    write_table(train_texts.run_columns(report), train_texts.run_rows(report), stream)
    _write_findings(report, stream)
    _write_scaling(report, stream)
    _write_exceptions(report, stream)
    write_heading("Time", stream)
    write_seconds(report.seconds, stream)


def _write_findings(report: TrainReport, stream: TextIO) -> None:
    if not report.findings:
        return
    write_heading("Where overflow starts", stream)
    rows = train_texts.finding_rows(report)
    write_table(train_texts.FINDING_COLUMNS, rows[:MAX_ROWS], stream)
    write_omitted(len(rows) - MAX_ROWS, FORMATS_WITH_ALL_ROWS, stream)
    stream.write(f"  {escape_commands(train_texts.describe_findings(report))}\n")
    for line in report.suggestion.splitlines():
        stream.write(f"    {escape_commands(line)}\n")


def _write_scaling(report: TrainReport, stream: TextIO) -> None:
    write_heading("Loss scaling", stream)
    stream.write(f"  {escape_commands(train_texts.format_parameters(report.scaler))}\n")
    rows = train_texts.underflow_rows(report)
    if rows and report.underflow is not None:
        steps = pluralize(report.underflow.steps, "step")
        stream.write(f"  Of the gradient values that are not zero in float32 ({steps} examined):\n")
        write_table(train_texts.underflow_columns(report), rows, stream)


def _write_exceptions(report: TrainReport, stream: TextIO) -> None:
    if not report.bad:
        return
    write_heading("Exceptions by parameter", stream)
    rows = [(name, str(count)) for name, count in report.bad.items()]
    write_table(("gradient of", "steps"), rows[:MAX_ROWS], stream)
    write_omitted(len(rows) - MAX_ROWS, FORMATS_WITH_ALL_ROWS, stream)
