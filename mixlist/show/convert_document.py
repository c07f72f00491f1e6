"""The report of a conversion: the verdict, the numbers before and after, the outputs, and the nodes in float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from mixlist.checker.findings import FAILING_KINDS
from mixlist.number_text import format_bytes, format_number, format_share, pluralize
from mixlist.option_spelling import spell
from mixlist.search.convert_result import ADDED_ERROR, BEYOND_RANGE, INTEGER_PRODUCTS, RANDOM_DATA
from mixlist.show.check_document import (
    REPAIR_A_LOW_MODEL,
    describe_small_errors,
    inconclusive_step,
    judge_blocks,
    looks_like_boxes,
    output_blocks,
    verdict_word,
    written_files,
)
from mixlist.show.document import (
    MAX_ROWS,
    REST_IN_JSON,
    VERDICT_LEVELS,
    Block,
    Document,
    Frame,
    Section,
    Step,
    Table,
    Text,
    Verdict,
    columns_of,
    next_step,
    times,
)
from mixlist.show.graph_page import graph_frame
from mixlist.show.resolve_document import operators_text

if TYPE_CHECKING:
    from mixlist.search.convert_result import ConvertReport, ConvertResult, ConvertTrial, HighNode, ModelSize

# A result with less than this share of the matrix work in low precision, or that moves more than this share of the
# bytes, gains little: the headline says so.
_LEAST_LOW_SHARE, _MOST_BYTES = 0.5, 0.9


def convert_document(report: ConvertReport, graph: Frame | None = None) -> Document:
    """Return the report of a conversion. ``graph``: that of the result, for a page."""
    sections = (
        Section("sizes", "", _size_blocks(report)),
        Section(
            "graph",
            "Graph",
            (graph,) if graph is not None else (),
            "The nodes by precision. A click on a node shows its reason, and after a click the wheel zooms.",
        ),
        Section("outputs", _outputs_title(report), output_blocks(report.check) if report.check.outputs else ()),
        Section("judge", "Judge", judge_blocks(report.check), "The numbers of the judge; larger is worse."),
        Section("high", "Nodes in float32", _high_blocks(report)),
        Section("limits", "What other limits would give", _limit_blocks(report)),
        Section("search", "Search", (Text((_describe_search(report),)), times(report.seconds))),
    )
    level = VERDICT_LEVELS[report.verdict]
    verdict = Verdict(_verdict_word(report), level, report.model, describe_result(report), _reasons(report))
    return Document("convert", sections, verdict=verdict, steps=_next_steps(report), warnings=report.warnings)


def result_frame(result: ConvertResult) -> Frame | None:
    """Return the graph of the result with the reasons of the search; None without a result."""
    report = result.report
    if result.rewritten is None:
        return None
    searched = {node.ref: node.reason for node in report.high_nodes if node.raised}
    return graph_frame(result.plan, report.check.to_json(), searched)


def _verdict_word(report: ConvertReport) -> str:
    return verdict_word(report.check) if report.keeps_nothing_low else report.verdict.upper()


def describe_result(report: ConvertReport) -> str:
    """Return the result in one line: how many nodes are low, and whether that gains little."""
    if report.after is None and report.verdict == "inconclusive":
        return f"{report.model}: the data show nothing about a result"
    if report.after is None:
        return f"{report.model}: no mixed model was found"
    nodes = f"{report.after.low_nodes} of {pluralize(report.after.nodes, 'node')}"
    gains = _small_gains(report) if not report.keeps_nothing_low else []
    remark = ": keep the given model" if _saves_nothing(report) else ""
    return f"{report.model}: {nodes} in {report.precision}{', but ' if gains else ''}{_join(gains)}{remark}"


def _join(parts: list[str]) -> str:
    """Return the parts of a sentence as in an enumeration."""
    comma = "," if len(parts) > 2 else ""
    return f"{', '.join(parts[:-1])}{comma} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _small_gains(report: ConvertReport) -> list[str]:
    """Return what gains little, in words; [] if the result gains enough, or is the model as given."""
    before, after = report.before, report.after
    if after is None or report.check.changes_nothing:
        return []
    gains = []
    if after.low_share is not None and after.low_share < _LEAST_LOW_SHARE:
        gains.append(f"only {format_share(after.low_share)} of the matrix work is low")
    if before.bytes and after.bytes > _MOST_BYTES * before.bytes:
        change = 1 - after.bytes / before.bytes
        gains.append(f"the moved bytes {'fall' if change >= 0 else 'rise'} by {format_share(abs(change))}")
    if gains and after.casts > before.casts:
        more = after.casts - before.casts
        gains.append("1 more Cast runs" if more == 1 else f"{more} more Casts run")
    return gains


def _saves_nothing(report: ConvertReport) -> bool:
    """Return whether the result moves more bytes than the given model, and has no more low matrix work."""
    before, after = report.before, report.after
    if after is None or not before.bytes:
        return False
    return after.bytes > before.bytes and (after.low_share or 0) <= (before.low_share or 0)


def _reasons(report: ConvertReport) -> tuple[str, ...]:
    """Return the reasons of the verdict, and what the data was."""
    joined = f"held-out batches that failed joined the search: {', '.join(report.joined)}" if report.joined else ""
    random_data = RANDOM_DATA if report.random_data and RANDOM_DATA not in report.reasons else ""
    is_single = report.batches == 1 and report.after is not None and not report.random_data
    single = "one batch judges the result: check it on others, too, which may miss the limits" if is_single else ""
    return (*report.reasons, *filter(None, [joined, random_data, single]))


def _size_blocks(report: ConvertReport) -> tuple[Block, ...]:
    """Return the numbers of the model before and after."""
    on_floats = " on floats" if INTEGER_PRODUCTS in report.advice else ""
    facts: dict[str, Callable[[ModelSize], str]] = {
        f"nodes in {report.precision}": lambda size: f"{size.low_nodes} of {size.nodes}",
        f"matrix work{on_floats} in {report.precision}": lambda size: format_share(size.low_share),
        "bytes moved in a batch": lambda size: format_bytes(size.bytes),
        "file size": lambda size: format_bytes(size.file_bytes),
        "Casts": lambda size: str(size.casts),
    }
    before, after = report.before, report.after
    rows = [(name, text(before), "-" if after is None else text(after)) for name, text in facts.items()]
    notes = []
    if before.uncounted:
        notes.append(f"matrix work and moved bytes: without {pluralize(before.uncounted, 'node')} of unknown shape")
    if after is not None and after.file_bytes > 1.01 * before.file_bytes:
        notes.append("the file grows: it has more Casts, and weights that nodes of both types read are there twice")
    table = Table(columns_of("", "before", "after", numbers=[1, 2]), rows)
    return (table, Text(tuple(notes))) if notes else (table,)


def _outputs_title(report: ConvertReport) -> str:
    subject = "of the result" if report.after is not None else "under the lists"
    return f"Outputs {subject}, against the model as given on {pluralize(report.batches, 'batch')}"


def _high_blocks(report: ConvertReport) -> tuple[Block, ...]:
    """Return the nodes in float32, those with one reason in one row. Errors of several sizes are one reason."""
    if not report.high_nodes:
        return (Text(("none",)),) if report.after is not None else ()
    groups: dict[tuple[bool, str], list[HighNode]] = {}
    for node in report.high_nodes:
        groups.setdefault((node.raised, ADDED_ERROR.sub(r"\1", node.reason)), []).append(node)
    rows = [
        (
            str(nodes[0].ref),
            str(len(nodes)),
            nodes[0].op_type if len(nodes) == 1 else operators_text(Counter(node.op_type for node in nodes)),
            "the search" if raised else "the model" if nodes[0].op_type == "Cast" else "the lists",
            _shared_reason(nodes),
        )
        for (raised, _), nodes in groups.items()
    ]
    columns = columns_of("first node", "nodes", "operators", "kept by", "reason", names=[0], numbers=[1])
    return (Table(columns, rows, MAX_ROWS, REST_IN_JSON),)


def _shared_reason(nodes: list[HighNode]) -> str:
    """Return the reason of nodes in one row, of which the first has the largest error."""
    reason = nodes[0].reason
    return reason if len({node.reason for node in nodes}) == 1 else ADDED_ERROR.sub(r"\1 of up to \2", reason)


def _limit_blocks(report: ConvertReport) -> tuple[Block, ...]:
    """Return what the trials show about other limits, if the result gains little; () otherwise."""
    if report.after is not None and not _small_gains(report):
        return ()
    rows = [
        (
            format_number(trial.kept_limit),
            f"{trial.low_nodes} of {report.before.nodes}",
            format_share(trial.low_share),
        )
        for trial in find_frontier(report.log)
    ]
    if len(rows) < 2:
        return ()
    precision = report.precision
    titles = ("normalized error", f"nodes in {precision}", f"matrix work in {precision}")
    note = (
        "Each row is a choice that was tried, with its error on the batches of the search; it misses no other limit."
        f" With another {spell('max_normalized_error')}, convert searches again, and may find other choices."
    )
    table = Table(columns_of(*titles, numbers=range(3)), rows)
    return (table, Text((note,)))


def find_frontier(log: tuple[ConvertTrial, ...]) -> list[ConvertTrial]:
    """Return the trials that pass with some limit, of which no other one costs less with a smaller limit."""
    frontier: list[ConvertTrial] = []
    kept = [trial for trial in log if trial.kept_limit is not None and trial.kept_limit < 1]
    for trial in sorted(kept, key=lambda trial: (trial.kept_limit or 0.0, trial.cost)):
        if not frontier or trial.cost < frontier[-1].cost:
            frontier.append(trial)
    return frontier


def _describe_search(report: ConvertReport) -> str:
    if not report.log and report.verdict != "fail":
        if report.verdict != "pass" and not report.keeps_nothing_low:
            return "no search"
        # Rules are needed only for a model with more low nodes than the lists give.
        subject = "every node that can be is low, and that keeps" if report.customize_dtypes else "the lists keep"
        return f"no search: {subject} the limits"
    return pluralize(report.trials, "trial")


def _next_steps(report: ConvertReport) -> tuple[Step, ...]:
    """Return what the reader should do next, which depends on the result."""
    steps = [Step(f"{text[:1].upper()}{text[1:]}.") for text in report.advice if text != INTEGER_PRODUCTS]
    if INTEGER_PRODUCTS in report.advice and (report.after is None or _small_gains(report)):
        return (Step(f"Keep the file as it is: {INTEGER_PRODUCTS}."), *steps, *_explain_failure(report))
    if report.later_opset is not None:
        text = f"Convert again at opset {report.later_opset}, which allows {report.precision} for more nodes"
        steps.insert(0, next_step(text, report.next_command))
    if _small_gains(report) and not report.keeps_nothing_low and report.later_opset is None:
        is_float16 = report.precision == "float16"
        other, effect = ("bfloat16", "holds larger values") if is_float16 else ("float16", "rounds less")
        # Larger limits admit errors, and no overflow.
        overflows = any(node.raised and BEYOND_RANGE in node.reason for node in report.high_nodes)
        limits = "" if overflows else "larger limits, or "
        text = f"For a larger gain, try {limits}{spell('low_type', other)}, which {effect}."
        if not report.log:
            text = "The lists pass, and no other choice saves more: if that is too little, keep the given model."
        elif _saves_nothing(report):
            text = f"The result saves nothing: keep the given model. {text}"
        steps.append(Step(text))
    if not report.check.judge:
        for output in report.check.outputs:
            if output.largest_difference is not None and looks_like_boxes(output.largest_difference.shape):
                seen = f"{output.name!r} looks like boxes with scores"
                how = "" if report.judge_command else f", with check and {spell('judge', 'boxes')}"
                text = f"{seen}. Compare what the result detects on images with objects{how}"
                steps.append(next_step(text, report.judge_command))
                break  # one command compares all of them
    return (*steps, *_step_of_verdict(report))


def _explain_failure(report: ConvertReport) -> tuple[Step, ...]:
    """Return the step that says why no few nodes help, if there is no result, and they do not."""
    small = describe_small_errors(report.check) if report.after is None else ""
    return (Step(small),) if small else ()


def _step_of_verdict(report: ConvertReport) -> tuple[Step, ...]:
    if report.verdict == "inconclusive" and any("mixlist repair" in reason for reason in report.reasons):
        return (Step(REPAIR_A_LOW_MODEL),)
    if report.verdict == "inconclusive" and not report.keeps_nothing_low:
        return (inconclusive_step(report.reasons, "convert"),)
    if report.after is None:
        limit = format_number(report.check.limits.get("normalized"))
        overflows = any(finding.kind in FAILING_KINDS for finding in report.check.nodes)
        other_type = (
            ", or use bfloat16, which holds larger values" if overflows and report.precision == "float16" else ""
        )
        text = f"Set limits that the model can keep (the limit of the normalized error is {limit}){other_type}."
        return (Step(text), *_explain_failure(report))
    if report.check.changes_nothing:
        return (Step(REPAIR_A_LOW_MODEL),)
    if report.keeps_nothing_low and report.later_opset is None:
        text = "The table above says why each node stays in float32. Other lists may keep fewer"
        return (Step(f"{text} ({spell('ops_info')})."),)
    if report.random_data:
        return (Step(f"Convert again with real data ({spell('data')}) before you use the result."),)
    if report.next_command and report.later_opset is None:
        written = written_files(report.next_command)
        return (next_step(f"Write {written} from these rules, without data", report.next_command),)
    return ()
