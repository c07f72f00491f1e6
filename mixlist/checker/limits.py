"""Set the limits of a check: errors of outputs, batches that overflow, and values that were not compared.

- Limits of outputs (Rules S8.15 to S8.19): each output breaks some of them, or none.
- The exception rate (Rule S8.14): an *exception* is a batch with an overflow or a saturated tensor. In training it is a
  step whose gradients are not all finite. ``check``, ``tune`` and ``train`` fail if the share of
  exceptions is at or above the limit. Both default limits are those of the Ascend documents.
- Evidence (Rules S8.21, S8.40): if too few output values were compared, or an output is NaN or infinite in float32
  already, there is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from mixlist.checker.result import CheckReport, OutputFinding
from mixlist.errors import UsageError
from mixlist.number_text import format_share
from mixlist.option_fields import command_line_forms, option, with_known_keywords

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def require_numbers(options: DataclassInstance) -> None:
    """Raise TypeError or UsageError for an option that is no number, or not one that the command line takes.

    None is no value.
    """
    for name, form in command_line_forms(type(options)).items():
        value: Any = getattr(options, name)
        if value is None or form.kind not in ("number", "integer"):
            continue
        is_valid = isinstance(value, Integral) if form.kind == "integer" else isinstance(value, Real)
        if not is_valid:
            article = "an" if form.kind == "integer" else "a"
            raise TypeError(f"{name} must be {article} {form.kind}, not {value!r}")
        low, high = form.bounds
        if math.isnan(value):
            raise UsageError(f"{name} is NaN, with which nothing can be compared", hint="give a number, or None")
        if low is not None and value < low:
            raise UsageError(f"{name} must be at least {low}, not {value}")
        if high is not None and value > high:
            raise UsageError(f"{name} must be at most {high}, not {value}")


# --- limits of outputs ---

_DEFAULT_MAX_MISMATCH = 0.01  # Rule S8.17: the share of differing values that passes if ``mismatch`` is not set


@with_known_keywords
@dataclass(frozen=True)
class Limits:
    """The limits of an output; None is no limit. Errors are upper limits, ``cosine`` and ``snr`` lower ones.

    ``normalized`` is 1e-2 by default, which is 40 dB. Rounding to float16 has an error of up to 2^-11 (4.9e-4), to
    bfloat16 of up to 2^-8 (3.9e-3), and the error of n independent roundings grows with the root of n. So the limit
    allows some 400 roundings in sequence in float16, and 6 in bfloat16, where a deep model may need a higher limit. A
    wrong value breaks it by far.

    ``cosine`` is 0.999 by default. It follows from the default of ``normalized``: an error of e leaves a cosine of at
    least sqrt(1 - e^2), which is 0.99995. It decides only if ``normalized`` is raised or None, and then it allows an
    error of 4.5 %.

    The other limits depend on the meaning of an output, so they are None by default. ``max_abs`` has the unit of the
    output, ``snr`` is in dB, ``mismatch`` is a share from 0 to 1.

    Of an integer, bool or string output at most 1 % of the values may differ; ``mismatch`` is another such limit.
    Integers that are quantities (Rule S8.34) pass as well if they keep ``normalized``, ``cosine`` and ``snr``, unless
    ``mismatch`` is set. ``normalized=None`` turns off the limit of 1 %, too, and Rule S8.33 about parts of an output
    that became one value.

    ``per_index``: an axis, negative from the end. Each index of this axis must keep the limits by itself, in every
    output that has the axis, with its own worst batch and shares.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        limits = mixlist.Limits(normalized=0.05, snr=30)
        print(mixlist.check("digits.onnx", mixlist.load_policy(), batches, limits=limits).verdict)
    """

    max_abs: float | None = option(
        None,
        "Largest absolute error of any output.",
        "number",
        flag="--max-abs-error",
        bounds=(0, None),
        group="limits",
    )
    max_rel: float | None = option(
        None,
        "Largest relative error, where the reference is not zero.",
        "number",
        flag="--max-rel-error",
        bounds=(0, None),
        group="limits",
    )
    normalized: float | None = option(
        1e-2,
        "L2 norm of the difference over that of the reference ('inf': no limit).",
        "number",
        flag="--max-normalized-error",
        bounds=(0, None),
        group="limits",
    )
    cosine: float | None = option(
        0.999, "Cosine similarity ('-1': no limit).", "number", flag="--min-cosine", bounds=(-1, 1), group="limits"
    )
    snr: float | None = option(None, "Signal-to-noise ratio, in dB.", "number", flag="--min-snr", group="limits")
    mismatch: float | None = option(
        None,
        "Share of differing values of an integer, bool or string output.  [default: 0.01; integers that are rounded"
        " floats may keep the limits of float outputs instead]",
        "number",
        flag="--max-mismatch",
        bounds=(0, 1),
        group="limits",
    )
    per_index: int | None = option(
        None,
        "Each index of this axis must keep the limits, in every output that has the axis.",
        "integer",
        metavar="AXIS",
        group="limits",
    )

    def __post_init__(self) -> None:
        require_numbers(self)

    @property
    def mismatch_limit(self) -> float | None:
        """Return the largest share of differing values (Rule S8.17), None for no limit."""
        return _DEFAULT_MAX_MISMATCH if self.mismatch is None and self.normalized is not None else self.mismatch

    def enabled(self) -> dict[str, float]:
        """Return the limits that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


