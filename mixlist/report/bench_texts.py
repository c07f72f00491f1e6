"""The texts and figures that the terminal report and the HTML report of a benchmark share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mixlist.cost.operation_counts import is_matrix_operator
from mixlist.ops.names import operator_name
from mixlist.report.number_text import format_amount, format_bytes, format_duration, pluralize

if TYPE_CHECKING:
    from mixlist.benchmark.paired_statistics import Ratio
    from mixlist.benchmark.result import BenchReport, TimedModel
    from mixlist.cost.estimate import Work

# The number of op types in a table. The last row adds up the others.
_MAX_OPERATORS = 12
_MAX_NAMES = 8  # the number of nodes that a sentence names
_NONE = "-"
_MEASURES = ("operations", "of these low", "bytes")
WORK_COLUMNS = ("operator", "original: nodes", *_MEASURES, "other: nodes", *_MEASURES)


def headline(report: BenchReport) -> str:
    if report.ratio is None:
        return "There is nothing to compare: one of the two models could not be timed"
    return f"{report.other.name} {ratio_words(report.ratio)}"


def ratio_words(ratio: Ratio) -> str:
    """Return ``is 1.5 times as fast as the original (95 % confidence: 1.4 to 1.6)``."""
    confidence = f"{ratio.confidence:.0%} confidence".replace("%", " %")
    # The ratio divides the times: other by original. If the whole interval is below 1, the inverse is easier to read,
    # and its bounds change places.
    if ratio.high < 1:
        bounds = f"{1 / ratio.high:.3g} to {1 / ratio.low:.3g}"
        return f"is {1 / ratio.value:.3g} times as fast as the original ({confidence}: {bounds})"
    bounds = f"{ratio.low:.3g} to {ratio.high:.3g}"
    comparison = f"takes {ratio.value:.3g} times as long as the original ({confidence}: {bounds})"
    return comparison if ratio.is_significant else f"{comparison}: no significant difference"


def conditions(report: BenchReport) -> str:
    batches = "one batch" if report.batches == 1 else f"{report.batches} batches in turn"
    runs = "one run" if report.repeats == 1 else f"{report.repeats} runs in a row"
    threads = f", {report.threads} threads" if report.threads else ""
    transfers = "transfers timed" if report.transfers else "transfers not timed"
    return f"{report.provider}{threads}: {report.rounds} rounds, each model {runs} per round, {batches}; {transfers}"


def _model_column(model: TimedModel) -> dict[str, str]:
    """Return the column of one model in the table, by row."""
    seconds, graph, profile = model.seconds, model.graph, model.profile
    # Parts can be missing: a model that could not be timed has no times, and a failed profile leaves no counts. Their
    # cells hold a dash.
    arena = profile.arena if profile is not None else None
    inserted = f", {graph.inserted_casts} of them inserted by ONNX Runtime" if graph and graph.inserted_casts else ""
    return {
        "median time of a run": format_duration(seconds.median) if seconds else _NONE,
        "middle half of the times": f"{format_duration(seconds.q1)} to {format_duration(seconds.q3)}"
        if seconds
        else _NONE,
        "memory: peak of the process": _NONE if model.host_memory is None else format_bytes(model.host_memory),
        "memory: peak in ONNX Runtime's arena": _NONE if arena is None else format_bytes(arena),
        "nodes in the file": str(graph.nodes) if graph else _NONE,
        "nodes in the optimized graph": str(graph.optimised_nodes) if graph else _NONE,
        "Casts in the file": str(graph.casts) if graph else _NONE,
        "Casts in the optimized graph": f"{graph.optimised_casts}{inserted}" if graph else _NONE,
        "low-precision nodes in the file": str(model.low_nodes),
        "  with a kernel in low precision": str(model.low_kernels),
        "nodes that ran in low precision": str(profile.low_nodes) if profile else _NONE,
    }


def figure_rows(report: BenchReport) -> list[tuple[str, ...]]:
    """Return the table of figures: the name of a figure, and its text for the original and for the other model."""
    columns = [_model_column(model) for model in (report.original, report.other)]
    return [(figure, *(column[figure] for column in columns)) for figure in columns[0]]


def operator_times(report: BenchReport) -> list[tuple[str, tuple[float | None, ...]]]:
    """Return the seconds of each of the slowest op types in the two models, and of the others together.

    The seconds are None for a model without a profile. Without any profile, the list is empty.
    """
    both = (report.original, report.other)
    times = [{op.op_type: op.seconds for op in model.profile.ops} if model.profile else None for model in both]
    op_types = {op for model_times in times if model_times for op in model_times}
    # An op type can be slow in one model only, so the larger of its two times decides.
    order = sorted(op_types, key=lambda op: -max(seconds_of.get(op, 0.0) for seconds_of in times if seconds_of))
    shown, omitted = order[:_MAX_OPERATORS], order[_MAX_OPERATORS:]
    groups = [(op, [op]) for op in shown]
    if omitted:
        groups.append((f"{len(omitted)} others", omitted))
    return [
        (
            title,
            tuple(None if seconds_of is None else sum(seconds_of.get(op, 0.0) for op in ops) for seconds_of in times),
        )
        for title, ops in groups
    ]


def format_time(seconds: float | None) -> str:
    """Return a time, for example ``12.3 ms``; a dash for None."""
    return _NONE if seconds is None else format_duration(seconds)


def added_operators(model: TimedModel) -> str:
    """Return the operators that ONNX Runtime added to the model: ``3 FusedConv, 2 ReorderInput``; "" if none."""
    new_ops = model.graph.new_ops if model.graph is not None else {}
    return ", ".join(f"{count} {op}" for op, count in new_ops.items())


def estimate_headline(original: Work, other: Work) -> str:
    share = other.low_share
    if share is not None:
        low = f"{100 * share:.3g} % of the operations of matrix products and convolutions are in low precision"
    elif any(is_matrix_operator("", node.op_type) for node in other.unknown):
        low = "no matrix product or convolution can be counted"
    else:
        low = "there are no matrix products or convolutions"
    # A Cast that only the mixed model has and that is not counted would make its sum too small, too.
    counted_once = {node.ref for node in original.unknown} ^ {node.ref for node in other.unknown}
    if counted_once:
        nodes = pluralize(len(counted_once), "node")
        return f"{other.model}: {low}; the bytes cannot be compared, because {nodes} cannot be counted in one model"
    moved = f"{format_bytes(other.bytes)} moved instead of {format_bytes(original.bytes)}"
    times = f" ({other.bytes / original.bytes:.3g} times)" if original.bytes else ""
    return f"{other.model}: {low}; {moved}{times}{' by the nodes that are counted' if other.unknown else ''}"


def work_rows(original: Work, other: Work) -> list[tuple[str, ...]]:
    tables = [{(op.op_type, op.domain): op for op in work.ops} for work in (original, other)]
    keys = list(dict.fromkeys(key for ops in tables for key, op in ops.items() if op.flops or op.bytes))
    # The largest rows come first. The sum of operations and bytes has no meaning but this order.
    keys.sort(key=lambda key: -max(ops[key].flops + ops[key].bytes for ops in tables if key in ops))
    rows = []
    for op_type, domain in keys:
        cells: list[str] = []
        for ops in tables:
            op = ops.get((op_type, domain))
            cells += _cells(op.nodes, op.flops, op.low_flops, op.bytes) if op else [_NONE] * 4
        rows.append((operator_name(domain, op_type), *cells))
    # The last row has the sums over all op types, also over those without a row.
    totals: list[str] = []
    for work in (original, other):
        totals += _cells(sum(op.nodes for op in work.ops), work.flops, work.low_flops, work.bytes)
    return [*rows, ("all", *totals)]


def _cells(nodes: int, flops: int, low: int, size: int) -> list[str]:
    return [str(nodes), format_amount(flops), format_amount(low), format_bytes(size)]


def estimate_notes(works: Sequence[Work]) -> Iterator[str]:
    """Yield notes on the nodes that the estimates do not count, and on those that they count once."""
    # The notes appear once if the works are equal.
    for work in dict.fromkeys(works):
        if work.unknown:
            names = [str(node.ref) for node in work.unknown]
            more = f" and {len(names) - _MAX_NAMES} more (--format json names all)" if len(names) > _MAX_NAMES else ""
            reasons = ", ".join(sorted({node.reason for node in work.unknown}))
            yield f"{work.model}: {len(names)} nodes are not counted: {', '.join(names[:_MAX_NAMES])}{more}; {reasons}"
        if work.once:
            once = ", ".join(work.once)
            yield f"{work.model}: counted once, because the data decides how often they run: {once}"
