"""The texts and figures that the terminal report and the HTML report of a check share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mixlist.checker.limits import Limits
from mixlist.checker.options import CheckOptions
from mixlist.checker.result import (
    CheckReport,
    FindingKind,
    NodeError,
    NodeFinding,
    OutputFinding,
    TensorRange,
    ValueCounts,
)
from mixlist.option_fields import command_line_forms
from mixlist.report.number_text import format_bytes, format_cosine, format_number, format_share, pluralize


@dataclass(frozen=True)
class KindDescription:
    """The severity and the meaning of a kind of finding.

    A ``failing`` kind makes the verdict fail. A ``warning`` kind does not, but the user should look at its nodes.
    """

    severity: Literal["failing", "warning", "note"]
    text: str


# Reports list the kinds in this order: the most important first.
KINDS: dict[FindingKind, KindDescription] = {
    "refused": KindDescription(
        "failing", "ONNX Runtime refuses to run the node in the mixed model, but runs the node in float32"
    ),
    "overflow": KindDescription(
        "failing", "finite in float32, not finite in low precision: an output with finite inputs, or a converted input"
    ),
    "saturated": KindDescription("failing", "limited to the largest finite value; the float32 value is larger"),
    "propagated": KindDescription("note", "not finite because an input is not finite"),
    "internal-risk": KindDescription(
        "warning", "a sum inside the operator leaves the range, and a kernel that adds in low precision overflows there"
    ),
    "near-limit": KindDescription("warning", "within a factor of two of the largest finite value"),
    "underflow": KindDescription("warning", "became zero, or lost its small values; float32 keeps them"),
    "preexisting": KindDescription("note", "not finite in float32 already"),
    "intended": KindDescription("note", "an infinity by design: a constant or a mask"),
}
OUTPUT_COLUMNS = (
    "output",
    "max abs",
    "max rel",
    "normalized",
    "cosine",
    "SNR dB",
    "differing",
    "same top-1",
    "ignored",
    "verdict",
)
# The number of nodes that a report shows with advice.
NODES_WITH_ADVICE = 3
EMULATED = (
    "Emulated: instead of the mixed model, a float32 model ran. It rounds every low-precision value to the low type."
    " The mixed model itself would show no overflow, because ONNX Runtime's CPU provider computes most float16 nodes in"
    " float32 and removes the Casts between them."
)


def describe_counts(counts: ValueCounts) -> str:
    """Return the shares of a tensor's values that low precision loses or nearly loses; "" if there are none."""
    parts = (
        (counts.nonfinite, counts.values, "not finite"),
        (counts.flushed, counts.nonzero, "became zero"),
        (counts.subnormal, counts.values, "subnormal"),
        (counts.near_limit, counts.values, "near the limit"),
    )
    return ", ".join(
        # The divisor is never 0, and no share exceeds 100 %.
        f"{format_share(number / max(total, number, 1))} {effect}"
        for number, total, effect in parts
        if number
    )


def tensors_by_lost_values(report: CheckReport) -> list[tuple[TensorRange, ValueCounts]]:
    """Return the tensors with values that low precision loses or nearly loses, the largest share first."""

    def negative_share(entry: tuple[TensorRange, ValueCounts]) -> float:
        counts = entry[1]
        # Subnormal values and values near the limit still exist in low precision, so they weigh half.
        lost = (counts.nonfinite, counts.flushed, counts.subnormal / 2, counts.near_limit / 2)
        # Negative, because sorted() puts the smallest key first.
        return -max(lost) / max(counts.values, 1)

    counted = [(tensor, tensor.counts) for tensor in report.tensors if tensor.counts is not None]
    return sorted((entry for entry in counted if describe_counts(entry[1])), key=negative_share)


def format_batches(finding: NodeFinding, report: CheckReport) -> str:
    """Return the number of batches with a finding, and the first of these batches, counted from 0."""
    if not finding.batches:
        return "-"
    first = f", first #{finding.batches[0]}" if report.batches > 1 else ""
    # Refused batches are not among the batches that the report compares, so "of" would be wrong.
    if finding.kind == "refused":
        return f"{len(finding.batches)}, first #{finding.batches[0]}"
    return f"{len(finding.batches)} of {report.batches}{first}"


def finding_texts(finding: NodeFinding, report: CheckReport | None = None) -> dict[str, str]:
    """Return the texts of a finding. The keys say what each text is.

    Without a report (``train``), the finding is from a single batch, and its advice is shown elsewhere.
    """
    worst = "" if finding.count is None or report is None else f"{pluralize(finding.count, 'value')} in the worst batch"
    return {
        "kind": finding.kind,
        "severity": KINDS[finding.kind].severity,
        "node": str(finding.ref),
        "operator": finding.op_type,
        "place": "inside" if finding.inside else "input" if finding.input else "output",
        "tensor": finding.tensor,
        "reference": _largest(finding.max_abs_fp32, finding.max_number_fp32),
        "reference_title": "before its conversion" if finding.input else "in float32",
        # A refused node has no value in the mixed model: its magnitude is NaN, which would read as a result.
        "mixed": "not computed" if finding.kind == "refused" else _largest(finding.max_abs_low, finding.max_number_low),
        "count": format_number(finding.count),
        "worst": worst,
        "batches": format_batches(finding, report) if report is not None else "",
        "low_by": _low_by(finding),
        "suggestion": finding.suggestion if report is not None else "",
    }