# By the name of each limit, the field of an OutputFinding that it bounds.
MEASURES = {
    "max_abs": "max_abs_error",
    "max_rel": "max_rel_error",
    "normalized": "normalized_error",
    "mismatch": "mismatches",
    "cosine": "cosine",
    "snr": "snr_db",
}
_UPPER_LIMITS = ("max_abs", "max_rel", "normalized", "mismatch")


def find_failed_limits(finding: OutputFinding, limits: Limits, max_ignored: float = 1.0) -> tuple[str, ...]:
    """Return the names of the limits that an output breaks. NaN breaks every limit.

    If ``finding.failed_limits`` contains ``shape``, the outputs could not be compared, and the result contains it too.
    ``max_ignored`` is the largest share of values that may be ignored (Rule S8.21).
    """
    failed = ["shape"] if "shape" in finding.failed_limits else []
    enabled = limits.enabled()
    # Rule S8.17: of integers, the share that differs decides. Only quantities may keep the other limits instead.
    mismatches, mismatch_limit = finding.mismatches, limits.mismatch_limit
    is_close = mismatches is not None and mismatch_limit is not None and mismatches <= mismatch_limit
    if finding.id_columns:  # Rule S8.34: the ids and the other columns have limits of their own
        enabled |= {} if mismatch_limit is None else {"mismatch": mismatch_limit}
    elif mismatches is not None and (is_close or limits.mismatch is not None or not finding.quantity):
        enabled = {name: value for name, value in enabled.items() if name not in ("normalized", "cosine", "snr")}
        enabled |= {} if mismatch_limit is None else {"mismatch": mismatch_limit}
    for name, field in MEASURES.items():
        # A measure is None if the output has no such measure. Then its limit does not apply.
        value = getattr(finding, field)
        if name in enabled and value is not None:
            # A comparison with NaN is false, so NaN keeps no limit.
            keeps_limit = value <= enabled[name] if name in _UPPER_LIMITS else value >= enabled[name]
            failed += [] if keeps_limit else [name]
    if finding.collapses:
        failed.append("collapse")
    failed += ["max_ignored"] if finding.ignored_share > max_ignored else []
    failed += ["reference"] if finding.broken_reference else []
    return tuple(failed)


def describe_failed_limits(finding: OutputFinding, limits: Limits) -> str:
    """Return the limits that an output breaks, each with the measured value: ``normalized 0.02 (limit 0.01)``.

    A collapse has a sentence of its own: ``OutputFinding.collapse_text``.
    """
    enabled, worst = limits.enabled(), finding.worst_index
    if limits.mismatch_limit is not None:
        enabled["mismatch"] = limits.mismatch_limit
    texts = []
    for name in finding.failed_limits:
        if name == "collapse":
            continue
        measured = worst if worst is not None and name in worst.failed_limits else finding
        value = getattr(measured, MEASURES[name]) if name in MEASURES else None
        # ``shape`` has no value. The reason of too many ignored values has its own sentence.
        texts.append(name if value is None else describe_broken_limit(name, value, enabled[name]))
    return ", ".join(texts)


def describe_broken_limit(name: str, value: float, limit: float) -> str:
    """Return a measure and its limit with the digits that differ: ``cosine 0.99897 (limit 0.999)``."""
    digits = next((digits for digits in range(3, 17) if f"{value:.{digits}g}" != f"{limit:.{digits}g}"), 17)
    return f"{name} {value:.{digits}g} (limit {limit:.{digits}g})"


# --- the distance to the limits ---

NEAR_LIMIT = 0.8  # the share of a limit from which on a passing result is close to it


