"""Write what a target does with the low-precision nodes of a plan, and with a written model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO, TypeAlias

from mixlist.files.strict_json import JsonObject
from mixlist.ops.names import operator_name
from mixlist.report import csv_table, terminal
from mixlist.report.number_text import pluralize
from mixlist.report.resolve_output import CSV_COLUMNS, chain_json, csv_row, operators_text
from mixlist.resolver.plan import Plan, make_node_json

if TYPE_CHECKING:
    from mixlist.resolver import Decision
    from mixlist.targets.low_nodes import LowNode
    from mixlist.targets.model_check import ModelCheck
    from mixlist.targets.target import Otherwise, Target
    from mixlist.targets.target_plan import TargetPlan

    # A node of a chain, with what the target does with it; None if it is not low precision.
    Explained: TypeAlias = tuple[Decision, LowNode | None]

_SUMMARY_COLUMNS = ("kernel", "otherwise", "nodes", "operators")
_TABLE_COLUMNS = ("node", "op", "kernel", "otherwise", "rule")
_CSV_COLUMNS = (*CSV_COLUMNS, "kernel", "otherwise")
_EFFECTS: dict[Otherwise, str] = {
    "cast": "{target} computes it in float32, between Casts that it inserts",
    "fallback": "ONNX Runtime's CPU provider runs it",
    "refusal": "{target} does not load the model; apply --target keeps the node as authored",
}
_MAX_SENTENCES = 20  # the number of operators or broken rules that the terminal shows


def write_low_nodes(low_nodes: Sequence[LowNode], max_rows: int | None, stream: TextIO) -> None:
    """Write the numbers of nodes with and without a kernel, then a line for each, those without a kernel first."""
    if not low_nodes:
        stream.write("no low-precision node\n")
        return
    groups: dict[tuple[str, str], Counter[str]] = {}
    for node in low_nodes:
        groups.setdefault(_cells(node), Counter())[_operator(node)] += 1
    rows = [(*group, str(ops.total()), operators_text(ops)) for group, ops in sorted(groups.items())]
    terminal.write_table(_SUMMARY_COLUMNS, rows, stream)
    in_order = sorted(low_nodes, key=lambda node: node.has_kernel)
    lines = [(str(n.decision.ref), _operator(n), *_cells(n), n.decision.rule) for n in in_order[:max_rows]]
    stream.write("\n")
    terminal.write_table(_TABLE_COLUMNS, lines, stream)
    terminal.write_omitted(len(low_nodes) - len(lines), "--all shows them", stream)


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


def applied_target_json(use: TargetPlan, check: ModelCheck | None) -> JsonObject:
    """Return the key ``target`` of the report of ``apply``; ``check`` is None if the target is not strongly typed."""
    missing = [] if check is None else check.missing
    return {
        "name": use.target,
        "source": use.source,
        "kept": [node.name for node in use.kept],
        "refused": [node.name for node in use.refused],
        "missing_operators": [
            {"operator": m.operator, "type": m.type or None, "nodes": m.count, "first": m.first} for m in missing
        ],
        "broken_rules": [] if check is None else list(check.broken_rules),
    }


def write_applied_target(use: TargetPlan, check: ModelCheck | None, stream: TextIO) -> None:
    """Write which nodes stay as authored for a target, which it refuses, and what its check of the model says."""
    source = f" ({use.source})" if use.source else ""
    if use.kept:
        names = operators_text(Counter(map(_operator, use.kept)))
        stream.write(f"{use.target}{source} has no low-precision kernel for {names}, which stay as authored\n")
    if use.refused:
        operators = Counter(map(_operator, use.refused))
        stream.write(f"{use.target} refuses low-precision nodes: {operators_text(operators)}\n")
    if check is None:
        return
    if check.missing:
        stream.write(f"{use.target}{source} lacks {pluralize(len(check.missing), 'operator')} of the model:\n")
        _write_sentences(map(str, check.missing), len(check.missing), stream)
    if check.broken_rules:
        stream.write(f"the model breaks {pluralize(len(check.broken_rules), 'type rule')} of {use.target}:\n")
        _write_sentences(check.broken_rules, len(check.broken_rules), stream)
    else:
        stream.write(f"the model keeps the type rules of {use.target}\n")


def _write_sentences(sentences: Iterable[str], count: int, stream: TextIO) -> None:
    for sentence, _ in zip(sentences, range(_MAX_SENTENCES), strict=False):
        stream.write(f"  {terminal.escape_commands(sentence)}\n")
    terminal.write_omitted(count - _MAX_SENTENCES, "--report has all", stream)


def _csv_cells(node: LowNode | None) -> tuple[str, str]:
    return ("", "") if node is None else (str(node.has_kernel).lower(), node.otherwise or "")


def _cells(node: LowNode) -> tuple[str, str]:
    return ("yes", "") if node.otherwise is None else ("no", node.otherwise)


def _operator(node: LowNode) -> str:
    return operator_name(node.decision.domain, node.decision.op_type)