def _largest(magnitude: float, number: float | None) -> str:
    """Return the largest magnitude as text, for example ``57050``, ``inf`` or ``57050 and nan``.

    ``magnitude`` is NaN if the tensor has a NaN. ``number`` is the largest magnitude of the other values, None if it is
    unknown.
    """
    return (
        format_number(magnitude) if number is None or not math.isnan(magnitude) else f"{format_number(number)} and nan"
    )


def _low_by(finding: NodeFinding) -> str:
    """Return the list entry that put a node in low precision.

    For a node in high precision, return the low-precision node upstream whose values it reads, and the entry of that
    node. For a node that ONNX Runtime refuses to run, return the low-precision node from whose values an integer that
    the refused node depends on is computed.
    """
    source = finding.low_source
    if source is None:
        return finding.source or ("" if finding.list == "none" else finding.list)
    # The node did not become low itself: name the low-precision node upstream that its values depend on (Rule S8.26).
    relation = (
        "the node depends on an integer computed from"
        if finding.kind == "refused"
        else "the node is in high precision, and reads"
    )
    return f"{relation} values of {source.ref} ({source.op_type}), {source.source}"


def worst_nodes(report: CheckReport) -> list[NodeError]:
    """Return the nodes that add the most error, if outputs miss their limits and the nodes are ranked (Rule S8.27).

    An output that is inconclusive misses no limit, so no node is shown for it.
    """
    if not any(output.verdict == "fail" for output in report.outputs):
        return []
    return [error for error in report.layerwise[:NODES_WITH_ADVICE] if error.normalized_error]


def first_offenders(report: CheckReport) -> list[NodeFinding]:
    """Return the findings where overflow starts, the failing kinds first. A report shows them first."""
    return sort_by_kind(finding for finding in report.nodes if finding.first)


def sort_by_kind(findings: Iterable[NodeFinding]) -> list[NodeFinding]:
    """Return findings in the order of ``KINDS``; within a kind, in the order of the model."""
    order = {kind: position for position, kind in enumerate(KINDS)}
    return sorted(findings, key=lambda finding: order[finding.kind])


def headline(report: CheckReport) -> str:
    """Return the model and the conditions of the check, as one line."""
    return f"{report.model} in {conditions(report)}"


def conditions(report: CheckReport) -> str:
    """Return the precision, the mode, the provider and the number of batches."""
    return f"{report.precision}, {report.mode} on {report.provider}, {pluralize(report.batches, 'batch')}"


def describe_exceptions(report: CheckReport) -> str:
    """Return the exception rate with its limit."""
    limit = report.limits.get("exception_rate")
    limit_text = f" (fails from {format_share(limit)})" if limit is not None else ""
    return f"exception rate {format_share(report.exception_rate)}{limit_text}"


def describe_segments(report: CheckReport) -> tuple[str, ...]:
    """Return the line that says that the models ran in segments; () if they ran whole (Rule S8.31)."""
    if report.segment_bytes is None:
        return ()
    return (f"in segments of at most {format_bytes(report.segment_bytes)} of weights",)


def describe_emulation(report: CheckReport) -> tuple[str, ...]:
    """Return the lines that compare a native check with its emulation; () if there is no emulation."""
    if report.emulated is None:
        return ()
    rate = format_share(report.emulated.exception_rate)
    verdict = f"emulated on the CPU: {report.emulated.verdict}, exception rate {rate}"
    return (verdict + ("" if report.emulated.differences else ", the same findings"), *report.emulated.differences)


def output_row(output: OutputFinding) -> tuple[str, ...]:
    """Return the cells of an output under ``OUTPUT_COLUMNS``."""
    return (
        output.name,
        format_number(output.max_abs_error),
        format_number(output.max_rel_error),
        format_number(output.normalized_error),
        format_cosine(output.cosine),
        format_number(output.snr_db, 3),
        format_share(output.mismatches),
        format_share(output.top1),
        format_share(output.ignored_share),
        "pass" if output.passed else f"{output.verdict}: {', '.join(output.failed_limits)}",
    )


def limits_text(limits: Mapping[str, float]) -> list[str]:
    """Return the limits as the options that set them."""
    forms = command_line_forms(CheckOptions) | command_line_forms(Limits)
    # The limit ``exception_rate`` has the option of the field ``max_exception_rate``.
    forms["exception_rate"] = forms["max_exception_rate"]
    return [f"{forms[name].flag} {format_number(value)}" for name, value in limits.items()]
