"""The report of a repair: the verdict, where overflow starts, the edits, the errors of the outputs, and the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.number_text import format_cosine, format_number, format_share, pluralize
from mixlist.option_spelling import spell
from mixlist.show.check_document import finding_texts, inconclusive_step, mark_kind
from mixlist.show.document import (
    INTERRUPTED,
    MAX_ROWS,
    REST_IN_JSON,
    VERDICT_LEVELS,
    Block,
    Cell,
    Column,
    Document,
    Section,
    Step,
    Table,
    Text,
    Verdict,
    columns_of,
    next_step,
    times,
)

if TYPE_CHECKING:
    from mixlist.checker.result import NodeFinding, OutputFinding
    from mixlist.search.repair_result import OutputErrors, RepairEdit, RepairReport


_MAX_CORRECTIONS = 5  # that are shown


def repair_document(report: RepairReport) -> Document:
    """Return the report of a repair."""
    remembered = f", {report.remembered} more read from the state" if report.remembered else ""
    trials = f"{pluralize(report.trials, 'trial')}{remembered}"
    offender_columns = (Column("what", "verdict"), *columns_of("node", "op", "where", "float32"))
    has_before = any(errors.before is not None for errors in report.errors)
    titles = ("error before", "error after", "cosine before", "cosine after")
    error_columns = columns_of("output", *(title for title in titles if has_before or "after" in title))
    offenders = Table(offender_columns, list(map(_offender_row, report.first_offenders)), MAX_ROWS, REST_IN_JSON)
    errors = Table(error_columns, [_error_row(errors, has_before) for errors in report.errors], MAX_ROWS, REST_IN_JSON)
    sections = (
        Section("offenders", f"Where the overflow starts in the {report.precision} model", (offenders,)),
        Section("edits", _edits_title(report), _edit_blocks(report)),
        _corrections(report),
        Section("outputs", "Outputs, against the nodes of this file computed in float32", (errors,)),
        Section("search", "Search", (Text((trials,)), times(report.seconds))),
    )
    level = VERDICT_LEVELS[report.verdict]
    verdict = Verdict(report.verdict.upper(), level, report.model, _headline(report), report.reasons)
    return Document("repair", sections, verdict=verdict, steps=_next_steps(report), warnings=report.warnings)


def _next_steps(report: RepairReport) -> tuple[Step, ...]:
    """Return what the reader should do next, which depends on the result."""
    if not report.complete:
        return (next_step(INTERRUPTED, report.next_command),)
    if report.verdict == "inconclusive":
        return (inconclusive_step(report.reasons, "repair"),)
    if report.wide_outputs:
        names = ", ".join(map(repr, report.wide_outputs))
        subject = f"Output {names} is" if len(report.wide_outputs) == 1 else f"Outputs {names} are"
        return (next_step(f"{subject} beyond {report.precision}: add {spell('io', 'float32')}", report.next_command),)
    if report.rewritten is None:
        # No limit admits the infinities and NaN that follow an overflow.
        limits = "" if report.first_offenders else ", or set limits that the model can keep"
        return (Step(f"Convert the float32 model with mixlist convert, if you have it{limits}."),)
    if report.verdict == "fail":
        return (Step("Repair again with more data, and with data that is more like that of the validation."),)
    if not report.edits:
        return (Step("The model keeps every limit on this data, and can be used as it is."),)
    if any(edit.corrects_types for edit in report.edits):
        text = "Use the repaired model: the given one loads nowhere. If you have the float32 model, compare with it"
        return (Step(f"{text}: mixlist check ORIGINAL.onnx OUT --data ..."),)
    check = next_step("Check the repaired model, also on other data", report.check_command)
    speed = next_step("Compare the speed of the repaired model with that of the given one", report.next_command)
    return check, speed


def _headline(report: RepairReport) -> str:
    if report.rewritten is None:
        return f"{report.model}: no repair"
    if not report.edits:
        return f"{report.model}: nothing to repair"
    if not report.low_nodes:
        return f"{report.model}: types corrected"
    corrections = len(_edits(report, corrects_types=True))
    edits = pluralize(len(_edits(report, corrects_types=False)), "edit")
    nodes = f"{report.raised_nodes} of {pluralize(report.low_nodes, f'{report.precision} node')} raised to float32"
    corrected = f"{pluralize(corrections, 'type')} corrected, " if corrections else ""
    return f"{report.model}: {corrected}{edits}, {nodes}"


def _offender_row(finding: NodeFinding) -> list[Cell]:
    texts = finding_texts(finding)
    return [
        mark_kind(finding.kind),
        str(finding.ref),
        finding.op_type,
        f"{texts['place']} {texts['tensor']}",
        texts["reference"],
    ]


def _edits(report: RepairReport, *, corrects_types: bool) -> list[RepairEdit]:
    """Return the corrections of types, or the other edits."""
    return [edit for edit in report.edits if edit.corrects_types == corrects_types]


def _edits_title(report: RepairReport) -> str:
    edits = _edits(report, corrects_types=False)
    kinds = {"raise": "connected nodes that are raised to float32", "clip": "Clips of tensors"}
    used = [text for kind, text in kinds.items() if any(edit.kind == kind for edit in edits)]
    return f"{pluralize(len(edits), 'edit')}: {' and '.join(used)}"


def _edit_blocks(report: RepairReport) -> tuple[Block, ...]:
    edits = _edits(report, corrects_types=False)
    if not edits:
        return ()
    columns = columns_of("edit", "what", "op", "matrix work", "why", "without it")
    rows = [row for number, edit in enumerate(edits, start=1) for row in _edit_rows(number, edit)]
    table = Table(columns, rows, MAX_ROWS, REST_IN_JSON)
    before, after = report.low_share["base"], report.low_share["repaired"]
    if before is None:
        return (table,)
    shares = f"{format_share(before)} of the work before, {format_share(after)} after"
    return (table, Text((f"Matrix products and convolutions in low precision: {shares}",)))


def _corrections(report: RepairReport) -> Section:
    """Return the types that are corrected: after the raised nodes, because there may be hundreds."""
    edits = _edits(report, corrects_types=True)
    rows = [(edit.tensor, "Cast" if edit.kind == "cast" else "declaration", edit.why) for edit in edits]
    columns = columns_of("tensor", "what", "why", names=[0])
    title = f"{pluralize(len(rows), 'type')} corrected, so that the model loads"
    return Section("types", title, (Table(columns, rows, _MAX_CORRECTIONS, REST_IN_JSON),) if rows else ())


def _edit_rows(number: int, edit: RepairEdit) -> list[tuple[str, ...]]:
    """Return a row for each node of an edit; only the first one has the texts of the edit."""
    if edit.kind == "clip":
        return [
            (str(number), f"{edit.tensor} between +-{format_number(edit.limit)}", "Clip", "-", edit.why or "-", "-")
        ]
    cost = "-" if edit.cost is None else format_share(edit.cost)
    texts = [(cost, edit.why or "-", edit.without or "-"), *[("", "", "")] * (len(edit.nodes) - 1)]
    return [(str(number), str(node.ref), node.op_type, *text) for node, text in zip(edit.nodes, texts, strict=True)]


def _error_row(errors: OutputErrors, has_before: bool) -> tuple[str, ...]:
    def texts(output: OutputFinding | None) -> tuple[str, str]:
        if output is None:
            return "-", "-"
        return format_number(output.normalized_error), format_cosine(output.cosine)

    (error_before, cosine_before), (error_after, cosine_after) = texts(errors.before), texts(errors.after)
    if not has_before:  # of a given model that loads nowhere
        return errors.name, error_after, cosine_after
    return errors.name, error_before, error_after, cosine_before, cosine_after
