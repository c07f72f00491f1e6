"""The words and figures that the terminal and the HTML report of a check share."""

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
from mixlist.report.number_text import cosine, figure, pluralize, share


@dataclass(frozen=True)
class Meaning:
    """The meaning of a kind of finding; ``failing`` ones fail the verdict, ``warning`` ones deserve a look."""

    weight: Literal["failing", "warning", "note"]
    text: str


# In the order in which a reader wants them.
KINDS: dict[FindingKind, Meaning] = {
    "refused": Meaning("failing", "ONNX Runtime refuses to run it in the mixed model, and runs it in float32"),
    "overflow": Meaning(
        "failing", "finite in float32, not finite in low precision: an output with finite inputs, or a converted input"
    ),
    "saturated": Meaning("failing", "held at the largest finite value; float32 is beyond it"),
    "propagated": Meaning("note", "not finite because an input is not"),
    "internal-risk": Meaning("warning", "its output is finite, but a step inside the operator may leave the range"),
    "near-limit": Meaning("warning", "within a factor of two of the largest finite value"),
    "underflow": Meaning("warning", "became zero, or lost its small values; float32 keeps them"),
    "preexisting": Meaning("note", "not finite in float32 already"),
    "intended": Meaning("note", "an infinity by design: a constant or a mask"),
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
WORST = 3  # nodes that are shown with advice
EMULATED = (
    "Emulated: ONNX Runtime's CPU provider computes most float16 nodes in float32 and drops the Casts between them,"
    " so the mixed model itself would show no overflow there. Instead a float32 model ran in which every"
    " low-precision value is rounded to the low type."
)


def counted(counts: ValueCounts) -> str:
    """Return the shares of a tensor's values outside of the low type's best range; "" if there are none."""
    parts = (
        (counts.nonfinite, counts.values, "not finite"),
        (counts.flushed, counts.nonzero, "became zero"),
        (counts.subnormal, counts.values, "subnormal"),
        (counts.near_limit, counts.values, "near the limit"),
    )
    return ", ".join(f"{share(number / max(whole, number, 1))} {what}" for number, whole, what in parts if number)


def worst_counted(report: CheckReport) -> list[tuple[TensorRange, ValueCounts]]:
    """The tensors with values outside the low type's best range: those that lose the largest share first."""

    def lost(found: tuple[TensorRange, ValueCounts]) -> float:
        counts = found[1]
        outside = (counts.nonfinite, counts.flushed, counts.subnormal / 2, counts.near_limit / 2)
        return -max(outside) / max(counts.values, 1)

    found = [(each, each.counts) for each in report.tensors if each.counts is not None and counted(each.counts)]
    return sorted(found, key=lost)


def in_batches(found: NodeFinding, report: CheckReport) -> str:
    """Return the number of batches with a finding, and the first of them, counted from 0."""
    if not found.batches:
        return "-"
    first = f", first #{found.batches[0]}" if report.batches > 1 else ""
    if found.kind == "refused":  # these are not among the batches that the report compares
        return f"{len(found.batches)}, first #{found.batches[0]}"
    return f"{len(found.batches)} of {report.batches}{first}"


def finding_texts(found: NodeFinding, report: CheckReport | None = None) -> dict[str, str]:
    """Return a finding in words; without a report, one of a single batch, with the advice elsewhere."""
    worst = "" if found.count is None or report is None else f"{pluralize(found.count, 'value')} in the worst"
    return {
        "kind": found.kind,
        "weight": KINDS[found.kind].weight,
        "node": str(found.ref),
        "operator": found.op_type,
        "place": "input" if found.input else "output",
        "tensor": found.tensor,
        "reference": _largest(found.max_abs_fp32, found.max_number_fp32),
        "mixed": "not computed" if found.kind == "refused" else _largest(found.max_abs_low, found.max_number_low),
        "count": figure(found.count),
        "worst": worst,
        "batches": in_batches(found, report) if report is not None else "",
        "low_by": _low_by(found),
        "suggestion": found.suggestion if report is not None else "",
    }


def _largest(magnitude: float, number: float | None) -> str:
    """Return the largest magnitude in words: the largest number and NaN, where there are both."""
    return figure(magnitude) if number is None or not math.isnan(magnitude) else f"{figure(number)} and nan"


def _low_by(found: NodeFinding) -> str:
    """Return what made a node low; of a node that is high, which low node upstream it computes with, and what did."""
    source = found.low_source
    if source is None:
        return found.source or ("" if found.list == "none" else found.list)
    depends = "it depends on an integer made of" if found.kind == "refused" else "it is high, and computes with"
    return f"{depends} values of {source.ref} ({source.op_type}), {source.source}"


def worst_nodes(report: CheckReport) -> list[NodeError]:
    """Return the nodes that add most error, where outputs miss their limits and nodes were ranked (Rule S8.27).

    Where too little was compared, no node is to blame.
    """
    if not any(output.verdict == "fail" for output in report.outputs):
        return []
    return [error for error in report.layerwise[:WORST] if error.normalized_error]


def first_offenders(report: CheckReport) -> list[NodeFinding]:
    """The findings that lead the report: where it starts, the failing kinds first."""
    return by_weight(found for found in report.nodes if found.first)


def by_weight(findings: Iterable[NodeFinding]) -> list[NodeFinding]:
    """Findings in the order of their kinds; the model's order within a kind."""
    order = {kind: at for at, kind in enumerate(KINDS)}
    return sorted(findings, key=lambda found: order[found.kind])


def headline(report: CheckReport) -> str:
    """One line on what was checked."""
    return f"{report.model} in {conditions(report)}"


def conditions(report: CheckReport) -> str:
    """Return in which precision, where and on how many batches was checked."""
    return f"{report.precision}, {report.mode} on {report.provider}, {pluralize(report.batches, 'batch')}"


def exceptions(report: CheckReport) -> str:
    """The exception rate beside its limit."""
    limit = report.limits.get("exception_rate")
    beside = f" (fails from {share(limit)})" if limit is not None else ""
    return f"exception rate {share(report.exception_rate)}{beside}"


def comparison(report: CheckReport) -> tuple[str, ...]:
    """Return the result of the emulation after a native check, one text per line; () if there is none."""
    if report.emulated is None:
        return ()
    rate = share(report.emulated.exception_rate)
    told = f"emulated on the CPU: {report.emulated.verdict}, exception rate {rate}"
    return (told + ("" if report.emulated.differences else ", the same findings"), *report.emulated.differences)


def output_row(output: OutputFinding) -> tuple[str, ...]:
    """The cells under ``OUTPUT_COLUMNS``."""
    return (
        output.name,
        figure(output.max_abs_error),
        figure(output.max_rel_error),
        figure(output.normalized_error),
        cosine(output.cosine),
        figure(output.snr_db, 3),
        share(output.mismatches),
        share(output.top1),
        share(output.ignored_share),
        "pass" if output.passed else f"{output.verdict}: {', '.join(output.failed_limits)}",
    )


def limits_text(limits: Mapping[str, float]) -> list[str]:
    """Return the limits as the options that set them."""
    forms = command_line_forms(CheckOptions) | command_line_forms(Limits)
    forms["exception_rate"] = forms["max_exception_rate"]
    return [f"{forms[name].flag} {figure(value)}" for name, value in limits.items()]
