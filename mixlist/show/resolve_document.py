"""The report of ``resolve``: the nodes of a plan, or the chain of ``--explain``, as text, CSV or JSON.

With ``--target``, the report is about the low-precision nodes, and says what the target does with each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TextIO, TypeAlias

from mixlist.decide.decisions import Decision
from mixlist.decide.plan import Plan, make_node_json
from mixlist.files.strict_json import JsonObject
from mixlist.model.operator_names import operator_name
from mixlist.show.document import Document, Section, Table, Text, columns_of
from mixlist.show.json_csv import write_csv
from mixlist.show.terminal import escape_commands

if TYPE_CHECKING:
    from mixlist.targets.target import Otherwise, Target
    from mixlist.targets.target_plan import LowNode

    # A node, with what the target does with it; None if it is not low precision.
    TargetNode: TypeAlias = tuple[Decision, LowNode | None]

_SUMMARY_COLUMNS = columns_of("list", "precision", "rule", "nodes", "operators")
_PRECISION_ORDER = {"float32": 0, "float64": 0, "float16": 1, "bfloat16": 1, "none": 2}
_MAX_OPERATORS = 6  # the number of operators in a sentence, or in a cell next to others
_TABLE_COLUMNS = columns_of("node", "op", "list", "precision", "rule", "reason")
_CSV_COLUMNS = (
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
_TARGET_SUMMARY_COLUMNS = columns_of("kernel", "otherwise", "nodes", "operators")
_TARGET_TABLE_COLUMNS = columns_of("node", "op", "kernel", "otherwise", "rule")
_TARGET_CSV_COLUMNS = (*_CSV_COLUMNS, "kernel", "otherwise")
_EFFECTS: dict[Otherwise, str] = {
    "cast": "{target} computes it in float32, between Casts that it inserts",
    "fallback": "ONNX Runtime's CPU provider runs it",
    "refusal": "{target} does not load the model; apply --target keeps the node as authored",
}


# --- a plan ---


def resolve_document(
    nodes: Sequence[Decision],
    shown_nodes: Sequence[Decision],
    max_rows: int | None,
    model_nodes: Sequence[Decision],
    *,
    joins: bool = False,
) -> Document:
    """Return the number of nodes for each list, precision and rule, then at most ``max_rows`` of ``shown_nodes``.

    ``nodes`` are those of ``model_nodes`` that match the filters: if none does, the text says what the model has.
    ``joins``: neighbors that differ only in their names share one row, so that they do not hide the other nodes.
    The groups that stay in high precision come first, then those in low precision, then those without a precision.
    """
    groups: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for node in nodes:
        groups[node.list, node.precision, node.rule][operator_name(node.domain, node.op_type)] += 1
    rows = [
        (*group, str(operators.total()), operators_text(operators, None))
        for group, operators in sorted(
            groups.items(), key=lambda item: (_PRECISION_ORDER[item[0][1]], -item[1].total(), item[0])
        )
    ]
    total = _count_by_precision(nodes or model_nodes)
    total = total if nodes else f"no node matches; the model has {total}"
    node_rows: list[tuple[str, ...]] = []
    for cells, group in groupby(shown_nodes, _node_cells):
        names = [str(node.ref) for node in group]
        if joins and len(names) > 1:
            names = [f"{names[0]} and {len(names) - 1} more"]
        node_rows += [(name, *cells) for name in names]
    sections = (
        Section("counts", "", (Table(_SUMMARY_COLUMNS, rows),)),
        Section("total", "", (Text((total,)),)),
        Section("nodes", "", (Table(_TABLE_COLUMNS, node_rows, max_rows, "--all shows every node"),)),
    )
    return Document("resolve", sections)


def _count_by_precision(nodes: Sequence[Decision]) -> str:
    """Return "51 nodes: 35 float16, 4 float32, 12 none"."""
    counts = Counter(node.precision for node in nodes)
    by_precision = ", ".join(f"{count} {precision}" for precision, count in sorted(counts.items()))
    return f"{len(nodes)} nodes: {by_precision}"


def _node_cells(node: Decision) -> tuple[str, ...]:
    """Return the cells of a node after its name."""
    return (operator_name(node.domain, node.op_type), node.list, node.precision, node.rule, node.reason)


def select_nodes(nodes: Sequence[Decision]) -> list[Decision]:
    """Return the nodes that the text shows without a filter: those that stay high, then the others that change."""
    high = [node for node in nodes if _PRECISION_ORDER[node.precision] == 0]
    return high + [node for node in nodes if node.changed and _PRECISION_ORDER[node.precision] > 0]


def operators_text(operators: Counter[str], most: int | None = _MAX_OPERATORS) -> str:
    """Return the ``most`` frequent operators (None: all) with their numbers: "MatMul 8, Conv 2 and 3 more"."""
    text = ", ".join(f"{name} {count}" for name, count in operators.most_common(most))
    more = 0 if most is None else len(operators) - most
    return f"{text} and {more} more" if more > 0 else text


def write_node_csv(nodes: Sequence[Decision], stream: TextIO) -> None:
    """Write a row for each node. Semicolons join the items of ``follows`` and ``outputs``."""
    write_csv(_CSV_COLUMNS, map(_csv_row, nodes), stream)


def _csv_row(node: Decision) -> tuple[str, ...]:
    """Return the cells of a node, in the order of _CSV_COLUMNS."""
    follows = ";".join(node.follows)
    outputs = ";".join(f"{name}:{dtype}" for name, dtype in node.outputs.items())
    named = (node.scope, node.name, node.op_type, node.domain)
    return (*named, node.list, node.precision, str(node.changed).lower(), node.rule, follows, outputs, node.reason)


def plan_json(plan: Plan, nodes: Sequence[Decision]) -> JsonObject:
    """Return the ``mixlist.resolve/1`` object of schemas/resolve.json, with only ``nodes`` of the plan."""
    counts = dict(sorted(Counter(node.precision for node in nodes).items()))
    return {**plan.to_json(), "nodes": [make_node_json(node) for node in nodes], "counts": counts}


# --- the chain of a node ---


def chain_json(plan: Plan, chain: Sequence[Decision]) -> JsonObject:
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


# --- a target ---


def low_nodes_document(low_nodes: Sequence[LowNode], max_rows: int | None) -> Document:
    """Return the numbers of nodes with and without a kernel, then the nodes, those without a kernel first."""
    if not low_nodes:
        return Document("resolve --target", (Section("total", "", (Text(("no low-precision node",)),)),))
    groups: dict[tuple[str, str], Counter[str]] = {}
    for node in low_nodes:
        groups.setdefault(_kernel_cells(node), Counter())[operator_of(node)] += 1
    rows = [(*group, str(ops.total()), operators_text(ops, None)) for group, ops in sorted(groups.items())]
    in_order = sorted(low_nodes, key=lambda node: node.has_kernel)
    node_rows = [(str(n.decision.ref), operator_of(n), *_kernel_cells(n), n.decision.rule) for n in in_order]
    sections = (
        Section("counts", "", (Table(_TARGET_SUMMARY_COLUMNS, rows),)),
        Section("nodes", "", (Table(_TARGET_TABLE_COLUMNS, node_rows, max_rows, "--all shows them"),)),
    )
    return Document("resolve --target", sections)


def write_target_csv(nodes: Iterable[TargetNode], stream: TextIO) -> None:
    """Write a row for each node: the columns of ``resolve``, then ``kernel`` and ``otherwise``.

    The last two are empty for a node that is not low precision.
    """
    rows = (
        (*_csv_row(decision), *(("", "") if node is None else (str(node.has_kernel).lower(), node.otherwise or "")))
        for decision, node in nodes
    )
    write_csv(_TARGET_CSV_COLUMNS, rows, stream)


def write_source(target: Target, stream: TextIO) -> None:
    """Write the release whose kernels the table has and its note; nothing for the kernels of the installed runtime."""
    if target.source:
        stream.write(f"the kernels of {target.name} are those of {target.source}\n")
    if target.note:
        stream.write(f"note: {target.note}\n")


def explained_text(target: Target, decision: Decision, low_node: LowNode | None) -> str:
    """Return what a target does with an explained node; ``low_node`` is None if the node is not low precision."""
    if low_node is None:
        return f"    It is not low precision, so {target.name} needs no low-precision kernel for it.\n"
    if low_node.otherwise is None:
        return f"    {target.name} has a {decision.precision} kernel for it (S13.2).\n"
    effect = _EFFECTS[low_node.otherwise].format(target=target.name)
    return f"    {target.name} has no {decision.precision} kernel for it: {effect} (S13.3).\n"


def add_target_json(result: JsonObject, key: str, target: Target, nodes: Iterable[TargetNode]) -> JsonObject:
    """Return a result as JSON with the target, and what the target does with each of ``nodes``, which ``key`` has."""
    with_kernels = [
        make_node_json(decision) | {"kernel": node and node.has_kernel, "otherwise": node and node.otherwise}
        for decision, node in nodes
    ]
    return {**result, key: with_kernels, "target": {"name": target.name, "source": target.source, "note": target.note}}


def _kernel_cells(node: LowNode) -> tuple[str, str]:
    return ("yes", "") if node.otherwise is None else ("no", node.otherwise)


def operator_of(node: LowNode) -> str:
    """Return the operator of a node, with its domain."""
    return operator_name(node.decision.domain, node.decision.op_type)
