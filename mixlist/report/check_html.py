"""A check as one HTML page: verdict, first offenders, outputs, a picture of all ranges, and lists to search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mixlist.checker.result import CheckReport, FindingKind
from mixlist.report import check_view as words
from mixlist.report import range_chart as chart
from mixlist.report.html_page import Bar, bars, render_page
from mixlist.report.number_text import figure, power
from mixlist.report.terminal import clean

_MOST = 5  # first offenders shown at once
_HARD_MOST = 100  # and folded away; the list of all findings has every one
_BARS = 25


def render(report: CheckReport) -> str:
    """Return the page. The template asks ``check_view`` for its words."""
    return render_page(
        "check.html",
        report,
        "check.css",
        script="check.js",
        view=words,
        most=_MOST,
        hard_most=_HARD_MOST,
        kind_counts=Counter(found.kind for found in words.by_weight(report.nodes)),
        error_bars=_error_bars(report),
        time_bars=bars(report.seconds, "{:.2f} s"),
        **_ranges(report),
    )


def _ranges(report: CheckReport) -> dict[str, object]:
    """Return the picture of the ranges, and the data of both long lists for the script."""
    low = chart.FORMATS[report.precision]
    spans = [chart.span(tensor) for tensor in report.tensors]
    drawn = chart.scale(spans, low)
    kinds = {(found.scope, found.tensor): found.kind for found in reversed(words.by_weight(report.nodes))}
    found = [kinds.get((tensor.scope, tensor.tensor)) for tensor in report.tensors]
    looks = [_look(kind, tensor.low) for kind, tensor in zip(found, report.tensors, strict=True)]
    limits = {
        low.largest_text: low.largest,
        power(low.normal): low.normal,
        power(low.subnormal): low.subnormal,
    }
    return {
        "limit": low,
        "limits_at": limits,
        "labels": chart.labels(drawn, low, tuple(limits)),
        "y": lambda power: round(chart.HEIGHT * (1 - drawn.place(power)), 1),
        "ticks": chart.ticks(drawn),
        "paths": chart.paths(spans, looks, drawn),
        "stroke": round(max(1.0, 0.75 * min(chart.column_width(len(spans)), 24)), 2),
        "scale_ends": _apart({text: round(100 * drawn.place(power), 2) for text, power in limits.items()}),
        "legend": [(look, text) for look, text in _LEGEND.items() if look in looks],
        "ends_unknown": any(one.low is None and one.high is not None for one in spans),
        "data": {
            "limits": [_thousandths(drawn, power) for power in limits.values()],
            "counted": any(tensor.counts is not None for tensor in report.tensors),
            "tensors": _tensor_rows(report, spans, drawn, found, looks),
            "findings": [
                {key: clean(text) for key, text in words.finding_texts(node, report).items() if key != "worst"}
                for node in report.nodes
            ],
        },
    }


def _tensor_rows(
    report: CheckReport,
    spans: Sequence[chart.Span],
    drawn: chart.Scale,
    kinds: Sequence[FindingKind | None],
    looks: Sequence[chart.Look],
) -> list[dict[str, object]]:
    return [
        {
            "tensor": clean(tensor.qualified_name),
            "node": clean(tensor.node),
            "operator": clean(tensor.op_type or "graph input"),
            "reference": figure(tensor.magnitude),
            "mixed": figure(tensor.low_magnitude),
            "is_low": tensor.low,
            "smallest": figure(tensor.smallest),
            "counted": words.counted(tensor.counts) if tensor.counts is not None else "",
            "low": _thousandths(drawn, one.low),
            "high": _thousandths(drawn, one.high),
            "power": None if one.high is None else min(one.high, 9999),
            "beyond": one.high is not None and one.high > drawn.top,
            "look": look,
            "kind": kind or "",
            "weight": words.KINDS[kind].weight if kind else "",
        }
        for tensor, one, look, kind in zip(report.tensors, spans, looks, kinds, strict=True)
    ]


_LEGEND: dict[chart.Look, str] = {
    "high": "float32",
    "low": "low precision",
    "warning": "low, worth a look",
    "propagated": "not finite because an input is not",
    "failing": "overflows or saturates",
}


def _apart(places: dict[str, float]) -> dict[str, tuple[float, str]]:
    """Labels by place in percent, each with the side that it may take, without those too close to one before."""
    shown: dict[str, tuple[float, str]] = {}
    for text, place in places.items():
        if all(abs(place - other) > 12 for other, _ in shown.values()):
            shown[text] = place, "left" if place < 6 else "right" if place > 94 else "middle"
    return shown


def _look(kind: FindingKind | None, low: bool) -> chart.Look:
    if kind == "propagated":
        return "propagated"
    weight = words.KINDS[kind].weight if kind else "note"
    return weight if weight != "note" else "low" if low else "high"


def _thousandths(drawn: chart.Scale, power: float | None) -> float | None:
    return None if power is None else round(1000 * drawn.place(power), 1)


def _error_bars(report: CheckReport) -> list[Bar]:
    """Return the errors of the worst nodes on a log scale."""
    worst = report.layerwise[:_BARS]
    finite = [e.normalized_error for e in worst if math.isfinite(e.normalized_error) and e.normalized_error > 0]
    decades = [math.log10(error) for error in finite] or [0.0]
    floor, roof = min(decades) - 1, max(decades) + (len(finite) < len(worst))  # infinite ones reach further
    return [
        Bar(
            f"{e.ref} ({e.op_type})",
            figure(e.normalized_error),
            _percent(e.normalized_error, floor, roof),
            code=True,
        )
        for e in worst
    ]


def _percent(error: float, floor: float, roof: float) -> float:
    if not math.isfinite(error):
        return 100.0
    return round(100 * (math.log10(error) - floor) / (roof - floor), 1) if error > 0 else 0.0
