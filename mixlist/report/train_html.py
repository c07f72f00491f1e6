"""A training as one HTML page: verdict, loss curves, runs, the loss scale, and what overflows or is lost."""

from __future__ import annotations

import os

from mixlist.report import check_view as words
from mixlist.report import train_charts as charts
from mixlist.report import train_view
from mixlist.report.html_page import bars, render_page, write_page
from mixlist.report.number_text import pluralize
from mixlist.training.result import TrainReport

_BARS = 40  # parameters whose exceptions are drawn


def write_html(report: TrainReport, path: str | os.PathLike[str]) -> None:
    """Write the page whole or not at all; an existing file is replaced. Raises FileError."""
    write_page(render(report), path)


def render(report: TrainReport) -> str:
    """Return the page."""
    rows = train_view.rows(report)
    return render_page(
        "train.html",
        report,
        "check.css",
        "train.css",
        headline=train_view.headline(report),
        exceptions=train_view.exceptions(report),
        remedies=train_view.remedies(report),
        columns=train_view.columns(report),
        rows=rows[: len(report.runs)],
        mean=rows[len(report.runs) :],
        underflow=train_view.underflow(report),
        looked_at=pluralize(report.underflow.steps, "step") if report.underflow is not None else "",
        scaler=train_view.settings(report.scaler),
        optimizer=train_view.settings(report.optimizer),
        losses=charts.losses(report),
        scales=charts.scales(report),
        metrics=charts.metrics(report),
        step_ticks=charts.step_ticks(report.steps),
        width=charts.WIDTH,
        height=charts.HEIGHT,
        bad=bars(dict(list(report.bad.items())[:_BARS]), "{}", code=True),
        bad_left=max(0, len(report.bad) - _BARS),
        trace=train_view.trace(report),
        offenders=[words.finding_texts(found) for found in report.offenders],
        trials=train_view.trial_rows(report),
        choice=train_view.settings(dict(report.scale_choice)),
        times=bars(report.seconds, "{:.2f} s"),
        emulated=train_view.EMULATED if report.mode == "emulated" else "",
    )
