"""A training as one HTML page: verdict, loss curves, runs, the loss scale, and what overflows or is lost."""

from __future__ import annotations

from mixlist.report import train_charts, train_view
from mixlist.report.check_view import finding_texts
from mixlist.report.html_page import bars, render_page
from mixlist.training.result import TrainReport

_BARS = 40  # parameters whose exceptions are drawn


def render(report: TrainReport) -> str:
    """Return the page. The template asks ``train_view`` for its words and ``train_charts`` for its pictures."""
    return render_page(
        "train.html",
        report,
        "check.css",
        "train.css",
        view=train_view,
        charts=train_charts,
        bad=bars(dict(list(report.bad.items())[:_BARS]), "{}", code=True),
        bad_left=max(0, len(report.bad) - _BARS),
        offenders=[finding_texts(found) for found in report.offenders],
        times=bars(report.seconds, "{:.2f} s"),
    )
