"""Make the data of the graph page: tables, tree of groups, results of a check, and differences to another plan."""

from __future__ import annotations

from collections import Counter

from mixlist.decide.plan import Plan
from mixlist.files.strict_json import JsonObject
from mixlist.show.check_results import match_check_report
from mixlist.show.graph_tables import INPUT, EdgeRow, GraphTables, NodeRow, TensorRow, collect_tables
from mixlist.show.scope_tree import Group, build_tree
from mixlist.show.text_table import to_columns
from mixlist.write import lay_out_plan


def make_page_data(plan: Plan, check_report: JsonObject | None = None, other_plan: Plan | None = None) -> JsonObject:
    """Return the data of the page.

    ``check_report``: the ``mixlist.check/1`` object of a check of the same model. ``other_plan``: a plan of the same
    model under other lists. Raises UsageError for a report that is not valid, or is about another model.
    """
    tables = collect_tables(plan)
    groups, nodes = _number_groups(tables)
    check = match_check_report(check_report, plan, tables) if check_report is not None else None
    differences = _find_differences(plan, other_plan, tables) if other_plan is not None else None
    return {
        "model": plan.model,
        "low": plan.policy.mode.low,
        "node_count": tables.node_count,
        "input_count": sum(tables.texts.texts[row.op] == INPUT for row in tables.nodes[tables.node_count :]),
        "nodes": to_columns(NodeRow, tables.nodes) | nodes,
        "tensors": to_columns(TensorRow, tables.tensors),
        "edges": to_columns(EdgeRow, tables.edges),
        "groups": groups,
        "check": check,
        "differences": differences,
        "texts": tables.texts.texts,  # last, because the parts above add texts
    }


def _number_groups(tables: GraphTables) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
    """Return the groups in columns, each after the group around it, and the columns ``group`` and ``label_offset``.

    Group 0 is the top of the tree. ``order`` of a node or group is its place among the members of its group.
    """
    top = build_tree(tables.paths)
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
    number = tables.texts.number
    nodes = [
        {
            "node": index,
            "precision": number(other.precision),
            "list": number(other.list),
            "rule": number(other.rule),
            "reason": number(other.reason),
        }
        for index, (decision, other) in enumerate(zip(plan.nodes, other_plan.nodes, strict=True))
        if decision.precision != other.precision
    ]
    casts = sum(map(len, lay_out_plan(other_plan).casts.values()))
    counts = Counter(node.precision for node in other_plan.nodes)
    return {"nodes": nodes, "casts": casts, "counts": dict(sorted(counts.items()))}
