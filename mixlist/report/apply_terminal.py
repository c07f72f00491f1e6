"""What ``apply`` did, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from mixlist.graph.node_counts import NodeCounts
from mixlist.report import terminal
from mixlist.report.number_text import byte_size

if TYPE_CHECKING:
    from mixlist.resolver.plan import Plan
    from mixlist.rewriter import RewriteResult


def write_summary(
    plan: Plan,
    result: RewriteResult,
    counted: tuple[NodeCounts, NodeCounts],
    sizes: tuple[int, int | None],
    stream: TextIO,
) -> None:
    """Numbers before and after, and how much of what could be low is low.

    ``counted`` and ``sizes`` (bytes on disk) hold before and after; the last size is None where nothing was written.
    """
    before, after = counted
    rows = [
        ("nodes", str(before.nodes), str(after.nodes)),
        ("Casts", str(before.casts), str(after.casts)),
        ("size", byte_size(sizes[0]), "not written" if sizes[1] is None else byte_size(sizes[1])),
    ]
    terminal.table(("", "before", "after"), rows, stream)
    low = plan.policy.mode.low
    counts = ", ".join(f"{count} {precision}" for precision, count in result.counts.items())
    stream.write(f"\n{result.low} of {result.eligible} eligible nodes are {low} (nodes by precision: {counts})\n")
    stream.write(f"{result.casts_inserted} Casts inserted, {len(result.constants)} constants converted\n")
