"""Write what a target does with the low-precision nodes of a plan, and with a written model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from mixlist.files.strict_json import JsonObject
from mixlist.ops.names import operator_name
from mixlist.report import csv_table, terminal
from mixlist.report.number_text import pluralize
from mixlist.report.resolve_output import CSV_COLUMNS, csv_row, operators_text
from mixlist.resolver.plan import Plan, make_node_json

if TYPE_CHECKING:
    from mixlist.targets.low_nodes import LowNode
    from mixlist.targets.model_check import ModelCheck
    from mixlist.targets.target import Target

_SUMMARY_COLUMNS = ("kernel", "otherwise", "nodes", "operators")
_TABLE_COLUMNS = ("node", "op", "kernel", "otherwise", "rule")
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
    rows = ((*csv_row(node.decision), str(node.has_kernel).lower(), node.otherwise or "") for node in low_nodes)
    csv_table.write_csv((*CSV_COLUMNS, "kernel", "otherwise"), rows, stream)


def low_nodes_json(plan: Plan, target: Target, low_nodes: Sequence[LowNode]) -> JsonObject:
    """Return the ``mixlist.resolve/1`` object of the nodes, with the target and what it does with each node."""
    nodes = [
        make_node_json(node.decision) | {"kernel": node.has_kernel, "otherwise": node.otherwise} for node in low_nodes
    ]
    counts = dict(sorted(Counter(node.decision.precision for node in low_nodes).items()))
    shown_target = {"name": target.name, "source": target.source}
    return {**plan.to_json(), "nodes": nodes, "counts": counts, "target": shown_target}


def applied_target_json(
    target: Target, kept_nodes: Sequence[LowNode], refused: Sequence[LowNode], check: ModelCheck | None
) -> JsonObject:
    """Return the key ``target`` of the report of ``apply``; ``check`` is None if the target is not strongly typed."""
    missing = [] if check is None else check.missing
    return {
        "name": target.name,
        "source": target.source,
        "kept": [node.name for node in kept_nodes],
        "refused": [node.name for node in refused],
        "missing_operators": [
            {"operator": m.operator, "type": m.type or None, "nodes": m.count, "first": m.first} for m in missing
        ],
        "broken_rules": [] if check is None else list(check.broken_rules),
    }


def write_applied_target(
    target: Target, kept_nodes: Sequence[LowNode], refused: Sequence[LowNode], check: ModelCheck | None, stream: TextIO
) -> None:
    """Write which nodes stay as authored for a target, which it refuses, and what its check of the model says."""
    source = f" ({target.source})" if target.source else ""
    if kept_nodes:
        names = operators_text(Counter(map(_operator, kept_nodes)))
        stream.write(f"{target.name}{source} has no low-precision kernel for {names}, which stay as authored\n")
    if refused:
        operators = Counter(map(_operator, refused))
        stream.write(f"{target.name} refuses low-precision nodes: {operators_text(operators)}\n")
    if check is None:
        return
    if check.missing:
        stream.write(f"{target.name}{source} lacks {pluralize(len(check.missing), 'operator')} of the model:\n")
        _write_sentences(map(str, check.missing), len(check.missing), stream)
    if check.broken_rules:
        stream.write(f"the model breaks {pluralize(len(check.broken_rules), 'type rule')} of {target.name}:\n")
        _write_sentences(check.broken_rules, len(check.broken_rules), stream)
    else:
        stream.write(f"the model keeps the type rules of {target.name}\n")


def _write_sentences(sentences: Iterable[str], count: int, stream: TextIO) -> None:
    for sentence, _ in zip(sentences, range(_MAX_SENTENCES), strict=False):
        stream.write(f"  {terminal.escape_commands(sentence)}\n")
    terminal.write_omitted(count - _MAX_SENTENCES, "--report has all", stream)


def _cells(node: LowNode) -> tuple[str, str]:
    return ("yes", "") if node.otherwise is None else ("no", node.otherwise)


def _operator(node: LowNode) -> str:
    return operator_name(node.decision.domain, node.decision.op_type)
