"""The report of a check: verdict, first offenders, outputs, errors of nodes, ranges of all tensors, all findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from mixlist.checker.box_judge import NO_DETECTIONS
from mixlist.checker.limits import Limits
from mixlist.checker.options import CheckOptions
from mixlist.checker.result import (
    CheckReport,
    FindingKind,
    NodeError,
    NodeFinding,
    OutputFinding,
)
from mixlist.number_text import format_bytes, format_cosine, format_number, format_share, pluralize
from mixlist.option_fields import command_line_forms
from mixlist.option_spelling import spell
from mixlist.show import range_chart
from mixlist.show.document import (
    MAX_ROWS,
    VERDICT_LEVELS,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Frame,
    ListRow,
    Mark,
    Picture,
    Record,
    Search,
    Section,
    Step,
    Table,
    Text,
    Verdict,
    bar,
    columns_of,
    times,
)
from mixlist.text_escapes import quote_argument

_REST = "--format json and --html FILE have all"
# The number of nodes that a report shows with advice.
NODES_WITH_ADVICE = 3
_EXPLAINED_SHARE = 1 / 3  # of the error of an output: nodes that add less together cannot be its cause
PASS_WITHOUT_LOW = "PASS, BUT NOTHING IS LOW"
_OUTPUTS_AGREE = "OUTPUTS AGREE, BUT NOTHING IS LOW"  # of two models that were given
_PASS_WITHOUT_CHANGE = "PASS, BUT NOTHING CHANGES"  # of a model that is low already
REPAIR_A_LOW_MODEL = "The model is in low precision already: mixlist repair raises those of its nodes that overflow."
EMULATED = (
    "Emulated: instead of the mixed model, a float32 model ran. It rounds every low-precision value to the low type."
    " The mixed model itself would show no overflow, because ONNX Runtime's CPU provider computes most float16 nodes in"
    " float32 and removes the Casts between them."
)


# The severity and the meaning of each kind of finding, in the order of reports: the most important first. A failing
# kind can make the verdict fail: a refused batch always, the others if too many batches have them (Rule S8.14). A
# warning cannot, but the user should look at its nodes.
KINDS: dict[FindingKind, tuple[Literal["failing", "warning", "note"], str]] = {
    "refused": ("failing", "ONNX Runtime refuses to run the node in the mixed model, but runs the node in float32"),
    "overflow": (
        "failing",
        "finite in float32, not finite in low precision: an output with finite inputs, or a converted input",
    ),
    "saturated": ("failing", "limited to the largest finite value; the float32 value is larger"),
    "propagated": ("note", "not finite because an input is not finite"),
    "internal-risk": (
        "warning",
        "a sum inside the operator leaves the range, and a kernel that adds in low precision overflows there",
    ),
    "near-limit": ("warning", "within a factor of two of the largest finite value"),
    "underflow": ("warning", "became zero, or lost its small values; float32 keeps them"),
    "preexisting": ("note", "not finite in the reference already"),
    "intended": ("note", "an infinity by design: a constant, a mask, or one that changes no output"),
}


def check_document(
    report: CheckReport, graph: Frame | None = None, page_command: str = "", validate_command: str = ""
) -> Document:
    """Return the report of a check.

    ``graph``: the graph with the findings, for a page. ``page_command``: the command line that writes this page, for a
    report with findings. ``validate_command``: the command line that shows the misspelled names of the list, if any.
    """
    sections = (
        Section(
            "offenders",
            "First offenders",
            (_offenders_or_none(report),),
            "Overflow starts at these nodes: their inputs are finite. Batches are counted from 0.",
        ),
        Section(
            "graph",
            "Graph",
            (graph,) if graph is not None else (),
            "The nodes by finding or precision. A click on a node shows its reason, and after a click the wheel zooms.",
        ),
        _other_findings(report),
        Section(
            "outputs",
            "Outputs",
            output_blocks(report),
            "The outputs are compared with the float32 reference. Errors are those of the worst batch, shares are over"
            " all batches.",
        ),
        Section("judge", "Judge", judge_blocks(report), "The numbers of the judge; larger is worse."),
        _errors_of_nodes(report),
        _ranges(report),
        _all_findings(report),
        Section(
            "timing",
            "Time",
            (times(report.seconds),) if report.seconds else (),
            "The duration of the check, not the speed of the model, which mixlist bench measures.",
        ),
        _about(report),
    )
    return Document(
        "check",
        sections,
        verdict=Verdict(
            verdict_word(report),
            VERDICT_LEVELS[report.verdict],
            report.model,
            _headline(report),
            (
                *report.reasons,
                describe_exceptions(report),
                *_describe_low_part(report),
                *_describe_segments(report),
            ),
        ),
        steps=(*_correction_step(validate_command), *_next_steps(report), *_page_step(report, page_command)),
        warnings=report.warnings,
    )


# --- findings ---


def first_offenders(report: CheckReport) -> list[NodeFinding]:
    """Return the findings where overflow starts, the failing kinds first. A report shows them first."""
    return sort_by_kind(finding for finding in report.nodes if finding.first)


def sort_by_kind(findings: Iterable[NodeFinding]) -> list[NodeFinding]:
    """Return findings in the order of ``KINDS``; within a kind, in the order of the model."""
    order = {kind: position for position, kind in enumerate(KINDS)}
    return sorted(findings, key=lambda finding: order[finding.kind])


def finding_texts(finding: NodeFinding, report: CheckReport | None = None) -> dict[str, str]:
    """Return the texts of a finding. The keys say what each text is.

    Without a report (``repair``), the texts about batches and advice are "".
    """
    count = finding.count if report is not None else None
    return {
        "kind": finding.kind,
        "node": str(finding.ref),
        "operator": finding.op_type,
        "place": "inside" if finding.inside else "input" if finding.input else "output",
        "tensor": finding.tensor,
        "reference": format_number(finding.max_abs_fp32),
        "reference_title": "before its conversion" if finding.input else "in float32",
        # A refused node has no value in the mixed model: its magnitude is NaN, which would read as a result.
        "mixed": "not computed" if finding.kind == "refused" else format_number(finding.max_abs_low),
        "count": format_number(finding.count),
        "counted": "" if count is None else f"{pluralize(count, 'value')} in the first batch",
        "batches": _format_batches(finding, report) if report is not None else "",
        "low_by": _low_by(finding),
        "suggestion": finding.suggestion if report is not None else "",
    }


def mark_kind(kind: FindingKind) -> Mark:
    """Return the name of a kind of finding in the color of its severity."""
    severity, _ = KINDS[kind]
    return Mark(kind, severity)


def _format_batches(finding: NodeFinding, report: CheckReport) -> str:
    """Return the number of batches with a finding, and the first of these batches, counted from 0."""
    if not finding.batches:
        return "-"
    first = f", first #{finding.batches[0]}" if report.batches > 1 else ""
    # Refused batches are not among the batches that the report compares, so "of" would be wrong.
    if finding.kind == "refused":
        return f"{len(finding.batches)}, first #{finding.batches[0]}"
    return f"{len(finding.batches)} of {report.batches}{first}"


def _low_by(finding: NodeFinding) -> str:
    """Return the list entry that put a node in low precision.

    For a node in high precision, return the low-precision node upstream whose values it reads, and the entry of that
    node. For a node that ONNX Runtime refuses to run, return the low-precision node from whose values an integer that
    the refused node depends on is computed.
    """
    source = finding.low_source
    if source is None:
        return finding.source or ("" if finding.list == "none" else finding.list)
    # The node did not become low itself: name the low-precision node upstream that its values depend on.
    relation = (
        "the node depends on an integer computed from"
        if finding.kind == "refused"
        else "the node is in high precision, and reads"
    )
    return f"{relation} values of {source.ref} ({source.op_type}), {source.source}"


def offender_facts(report: CheckReport, title: str = "") -> Facts:
    """Return a record for each node where overflow starts: its tensor, what makes it low, and what keeps it high."""
    records = []
    for finding in first_offenders(report):
        texts = finding_texts(finding, report)
        facts = {
            texts["place"]: f"{texts['tensor']}: up to {texts['reference']} {texts['reference_title']},"
            f" {texts['mixed']} in {report.precision}",
            "batches": ", ".join(filter(None, (texts["batches"], texts["counted"]))),
            "low by": texts["low_by"],
            "to keep it high": texts["suggestion"],
        }
        records.append(Record(facts, (mark_kind(finding.kind), f"{texts['node']} ({texts['operator']})")))
    return Facts(tuple(records), rest=_REST, title=title)


def _offenders_or_none(report: CheckReport) -> Block:
    if first_offenders(report):
        return offender_facts(report)
    intended = ", except by design" if any(n.kind == "intended" for n in report.nodes) else ""
    return Text((f"None: nothing overflowed on this data{intended}.",), on="page")


def _other_findings(report: CheckReport) -> Section:
    """Return the findings that are no first offenders, for a terminal. A page has a list of all findings."""
    findings = sort_by_kind(finding for finding in report.nodes if not finding.first)
    if not findings:
        return Section("others", "Other findings", ())
    counts = Counter(finding.kind for finding in findings)
    summary = Text(tuple(f"{number} {kind}: {KINDS[kind][1]}" for kind, number in counts.items()), on="terminal")
    titles = ("what", "node", "op", "of", "reference", "mixed", "batches")
    columns = (Column("what", "verdict"), *columns_of(*titles[1:]))
    rows: list[list[Cell]] = []
    for finding in findings:
        if finding.kind == "underflow" and report.verdict == "pass":
            continue  # the lost values changed no output, and the largest ones are equal: the number above is enough
        texts = finding_texts(finding, report)
        shown = ("node", "operator", "place", "reference", "mixed", "batches")
        rows.append([mark_kind(finding.kind), *(texts[key] for key in shown)])
    table = Table(columns, rows, max_rows=MAX_ROWS, rest=_REST, on="terminal")
    return Section("others", "Other findings", (summary, table))


def _all_findings(report: CheckReport) -> Section:
    """Return all findings, for a page: a group for each kind."""
    if not report.nodes:
        return Section("findings", "All findings", ())
    titles = ("node", "operator", "reference", "mixed", "values", "batches", "low by")
    columns = (
        *columns_of(*titles, names=[0], numbers=[2, 3, 4]),
        Column("converted input", "note"),
        Column("to keep it high", "note"),
    )
    rows, list_rows = [], []
    for finding in report.nodes:
        texts = finding_texts(finding, report)
        shown = ("node", "operator", "reference", "mixed", "count", "batches", "low_by")
        rows.append((*(texts[key] for key in shown), finding.input, texts["suggestion"]))
        list_rows.append(ListRow(group=finding.kind, words=f"{texts['tensor']} {finding.kind}"))
    found = {finding.kind for finding in report.nodes}
    groups = {kind: description for kind, description in KINDS.items() if kind in found}
    search = Search("finding", "findings", "node, operator, tensor or list entry", list_rows, groups)  # type: ignore[arg-type]
    return Section("findings", "All findings", (Table(columns, rows, search=search, on="page"),))


# --- outputs and errors ---

_OUTPUT_COLUMNS = (
    *columns_of(
        *(
            "output",
            "max abs",
            "max rel",
            "normalized",
            "cosine",
            "SNR dB",
            "differing",
            "top-1 of last axis",
            "ignored",
        ),
        names=[0],
        numbers=range(1, 9),
        wide=(1, 2, 5, 6, 7, 8),
    ),
    Column("verdict", "verdict"),
)


def output_blocks(report: CheckReport, on: Literal["both", "page"] = "both") -> tuple[Block, ...]:
    """Return the outputs with their errors and verdicts, and the limits."""
    rows = [_output_row(output) for output in report.outputs]
    limits = f"limits: {' '.join(limits_text(report.limits)) or 'none'}"
    worst = [
        f"worst index of {o.name!r}: {o.worst_index}, normalized error {format_number(o.worst_index.normalized_error)}"
        for o in report.outputs
        if o.worst_index is not None
    ]
    judge = spell("judge", "boxes")
    compare_boxes = "" if report.judge else f"; these look like boxes with scores: {judge} compares the detections"
    largest = [
        f"largest difference of {o.name!r}: {o.largest_difference}"
        # A box of a low score may differ by many pixels, and a user never sees it.
        f"{compare_boxes if looks_like_boxes(o.largest_difference.shape) else ''}"
        for o in report.outputs
        if o.largest_difference
    ]
    # The reasons of a check that passes name the changed orders already.
    orders = map(str, report.order_changes if report.verdict != "pass" else ())
    table = Table(_OUTPUT_COLUMNS, rows, on=on)
    return (table, *_collapses(report, on), Text((limits, *largest, *worst, *orders), on=on))


def looks_like_boxes(shape: tuple[int, ...]) -> bool:
    """Return whether an output has the shape of raw detections: [images, 4 + classes, boxes], or the last two swapped.

    Detectors with strides of 8, 16 and 32 make 16 + 4 + 1 boxes in each square of 32 pixels, or a multiple.
    """
    return len(shape) == 3 and 5 <= min(shape[1:]) < max(shape[1:]) >= 100 and max(shape[1:]) % 21 == 0


def _collapses(report: CheckReport, on: Literal["both", "page"]) -> tuple[Block, ...]:
    """Return the parts of outputs that became one value; () if none did (Rule S8.33)."""
    rows = [
        (o.name, format_number(c.axis), format_number(c.index), format_number(c.values), format_number(c.value))
        for o in report.outputs
        for c in o.collapses
    ]
    columns = columns_of("output", "axis", "index", "values", "became", names=[0], numbers=range(1, 5))
    title = "Parts that became one value"
    return (Table(columns, rows, max_rows=MAX_ROWS, rest=_REST, on=on, title=title),) if rows else ()


def _output_row(output: OutputFinding) -> tuple[str | Mark, ...]:
    verdict = "pass" if output.passed else f"{output.verdict}: {', '.join(output.failed_limits)}"
    return (
        output.name,
        format_number(output.max_abs_error),
        format_number(output.max_rel_error),
        format_number(output.normalized_error),
        format_cosine(output.cosine),
        format_number(output.snr_db, 3),
        format_share(output.mismatches),
        format_share(output.top1),
        format_share(output.ignored_share),
        Mark(verdict, VERDICT_LEVELS[output.verdict]),
    )


def judge_blocks(report: CheckReport, title: str = "") -> tuple[Block, ...]:
    """Return the worst value of each number of the user's judge, with its batch and its limit; () without a judge."""
    if not report.judge:
        return ()
    columns = (
        *columns_of("name", "worst value", "batch", "limit", names=[0], numbers=[1, 2, 3]),
        Column("verdict", "verdict"),
    )
    rows = []
    for result in report.judge:
        verdict: Literal["pass", "fail"] = "pass" if result.passed else "fail"
        is_judged = result.limit is not None and result.value is not None
        mark = Mark(verdict, VERDICT_LEVELS[verdict]) if is_judged else "-"
        shown = format_number(result.value), f"#{result.batch}", format_number(result.limit)
        rows.append((result.name, *shown, mark))
    return (Table(columns, rows, max_rows=MAX_ROWS, rest=_REST, title=title),)


