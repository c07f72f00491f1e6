"""What the emulation says of a model that ran natively: the same findings, or where they part."""

from __future__ import annotations

from mixlist.checker.result import CheckReport, Comparison
from mixlist.graph.refs import NodeRef


def compare(native: CheckReport, emulated: CheckReport) -> Comparison:
    """The emulated check beside the native one, node by node and output by output."""
    told = []
    ours, theirs = _kinds(native), _kinds(emulated)
    for where in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(where, "nothing"), theirs.get(where, "nothing")
        if one != other:
            told.append(f"{where}: {one} natively, {other} emulated")
    for output, other_output in zip(native.outputs, emulated.outputs, strict=True):
        if output.passed != other_output.passed:
            errors = f"{output.normalized_error:.3g} natively, {other_output.normalized_error:.3g} emulated"
            told.append(f"output {output.name!r} {_said(output.passed)} natively alone: normalised error {errors}")
    return Comparison(emulated.verdict, emulated.exception_rate, tuple(told))


def _kinds(report: CheckReport) -> dict[NodeRef, str]:
    """What was found, by node; insides of operators and values near the limit say nothing about agreement."""
    kinds: dict[NodeRef, list[str]] = {}
    for node in report.nodes:
        if node.kind not in ("internal-risk", "near-limit"):
            kinds.setdefault(node.ref, []).append(node.kind)
    return {node: ", ".join(sorted(of_node)) for node, of_node in kinds.items()}


def _said(passed: bool) -> str:
    return "keeps its limits" if passed else "misses its limits"
