"""The report of a diff of two sets of lists: op types, settings, accuracy and cost, a modify_mixlist, and nodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TextIO

from mixlist.diagnostics import Diagnostic
from mixlist.lists.diff import ListDiff
from mixlist.lists.fmt import format_text
from mixlist.number_text import format_amount, format_bytes, format_number, format_share, pluralize
from mixlist.show.document import (
    Block,
    Document,
    ListRow,
    Search,
    Section,
    Step,
    Table,
    Text,
    Verdict,
    columns_of,
    next_step,
)
from mixlist.show.json_csv import write_csv
from mixlist.show.resolve_document import operators_text

if TYPE_CHECKING:
    from mixlist.checker.result import CheckReport
    from mixlist.comparison import DiffReport
    from mixlist.lists.diff import SettingChange
    from mixlist.targets.estimate import Work

_NONE = "-"
_CSV_COLUMNS = ("scope", "name", "op_type", "base", "other", "reason")
_ABOUT = (
    "white: computed in low precision. black: keeps its type in the file. gray: follows the operator upstream."
    " “to-remove” takes an op type off a list, “to-add” puts it on one."
)
Row = tuple[str, str, str]


def diff_document(
    result: ListDiff | DiffReport,
    settings: Sequence[SettingChange] = (),
    warnings: Sequence[Diagnostic] = (),
    max_nodes: int | None = None,
    commands: Mapping[str, str] = MappingProxyType({}),
) -> Document:
    """Return the report of a diff.

    A DiffReport has its own ``settings``, which differ apart from the lists, and ``warnings``. ``max_nodes``: the
    number of nodes on a terminal, None for all. ``commands``: the command lines that write the modify_mixlist
    (``diff``) and the page of the graph (``view``), if there are such.
    """
    edits, report = (result, None) if isinstance(result, ListDiff) else (result.mixlist, result)
    if report is not None:
        settings, warnings = report.settings, report.warnings
    # What happens to the model comes first; without a model these sections are empty.
    sections = (
        Section("sides", "Accuracy and cost", () if report is None else _sides(report)),
        Section("nodes", "Nodes with another precision", () if report is None else _nodes(report, max_nodes)),
        _lists(edits),
        _settings(settings),
        Section("file", "modify_mixlist", _file(edits)),
        Section("about", "How to read this", (Text((_ABOUT,), on="page"),)),
    )
    return Document(
        "diff",
        sections,
        verdict=_verdict(edits, report, settings, result),
        steps=tuple(_next_steps(edits, report, settings, commands)),
        warnings=tuple(warnings),
    )


def _verdict(
    edits: ListDiff | None,
    report: DiffReport | None,
    settings: Sequence[SettingChange],
    result: ListDiff | DiffReport,
) -> Verdict:
    names = (
        (result.base_title, result.other_title)
        if isinstance(result, ListDiff)
        else (result.base.lists, result.other.lists)
    )
    if edits is None:
        totals = "the libraries have names of different name spaces"
    else:
        totals = f"{pluralize(len(edits.moves), 'op type')} on another list" if edits.moves else "all lists are equal"
    subject = " → ".join(names)
    differs = bool(edits or settings or (report and report.nodes))
    return Verdict(
        "DIFFERENT" if differs else "EQUAL",
        "note",
        subject,
        subject if report is None else _headline(report),
        (totals,) if report is None else (f"{' -> '.join(names)}: {totals}",),
    )


def _headline(report: DiffReport) -> str:
    """Return the number of nodes that change, and of the Casts on both sides."""
    changed = f"{len(report.nodes)} of {pluralize(report.total, 'node')}"
    return f"{changed} of {report.model} with another precision; Casts {report.base.casts} -> {report.other.casts}"


# --- lists and settings ---


def _lists(edits: ListDiff | None) -> Section:
    """Return the op types on another list, for a page: a terminal has the modify_mixlist."""
    moves = edits.moves if edits is not None else ()
    counts = Counter((move.before, move.after) for move in moves)
    count_rows = [(*lists, str(number)) for lists, number in counts.most_common()]
    blocks = (
        Table(columns_of("from", "to", "op types", numbers=[2]), count_rows, on="page"),
        Table(
            columns_of("op type", "from", "to", names=[0]),
            [(move.op, move.before, move.after) for move in moves],
            on="page",
            title=pluralize(len(moves), "op type"),
        ),
    )
    return Section("lists", "Op types on another list", blocks if moves else ())


def describe_settings(settings: Iterable[SettingChange]) -> str:
    """Return the sentence about the settings that differ, "" if there are none."""
    names = ", ".join(map(str, settings))
    return f"BASE and OTHER also differ in what no modify_mixlist can express: {names}" if names else ""


def _settings(settings: Sequence[SettingChange]) -> Section:
    rows = [(change.setting, change.base, change.other) for change in settings]
    table = Table(columns_of("setting", "base", "other"), rows, on="page")
    blocks = (Text((describe_settings(settings),), on="terminal"), table) if settings else ()
    return Section("settings", "Other settings that differ", blocks)


def _file(edits: ListDiff | None) -> tuple[Block, ...]:
    """Return the text of the modify_mixlist, for a page."""
    if not edits:
        return ()
    lines = format_text(json.dumps(edits), "diff", "modify-mixlist").splitlines()
    return (Text(tuple(lines), is_file=True, on="page"),)


# --- accuracy and cost ---


def _sides(report: DiffReport) -> tuple[Block, ...]:
    """Return the checks and the estimated costs of both sides, and why a verdict is not a pass; () without data."""
    checks = report.base.check, report.other.check
    works = report.base.work, report.other.work
    if checks[0] is None or checks[1] is None or works[0] is None or works[1] is None:
        return ()
    rows = [*_accuracy_rows(checks[0], checks[1]), *_cost_rows(works[0], works[1])]
    reasons = tuple(
        f"{side}: {check.verdict}: {reason}"
        for side, check in zip(("BASE", "OTHER"), checks, strict=True)
        if check is not None and check.verdict != "pass"
        for reason in check.reasons
    )
    return (Table(columns_of("", "base", "other"), rows), *((Text(reasons),) if reasons else ()))


def _accuracy_rows(base: CheckReport, other: CheckReport) -> list[Row]:
    rows = [
        ("verdict", base.verdict, other.verdict),
        ("exception rate", format_share(base.exception_rate), format_share(other.exception_rate)),
    ]
    # A side that could not run has no outputs.
    outputs = [{output.name: output for output in check.outputs} for check in (base, other)]
    for name in dict.fromkeys((*outputs[0], *outputs[1])):
        pair = [side.get(name) for side in outputs]
        errors = [
            ("normalized error", [format_number(out.normalized_error) if out else _NONE for out in pair]),
            ("largest absolute error", [format_number(out.max_abs_error) if out else _NONE for out in pair]),
            ("differing values", [format_share(out.mismatches) if out else _NONE for out in pair]),
        ]
        # A float output has no differing values, and an output of integers no other measure that is compared here.
        is_float = all(out is None or out.mismatches is None for out in pair)
        rows += [(f"{name}: {measure}", *texts) for measure, texts in (errors[:2] if is_float else errors[2:])]  # type: ignore[misc]
    return rows


def _cost_rows(base: Work, other: Work) -> list[Row]:
    rows = [
        ("matrix operations in low precision", format_share(base.low_share), format_share(other.low_share)),
        ("operations in low precision", format_amount(base.low_flops), format_amount(other.low_flops)),
        ("bytes moved, by estimate", format_bytes(base.bytes), format_bytes(other.bytes)),
    ]
    if base.unknown or other.unknown:
        rows.append(("nodes that the estimate cannot count", str(len(base.unknown)), str(len(other.unknown))))
    return rows


# --- nodes ---


def _nodes(report: DiffReport, max_nodes: int | None) -> tuple[Block, ...]:
    """Return the numbers of nodes by their precisions on both sides, and the nodes."""
    if not report.nodes:
        return ()
    counts = [
        (base or _NONE, other, str(operators.total()), operators_text(operators))
        for (base, other), operators in report.count_changes().items()
    ]
    columns = columns_of("node", "op", "base", "other", "reason under other", names=[0])
    search = Search("node", "nodes", "node, operator, type or reason", [ListRow()] * len(report.nodes))
    nodes = Table(
        columns,
        [(str(node.ref), node.operator, node.base or _NONE, node.other, node.reason) for node in report.nodes],
        max_nodes,
        "--all shows them",
        search=search,
        title="Node by node",
    )
    return (Table(columns_of("base", "other", "nodes", "operators", numbers=[2]), counts), nodes)


def write_diff_csv(report: DiffReport, stream: TextIO) -> None:
    """Write a row for each node that changes."""
    rows = [(n.scope, n.name, n.op_type, n.base, n.other, n.reason) for n in report.nodes]
    write_csv(_CSV_COLUMNS, rows, stream)


def _next_steps(
    edits: ListDiff | None,
    report: DiffReport | None,
    settings: Sequence[SettingChange],
    commands: Mapping[str, str],
) -> list[Step]:
    """Return what the reader should do next. Commands without ``diff``: a file with the edits was given."""
    steps = []
    if settings:
        steps.append(Step(f"{describe_settings(settings)}."))
    if edits and (not commands or "diff" in commands):
        lists = f"the lists of {edits.base_title} into those of {edits.other_title}"
        text = f"The modify_mixlist of this report turns {lists}. Save it to a file, and give it as --mixlist"
        steps.append(next_step(text, commands.get("diff", "")))
    elif edits is not None and not edits:
        steps.append(Step("The lists are equal: nothing is to be changed in them."))
    if report is None and (edits or settings):
        steps.append(Step("To see which nodes of a model change, add --model MODEL to the command."))
    # The page of the graph compares two modify_mixlist files, so the other settings must be equal.
    elif report is not None and report.nodes and edits and not settings and "view" in commands:
        steps.append(Step("To see the nodes in the graph, and what decides them:", commands["view"]))
    return steps or ([] if edits else [Step("Both sides decide alike: nothing is to be changed.")])