def limits_text(limits: Mapping[str, float]) -> list[str]:
    """Return the limits as the options that set them."""
    forms = command_line_forms(CheckOptions) | command_line_forms(Limits)
    # The limit ``exception_rate`` has the option of the field ``max_exception_rate``.
    forms["exception_rate"] = forms["max_exception_rate"]
    return [f"{forms[name].flag} {format_number(value)}" for name, value in limits.items()]


def worst_nodes(report: CheckReport) -> list[NodeError]:
    """Return the nodes that add the most error, if a limit of outputs or of the judge breaks and nodes are ranked.

    An output that is inconclusive misses no limit, so no node is shown for it.
    """
    if all(output.verdict != "fail" for output in report.outputs) and all(result.passed for result in report.judge):
        return []
    return [error for error in report.layerwise[:NODES_WITH_ADVICE] if error.normalized_error]


def describe_small_errors(report: CheckReport) -> str:
    """Return that the nodes which add the most error cannot explain that of an output; "" if they can."""
    added = sum(error.normalized_error for error in worst_nodes(report))
    failed = [output.normalized_error for output in report.outputs if "normalized" in output.failed_limits]
    missed = max((error for error in failed if error is not None and math.isfinite(error)), default=0.0)
    if not added or added >= _EXPLAINED_SHARE * missed:
        return ""
    return (
        f"No few nodes explain the error: the {NODES_WITH_ADVICE} that add the most add {format_number(added, 2)} of"
        f" {format_number(missed, 2)} together, so to keep them high changes little."
    )


