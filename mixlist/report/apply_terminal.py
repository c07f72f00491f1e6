"""What ``apply`` did, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from mixlist.graph.node_counts import NodeCounts
from mixlist.report import terminal

if TYPE_CHECKING:
    from mixlist.resolver.plan import Plan
    from mixlist.rewriter import RewriteResult

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


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
        ("size", human_size(sizes[0]), "not written" if sizes[1] is None else human_size(sizes[1])),
    ]
    terminal.table(("", "before", "after"), rows, stream)
    low = plan.policy.mode.low
    counts = ", ".join(f"{count} {precision}" for precision, count in result.counts.items())
    stream.write(f"\n{result.low} of {result.eligible} eligible nodes are {low} (nodes by precision: {counts})\n")
    stream.write(f"{result.casts_inserted} Casts inserted, {len(result.constants)} constants converted\n")


def human_size(number: int) -> str:
    """A number of bytes in the unit people read, three digits."""
    for scale, unit in _UNITS:
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number} bytes"