def describe_near_limit(*checks: CheckReport | None) -> str:
    """Return the limit that passing checks almost break, as a sentence; "" if none is close."""
    used = [(0.0, "")]  # the shares of the limits that are used, with the limits in words
    for check in filter(None, checks):
        for output in check.outputs:
            used += _shares_of_limits(output, check.limits)
        rate, rate_limit = check.exception_rate, check.limits.get("exception_rate")
        if rate_limit:
            used.append(
                (rate / rate_limit, f"the exception rate is {format_share(rate)} of {format_share(rate_limit)}")
            )
    share, limit = max(used)
    return f"{limit}: another batch may miss it, so give more batches" if share >= NEAR_LIMIT else ""


def largest_share_of_limits(outputs: Iterable[OutputFinding], limits: Mapping[str, float]) -> float:
    """Return how much of a limit the outputs use, of the limit that they use most: more than 1 if one is broken.

    ``limits``: the limits of outputs by name. NaN, which breaks every limit, counts as infinite.
    """
    shares = [share for output in outputs for share, _ in _shares_of_limits(output, limits)]
    return max((math.inf if math.isnan(share) else share for share in shares), default=0.0)


def _shares_of_limits(output: OutputFinding, limits: Mapping[str, float]) -> Iterator[tuple[float, str]]:
    """Yield how much of each limit an output uses, 1 for all of it, and the limit in words.

    Of a lower limit, the distance to a perfect output counts: a cosine of 0.9991 uses 0.9 of the limit 0.999.
    """
    for name, field in MEASURES.items():
        value, limit = getattr(output, field), limits.get(name)
        # Rule S8.17: an integer output has the limit of its mismatches, or passes by one of two limits.
        is_exact = output.mismatches is not None and not output.id_columns
        if value is None or limit is None or (is_exact and name != "mismatch"):
            continue
        if name in _UPPER_LIMITS:
            share = value / limit if limit else 0.0  # 0 is kept exactly, or not
        elif name == "snr":
            share = 10 ** ((limit - value) / 20)  # in dB: as the quotient of two errors
        else:
            share = (1 - value) / (1 - limit) if limit < 1 else 0.0
        yield share, f"output {output.name!r} has {name} {value:.4g} of {limit:g}"


# --- the exception rate ---

DEFAULT_RATE_LIMIT = 0.005
LARGE_BATCH_RATE_LIMIT = 0.001  # with --large-batch


def exception_rate(exceptions: int, total: int) -> float:
    """Return the share of ``total`` batches or steps that are exceptions; 0 if ``total`` is 0."""
    return exceptions / max(total, 1)


def too_many_exceptions(exceptions: int, total: int, limit: float) -> bool:
    """Return True if the exception rate is at or above the limit.

    Without an exception the result is False, even for a limit of 0. Example: with a limit of 0.005, 1 of 200 batches is
    too many and 1 of 201 is not.
    """
    return exceptions > 0 and exception_rate(exceptions, total) >= limit


def describe_rate(exceptions: int, total: int, limit: float) -> str:
    """Return the exception rate and its limit as a part of a sentence: ``0.5 %, the limit is 0.5 %``.

    A rate below the limit that three digits round up to it has more digits: ``0.49998 %, the limit is 0.5 %``.
    """
    rate = exception_rate(exceptions, total)
    seems_equal = rate < limit and format_share(rate) == format_share(limit)
    return f"{format_share(rate, 5 if seems_equal else 3)}, the limit is {format_share(limit)}"


# --- evidence ---

_WHY_NOT_COMPARED = "is NaN in the reference, comes from NaN alone, or has no elements"


def missing_evidence(outputs: Sequence[OutputFinding], max_ignored: float) -> tuple[str, ...]:
    """Return the reasons why the outputs allow no verdict, one sentence each; () if they allow one.

    ``max_ignored`` is the largest share of an output's values that may be ignored, from 0 to 1. Even with 1, at least
    one value of one output must have been compared. The ignored share depends on the reference and the data alone,
    never on the lists.
    """
    broken = [output.broken_reference for output in outputs if output.broken_reference]  # Rule S8.40
    others = [output for output in outputs if not output.broken_reference]
    # Nothing was compared: one reason for all outputs, which holds for every ``max_ignored``.
    if others and all(output.ignored_share == 1 for output in outputs):
        return (*broken, f"no value was compared: every {'other ' * bool(broken)}output {_WHY_NOT_COMPARED}")
    return (*broken, *(_reason(output, max_ignored) for output in others if output.ignored_share > max_ignored))


def _reason(output: OutputFinding, max_ignored: float) -> str:
    if output.ignored_share == 1:
        return f"output {output.name!r} was not compared: it {_WHY_NOT_COMPARED}"
    ignored = f"{format_share(output.ignored_share)} of output {output.name!r}"
    return f"{ignored} is NaN in the reference or comes from NaN alone, the limit is {format_share(max_ignored)}"
