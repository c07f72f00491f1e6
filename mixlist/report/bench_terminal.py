"""``bench`` for people: the ratio first, then the two models side by side, time by operator, and what to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from mixlist.ops.names import operator_name
from mixlist.report.number_text import amount, byte_size, duration
from mixlist.report.terminal import clean, paint, table

if TYPE_CHECKING:
    from mixlist.benchmark.paired_statistics import Ratio
    from mixlist.benchmark.result import BenchReport, TimedModel
    from mixlist.cost.estimate import Work

_OPERATORS = 12  # rows of a table of op types; the rest is summed up
_NAMED = 8  # nodes named in a sentence
_NONE = "-"


def write_report(report: BenchReport, stream: TextIO) -> None:
    """The whole report."""
    stream.write(paint(_verdict(report), "bold", stream) + "\n")
    stream.write(_how(report) + "\n\n")
    both = (report.original, report.other)
    figures = [_figures(contender) for contender in both]
    rows = [(label, *(column[label] for column in figures)) for label in figures[0]]
    table(("", "original", "other"), rows, stream)
    for name, c in (("original", report.original), ("other", report.other)):
        if c.graph is not None and c.graph.new_ops:
            new = ", ".join(f"{count} {op}" for op, count in c.graph.new_ops.items())
            stream.write(f"\nONNX Runtime brought into the {name}: {clean(new)}\n")
    if any(c.profile for c in both):
        stream.write("\nTime by operator, per run (the profile slows the model down)\n\n")
        table(("operator", "original", "other"), _operators(both), stream)
    for contender in both:
        if contender.failure:
            failed = paint("not timed", "red", stream)
            stream.write(f"\n{clean(contender.name)}: {failed}: {clean(contender.failure)}\n")
    _write_notes(report.notes, stream)


def _verdict(report: BenchReport) -> str:
    if report.ratio is None:
        return "There is nothing to compare: one of the two could not be timed"
    return f"{clean(report.other.name)} {ratio_words(report.ratio)}"


def ratio_words(ratio: Ratio) -> str:
    """``is 1.5 times as fast as the original (95 % confidence: 1.4 to 1.6)``."""
    sure = f"{ratio.confidence:.0%} confidence".replace("%", " %")
    if ratio.high < 1:
        bounds = f"{1 / ratio.high:.3g} to {1 / ratio.low:.3g}"
        return f"is {1 / ratio.value:.3g} times as fast as the original ({sure}: {bounds})"
    told = f"takes {ratio.value:.3g} times as long as the original ({sure}: {ratio.low:.3g} to {ratio.high:.3g})"
    return told if ratio.decided else f"{told}: no difference can be told"


def _how(report: BenchReport) -> str:
    batches = "one batch" if report.batches == 1 else f"{report.batches} batches in turn"
    runs = "one run" if report.repeats == 1 else f"{report.repeats} runs in a row"
    threads = f", {report.threads} threads" if report.threads else ""
    transfers = "transfers timed" if report.transfers else "transfers not timed"
    return f"{report.provider}{threads}: {report.rounds} rounds, each model {runs} a round, {batches}; {transfers}"


def _figures(c: TimedModel) -> dict[str, str]:
    """Return the column of one model in the table, by row."""
    seconds, graph, profile = c.seconds, c.graph, c.profile
    arena = profile.arena if profile is not None else None
    inserted = f", {graph.inserted_casts} of them put in by ONNX Runtime" if graph and graph.inserted_casts else ""
    return {
        "median time of a run": duration(seconds.median) if seconds else _NONE,
        "middle half of the times": f"{duration(seconds.q1)} to {duration(seconds.q3)}" if seconds else _NONE,
        "memory: peak of the process": _NONE if c.host_memory is None else byte_size(c.host_memory),
        "memory: peak in ONNX Runtime's arena": _NONE if arena is None else byte_size(arena),
        "nodes in the file": str(graph.nodes) if graph else _NONE,
        "nodes in the optimized graph": str(graph.optimised_nodes) if graph else _NONE,
        "Casts in the file": str(graph.casts) if graph else _NONE,
        "Casts in the optimized graph": f"{graph.optimised_casts}{inserted}" if graph else _NONE,
        "low nodes in the file": str(c.low_nodes),
        "  with a low kernel here": str(c.low_kernels),
        "nodes that ran low": str(profile.low_nodes) if profile else _NONE,
    }


def _operators(both: Sequence[TimedModel]) -> list[tuple[str, ...]]:
    times = [{op.op_type: op.seconds for op in c.profile.ops} if c.profile else None for c in both]
    known = {op for each in times if each for op in each}
    order = sorted(known, key=lambda op: -max(each.get(op, 0.0) for each in times if each))
    shown, rest = order[:_OPERATORS], order[_OPERATORS:]
    rows = [(op, *(_NONE if each is None else duration(each.get(op, 0.0)) for each in times)) for op in shown]
    if rest:
        sums = (_NONE if each is None else duration(sum(each.get(op, 0.0) for op in rest)) for each in times)
        rows.append((f"{len(rest)} others", *sums))
    return rows


def _write_notes(notes: Iterable[str], stream: TextIO) -> None:
    for note in notes:
        stream.write(f"\n{paint('note', 'yellow', stream)}: {clean(note)}\n")


# --- the estimate ---


def write_estimate(original: Work, other: Work, stream: TextIO) -> None:
    """Write the static accounts of both models side by side."""
    stream.write(paint(_estimate_verdict(original, other), "bold", stream) + "\n\n")
    each = ("operations", "of these low", "bytes")
    columns = ("operator", "original: nodes", *each, "other: nodes", *each)
    table(columns, _work_rows(original, other), stream)
    for work in dict.fromkeys((original, other)):
        _write_gaps(work, stream)


def _estimate_verdict(original: Work, other: Work) -> str:
    share = other.low_share
    low = "there are no matrix products or convolutions" if share is None else (
        f"{100 * share:.3g} % of the operations of matrix products and convolutions are in low precision"
    )  # fmt: skip
    moved = f"{byte_size(other.bytes)} moved instead of {byte_size(original.bytes)}"
    times = f" ({other.bytes / original.bytes:.3g} times)" if original.bytes else ""
    return f"{clean(other.model)}: {low}; {moved}{times}"


def _work_rows(original: Work, other: Work) -> list[tuple[str, ...]]:
    tables = [{(op.op_type, op.domain): op for op in work.ops} for work in (original, other)]
    keys = list(dict.fromkeys(key for each in tables for key, op in each.items() if op.flops or op.bytes))
    keys.sort(key=lambda key: -max(each[key].flops + each[key].bytes for each in tables if key in each))
    rows = []
    for op_type, domain in keys:
        cells: list[str] = []
        for each in tables:
            op = each.get((op_type, domain))
            cells += _cells(op.nodes, op.flops, op.low_flops, op.bytes) if op else [_NONE] * 4
        rows.append((operator_name(domain, op_type), *cells))
    totals: list[str] = []
    for work in (original, other):
        totals += _cells(sum(op.nodes for op in work.ops), work.flops, work.low_flops, work.bytes)
    return [*rows, ("all", *totals)]


def _cells(nodes: int, flops: int, low: int, size: int) -> list[str]:
    return [str(nodes), amount(flops), amount(low), byte_size(size)]


def _write_gaps(work: Work, stream: TextIO) -> None:
    if work.unknown:
        names = [str(node.ref) for node in work.unknown]
        more = f" and {len(names) - _NAMED} more (--format json names all)" if len(names) > _NAMED else ""
        told = f"{clean(work.model)}: {len(names)} nodes are not counted: {', '.join(names[:_NAMED])}{more}"
        reasons = sorted({node.reason for node in work.unknown})
        _write_notes([f"{told}; {', '.join(reasons)}"], stream)
    if work.once:
        _write_notes([f"{work.model}: counted once, since data decides: {', '.join(work.once)}"], stream)
