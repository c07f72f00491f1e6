"""Render the difference of two sets of lists as an HTML page: totals, op types, nodes of a model, a modify_mixlist."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic
from mixlist.lists.diff import ListDiff
from mixlist.lists.fmt import format_text
from mixlist.report import diff_texts
from mixlist.report.html_page import Badge, PageHead, Step, model_argument, render_page
from mixlist.report.number_text import pluralize
from mixlist.report.terminal import escape_commands
from mixlist.text_escapes import quote_argument

if TYPE_CHECKING:
    from mixlist.comparison.result import DiffReport, NodeChange
    from mixlist.lists.setting_changes import SettingChange

# The titles of the list of nodes.
_NODE_COLUMNS = ("node", "operator", "from", "to", "reason (target)")


def render(
    result: ListDiff | DiffReport, settings: Sequence[SettingChange] = (), warnings: Sequence[Diagnostic] = ()
) -> str:
    """Return the page. A DiffReport has its own ``settings``, which differ apart from the lists, and ``warnings``."""
    edits, report = (result, None) if isinstance(result, ListDiff) else (result.mixlist, result)
    if report is not None:
        settings, warnings = report.settings, report.warnings
    differs = bool(edits or settings or (report and report.nodes))
    badge = Badge("DIFFERENT", "note", "≠") if differs else Badge("EQUAL", "note", "=")
    if isinstance(result, ListDiff):
        names = result.base_title, result.target_title
    else:
        names = result.base.lists, result.target.lists
    moves = edits.moves if edits is not None else ()
    nodes = report.nodes if report is not None else ()
    values = {
        "report": report,
        "has_edits": bool(edits),
        "steps": _next_steps(edits, report, settings),
        "move_counts": _count_rows((move.before, move.after) for move in moves),
        "move_rows": [(move.op, move.before, move.after) for move in moves],
        "setting_rows": [(change.setting, change.base, change.target) for change in settings],
        "side_rows": diff_texts.side_rows(report) if report is not None else [],
        "reasons": diff_texts.reasons(report) if report is not None else [],
        "node_counts": _count_rows((node.operator, node.base, node.target) for node in nodes),
        # diff.js reads this part as JSON.
        "data": {"columns": _NODE_COLUMNS, "nodes": [_node_row(node) for node in nodes]},
        "modify_mixlist": format_text(json.dumps(edits or {}), "diff", "modify-mixlist"),
    }
    head = PageHead("diff", badge, " → ".join(names), _totals(edits, report), warnings)
    return render_page("diff.html", head, values, scripts=["rows.js", "diff.js"] if nodes else ())


def _node_row(node: NodeChange) -> list[str]:
    texts = (str(node.ref), node.operator, node.base, node.target, node.reason)
    return [escape_commands(text) for text in texts]


def _totals(edits: ListDiff | None, report: DiffReport | None) -> list[str]:
    """Return the number of op types and nodes that differ, as sentences."""
    if edits is None:
        totals = ["the libraries have names of different name spaces"]
    else:
        totals = [f"{pluralize(len(edits.moves), 'op type')} on another list" if edits.moves else "all lists are equal"]
    return [*totals, diff_texts.headline(report)] if report is not None else totals


def _count_rows(keys: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return each distinct key with its number, the largest number first."""
    return [(*key, str(number)) for key, number in Counter(keys).most_common()]


def _next_steps(edits: ListDiff | None, report: DiffReport | None, settings: Sequence[SettingChange]) -> list[Step]:
    """Return what the reader should do next."""
    steps = []
    if settings:
        steps.append(Step(f"{diff_texts.describe_settings(settings)}."))
    if edits:
        lists = f"the lists of {edits.base_title} into those of {edits.target_title}"
        steps.append(Step(f"The modify_mixlist below turns {lists}. Save it to a file, and give it as --mixlist."))
    elif edits is not None:
        steps.append(Step("The lists are equal: nothing is to be changed in them."))
    if report is None and (edits or settings):
        steps.append(Step("To see which nodes of a model change, add --model MODEL to the command."))
    # The page of the graph compares two modify_mixlist files, so the other settings must be equal.
    elif report is not None and report.nodes and edits and not settings:
        model, library = model_argument(report.model), quote_argument(edits.base)
        command = f"mixlist view {model} --ops-info {library} --against FILE -o view.html"
        steps.append(Step("To see the nodes in the graph, and what decides them:", command))
    return steps
