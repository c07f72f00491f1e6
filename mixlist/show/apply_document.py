"""The report of ``apply``: the nodes and bytes before and after, and what a target says about the written model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixlist.files.strict_json import JsonObject
from mixlist.number_text import format_bytes, pluralize
from mixlist.show.document import MAX_ROWS, Document, Section, Table, Text, columns_of
from mixlist.show.resolve_document import operator_of, operators_text

if TYPE_CHECKING:
    from mixlist.decide.plan import Plan
    from mixlist.targets.model_check import ModelCheck
    from mixlist.targets.target_plan import TargetPlan
    from mixlist.write import RewriteResult


def apply_document(
    plan: Plan,
    result: RewriteResult,
    op_counts: tuple[Counter[str], Counter[str]],
    sizes: tuple[int, int],
    remarks: Sequence[str],
) -> Document:
    """Return the numbers of nodes and bytes before and after, and how many eligible nodes are in low precision.

    Eligible are the nodes in float32 or in the low type. Nodes of other types, such as float64, cannot become low.
    ``op_counts`` (numbers of nodes by op type) and ``sizes`` (bytes on disk) each hold two values: before and after.
    ``remarks``: sentences about the target.
    """
    before, after = op_counts
    rows = [
        ("nodes", str(before.total()), str(after.total())),
        ("Casts", str(before["Cast"]), str(after["Cast"])),
        ("size", format_bytes(sizes[0]), format_bytes(sizes[1])),
    ]
    counts = ", ".join(f"{count} {precision}" for precision, count in result.counts.items())
    low = plan.policy.mode.low
    # Casts of an earlier conversion make place for the new ones.
    removed_casts = before["Cast"] + result.casts_inserted - after["Cast"]
    removed = f"{removed_casts} removed, " if removed_casts > 0 else ""
    lines = (
        f"{result.low} of {result.eligible} eligible nodes are {low} (nodes by precision: {counts})",
        f"{result.casts_inserted} Casts inserted, {removed}{len(result.constants)} constants converted",
    )
    table = Table(columns_of("", "before", "after"), rows)
    return Document("apply", (Section("sizes", "", (table,)), Section("nodes", "", (Text((*lines, *remarks)),))))


def describe_target(use: TargetPlan, check: ModelCheck | None) -> list[str]:
    """Return which nodes stay as authored for a target, which it refuses, and what its check of the model says."""
    source = f" ({use.source})" if use.source else ""
    lines = []
    if use.kept:
        names = operators_text(Counter(map(operator_of, use.kept)))
        lines.append(f"{use.target}{source} has no low-precision kernel for {names}, which stay as authored")
    if use.refused:
        operators = operators_text(Counter(map(operator_of, use.refused)))
        lines.append(f"{use.target} refuses low-precision nodes: {operators}")
    return lines if check is None else [*lines, *describe_check(f"{use.target}{source}", use.target, check)]


def describe_check(release: str, target: str, check: ModelCheck) -> list[str]:
    """Return which operators of a model a strongly typed target lacks, and which type rules the model breaks.

    ``release``: the name of the target with the release of its table.
    """
    lines = []
    if check.missing:
        lines.append(f"{release} lacks {pluralize(len(check.missing), 'operator')} of the model:")
        lines += _first_sentences(list(map(str, check.missing)))
    if check.broken_rules:
        lines.append(f"the model breaks {pluralize(len(check.broken_rules), 'type rule')} of {target}:")
        lines += _first_sentences(check.broken_rules)
    else:
        lines.append(f"the model keeps the type rules of {target}")
    return lines


def _first_sentences(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - MAX_ROWS
    shown = [f"  {sentence}" for sentence in sentences[:MAX_ROWS]]
    return [*shown, f"  ... and {more} more (mixlist apply --report has all)"] if more > 0 else shown


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
