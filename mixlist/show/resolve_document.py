"""The report of ``resolve``: the nodes of a plan as a Document, CSV or JSON, and the sentences of ``--explain``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TextIO

from mixlist.decide.decisions import Decision
from mixlist.decide.plan import Plan, make_node_json
from mixlist.model.operator_names import operator_name
from mixlist.show import csv_table
from mixlist.show.document import Document, Section, Table, Text, columns_of
from mixlist.show.terminal import escape_commands

_SUMMARY_COLUMNS = columns_of("list", "precision", "rule", "nodes", "operators")
_MAX_OPERATORS = 6  # the number of operators in a row of the summary
_TABLE_COLUMNS = columns_of("node", "op", "list", "precision", "rule", "reason")
CSV_COLUMNS = (
    "scope",
    "name",
    "op_type",
    "domain",
    "list",
    "precision",
    "changed",
    "rule",
    "follows",
    "outputs",
    "reason",
)


def resolve_document(nodes: Sequence[Decision], shown_nodes: Sequence[Decision], max_rows: int | None) -> Document:
    """Return the number of nodes for each list, precision and rule, then at most ``max_rows`` of ``shown_nodes``."""
    groups: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for node in nodes:
        groups[node.list, node.precision, node.rule][operator_name(node.domain, node.op_type)] += 1
    rows = [
        (*group, str(operators.total()), operators_text(operators))
        for group, operators in sorted(groups.items(), key=lambda item: (-item[1].total(), item[0]))
    ]
    counts = Counter(node.precision for node in nodes)
    by_precision = ", ".join(f"{count} {precision}" for precision, count in sorted(counts.items()))
    total = f"{len(nodes)} nodes: {by_precision}" if nodes else "no node matches"
    node_rows = [
        (str(n.ref), operator_name(n.domain, n.op_type), n.list, n.precision, n.rule, n.reason) for n in shown_nodes
    ]
    sections = (
        Section("counts", "", (Table(_SUMMARY_COLUMNS, rows),)),
        Section("total", "", (Text((total,)),)),
        Section("nodes", "", (Table(_TABLE_COLUMNS, node_rows, max_rows, "--all shows them"),)),
    )
    return Document("resolve", sections)


def operators_text(operators: Counter[str]) -> str:
    """Return the most frequent operators with their numbers: "MatMul 8, Conv 2 and 3 more"."""
    text = ", ".join(f"{name} {count}" for name, count in operators.most_common(_MAX_OPERATORS))
    more = len(operators) - _MAX_OPERATORS
    return f"{text} and {more} more" if more > 0 else text


def write_node_csv(nodes: Sequence[Decision], stream: TextIO) -> None:
    """Write a row for each node. Semicolons join the items of ``follows`` and ``outputs``."""
    csv_table.write_csv(CSV_COLUMNS, map(csv_row, nodes), stream)


def csv_row(node: Decision) -> tuple[str, ...]:
    """Return the cells of a node, in the order of CSV_COLUMNS."""
    follows = ";".join(node.follows)
    outputs = ";".join(f"{name}:{dtype}" for name, dtype in node.outputs.items())
    named = (node.scope, node.name, node.op_type, node.domain)
    return (*named, node.list, node.precision, str(node.changed).lower(), node.rule, follows, outputs, node.reason)


def plan_json(plan: Plan, nodes: Sequence[Decision]) -> dict[str, object]:
    """Return the ``mixlist.resolve/1`` object of schemas/resolve.json, with only ``nodes`` of the plan."""
    counts = dict(sorted(Counter(node.precision for node in nodes).items()))
    return {**plan.to_json(), "nodes": [make_node_json(node) for node in nodes], "counts": counts}


def chain_json(plan: Plan, chain: Sequence[Decision]) -> dict[str, object]:
    """Return the ``mixlist.explain/1`` object: the nodes from the explained one to the one that decided."""
    return {"format": "mixlist.explain/1", "model": plan.model, "chain": [make_node_json(node) for node in chain]}


def chain_text(chain: Sequence[Decision]) -> str:
    """Return a paragraph for each node, from the explained one to the one that decided."""
    lines = []
    # The last node decided by itself: it follows no node.
    for node, following in zip(chain, [*chain[1:], None], strict=True):
        lines += [f"{node.ref} ({operator_name(node.domain, node.op_type)}) {_effect(node)}.", f"    {node.reason}"]
        lines += [f"    Output {name} is {dtype}." for name, dtype in node.outputs.items()]
        if following is not None:
            lines.append(f"    It follows {following.ref}:")
    return "\n".join(map(escape_commands, lines)) + "\n"


def _effect(node: Decision) -> str:
    if node.precision == "none":
        return "has no precision of its own"
    return f"{'becomes' if node.changed else 'stays'} {node.precision}"
