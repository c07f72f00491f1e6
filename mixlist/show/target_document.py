"""The report of ``resolve --target``: what a target does with the low-precision nodes, as a Document, CSV or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO, TypeAlias

from mixlist.decide.plan import Plan, make_node_json
from mixlist.files.strict_json import JsonObject
from mixlist.model.operator_names import operator_name
from mixlist.show import csv_table
from mixlist.show.document import Document, Section, Table, Text, columns_of
from mixlist.show.resolve_document import CSV_COLUMNS, chain_json, csv_row, operators_text

if TYPE_CHECKING:
    from mixlist.decide import Decision
    from mixlist.targets.target import Otherwise, Target
    from mixlist.targets.target_plan import LowNode

    # A node of a chain, with what the target does with it; None if it is not low precision.
    Explained: TypeAlias = tuple[Decision, LowNode | None]

_SUMMARY_COLUMNS = columns_of("kernel", "otherwise", "nodes", "operators")
_TABLE_COLUMNS = columns_of("node", "op", "kernel", "otherwise", "rule")
_CSV_COLUMNS = (*CSV_COLUMNS, "kernel", "otherwise")
_EFFECTS: dict[Otherwise, str] = {
    "cast": "{target} computes it in float32, between Casts that it inserts",
    "fallback": "ONNX Runtime's CPU provider runs it",
    "refusal": "{target} does not load the model; apply --target keeps the node as authored",
}


def low_nodes_document(low_nodes: Sequence[LowNode], max_rows: int | None) -> Document:
    """Return the numbers of nodes with and without a kernel, then the nodes, those without a kernel first."""
    if not low_nodes:
        return Document("resolve --target", (Section("total", "", (Text(("no low-precision node",)),)),))
    groups: dict[tuple[str, str], Counter[str]] = {}
    for node in low_nodes:
        groups.setdefault(_cells(node), Counter())[operator_of(node)] += 1
    rows = [(*group, str(ops.total()), operators_text(ops)) for group, ops in sorted(groups.items())]
    in_order = sorted(low_nodes, key=lambda node: node.has_kernel)
    node_rows = [(str(n.decision.ref), operator_of(n), *_cells(n), n.decision.rule) for n in in_order]
    sections = (
        Section("counts", "", (Table(_SUMMARY_COLUMNS, rows),)),
        Section("nodes", "", (Table(_TABLE_COLUMNS, node_rows, max_rows, "--all shows them"),)),
    )
    return Document("resolve --target", sections)


def write_low_node_csv(low_nodes: Iterable[LowNode], stream: TextIO) -> None:
    """Write a row for each node: the columns of ``resolve``, then ``kernel`` and ``otherwise``."""
    rows = ((*csv_row(node.decision), *_csv_cells(node)) for node in low_nodes)
    csv_table.write_csv(_CSV_COLUMNS, rows, stream)


def write_source(target: Target, stream: TextIO) -> None:
    """Write the release whose kernels the table has; nothing for the kernels of the installed ONNX Runtime."""
    if target.source:
        stream.write(f"the kernels of {target.name} are those of {target.source}\n")


def explained_text(target: Target, decision: Decision, low_node: LowNode | None) -> str:
    """Return what a target does with an explained node; ``low_node`` is None if the node is not low precision."""
    if low_node is None:
        return f"    It is not low precision, so {target.name} needs no low-precision kernel for it.\n"
    if low_node.otherwise is None:
        return f"    {target.name} has a {decision.precision} kernel for it (S13.2).\n"
    effect = _EFFECTS[low_node.otherwise].format(target=target.name)
    return f"    {target.name} has no {decision.precision} kernel for it: {effect} (S13.3).\n"


def explained_json(plan: Plan, target: Target, explained: Sequence[Explained]) -> JsonObject:
    """Return the ``mixlist.explain/1`` object, with the target and what it does with each node of the chain."""
    content = chain_json(plan, [decision for decision, _ in explained])
    nodes = [
        make_node_json(decision) | {"kernel": node and node.has_kernel, "otherwise": node and node.otherwise}
        for decision, node in explained
    ]
    return {**content, "chain": nodes, "target": {"name": target.name, "source": target.source}}


def write_explained_csv(explained: Sequence[Explained], stream: TextIO) -> None:
    """Write a row for each node of the chain; the columns of the target are empty for other nodes than low ones."""
    rows = ((*csv_row(decision), *_csv_cells(node)) for decision, node in explained)
    csv_table.write_csv(_CSV_COLUMNS, rows, stream)


def low_nodes_json(plan: Plan, target: Target, low_nodes: Sequence[LowNode]) -> JsonObject:
    """Return the ``mixlist.resolve/1`` object of the nodes, with the target and what it does with each node."""
    nodes = [
        make_node_json(node.decision) | {"kernel": node.has_kernel, "otherwise": node.otherwise} for node in low_nodes
    ]
    counts = dict(sorted(Counter(node.decision.precision for node in low_nodes).items()))
    shown_target = {"name": target.name, "source": target.source}
    return {**plan.to_json(), "nodes": nodes, "counts": counts, "target": shown_target}


def _csv_cells(node: LowNode | None) -> tuple[str, str]:
    return ("", "") if node is None else (str(node.has_kernel).lower(), node.otherwise or "")


def _cells(node: LowNode) -> tuple[str, str]:
    return ("yes", "") if node.otherwise is None else ("no", node.otherwise)


def operator_of(node: LowNode) -> str:
    """Return the operator of a node, with its domain."""
    return operator_name(node.decision.domain, node.decision.op_type)
