"""A check as one self-contained HTML page: styles, script and pictures inside, nothing fetched.

Every name out of the model is escaped by the template or handed to the script as text, control characters spelled out;
a content security policy lets no script run but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections import Counter
from typing import Any

from mixlist.checker.result import CheckReport, Kind, NodeFinding
from mixlist.files.whole_writes import write_whole
from mixlist.report import check_view as words
from mixlist.report import range_chart as chart
from mixlist.report.html_page import TEMPLATES, page_environment
from mixlist.report.terminal import clean
from mixlist.version import __version__

_MOST = 5  # first offenders shown at once
_HARD_MOST = 100  # and folded away; the list of all findings has every one
_BARS = 25


def write_html(report: CheckReport, path: str | os.PathLike[str]) -> None:
    """Writes the page whole or not at all; an existing file is replaced. Raises FileError."""
    write_whole(path, render(report).encode("utf-8", "backslashreplace"))


def render(report: CheckReport) -> str:
    """The page."""
    from markupsafe import Markup

    environment = page_environment({"count": words.count, "share": words.share, "power": _power})
    parts: Any = environment.get_template("parts.html").module
    script = (TEMPLATES / "check.js").read_text("utf-8")
    page: str = environment.get_template("check.html").render(
        report=report,
        version=__version__,
        style=Markup((TEMPLATES / "check.css").read_text("utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        offender=lambda found: parts.offender(_finding(found, report), report),
        bars=parts.bars,
        **_head(report),
        **_ranges(report),
        **_figures(report),
    )
    return page


def _power(exponent: int) -> str:
    """``2^-14`` as people write it."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _head(report: CheckReport) -> dict[str, Any]:
    shown = {
        "offenders": "First offenders",
        "outputs": "Outputs",
        "ranges": "Dynamic range" * bool(report.tensors),
        "findings": "All findings" * bool(report.nodes),
        "layerwise": "Where error is born" * bool(report.layerwise),
        "timing": "Time" * bool(report.seconds),
        "about": "How to read this",
    }
    return {
        "sections": [(name, title) for name, title in shown.items() if title],
        "exceptions": words.exceptions(report),
        "comparison": words.comparison(report),
        "offenders": words.first_offenders(report),
        "most": _MOST,
        "hard_most": _HARD_MOST,
        "output_columns": words.OUTPUT_COLUMNS,
        "outputs": [(output, words.output_row(output)) for output in report.outputs],
        "limits": words.limits_text(report.limits),
        "kinds": words.KINDS,
        "kind_counts": Counter(found.kind for found in words.by_weight(report.nodes)),
        "emulated": words.EMULATED,
    }


def _finding(found: NodeFinding, report: CheckReport) -> dict[str, Any]:
    """A finding in words."""
    return {
        "kind": found.kind,
        "weight": words.KINDS[found.kind].weight,
        "name": str(found.ref),
        "op_type": found.op_type,
        "tensor": found.tensor,
        "reference": words.figure(found.max_abs_fp32),
        "mixed": words.figure(found.max_abs_low),
        "count": found.count,
        "batches": words.in_batches(found, report),
        "low_by": words.made_low_by(found),
        "suggestion": found.suggestion,
    }


def _ranges(report: CheckReport) -> dict[str, Any]:
    """The picture of the ranges, and the data of both long lists for the script."""
    low = chart.FORMATS[report.precision]
    spans = [chart.span(tensor) for tensor in report.tensors]
    drawn = chart.scale(spans, low)
    kinds = {(found.scope, found.tensor): found.kind for found in reversed(words.by_weight(report.nodes))}
    found = [kinds.get((tensor.scope, tensor.tensor)) for tensor in report.tensors]
    looks = [_look(kind, tensor.low) for kind, tensor in zip(found, report.tensors, strict=True)]
    limits = {low.largest_text: low.largest, _power(low.normal): low.normal, _power(low.subnormal): low.subnormal}
    rows = [
        {
            "tensor": clean(tensor.qualified_name),
            "node": clean(tensor.node),
            "operator": clean(tensor.op_type or "graph input"),
            "reference": words.figure(chart.magnitude(tensor.minimum, tensor.maximum)),
            "mixed": words.figure(chart.magnitude(tensor.low_minimum, tensor.low_maximum)),
            "is_low": tensor.low,
            "smallest": words.figure(tensor.smallest),
            "counted": words.counted(tensor.counts) if tensor.counts is not None else "",
            "low": _thousandths(drawn, one.low),
            "high": _thousandths(drawn, one.high),
            "power": None if one.high is None else min(one.high, 9999),
            "beyond": one.high is not None and one.high > drawn.top,
            "look": look,
            "kind": kind or "",
            "weight": words.KINDS[kind].weight if kind else "",
        }
        for tensor, one, look, kind in zip(report.tensors, spans, looks, found, strict=True)
    ]
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
        "counted": any(tensor.counts is not None for tensor in report.tensors),
        "ends_unknown": any(one.low is None and one.high is not None for one in spans),
        "data": {
            "limits": [_thousandths(drawn, power) for power in limits.values()],
            "counted": any(tensor.counts is not None for tensor in report.tensors),
            "tensors": rows,
            "findings": [_cleaned(_finding(node, report)) for node in report.nodes],
        },
    }


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


def _look(kind: Kind | None, low: bool) -> chart.Look:
    if kind == "propagated":
        return "propagated"
    weight = words.KINDS[kind].weight if kind else "note"
    return weight if weight != "note" else "low" if low else "high"


def _thousandths(drawn: chart.Scale, power: float | None) -> float | None:
    return None if power is None else round(1000 * drawn.place(power), 1)


def _cleaned(row: dict[str, Any]) -> dict[str, Any]:
    row = {key: clean(value) if isinstance(value, str) else value for key, value in row.items()}
    row["node"], row["operator"] = row.pop("name"), row.pop("op_type")
    row["count"] = words.figure(row["count"])
    return row


def _figures(report: CheckReport) -> dict[str, Any]:
    """Horizontal bars: errors on a log scale, seconds on a linear one."""
    errors = report.layerwise[:_BARS]
    finite = [e.normalized_error for e in errors if math.isfinite(e.normalized_error) and e.normalized_error > 0]
    decades = [math.log10(error) for error in finite] or [0.0]
    floor, roof = min(decades) - 1, max(decades) + (len(finite) < len(errors))  # infinite ones reach further
    longest = max(report.seconds.values(), default=0.0) or 1.0
    return {
        "error_bars": [
            {
                "title": f"{e.ref} ({e.op_type})",
                "text": words.figure(e.normalized_error),
                "percent": _percent(e.normalized_error, floor, roof),
                "code": True,
            }
            for e in errors
        ],
        "time_bars": [
            {"title": phase, "text": f"{seconds:.2f} s", "percent": round(100 * seconds / longest, 1), "code": False}
            for phase, seconds in report.seconds.items()
        ],
    }


def _percent(error: float, floor: float, roof: float) -> float:
    if not math.isfinite(error):
        return 100.0
    return round(100 * (math.log10(error) - floor) / (roof - floor), 1) if error > 0 else 0.0