def worst_nodes_facts(report: CheckReport, title: str = "") -> Facts | None:
    """Return the nodes that add the most error, with what makes them low and what keeps them high; None if none."""
    records = [
        Record(
            {"low by": error.source, "to keep it high": error.suggestion},
            (format_number(error.normalized_error, 2), f"{error.ref} ({error.op_type})"),
        )
        for error in worst_nodes(report)
    ]
    return Facts(tuple(records), title=title) if records else None


def _errors_of_nodes(report: CheckReport) -> Section:
    """Return all nodes by the error that they add."""
    if not report.layerwise:
        return Section("layerwise", "Nodes by error", ())
    columns = (
        *columns_of("node", "op", "error", names=[0], numbers=[2]),
        Column("bar", "picture"),
        Column("low by", on="page"),
        Column("to keep it high", on="page"),
    )
    rows = [
        (str(error.ref), error.op_type, format_number(error.normalized_error), picture, error.source, error.suggestion)
        for error, picture in zip(report.layerwise, _error_bars(report.layerwise), strict=True)
    ]
    every = spell("layerwise", True)
    line = (
        "The normalized error that a node adds to exact inputs in the first batches"
        f" (in all with {every}), largest first."
    )
    blocks = (Text((line,)), Table(columns, rows, max_rows=MAX_ROWS, rest=_REST))
    return Section("layerwise", "Nodes by error", blocks, "The bars are on a logarithmic scale.")


