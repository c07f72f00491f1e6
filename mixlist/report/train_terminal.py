"""A training for people at a terminal: the verdict and its reasons, the runs, what gradients lose, what to change."""

from __future__ import annotations

from typing import TextIO

from mixlist.report import check_view as words
from mixlist.report import train_view
from mixlist.report.check_terminal import MOST
from mixlist.report.terminal import Colour, clean, paint, table
from mixlist.training.result import TrainReport


def write_train(report: TrainReport, stream: TextIO) -> None:
    """Writes the whole report. Warnings are not part of it: they go to stderr."""
    _write_verdict(report, stream)
    _heading("Runs", stream)
    table(train_view.columns(report), train_view.rows(report), stream)
    _write_scaling(report, stream)
    _write_bad(report, stream)
    _write_trace(report, stream)
    _write_trials(report, stream)
    _heading("Time", stream)
    for phase, seconds in report.seconds.items():
        stream.write(f"  {clean(phase):<24} {seconds:8.2f} s\n")


def _heading(text: str, stream: TextIO) -> None:
    stream.write(f"\n{paint(text, 'bold', stream)}\n")


def _write_verdict(report: TrainReport, stream: TextIO) -> None:
    colour: Colour = "green" if report.verdict == "pass" else "red"
    stream.write(f"{paint(report.verdict.upper(), colour, stream)}  {clean(train_view.headline(report))}\n")
    for reason in report.reasons:
        stream.write(f"      {clean(reason)}\n")
    exceptions = train_view.exceptions(report)
    if exceptions:
        stream.write(f"      {exceptions}\n")
    for remedy in train_view.remedies(report):
        stream.write(f"      hint: {remedy}\n")


def _write_scaling(report: TrainReport, stream: TextIO) -> None:
    _heading("Loss scaling", stream)
    stream.write(f"  {clean(train_view.settings(report.scaler))}\n")
    rows = train_view.underflow(report)
    if rows and report.underflow is not None:
        steps = words.count(report.underflow.steps, "step")
        stream.write(f"  Of the gradient values that are not zero in float32 ({steps} looked at):\n")
        table(("", "scaled", "unscaled"), rows, stream)


def _write_bad(report: TrainReport, stream: TextIO) -> None:
    if not report.bad:
        return
    _heading("Where exceptions arise", stream)
    rows = [(name, str(count)) for name, count in report.bad.items()]
    table(("gradient of", "steps"), rows[:MOST], stream)
    _write_rest(len(rows) - MOST, stream)


def _write_trace(report: TrainReport, stream: TextIO) -> None:
    text = train_view.trace(report)
    if not text:
        return
    _heading("First offenders", stream)
    stream.write(f"  {text}\n")
    for found in report.offenders[:MOST]:
        stream.write(f"  {found.kind}  {paint(clean(str(found.ref)), 'bold', stream)} ({clean(found.op_type)})\n")
        largest = (
            f"{words.figure(found.max_abs_fp32)} in float32, {words.figure(found.max_abs_low)} in {report.precision}"
        )
        stream.write(f"      {'output:':<16} {clean(found.tensor)}: up to {largest}\n")
        stream.write(f"      {'low by:':<16} {clean(words.made_low_by(found))}\n")
    _write_rest(len(report.offenders) - MOST, stream)
    if report.suggestion:
        stream.write("  Under this modify_mixlist that step does not overflow:\n")
        for line in report.suggestion.splitlines():
            stream.write(f"    {clean(line)}\n")


def _write_trials(report: TrainReport, stream: TextIO) -> None:
    if not report.scale_trials:
        return
    _heading("Scales tried", stream)
    rows = [
        (train_view.settings(dict(t.parameters)), f"{t.exceptions} of {t.steps}", words.share(t.zero))
        for t in report.scale_trials
    ]
    table(("parameters", "exceptions", "gradients lost"), rows, stream)
    stream.write(f"  best: {train_view.settings(dict(report.scale_choice))}\n")


def _write_rest(number: int, stream: TextIO) -> None:
    if number > 0:
        stream.write(f"  ... and {number} more (--format json has all)\n")
