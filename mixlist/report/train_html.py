"""Render a training as one HTML page: verdict, loss curves, runs, loss scale, underflow and findings."""

from __future__ import annotations

from mixlist.report import train_charts, train_texts
from mixlist.report.html_page import VERDICT_BADGES, PageHead, Step, bars, render_page
from mixlist.training.result import TrainReport

_MAX_BARS = 40  # the number of parameters in a chart


def render(report: TrainReport) -> str:
    """Return the page. The template calls ``train_texts`` for its texts and ``train_charts`` for its pictures."""
    histograms = train_charts.gradient_histograms(report)
    head = PageHead("train", VERDICT_BADGES[report.verdict], report.loop, report.reasons, report.warnings)
    values = {
        "report": report,
        "texts": train_texts,
        "charts": train_charts,
        "steps": _next_steps(report),
        "histograms": histograms[:_MAX_BARS],
        "histograms_left": max(0, len(histograms) - _MAX_BARS),
        "bad": bars(dict(list(report.bad.items())[:_MAX_BARS]), "{}", code=True),
        "bad_left": max(0, len(report.bad) - _MAX_BARS),
        "findings": train_texts.finding_rows(report)[:_MAX_BARS],
        "findings_left": max(0, len(report.findings) - _MAX_BARS),
        "times": bars(report.seconds, "{:.2f} s"),
    }
    return render_page("train.html", head, values, styles=("train.css",))


def _next_steps(report: TrainReport) -> list[Step]:
    """Return what the reader should do next, which depends on the verdict."""
    if report.verdict == "pass":
        scaler = train_texts.format_parameters(report.scaler)
        return [Step(f"Train with these lists and this loss scaler: {scaler}.")]
    steps = [Step(f"{remedy}.") for remedy in train_texts.remedies(report)]
    if report.suggestion:
        steps.append(Step("Train again with the modify_mixlist below Where overflow starts (--mixlist)."))
    return steps or [Step("Remove the cause that the reasons above name, and train again.")]