def _error_bars(errors: Sequence[NodeError]) -> list[Picture]:
    """Return a bar for each error, on a logarithmic scale."""
    finite = [e.normalized_error for e in errors if math.isfinite(e.normalized_error) and e.normalized_error > 0]
    # An error of 0 has no logarithm and gets a bar of length 0.
    decades = [math.log10(error) for error in finite] or [0.0]
    # The smallest error still has a short bar. An infinite error has a longer bar than every finite error.
    start, end = min(decades) - 1, max(decades) + (len(finite) < len(errors))

    def percent(error: float) -> float:
        if not math.isfinite(error):
            return 100.0
        return round(100 * (math.log10(error) - start) / (end - start), 1) if error > 0 else 0.0

    return [bar(percent(error.normalized_error)) for error in errors]


# --- ranges ---


def _ranges(report: CheckReport) -> Section:
    """Return the picture of the ranges of all tensors, and the list of them, for a page."""
    if not report.tensors:
        return Section("ranges", "Dynamic range", ())
    limits = range_chart.LOW_TYPE_LIMITS[report.precision]
    # One power, kind and style for each tensor, in the order of the report: the chart and the list zip them.
    powers = [range_chart.find_power(tensor) for tensor in report.tensors]
    scale = range_chart.make_scale(powers, limits)
    # The dictionary keeps the last finding of a tensor, so the most important findings come last.
    kind_of = {(finding.scope, finding.tensor): finding.kind for finding in reversed(sort_by_kind(report.nodes))}
    kinds = [kind_of.get((tensor.scope, tensor.tensor)) for tensor in report.tensors]
    styles = [_style(kind, tensor.low) for kind, tensor in zip(kinds, report.tensors, strict=True)]
    columns = (
        *columns_of("tensor", "operator", "reference", "mixed", names=[0], numbers=[2, 3]),
        Column("finding"),
        Column("range", "picture", guides=range_chart.bar_guides(scale, limits)),
    )
    rows, list_rows = [], []
    for tensor, power, kind, style in zip(report.tensors, powers, kinds, styles, strict=True):
        numbers = [format_number(tensor.magnitude), format_number(tensor.low_magnitude)]
        rows.append([
            *(tensor.qualified_name, tensor.op_type or "graph input", *numbers),
            *("" if kind is None else mark_kind(kind), range_chart.draw_bar(power, style, scale)),
        ])  # fmt: skip
        filters = ("low",) * tensor.low + ("found",) * (kind is not None)
        # JSON has no infinity.
        size = -1.0 if power is None else min(power, 9999.0)
        list_rows.append(ListRow(filters=filters, size=size, words=tensor.node))
    search = Search(
        "range",
        "tensors",
        "tensor, node or operator",
        list_rows,
        filters={"low": "low precision", "found": "with findings"},
    )
    blocks = (
        range_chart.draw_chart(powers, styles, scale, limits, search.id),
        Table(columns, rows, search=search, on="page", title="Tensor by tensor"),
    )
    return Section("ranges", "Dynamic range", blocks, _explain_chart(report.precision))


