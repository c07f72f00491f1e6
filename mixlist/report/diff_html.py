"""Render the difference of two sets of lists as an HTML page: totals, op types, nodes of a model, a modify_mixlist."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mixlist.diagnostics import Diagnostic
from mixlist.lists.diff import ListDiff
from mixlist.lists.fmt import format_text
from mixlist.report.html_page import Badge, PageHead, Step, model_argument, render_page
from mixlist.report.number_text import pluralize

NODE_COLUMNS = ("scope", "name", "op_type", "base", "target", "reason")
# The number of nodes in the folded table.
_MAX_NODES = 1000


@dataclass(frozen=True)
class NodeDifferences:
    """The nodes of a model whose precision differs: rows under ``NODE_COLUMNS``. ``total``: the number of all nodes."""

    model: str
    total: int
    rows: Sequence[tuple[str, ...]]


def render(diff: ListDiff, nodes: NodeDifferences | None = None, warnings: Sequence[Diagnostic] = ()) -> str:
    """Return the page. ``nodes``: the difference in a model, if there is one."""
    differs = bool(diff) or bool(nodes and nodes.rows)
    badge = Badge("DIFFERENT", "note", "≠") if differs else Badge("EQUAL", "note", "=")
    head = PageHead(
        "diff",
        badge,
        f"{_name(diff.base, diff.base_edits)} → {_name(diff.target, diff.target_edits)}",
        _totals(diff, nodes),
        warnings,
    )
    values = {
        "diff": diff,
        "nodes": nodes,
        "steps": _next_steps(diff, nodes),
        "move_counts": _count_rows((move.before, move.after) for move in diff.moves),
        "move_rows": [(move.op, move.before, move.after) for move in diff.moves],
        "node_counts": []
        if nodes is None
        else _count_rows((op, base, target) for _, _, op, base, target, _ in nodes.rows),
        "node_rows": [] if nodes is None else [_node_row(row) for row in nodes.rows[:_MAX_NODES]],
        "modify_mixlist": format_text(json.dumps(diff), "diff", "modify-mixlist"),
    }
    return render_page("diff.html", head, values)


def _totals(diff: ListDiff, nodes: NodeDifferences | None) -> list[str]:
    """Return the number of op types and nodes that differ, as sentences."""
    totals = [f"{pluralize(len(diff.moves), 'op type')} on another list" if diff.moves else "all lists are equal"]
    if nodes is not None:
        share = f"{len(nodes.rows)} of {pluralize(nodes.total, 'node')}"
        totals.append(f"{share} of {nodes.model} with another precision")
    return totals


def _name(library: str, edits: int) -> str:
    """Return the name of a library, and the number of op types that a modify_mixlist moves."""
    return f"{library} with {pluralize(edits, 'edit')}" if edits else library


def _count_rows(keys: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return each distinct key with its number, the largest number first."""
    return [(*key, str(number)) for key, number in Counter(keys).most_common()]


def _node_row(row: tuple[str, ...]) -> tuple[str, ...]:
    scope, name, op_type, base, target, reason = row
    return f"{scope}/{name}" if scope else name, op_type, base, target, reason


def _next_steps(diff: ListDiff, nodes: NodeDifferences | None) -> list[Step]:
    """Return what the reader should do next."""
    if not diff:
        return [Step("The lists are equal: nothing is to be changed.")]
    base = _name(diff.base, diff.base_edits)
    steps = [
        Step(
            f"The modify_mixlist below turns the lists of {base} into those of"
            f" {_name(diff.target, diff.target_edits)}. Save it to a file, and give it as --mixlist."
        )
    ]
    if nodes is None:
        steps.append(Step("To see which nodes of a model change, add --model MODEL to the command."))
    elif nodes.rows:
        model, library = model_argument(nodes.model), shlex.quote(diff.base)
        command = f"mixlist view {model} --ops-info {library} --against FILE -o view.html"
        steps.append(Step("To see the nodes in the graph, and what decides them:", command))
    return steps
