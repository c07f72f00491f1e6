"""Write a training as text: the verdict and its reasons, the runs, the underflow of gradients, and remedies."""

from __future__ import annotations

from typing import TextIO

from mixlist.report import check_view, train_view
from mixlist.report.check_terminal import write_offender
from mixlist.report.number_text import pluralize
from mixlist.report.terminal import MOST, clean, heading, table, write_omitted, write_seconds, write_verdict
from mixlist.training.result import TrainReport

ALL = "--format json has"


def write_train(report: TrainReport, stream: TextIO) -> None:
    """Write the report. Its warnings are not in this text, because they go to stderr."""
    hints = [f"hint: {remedy}" for remedy in train_view.remedies(report)]
    lines = filter(None, (*report.reasons, train_view.exceptions(report), *hints))
    write_verdict(report.verdict, train_view.headline(report), lines, stream)
    heading("Runs", stream)
    table(train_view.columns(report), train_view.rows(report), stream)
    _write_scaling(report, stream)
    _write_exceptions(report, stream)
    _write_trace(report, stream)
    _write_trials(report, stream)
    heading("Time", stream)
    write_seconds(report.seconds, stream)


def _write_scaling(report: TrainReport, stream: TextIO) -> None:
    heading("Loss scaling", stream)
    stream.write(f"  {clean(train_view.settings(report.scaler))}\n")
    rows = train_view.underflow(report)
    if rows and report.underflow is not None:
        steps = pluralize(report.underflow.steps, "step")
        stream.write(f"  Of the gradient values that are not zero in float32 ({steps} examined):\n")
        table(("", "scaled", "unscaled"), rows, stream)


def _write_exceptions(report: TrainReport, stream: TextIO) -> None:
    if not report.bad:
        return
    heading("Exceptions by parameter", stream)
    rows = [(name, str(count)) for name, count in report.bad.items()]
    table(("gradient of", "steps"), rows[:MOST], stream)
    write_omitted(len(rows) - MOST, ALL, stream)


def _write_trace(report: TrainReport, stream: TextIO) -> None:
    text = train_view.trace(report)
    if not text:
        return
    heading("First offenders", stream)
    stream.write(f"  {text}\n")
    for finding in report.offenders[:MOST]:
        write_offender(check_view.finding_texts(finding), report.precision, stream)
    write_omitted(len(report.offenders) - MOST, ALL, stream)
    if report.suggestion:
        stream.write("  Under this modify_mixlist that step does not overflow:\n")
        for line in report.suggestion.splitlines():
            stream.write(f"    {clean(line)}\n")


def _write_trials(report: TrainReport, stream: TextIO) -> None:
    if not report.scale_trials:
        return
    heading("Scales tried", stream)
    table(("parameters", "exceptions", "gradients lost"), train_view.trial_rows(report), stream)
    stream.write(f"  best: {train_view.settings(dict(report.scale_choice))}\n")
