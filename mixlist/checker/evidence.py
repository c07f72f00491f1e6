"""Decide whether the outputs of a check were compared at all: a verdict needs evidence (Rule S8.21)."""

from __future__ import annotations

from collections.abc import Sequence

from mixlist.checker.result import OutputFinding


def missing_evidence(outputs: Sequence[OutputFinding], max_ignored: float) -> tuple[str, ...]:
    """Return why nothing can be concluded from the outputs, one sentence each; () where it can.

    ``max_ignored`` is the largest share of an output's values that may be ignored. Even a share of 1 asks for one value
    in all outputs. What is ignored depends on the reference and the data alone, never on the lists.
    """
    if outputs and all(output.ignored_share == 1 for output in outputs):
        return ("no value was compared: every output is NaN in the reference or has no elements",)
    return tuple(_sentence(output, max_ignored) for output in outputs if output.ignored_share > max_ignored)


def _sentence(output: OutputFinding, limit: float) -> str:
    if output.ignored_share == 1:
        return f"output {output.name!r} was not compared: it is NaN in the reference or has no elements"
    return f"{output.ignored_share:.2%} of output {output.name!r} is NaN in the reference, the limit is {limit:.2%}"