def _explain_chart(precision: str) -> str:
    return (
        "The dark end of each bar is the largest magnitude of a tensor in float32, or of several neighboring tensors in"
        f" a large model, on a log₂ scale. Tensors are in the order of the model. The dashed lines are the limits of"
        f" {precision}: its largest value, its smallest normal value and its smallest value."
    )


def _style(kind: FindingKind | None, is_low: bool) -> range_chart.Style:
    # The severities "failing" and "warning" are also styles. A tensor with a note, or without a finding, has the
    # style of its precision.
    if kind == "propagated":
        return "propagated"
    severity = KINDS[kind][0] if kind else "note"
    return severity if severity != "note" else "low" if is_low else "high"


# --- sentences ---


def verdict_word(report: CheckReport) -> str:
    """Return the verdict, which says so if nothing is low or nothing changes."""
    if report.passes_without_low:
        if report.mixed_model and not report.changes_nothing:
            return _OUTPUTS_AGREE
        return _PASS_WITHOUT_CHANGE if report.changes_nothing else PASS_WITHOUT_LOW
    return report.verdict.upper()


def _headline(report: CheckReport) -> str:
    """Return what was judged: the model in the low type, or a mixed model that was given."""
    if report.mixed_model:
        precision = "" if report.passes_without_low else f"{report.precision}, "
        return f"{report.mixed_model} against {report.model}, {precision}{_run_conditions(report)}"
    return f"{report.model} in {conditions(report)}"


