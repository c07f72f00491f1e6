"""Compare the emulated check of a model with its native check on a GPU (``check --compare-emulated``)."""

from __future__ import annotations

from mixlist.checker.result import CheckReport, EmulationComparison
from mixlist.graph.refs import NodeRef


def compare_with_emulation(native: CheckReport, emulated: CheckReport) -> EmulationComparison:
    """Return the nodes and outputs for which the native and the emulated check of one model differ."""
    differences = []
    native_kinds, emulated_kinds = _kinds_by_node(native), _kinds_by_node(emulated)
    for node in dict.fromkeys([*native_kinds, *emulated_kinds]):
        native_text, emulated_text = native_kinds.get(node, "nothing"), emulated_kinds.get(node, "nothing")
        if native_text != emulated_text:
            differences.append(f"{node}: {native_text} natively, {emulated_text} emulated")
    # Errors differ a little in any case: only a limit that one check keeps and the other one misses is a difference.
    for native_output, emulated_output in zip(native.outputs, emulated.outputs, strict=True):
        if native_output.passed != emulated_output.passed:
            verb = "keeps" if native_output.passed else "misses"
            native_error = f"{_error_text(native_output.normalized_error)} natively"
            errors = f"{native_error}, {_error_text(emulated_output.normalized_error)} emulated"
            differences.append(
                f"output {native_output.name!r} {verb} its limits only natively: normalized error {errors}"
            )
    return EmulationComparison(emulated.verdict, emulated.exception_rate, tuple(differences))


def _kinds_by_node(report: CheckReport) -> dict[NodeRef, str]:
    """Return the kinds of findings of each node as one text.

    ``internal-risk`` and ``near-limit`` are left out: they warn of other devices and other data, and do not show that
    the two runs differ.
    """
    kinds: dict[NodeRef, list[str]] = {}
    for finding in report.nodes:
        if finding.kind not in ("internal-risk", "near-limit"):
            kinds.setdefault(finding.ref, []).append(finding.kind)
    return {node: ", ".join(sorted(node_kinds)) for node, node_kinds in kinds.items()}


def _error_text(error: float | None) -> str:
    return "not compared" if error is None else f"{error:.3g}"
