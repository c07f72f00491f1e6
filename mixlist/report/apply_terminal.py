"""Write a summary of ``apply`` for the terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

from mixlist.report import terminal
from mixlist.report.number_text import format_bytes

if TYPE_CHECKING:
    from mixlist.resolver.plan import Plan
    from mixlist.rewriter import RewriteResult


def write_summary(
    plan: Plan,
    result: RewriteResult,
    op_counts: tuple[Counter[str], Counter[str]],
    sizes: tuple[int, int | None],
    stream: TextIO,
) -> None:
    """Write the numbers of nodes and bytes before and after, and how many eligible nodes are in low precision.

    Eligible are the nodes in float32 or in the low type. Nodes of other types, such as float64, cannot become low.
    ``op_counts`` (numbers of nodes by op type) and ``sizes`` (bytes on disk) each hold two values: before and after.
    The second size is None if no file was written.
    """
    before, after = op_counts
    rows = [
        ("nodes", str(before.total()), str(after.total())),
        ("Casts", str(before["Cast"]), str(after["Cast"])),
        ("size", format_bytes(sizes[0]), "not written" if sizes[1] is None else format_bytes(sizes[1])),
    ]
    terminal.write_table(("", "before", "after"), rows, stream)
    low = plan.policy.mode.low
    counts = ", ".join(f"{count} {precision}" for precision, count in result.counts.items())
    stream.write(f"\n{result.low} of {result.eligible} eligible nodes are {low} (nodes by precision: {counts})\n")
    stream.write(f"{result.casts_inserted} Casts inserted, {len(result.constants)} constants converted\n")
