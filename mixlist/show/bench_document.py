"""The report of a benchmark, or of an estimate of work: the ratio, the figures of both models, times, and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from mixlist.benchmark.result import LEAST_DIFFERENCE, LEAST_ROUNDS
from mixlist.model.operator_names import operator_name
from mixlist.number_text import format_amount, format_bytes, format_duration, format_number, format_share, pluralize
from mixlist.option_spelling import spell
from mixlist.show.document import (
    Block,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Level,
    Picture,
    Section,
    Shape,
    Step,
    Table,
    Text,
    Verdict,
    bar_facts,
    columns_of,
    next_step,
    rectangle,
)
from mixlist.targets.estimate import is_matrix_operator

if TYPE_CHECKING:
    from mixlist.benchmark.result import BenchReport, BenchVerdict, Ratio, TimedModel
    from mixlist.diagnostics import Diagnostic
    from mixlist.targets.estimate import Work

_Amount = TypeVar("_Amount", int, float)
# The number of op types in a table. The last row adds up the others.
_MAX_OPERATORS = 12
_MAX_NAMES = 8  # the number of nodes that a sentence names
_NONE = "-"
_TIME = "10th percentile"  # the time of a model, which the ratio compares
# The size of the chart of the ratio, in units. Its height is in pixels, because the chart is as high as its view box.
RATIO_WIDTH, _RATIO_HEIGHT = 1000.0, 56.0


def bench_document(report: BenchReport, commands: Mapping[str, str] = MappingProxyType({})) -> Document:
    """Return the report of a benchmark.

    ``commands``: by the name of the command (``resolve``, ``check``, ``estimate`` for ``bench --estimate``, ``rounds``
    for more rounds), the command lines with the files and options of the run; none from Python.
    """
    failures = [f"{model.name}: not timed: {model.failure}" for model in _both(report) if model.failure]
    sections = (
        Section(
            "times", "Time of a run", _times_and_ratio(report), f"The {_TIME} of all rounds. The models ran in turn."
        ),
        Section("figures", "Figures", _figures(report)),
        Section("operators", "Time by operator", _operators(report)),
        Section("about", "How to read this", (Text((_explain(report),), on="page"),)),
    )
    return Document(
        "bench",
        sections,
        verdict=Verdict(
            report.verdict.upper(),
            _LEVELS[report.verdict],
            report.other.name,
            _headline(report),
            (_conditions(report), *failures),
        ),
        steps=tuple(_next_steps(report, commands)),
        notes=tuple(report.notes),
        warnings=report.warnings,
    )


def estimate_document(original: Work, other: Work, warnings: Sequence[Diagnostic] = (), command: str = "") -> Document:
    """Return the report of an estimate (``--estimate``). ``command``: the command line that measures the times."""
    operations = {"all": other.matrix_flops, "in low precision": other.low_matrix_flops}
    sizes = {"original": original.bytes, "other": other.bytes}
    work = (
        _amounts(operations, format_amount, "Operations of matrix products and convolutions"),
        _amounts(sizes, format_bytes, "Bytes moved"),
    )
    # The work of both models is the same, and that of the original is seldom low.
    columns = columns_of("operator", "nodes", *_MEASURES, "other: nodes", *_MEASURES, numbers=range(1, 9), wide=(3, 6))
    table = Table(columns, _work_rows(original, other))
    sections = (
        Section("work", "Work", work, "Operations and bytes, counted from shapes. No model ran."),
        Section("operators", "By operator", (Text((_COLUMNS,)), table)),
        Section("about", "How to read this", (Text((_ESTIMATE,), on="page"),)),
    )
    return Document(
        "bench --estimate",
        sections,
        verdict=Verdict("ESTIMATE", "note", other.model, _estimate_headline(original, other)),
        steps=(next_step("Measure the times of both models on the machine that will run them", command),),
        notes=tuple(_estimate_notes((original, other))),
        warnings=tuple(warnings),
    )


_MEASURES = ("work", "low", "bytes")
_COLUMNS = "First the original, then the other model. Work: operations. Low: those of them in low precision."
_ESTIMATE = (
    "The bytes of a node are those of its inputs and outputs, as if no cache kept a tensor and no kernel fused two"
    " nodes. So the bytes are an upper bound, made the same way for both models. Less work in float32 and fewer bytes"
    " usually mean more speed on a machine with kernels in low precision; mixlist bench measures it."
)

# --- the ratio ---


_LEVELS: Mapping[BenchVerdict, Level] = {
    "faster": "passing",
    "slower": "warning",
    "no difference": "note",
    "inconclusive": "note",
    "not timed": "failing",
}


def _headline(report: BenchReport) -> str:
    if report.failed:
        return "There is nothing to compare: one of the two models could not be timed"
    if report.ratio is None:
        return f"{report.other.name}: {pluralize(report.rounds, 'round')}; {LEAST_ROUNDS} are needed to compare times"
    times = [format_duration(model.seconds.p10) for model in _both(report) if model.seconds]
    return f"{report.other.name} {_ratio_words(report.ratio, f'{times[1]} instead of {times[0]}')}"


def _ratio_words(ratio: Ratio, times: str) -> str:
    """Return ``is 1.5 times as fast as the original (95 % confidence: 1.4 to 1.6), 10 ms instead of 15 ms``.

    ``times``: those that the ratio compares.
    """
    confidence = f"{format_share(ratio.confidence)} confidence"
    times = f"{times} in the {_TIME}s"
    # The ratio divides the times: other by original. If the other model is faster, the inverse is easier to read,
    # and its bounds change places.
    if ratio.is_significant and ratio.value < 1:
        bounds = f"{1 / ratio.high:.3g} to {1 / ratio.low:.3g}"
        return f"is {1 / ratio.value:.3g} times as fast as the original ({confidence}: {bounds}), {times}"
    bounds = f"{ratio.low:.3g} to {ratio.high:.3g}"
    comparison = f"takes {ratio.value:.3g} times as long as the original ({confidence}: {bounds}), {times}"
    return comparison if ratio.is_significant else f"{comparison}: no significant difference"


def _times_and_ratio(report: BenchReport) -> tuple[Block, ...]:
    """Return the time of each model that was timed, and the chart of their ratio, for a page."""
    spreads = {"original": report.original.seconds, "other": report.other.seconds}
    times = {title: spread.p10 for title, spread in spreads.items() if spread}
    ratio = () if report.ratio is None else (draw_ratio(report.ratio, _headline(report)),)
    return (_amounts(times, format_duration), *ratio)


def draw_ratio(ratio: Ratio, description: str) -> Chart:
    """Return the chart of a ratio on a logarithmic axis with powers of two, at least those from 1/2 to 2."""
    first = min(-1, math.floor(math.log2(ratio.low)))
    last = max(1, math.ceil(math.log2(ratio.high)))

    def place(value: float) -> float:
        return round(RATIO_WIDTH * (math.log2(value) - first) / (last - first), 1)

    interval = math.ceil((last - first) / 8)
    powers = [2.0**power for power in range(first, last + 1, interval)]
    low, high, equal = place(ratio.low), place(ratio.high), place(1.0)
    return Chart(
        description,
        RATIO_WIDTH,
        _RATIO_HEIGHT,
        (
            rectangle("zone-faster", 0, 0, equal, _RATIO_HEIGHT),
            Shape("limit", f"M{equal:g} 0v{_RATIO_HEIGHT:g}"),
            rectangle("interval", low, 20, max(round(high - low, 1), 3), 16),
            Shape("median", f"M{place(ratio.value):g} 12v32"),
        ),
        x_labels=tuple((place(power), format_number(power)) for power in powers),
        legend=(("interval", "confidence interval"), ("zone-faster", "left of 1: the other model is faster")),
        id="ratio",
        title="Time of the other model, as a multiple of the original",
    )


def _amounts(amounts: Mapping[str, _Amount], text_of: Callable[[_Amount], str], title: str = "") -> Facts:
    """Return a bar for each amount, for a page, with the text that ``text_of`` makes of it."""
    return bar_facts(amounts, [text_of(amount) for amount in amounts.values()], on="page", title=title)


def _conditions(report: BenchReport) -> str:
    batches = "one batch" if report.batches == 1 else f"{report.batches} batches in turn"
    runs = "one run" if report.repeats == 1 else f"{report.repeats} runs in a row"
    threads = f", {report.threads} threads" if report.threads else ""
    transfers = "transfers timed" if report.transfers else "transfers not timed"
    return f"{report.provider}{threads}: {report.rounds} rounds, each model {runs} per round, {batches}; {transfers}"


# --- the models ---


def _both(report: BenchReport) -> tuple[TimedModel, TimedModel]:
    return report.original, report.other


def _model_column(model: TimedModel) -> dict[str, str]:
    """Return the column of one model in the table, by row."""
    seconds, graph, profile = model.seconds, model.graph, model.profile
    # Parts can be missing: a model that could not be timed has no times, and a failed profile leaves no counts. Their
    # cells hold a dash.
    arena = profile.arena if profile is not None else None
    inserted = f", {graph.inserted_casts} of them inserted by ONNX Runtime" if graph and graph.inserted_casts else ""
    return {
        f"time of a run: {_TIME}": format_duration(seconds.p10) if seconds else _NONE,
        "time of a run: median": format_duration(seconds.median) if seconds else _NONE,
        "time of a run: middle half": f"{format_duration(seconds.q1)} to {format_duration(seconds.q3)}"
        if seconds
        else _NONE,
        "memory: peak of the process": _NONE if model.host_memory is None else format_bytes(model.host_memory),
        "memory: peak in ONNX Runtime's arena": _NONE if arena is None else format_bytes(arena),
        "nodes in the file": str(graph.nodes) if graph else _NONE,
        "nodes in the optimized graph": str(graph.optimised_nodes) if graph else _NONE,
        "Casts in the file": str(graph.casts) if graph else _NONE,
        "Casts in the optimized graph": f"{graph.optimised_casts}{inserted}" if graph else _NONE,
        "low-precision nodes in the file, without Casts": str(model.low_nodes),
        "those that the provider can compute in low precision": str(model.low_kernels),
        "low-precision nodes that ran, after fusion": str(profile.low_nodes) if profile else _NONE,
    }


def _figures(report: BenchReport) -> tuple[Block, ...]:
    """Return the figures of both models, and the operators that ONNX Runtime added to each."""
    columns = [_model_column(model) for model in _both(report)]
    rows = [(figure, *(column[figure] for column in columns)) for figure in columns[0]]
    added = {name: _added_operators(model) for name, model in zip(("original", "other"), _both(report), strict=True)}
    lines = tuple(f"ONNX Runtime added to the {name}: {operators}" for name, operators in added.items() if operators)
    return (Table(columns_of("", "original", "other"), rows), *((Text(lines),) if lines else ()))


def _added_operators(model: TimedModel) -> str:
    """Return the operators that ONNX Runtime added to the model: ``3 FusedConv, 2 ReorderInput``; "" if none."""
    new_ops = model.graph.new_ops if model.graph is not None else {}
    return ", ".join(f"{count} {op}" for op, count in new_ops.items())


def _operators(report: BenchReport) -> tuple[Block, ...]:
    """Return the time of each op type in both models; () without a profile."""
    times = _operator_times(report)
    if not times:
        return ()
    longest = max((seconds or 0.0 for _, pair in times for seconds in pair), default=0.0) or 1.0
    rows: list[list[Cell]] = []
    for operator, pair in times:
        # The bar of the original is above that of the other model.
        bars = tuple(
            rectangle(style, 0, y, round(100 * (seconds or 0.0) / longest, 1), 4)
            for style, y, seconds in zip(("high", "low"), (0, 6), pair, strict=True)
        )
        texts = [_NONE if seconds is None else format_duration(seconds) for seconds in pair]
        rows.append([operator, *texts, Picture(bars)])
    columns = (*columns_of("operator", "original", "other", numbers=[1, 2]), Column("bars", "picture"))
    line = Text(("Per run. The profile slows the model down.",))
    return (line, Table(columns, rows, legend=(("high", "original"), ("low", "other"))))


def _operator_times(report: BenchReport) -> list[tuple[str, tuple[float | None, ...]]]:
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


def _explain(report: BenchReport) -> str:
    return (
        f"The original is {report.original.name}, the other model {report.other.name}. Both ran in processes of their"
        " own. The time of a round is that of its fastest run. Another load on the machine slows many rounds, so the"
        f" ratio compares the {_TIME}s of the rounds, and not their medians. Batches of several sizes are scaled to one"
        " size. A difference counts only if the whole confidence interval is on one side of 1, the times differ by at"
        f" least {format_share(LEAST_DIFFERENCE)}, and there are at least {LEAST_ROUNDS} rounds. Of the low-precision"
        " nodes in the file, ONNX Runtime computes those without a kernel of their type in float32, and it fuses others"
        " into one node, so fewer nodes run in low precision."
    )


def _next_steps(report: BenchReport, commands: Mapping[str, str]) -> list[Step]:
    """Return what the reader should do next, which depends on the ratio and on missing kernels."""
    if report.failed:
        return [Step("Remove the reason why a model was not timed, which is above, and measure again.")]
    steps, other, resolve = [], report.other, commands.get("resolve", "")
    if report.verdict == "inconclusive":
        steps.append(next_step(f"Measure at least {LEAST_ROUNDS} rounds", commands.get("rounds", "")))
    missing = other.low_nodes - other.low_kernels
    if missing and report.verdict in ("slower", "no difference"):
        text = (
            f"{missing} of {other.low_nodes} low-precision nodes have no kernel in low precision on this provider,"
            " so ONNX Runtime converts around them"
        )
        if report.provider == "cpu":  # low precision is for another device, so no list follows from this CPU
            steps.append(next_step(f"{text}. If the model is to run on this CPU, use the original"))
        else:
            text = f"{text}. Keep their op types in float32 (black-list)"
            steps.append(Step(f"{text}. This lists them:", resolve) if resolve else next_step(text))
    if report.provider == "cpu":
        text = f"For an accelerator, measure there ({spell('provider', 'cuda')}), or count the work of both models"
        steps.append(next_step(text, commands.get("estimate", "")))
    if report.verdict == "faster":
        steps.append(next_step("The time says nothing about accuracy. Judge it", commands.get("check", "")))
    if not steps:
        text = "Keep more matrix products in low precision, or stay with the original"
        steps.append(Step(f"{text}. This shows what is low:", resolve) if resolve else next_step(text))
    return steps


# --- estimates ---


def _estimate_headline(original: Work, other: Work) -> str:
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


def _work_rows(original: Work, other: Work) -> list[tuple[str, ...]]:
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


def _estimate_notes(works: Sequence[Work]) -> Iterator[str]:
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
