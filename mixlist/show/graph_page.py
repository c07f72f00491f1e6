"""Render the graph of a plan as an HTML page: folded groups, colors by precision, Casts, reasons, results of a check.

A group is filled with the colors of its nodes, in proportion. Float32 has the strongest color, because a reader looks
for what stays float32. A long graph is drawn in columns, so that it can be read in one window.

The page draws on a canvas with code of its own, because that is fast enough and libraries are not. Measured in Chromium
without a GPU, on a loaded machine with 2 cores, for 10,000 boxes, all visible: a frame of a move takes 0.2 s with the
canvas, 0.4 s with SVG and 0.5 s with Cytoscape.js 3.34, and the first picture 0.2 s, 2 s and 8 s. For 2,000 boxes, the
most that the page shows, a frame of the canvas takes 17 to 100 ms.

dagre 3.1 (third_party/) places 150 boxes of one group in 0.3 s, and a group has at most 24 (scope_tree.py); elkjs 0.12
takes twice as long and has 1.6 MB instead of 50 kB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from mixlist.decide.plan import Plan
from mixlist.files.strict_json import JsonObject
from mixlist.model.naming import NodeRef
from mixlist.number_text import pluralize
from mixlist.show.check_document import KINDS
from mixlist.show.check_results import match_check_report
from mixlist.show.document import Frame
from mixlist.show.graph_tables import INPUT, EdgeRow, GraphTables, NodeRow, TensorRow, collect_tables, to_columns
from mixlist.show.html_page import TEMPLATES, render_page
from mixlist.show.scope_tree import Group, build_tree
from mixlist.show.terminal import escape_commands
from mixlist.write import lay_out_plan

_SCRIPTS = ("model", "layout", "colors", "drawing", "details", "tree", "network_chart", "address", "page")
_THIRD_PARTY = TEMPLATES.parent / "third_party"


# --- the page ---


def view_page(
    plan: Plan,
    *,
    check: JsonObject | None = None,
    against: Plan | None = None,
    searched: Mapping[NodeRef, str] | None = None,
) -> str:
    """Return the page of a plan.

    ``check``: the ``mixlist.check/1`` object of a check of the same model (``CheckReport.to_json()``). ``against``: a
    plan of the same model under other lists; the page shows the nodes that differ. ``searched``: the reasons of
    the nodes that a search raised, which replace those of its node rules; the page then opens colored by precision,
    also with findings. Raises UsageError for a ``check`` that is not valid or is about another model.
    """
    graph = _escape_texts(make_page_data(plan, check, against, searched or {}))
    kinds = {kind: {"severity": severity, "text": meaning} for kind, (severity, meaning) in KINDS.items()}
    values = {
        "subject": plan.model,
        "summary": _summarize(plan),
        "data": {"graph": graph, "kinds": kinds, "color": "" if searched is None else "precision"},
    }
    title = f"{plan.model} – mixlist view"
    return render_page("view.html", title, plan.warnings, values, styles=["view.css"], code=_read_scripts())


def graph_frame(plan: Plan, check: JsonObject, searched: Mapping[NodeRef, str] | None = None) -> Frame:
    """Return the page of a plan and a check, in a frame for a report. ``searched``: as of view_page."""
    page = view_page(plan, check=check, searched=searched)
    return Frame(page, _read_scripts(), f"Graph of {plan.model} with the findings")


def _summarize(plan: Plan) -> str:
    """Return the policy and the counts of a plan in one line."""
    policy = plan.policy
    counts = ", ".join(f"{count} {name}" for name, count in Counter(plan.counts).most_common())
    return f"{policy.mode.name}, library {policy.lists.library.name}; {pluralize(len(plan.nodes), 'node')}: {counts}"


@cache
def _read_scripts() -> str:
    """Return the script of the page: dagre with its license, then the files of templates/view/."""
    license_text = (_THIRD_PARTY / "dagre.LICENSE").read_text("utf-8")
    # Without the line that names a source map, which a browser would fetch.
    dagre = (_THIRD_PARTY / "dagre.min.js").read_text("utf-8").partition("//# sourceMappingURL=")[0]
    own = [(TEMPLATES / "view" / f"{name}.js").read_text("utf-8") for name in _SCRIPTS]
    return "\n".join([f"/*! dagre\n{license_text}*/", dagre, *own])


def _escape_texts(value: Any) -> Any:
    """Return the data with the control characters in all texts escaped, as other reports show them."""
    if isinstance(value, str):
        return value if value.isprintable() else escape_commands(value)
    if isinstance(value, list):
        return [_escape_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _escape_texts(item) for key, item in value.items()}
    return value


# --- the data ---


def make_page_data(
    plan: Plan,
    check_report: JsonObject | None = None,
    other_plan: Plan | None = None,
    searched: Mapping[NodeRef, str] = MappingProxyType({}),
) -> JsonObject:
    """Return the data of the page.

    ``check_report``: the ``mixlist.check/1`` object of a check of the same model. ``other_plan``: a plan of the same
    model under other lists. ``searched``: as of view_page. Raises UsageError for a report that is not valid, or is
    about another model.
    """
    tables = collect_tables(plan)
    texts = tables.texts
    for ref, reason in searched.items():
        number = tables.node_numbers[ref]
        tables.nodes[number] = tables.nodes[number]._replace(reason=tables.text_number(reason))
    groups, nodes = _number_groups(tables)
    check = match_check_report(check_report, plan, tables) if check_report is not None else None
    differences = _find_differences(plan, other_plan, tables) if other_plan is not None else None
    return {
        "model": plan.model,
        "low": plan.policy.mode.low,
        "node_count": tables.node_count,
        "input_count": sum(texts[row.op] == INPUT for row in tables.nodes[tables.node_count :]),
        "nodes": to_columns(NodeRow, tables.nodes) | nodes,
        "tensors": to_columns(TensorRow, tables.tensors),
        "edges": to_columns(EdgeRow, tables.edges),
        "groups": groups,
        "check": check,
        "differences": differences,
        "texts": tables.texts,  # last, because the parts above add texts
    }


def _number_groups(tables: GraphTables) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
    """Return the groups in columns, each after the group around it, and the columns ``group`` and ``label_offset``.

    Group 0 is the top of the tree. ``order`` of a node or group is its place among the members of its group.
    """
    texts = tables.texts
    op_types = [texts[row.op] for row in tables.nodes]
    inputs = [node for node, op_type in enumerate(op_types) if op_type == INPUT]
    top = build_tree(tables.paths, op_types, tables.node_producers(), inputs)
    groups: dict[str, list[object]] = {"parent": [-1], "kind": [top.kind], "label": [top.label], "order": [0]}
    empty: list[object] = [0] * len(tables.nodes)
    nodes = {"group": list(empty), "label_offset": list(empty), "order": list(empty)}
    pending: list[tuple[Group, int]] = [(top, 0)]
    for group, number in pending:  # grows while it is read
        for order, member in enumerate(group.members):
            if isinstance(member, Group):
                pending.append((member, len(groups["parent"])))
                groups["parent"].append(number)
                groups["kind"].append(member.kind)
                groups["label"].append(member.label)
                groups["order"].append(order)
            else:
                nodes["group"][member] = number
                nodes["label_offset"][member] = group.offset
                nodes["order"][member] = order
    return groups, nodes


def _find_differences(plan: Plan, other_plan: Plan, tables: GraphTables) -> JsonObject:
    """Return the nodes whose precision differs, with the other decision, and the counts of the other plan."""
    text_number = tables.text_number
    nodes = [
        {
            "node": index,
            "precision": text_number(other.precision),
            "list": text_number(other.list),
            "rule": text_number(other.rule),
            "reason": text_number(other.reason),
        }
        for index, (decision, other) in enumerate(zip(plan.nodes, other_plan.nodes, strict=True))
        if decision.precision != other.precision
    ]
    casts = lay_out_plan(other_plan).new_cast_count
    counts = Counter(node.precision for node in other_plan.nodes)
    return {"nodes": nodes, "casts": casts, "counts": dict(sorted(counts.items()))}