def conditions(report: CheckReport) -> str:
    """Return the precision, the mode, the provider and the number of batches."""
    return f"{report.precision}, {_run_conditions(report)}"


def _run_conditions(report: CheckReport) -> str:
    return f"{report.mode} on {report.provider}, {pluralize(report.batches, 'batch')}"


def describe_exceptions(report: CheckReport) -> str:
    """Return the exception rate with its limit."""
    limit = report.limits.get("exception_rate")
    limit_text = f" (fails from {format_share(limit)})" if limit is not None else ""
    return f"exception rate {format_share(report.exception_rate)}{limit_text}"


def _describe_low_part(report: CheckReport) -> tuple[str, ...]:
    """Return the line that says how much of the mixed model is low; () for a mixed model that was given."""
    low = report.low
    if low is None:
        return ()
    parts = [f"{low.low_nodes} of {pluralize(low.nodes, 'node')}"]
    if low.low_share is not None:
        parts.append(f"{format_share(low.low_share)} of the matrix work")
    if low.reference_bytes:
        original = f"{format_bytes(low.reference_bytes)} in the original"
        if low.bytes > low.reference_bytes:
            original += ": the Casts move more than the low nodes save"
        parts.append(f"{format_bytes(low.bytes)} moved in a batch ({original})")
    if low.uncounted:
        parts.append(f"without {pluralize(low.uncounted, 'node')} of unknown shape")
    return (f"low: {'; '.join(parts)}",)


def _describe_segments(report: CheckReport) -> tuple[str, ...]:
    """Return the line that says that the models ran in segments; () if they ran whole."""
    if report.segment_bytes is None:
        return ()
    return (f"in segments of at most {format_bytes(report.segment_bytes)} of weights",)


