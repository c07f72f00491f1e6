"""Render a benchmark, or an estimate of work, as an HTML page: the ratio, the figures and times, and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mixlist.report import bench_texts
from mixlist.report.html_page import Badge, Bar, PageHead, Step, model_argument, render_page
from mixlist.report.number_text import format_amount, format_bytes, format_duration, format_number

if TYPE_CHECKING:
    from mixlist.benchmark.paired_statistics import Ratio
    from mixlist.benchmark.result import BenchReport, TimedModel
    from mixlist.cost.estimate import Work
    from mixlist.diagnostics import Diagnostic

_Amount = TypeVar("_Amount", int, float)
RATIO_WIDTH = 1000.0  # of the picture of the ratio, in units


def render(report: BenchReport) -> str:
    """Return the page. The template calls ``bench_texts`` for its texts."""
    failures = [f"{model.name}: not timed: {model.failure}" for model in _both(report) if model.failure]
    result = bench_texts.headline(report) if report.ratio is None else bench_texts.ratio_words(report.ratio)
    head = PageHead("bench", _badge(report.ratio), report.other.name, (result, *failures), report.warnings)
    values = {
        "report": report,
        "bench_texts": bench_texts,
        "steps": _next_steps(report),
        "ratio": None if report.ratio is None else make_ratio_chart(report.ratio),
        "median_bars": _median_bars(report),
        "operator_rows": _operator_rows(report),
    }
    return render_page("bench.html", head, values)


def render_estimate(original: Work, other: Work, warnings: Sequence[Diagnostic] = ()) -> str:
    """Return the page of an estimate (``--estimate``)."""
    head = PageHead(
        "bench --estimate",
        Badge("ESTIMATE", "note"),
        other.model,
        (bench_texts.estimate_headline(original, other),),
        warnings,
    )
    values = {
        "bench_texts": bench_texts,
        "works": (original, other),
        "byte_bars": _amount_bars({"original": original.bytes, "other": other.bytes}, format_bytes),
        "operation_bars": _amount_bars(
            {"all": other.matrix_flops, "in low precision": other.low_matrix_flops}, format_amount
        ),
    }
    return render_page("estimate.html", head, values)


@dataclass(frozen=True)
class RatioChart:
    """The ratio of the times on a logarithmic axis; positions from 0 to ``RATIO_WIDTH``.

    ``low`` and ``high``: the ends of the confidence interval. ``equal``: the position of 1, where both models take the
    same time. ``ticks``: positions and texts.
    """

    low: float
    value: float
    high: float
    equal: float
    ticks: list[tuple[float, str]]


def make_ratio_chart(ratio: Ratio) -> RatioChart:
    """Return the picture of a ratio. Its axis has powers of two, and at least those from 1/2 to 2."""
    first = min(-1, math.floor(math.log2(ratio.low)))
    last = max(1, math.ceil(math.log2(ratio.high)))

    def place(value: float) -> float:
        return round(RATIO_WIDTH * (math.log2(value) - first) / (last - first), 1)

    interval = math.ceil((last - first) / 8)
    powers = [2.0**power for power in range(first, last + 1, interval)]
    ticks = [(place(power), format_number(power)) for power in powers]
    return RatioChart(place(ratio.low), place(ratio.value), place(ratio.high), place(1.0), ticks)


@dataclass(frozen=True)
class OperatorRow:
    """The time of an op type in the two models: texts, and the lengths of the bars in percent."""

    operator: str
    texts: tuple[str, ...]
    percents: tuple[float, ...]


def _operator_rows(report: BenchReport) -> list[OperatorRow]:
    times = bench_texts.operator_times(report)
    longest = max((seconds or 0.0 for _, pair in times for seconds in pair), default=0.0) or 1.0
    return [
        OperatorRow(
            operator,
            tuple(map(bench_texts.format_time, pair)),
            tuple(round(100 * (seconds or 0.0) / longest, 1) for seconds in pair),
        )
        for operator, pair in times
    ]


def _both(report: BenchReport) -> tuple[TimedModel, TimedModel]:
    return report.original, report.other


def _badge(ratio: Ratio | None) -> Badge:
    if ratio is None:
        return Badge("NOT TIMED", "failing", "✕")
    if not ratio.is_significant:
        return Badge("NO DIFFERENCE", "note", "=")
    return Badge("FASTER", "passing", "▲") if ratio.high < 1 else Badge("SLOWER", "warning", "▼")


def _median_bars(report: BenchReport) -> list[Bar]:
    """Return the median time of each model that was timed."""
    models = {"original": report.original.seconds, "other": report.other.seconds}
    return _amount_bars({title: spread.median for title, spread in models.items() if spread}, format_duration)


def _amount_bars(amounts: Mapping[str, _Amount], text_of: Callable[[_Amount], str]) -> list[Bar]:
    """Return a bar for each amount, with the text that ``text_of`` makes of it."""
    longest = max(amounts.values(), default=0) or 1
    return [Bar(title, text_of(amount), round(100 * amount / longest, 1)) for title, amount in amounts.items()]


def _next_steps(report: BenchReport) -> list[Step]:
    """Return what the reader should do next, which depends on the ratio and on missing kernels."""
    if report.ratio is None:
        return [Step("Remove the reason why a model was not timed, which is above, and measure again.")]
    steps, other, model = [], report.other, model_argument(report.original.name)
    resolve = f"mixlist resolve {model}"
    missing = other.low_nodes - other.low_kernels
    if missing and not report.ratio.high < 1:
        steps.append(
            Step(
                f"{missing} of {other.low_nodes} low-precision nodes have no kernel in low precision on this provider,"
                " so ONNX Runtime converts around them. Keep their op types in float32 (black-list). To list them:",
                f"{resolve} --provider {report.provider}",
            )
        )
    if report.provider == "cpu":
        steps.append(
            Step(
                "For an accelerator, measure there (--provider cuda), or count the work of both models, for any"
                " machine, with the same options and:",
                f"mixlist bench {model} --estimate",
            )
        )
    if report.ratio.high < 1:
        steps.append(
            Step("The time says nothing about accuracy. To judge it, with the same options:", f"mixlist check {model}")
        )
    return steps or [
        Step("Keep more matrix products in low precision, or stay with the original. To see what is low:", resolve)
    ]
