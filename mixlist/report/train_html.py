"""A training as one self-contained HTML page: styles and pictures inside, no script, nothing fetched."""

from __future__ import annotations

import os
from typing import Any

from mixlist.files.whole_writes import write_whole
from mixlist.report import check_view as words
from mixlist.report import train_charts as charts
from mixlist.report import train_view
from mixlist.report.html_page import TEMPLATES, page_environment
from mixlist.training.result import TrainReport
from mixlist.version import __version__

_BARS = 40  # parameters whose exceptions are drawn


def write_html(report: TrainReport, path: str | os.PathLike[str]) -> None:
    """Writes the page whole or not at all; an existing file is replaced. Raises FileError."""
    write_whole(path, render(report).encode("utf-8", "backslashreplace"))


def render(report: TrainReport) -> str:
    """The page; every name out of the model is escaped by the template, control characters spelled out."""
    from markupsafe import Markup

    environment = page_environment({"figure": words.figure})
    parts: Any = environment.get_template("parts.html").module
    style = "".join((TEMPLATES / name).read_text("utf-8") for name in ("check.css", "train.css"))
    rows = train_view.rows(report)
    page: str = environment.get_template("train.html").render(
        report=report,
        version=__version__,
        style=Markup(style),
        bars=parts.bars,
        headline=train_view.headline(report),
        exceptions=train_view.exceptions(report),
        remedies=train_view.remedies(report),
        columns=train_view.columns(report),
        rows=rows[: len(report.runs)],
        mean=rows[len(report.runs) :],
        underflow=train_view.underflow(report),
        looked_at=words.count(report.underflow.steps, "step") if report.underflow is not None else "",
        scaler=train_view.settings(report.scaler),
        optimizer=train_view.settings(report.optimizer),
        losses=charts.losses(report),
        scales=charts.scales(report),
        metrics=charts.metrics(report),
        step_ticks=charts.step_ticks(report.steps),
        width=charts.WIDTH,
        height=charts.HEIGHT,
        bad=_bars({name: (f"{count}", count) for name, count in list(report.bad.items())[:_BARS]}, code=True),
        bad_left=max(0, len(report.bad) - _BARS),
        trace=train_view.trace(report),
        offenders=[(found, str(found.ref), words.made_low_by(found)) for found in report.offenders],
        trials=[
            (train_view.settings(dict(t.parameters)), f"{t.exceptions} of {t.steps}", words.share(t.zero))
            for t in report.scale_trials
        ],
        choice=train_view.settings(dict(report.scale_choice)),
        times=_bars({phase: (f"{seconds:.2f} s", seconds) for phase, seconds in report.seconds.items()}, code=False),
        emulated=train_view.EMULATED if report.mode == "emulated" else "",
    )
    return page


def _bars(figures: dict[str, tuple[str, float]], *, code: bool) -> list[dict[str, Any]]:
    longest = max((value for _, value in figures.values()), default=0) or 1
    return [
        {"title": title, "text": text, "percent": round(100 * value / longest, 1), "code": code}
        for title, (text, value) in figures.items()
    ]
