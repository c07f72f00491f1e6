"""Render a training as one HTML page: verdict, loss curves, runs, loss scale, underflow and overflow."""

from __future__ import annotations

from mixlist.report import train_charts, train_texts
from mixlist.report.check_texts import finding_texts
from mixlist.report.html_page import bars, render_page
from mixlist.training.result import TrainReport

_MAX_BARS = 40  # the number of parameters in the chart of exceptions


def render(report: TrainReport) -> str:
    """Return the page. The template calls ``train_texts`` for its texts and ``train_charts`` for its pictures."""
    return render_page(
        "train.html",
        report,
        "page.css",
        "train.css",
        texts=train_texts,
        charts=train_charts,
        bad=bars(dict(list(report.bad.items())[:_MAX_BARS]), "{}", code=True),
        bad_left=max(0, len(report.bad) - _MAX_BARS),
        offenders=[finding_texts(finding) for finding in report.offenders],
        times=bars(report.seconds, "{:.2f} s"),
    )
