"""Render a check as an HTML page: verdict, first offenders, outputs, a picture of all ranges, searchable lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mixlist.checker.result import CheckReport, FindingKind, NodeError
from mixlist.report import check_texts, range_chart
from mixlist.report.html_page import VERDICT_BADGES, PageHead, Step, bars, model_argument, render_page
from mixlist.report.number_text import format_number, format_power
from mixlist.report.terminal import escape_commands

# The numbers of nodes in the table of errors: those that are not folded, and all.
_MAX_OPEN_ERRORS = 10
_MAX_ERRORS = 100


@dataclass(frozen=True)
class NodeErrorRow:
    """A row of the table of nodes by error. ``percent``: the length of the bar; the other fields are texts."""

    node: str
    operator: str
    error: str
    percent: float
    low_by: str
    suggestion: str


def render(report: CheckReport) -> str:
    """Return the page. The template calls ``check_texts`` for its texts."""
    error_rows = node_error_rows(report.layerwise[:_MAX_ERRORS])
    values: dict[str, object] = {
        "report": report,
        "check_texts": check_texts,
        "steps": _next_steps(report),
        "kind_counts": Counter(finding.kind for finding in check_texts.sort_by_kind(report.nodes)),
        "error_rows": (error_rows[:_MAX_OPEN_ERRORS], error_rows[_MAX_OPEN_ERRORS:]),
        "time_bars": bars(report.seconds, "{:.2f} s"),
    }
    head = PageHead("check", VERDICT_BADGES[report.verdict], report.model, report.reasons, report.warnings)
    return render_page("check.html", head, values | _range_variables(report), scripts=["rows.js", "check.js"])


def _range_variables(report: CheckReport) -> dict[str, object]:
    """Return the template variables of the picture of the ranges and of the two long lists that the script shows."""
    low_type = range_chart.LOW_TYPE_LIMITS[report.precision]
    # One span, kind and style for each tensor, in the order of the report: the picture and the list zip them.
    spans = [range_chart.find_span(tensor) for tensor in report.tensors]
    scale = range_chart.make_scale(spans, low_type)
    # The dictionary keeps the last finding of a tensor, so the most important findings come last.
    kind_of = {
        (finding.scope, finding.tensor): finding.kind for finding in reversed(check_texts.sort_by_kind(report.nodes))
    }
    kinds = [kind_of.get((tensor.scope, tensor.tensor)) for tensor in report.tensors]
    styles = [_style(kind, tensor.low) for kind, tensor in zip(kinds, report.tensors, strict=True)]
    limits = {
        low_type.largest_text: low_type.largest,
        format_power(low_type.normal): low_type.normal,
        format_power(low_type.subnormal): low_type.subnormal,
    }
    return {
        "limit": low_type,
        "limits_at": limits,
        "labels": range_chart.labels(scale, low_type, tuple(limits)),
        # The y position of a power of two: SVG counts from the top.
        "y": lambda power: round(range_chart.HEIGHT * (1 - scale.place(power)), 1),
        "tick_labels": [
            (range_chart.HEIGHT * (1 - scale.place(power)), format_power(power)) for power in range_chart.ticks(scale)
        ],
        "chart": range_chart,
        "marks": range_chart.marks(spans, styles, scale),
        "scale_ends": _without_overlap({text: round(100 * scale.place(power), 2) for text, power in limits.items()}),
        "legend": [(style, text) for style, text in _LEGEND.items() if style in styles],
        "ends_unknown": any(span.low is None and span.high is not None for span in spans),
        # The scripts read this part as JSON.
        "data": {
            "precision": report.precision,
            "limits": [_thousandths_of_scale(scale, power) for power in limits.values()],
            "counted": any(tensor.counts is not None for tensor in report.tensors),
            "tensors": _tensor_rows(report, spans, scale, kinds, styles),
            "findings": [
                {
                    key: escape_commands(text)
                    for key, text in check_texts.finding_texts(node, report).items()
                    if key != "worst"
                }
                for node in report.nodes
            ],
        },
    }


def _tensor_rows(
    report: CheckReport,
    spans: Sequence[range_chart.Span],
    scale: range_chart.Scale,
    kinds: Sequence[FindingKind | None],
    styles: Sequence[range_chart.Style],
) -> list[dict[str, object]]:
    return [
        {
            "tensor": escape_commands(tensor.qualified_name),
            "node": escape_commands(tensor.node),
            "operator": escape_commands(tensor.op_type or "graph input"),
            "reference": format_number(tensor.magnitude),
            "mixed": format_number(tensor.low_magnitude),
            "is_low": tensor.low,
            "smallest": format_number(tensor.smallest),
            "counted": check_texts.describe_counts(tensor.counts) if tensor.counts is not None else "",
            "low": _thousandths_of_scale(scale, span.low),
            "high": _thousandths_of_scale(scale, span.high),
            # JSON has no infinity.
            "log2Largest": None if span.high is None else min(span.high, 9999),
            "beyond": span.high is not None and span.high > scale.top,
            "style": style,
            "kind": kind or "",
            "severity": check_texts.KINDS[kind].severity if kind else "",
        }
        for tensor, span, style, kind in zip(report.tensors, spans, styles, kinds, strict=True)
    ]


_LEGEND: dict[range_chart.Style, str] = {
    "high": "float32",
    "low": "low precision",
    "warning": "low precision, with a warning",
    "propagated": "not finite because an input is not finite",
    "failing": "overflows or saturates",
}


def _without_overlap(places: dict[str, float]) -> dict[str, tuple[float, str]]:
    """Return the labels with their place in percent and their alignment; omit a label too close to an earlier one.

    A label is about as wide as 12 % of the scale. Within 6 % of an end, a centered label would extend beyond the scale.
    """
    shown: dict[str, tuple[float, str]] = {}
    # The largest limit comes first, so its label is never omitted.
    for text, place in places.items():
        if all(abs(place - earlier) > 12 for earlier, _ in shown.values()):
            shown[text] = place, "left" if place < 6 else "right" if place > 94 else "middle"
    return shown


def _style(kind: FindingKind | None, is_low: bool) -> range_chart.Style:
    # The severities "failing" and "warning" are also styles. A tensor with a note, or without a finding, has the
    # style of its precision.
    if kind == "propagated":
        return "propagated"
    severity = check_texts.KINDS[kind].severity if kind else "note"
    return severity if severity != "note" else "low" if is_low else "high"


def _thousandths_of_scale(scale: range_chart.Scale, power: float | None) -> float | None:
    """Return the position of a power of two in the lists: 0 at the left end of the scale, 1000 at the right end."""
    return None if power is None else round(1000 * scale.place(power), 1)


def node_error_rows(errors: Sequence[NodeError]) -> list[NodeErrorRow]:
    """Return a row for each error, with a bar on a logarithmic scale."""
    finite = [e.normalized_error for e in errors if math.isfinite(e.normalized_error) and e.normalized_error > 0]
    # An error of 0 has no logarithm and gets a bar of length 0.
    decades = [math.log10(error) for error in finite] or [0.0]
    # The smallest error still has a short bar. An infinite error has a longer bar than every finite error.
    start, end = min(decades) - 1, max(decades) + (len(finite) < len(errors))
    return [
        NodeErrorRow(
            str(e.ref),
            e.op_type,
            format_number(e.normalized_error),
            _percent(e.normalized_error, start, end),
            e.source,
            e.suggestion,
        )
        for e in errors
    ]


def _percent(error: float, start: float, end: float) -> float:
    """Return the length of a bar on a scale from 10^``start`` to 10^``end``."""
    if not math.isfinite(error):
        return 100.0
    return round(100 * (math.log10(error) - start) / (end - start), 1) if error > 0 else 0.0


def _next_steps(report: CheckReport) -> list[Step]:
    """Return what the reader should do next, which depends on the verdict."""
    if report.verdict == "inconclusive":
        return [Step("Too little could be compared. Remove the cause that the reasons above name, and check again.")]
    if report.verdict == "pass":
        return [
            Step(
                "The lists keep every limit on this data. To write the mixed model, with the same options:",
                f"mixlist apply {model_argument(report.model)} -o mixed.onnx",
            )
        ]
    steps = []
    advised = any(finding.suggestion for finding in check_texts.first_offenders(report))
    if advised or check_texts.worst_nodes(report):
        section = "First offenders" if advised else "Nodes by error"
        steps.append(Step(f"By hand: make the edits under “to keep it high” in {section}, and check again."))
    if report.next_command:
        steps.append(Step("Or search the smallest change of the lists that passes:", report.next_command))
    return steps or [Step("mixlist tune searches the smallest change of the lists that passes.")]