def _next_steps(report: CheckReport) -> list[Step]:
    """Return what the reader should do next, which depends on the verdict."""
    if report.passes_without_low:
        if report.changes_nothing:
            return [Step(REPAIR_A_LOW_MODEL)]
        if report.low is None:
            return [Step("Give a mixed model with low nodes.")]
        if any(item.code == "ML411" for item in report.warnings):
            text = f"The opset of the model does not allow {report.precision} there. The warning names a later opset."
            return [Step(text)]
        return [Step("Change the lists, so that nodes are low: mixlist resolve shows the reason for each node.")]
    options = [Step(f"{sentence[0].upper()}{sentence[1:]}.") for sentence in report.advice]
    if report.verdict == "inconclusive":
        return options or [inconclusive_step(report.reasons, "check")]
    if report.compares_low_with_low:
        command = f"mixlist check ORIGINAL.onnx {quote_argument(report.model)} --data ..."
        low = f"The model is in {report.precision} already, and was compared with itself"
        return [Step(f"{low}: {command} compares it with the original."), *options]
    if report.verdict == "pass":
        if not report.next_command:  # a check of a given mixed model, or one from Python
            repaired = any(item.code == "ML623" for item in report.warnings)
            ending = "once mixlist repair has corrected its types" if repaired else "and can be used"
            return [Step(f"The mixed model keeps every limit on this data, {ending}."), *options]
        written = Step(
            f"The lists keep every limit on this data. To write {written_files(report.next_command)}:",
            report.next_command,
        )
        return [written, *options]
    search = []
    if report.next_command:
        words = report.next_command.split(maxsplit=2)
        searches = {
            "convert": "the nodes that must stay in float32, and write the model",
            "repair": "the fewest nodes to raise to float32",
        }
        what = searches.get(words[1], "the smallest change of the lists that passes")
        search.append(Step(f"To search {what}:", report.next_command))
    if any(finding.suggestion for finding in first_offenders(report)):
        by_hand = Step("By hand: make the edits under “to keep it high” in First offenders, and check again.")
        return [by_hand, *search, *options]
    if small := describe_small_errors(report):
        return [*options, Step(small), *search]
    steps = [*options, *search]
    # A node with a large error of its own need not be the one that makes the output wrong.
    details = worst_nodes_facts(report)
    if details is not None:
        text = "Nodes that add the most error. By hand, keep one after the other high, and check again:"
        steps.append(Step(text, details=details, section="layerwise"))
    if report.low is None:  # a mixed model that another tool made: no lists of mixlist can change it
        return steps or [Step("Keep nodes in float32 where the mixed model is made, until the check passes.")]
    text = "Keep nodes in float32 until the check passes; mixlist tune searches the smallest change of the lists."
    return steps or [Step(text)]


def inconclusive_step(reasons: Iterable[str], again: str) -> Step:
    """Return what to do if too little could be compared. ``again``: what to do again, such as ``check``."""
    if any(NO_DETECTIONS in reason for reason in reasons):
        without = f"leave out {spell('judge', 'boxes')}, so that the limits of the outputs decide"
        return Step(f"Give data with objects, or {without}, and {again} again.")
    return Step(f"Too little could be compared. Remove the cause that the reasons above name, and {again} again.")


def _correction_step(validate_command: str) -> tuple[Step, ...]:
    """Return the step that comes first if a list names an op type that no library has."""
    text = "An op type of the list is misspelled and has no effect. Correct the list, and check again:"
    return (Step(text, validate_command),) if validate_command else ()


def written_files(command: str) -> str:
    """Return what the command line of a next step writes: the files of ATC, or the mixed model."""
    return "the files for atc" if command.startswith("mixlist export") else "the mixed model"


def _page_step(report: CheckReport, page_command: str) -> tuple[Step, ...]:
    """Return the step that shows the findings on the graph; () without findings that a reader must look at."""
    if not page_command or not (first_offenders(report) or worst_nodes(report)):
        return ()
    return (Step("To see the findings on the graph of the model:", page_command),)


def _about(report: CheckReport) -> Section:
    kinds = [(mark_kind(kind), meaning) for kind, (_, meaning) in KINDS.items()]
    table = Table(columns_of("kind of finding", "meaning"), kinds, on="page")
    emulated = (Text((EMULATED,), on="page"),) if report.mode == "emulated" else ()
    return Section("about", "How to read this", (*emulated, table))
