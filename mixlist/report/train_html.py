"""Render a training as one HTML page: verdict, loss curves, runs, loss scale, underflow and overflow."""

from __future__ import annotations

from mixlist.report import train_charts, train_view
from mixlist.report.check_view import finding_texts
from mixlist.report.html_page import bars, render_page
from mixlist.training.result import TrainReport

_BARS = 40  # the number of parameters in the chart of exceptions


def render(report: TrainReport) -> str:
    """Return the page. The template calls ``train_view`` for its texts and ``train_charts`` for its pictures."""
    return render_page(
        "train.html",
        report,
        "check.css",
        "train.css",
        view=train_view,
        charts=train_charts,
        bad=bars(dict(list(report.bad.items())[:_BARS]), "{}", code=True),
        bad_left=max(0, len(report.bad) - _BARS),
        offenders=[finding_texts(finding) for finding in report.offenders],
        times=bars(report.seconds, "{:.2f} s"),
    )
