"""Compare the emulation of a model with its native run: the same findings, or where the two differ."""

from __future__ import annotations

from mixlist.checker.result import CheckReport, EmulationComparison
from mixlist.graph.refs import NodeRef


def compare_with_emulation(native: CheckReport, emulated: CheckReport) -> EmulationComparison:
    """Compare two checks of one model, node by node and output by output."""
    differences = []
    native_kinds, emulated_kinds = _kinds(native), _kinds(emulated)
    for node in dict.fromkeys([*native_kinds, *emulated_kinds]):
        one, other = native_kinds.get(node, "nothing"), emulated_kinds.get(node, "nothing")
        if one != other:
            differences.append(f"{node}: {one} natively, {other} emulated")
    for output, other_output in zip(native.outputs, emulated.outputs, strict=True):
        if output.passed != other_output.passed:
            verb = "keeps" if output.passed else "misses"
            errors = f"{_text(output.normalized_error)} natively, {_text(other_output.normalized_error)} emulated"
            differences.append(f"output {output.name!r} {verb} its limits natively alone: normalised error {errors}")
    return EmulationComparison(emulated.verdict, emulated.exception_rate, tuple(differences))


def _kinds(report: CheckReport) -> dict[NodeRef, str]:
    """Return the findings by node; those inside operators and near the limit say nothing about agreement."""
    kinds: dict[NodeRef, list[str]] = {}
    for node in report.nodes:
        if node.kind not in ("internal-risk", "near-limit"):
            kinds.setdefault(node.ref, []).append(node.kind)
    return {node: ", ".join(sorted(of_node)) for node, of_node in kinds.items()}


def _text(error: float | None) -> str:
    return "not compared" if error is None else f"{error:.3g}"
