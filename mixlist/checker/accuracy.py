"""Measure how far the mixed model's outputs are from the reference, and apply the limits (Rules S8.15 to S8.19).

Batch by batch, in sums of float64; no array is kept. A NaN of the reference says nothing about precision: it is
ignored, with a warning (``OutputAccuracy.warnings``). An infinity of the reference agrees with the same infinity of
the mixed model. Any other difference between values of which one is not finite is an infinite error. Integers and
bools are compared exactly and as numbers; texts as unit vectors, at right angles where they differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mixlist.checker.array_comparison import (
    Doubles,
    count_same_argmax,
    dot,
    has_classes,
    largest_relative_error,
    nested_arrays,
    root_of_ratio,
)
from mixlist.checker.result import OutputFinding
from mixlist.diagnostics import Diagnostic, warning
from mixlist.option_fields import option

if TYPE_CHECKING:
    from mixlist.runtime.session import Array

BLOCK = 2**15  # values compared at a time: the float64 copies stay in the processor's cache, and in the heap
FEW = 0.01  # share of differing integers that passes where nobody asked for another
_TEXT = "OSTU"  # numpy kinds of strings; tensors of strings come as objects
_EXACT = "biu"


@dataclass(frozen=True)
class Limits:
    """The limits of an output; None is no limit. Errors are upper limits, ``cosine``, ``snr`` and ``top1`` lower ones.

    ``normalized`` 1e-2: rounding to float16 errs by up to 2^-11 (4.9e-4), to bfloat16 by 2^-8 (3.9e-3), and independent
    roundings add up as the root of their number, so 1e-2 leaves room for some 400 roundings in sequence in float16
    (6 in bfloat16, where a deep model may need more), and is far below what a wrong value costs. It is 40 dB.
    ``cosine`` 0.999: follows from that (an error of e leaves a cosine of at least sqrt(1 - e^2), 0.99995); it judges
    by itself where ``normalized`` was raised or taken off, and then allows 4.5 %.
    The others depend on what an output means, so they are off unless asked for. ``max_abs`` has the output's unit,
    ``snr`` is in dB, ``mismatch`` and ``top1`` are shares from 0 to 1.

    An integer, bool or string output is judged by ``mismatch`` if that is given. By default it passes if at most 1 % of
    its values differ (ids), or if it holds ``normalized``, ``cosine`` and ``snr`` (quantised values, off by one step).
    """

    max_abs: float | None = option(
        None, "Largest absolute error of any output.", "number", flag="--max-abs-error", minimum=0
    )
    max_rel: float | None = option(
        None, "Largest relative error, where the reference is not zero.", "number", flag="--max-rel-error", minimum=0
    )
    normalized: float | None = option(
        1e-2,
        "L2 norm of the difference over that of the reference ('inf': no limit).",
        "number",
        flag="--max-normalized-error",
        minimum=0,
    )
    cosine: float | None = option(
        0.999, "Cosine similarity ('-1': no limit).", "number", flag="--min-cosine", minimum=-1, maximum=1
    )
    snr: float | None = option(None, "Signal-to-noise ratio, in dB.", "number", flag="--min-snr")
    mismatch: float | None = option(
        None,
        "Share of differing values of an integer, bool or string output.  [default: 0.01, or any if they err little]",
        "number",
        flag="--max-mismatch",
        minimum=0,
        maximum=1,
    )
    top1: float | None = option(
        None,
        "Share of rows whose largest element is at the same place.",
        "number",
        flag="--min-top1",
        minimum=0,
        maximum=1,
    )

    def enabled(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


# The limits' names and the fields of an OutputFinding that they bound.
MEASURES = {
    "max_abs": "max_abs_error",
    "max_rel": "max_rel_error",
    "normalized": "normalized_error",
    "mismatch": "mismatches",
    "cosine": "cosine",
    "snr": "snr_db",
    "top1": "top1",
}
_UPPER = ("max_abs", "max_rel", "normalized", "mismatch")


def failed_limits(finding: OutputFinding, limits: Limits, max_ignored: float = 1.0) -> tuple[str, ...]:
    """Return the names of the limits that an output does not keep. NaN keeps no limit.

    ``shape`` among the finding's failed limits (the outputs could not be compared) stays. ``max_ignored`` is the
    largest share of values that may be ignored (Rule S8.21).
    """
    failed = ["shape"] if "shape" in finding.failed_limits else []
    asked = limits.enabled()
    for name, field in MEASURES.items():
        value = getattr(finding, field)
        if name in asked and value is not None:
            keeps = value <= asked[name] if name in _UPPER else value >= asked[name]
            failed += [] if keeps else [name]
    if finding.mismatches is not None and (limits.mismatch is not None or finding.mismatches <= FEW):
        failed = [name for name in failed if name not in ("normalized", "cosine", "snr")]
    if finding.ignored_share > max_ignored:
        failed.append("max_ignored")
    return tuple(failed)


class OutputAccuracy:
    """The metrics of one output, or one tensor, over all batches.

    Largest errors, normalized error, cosine and SNR are those of the worst batch, so that one bad batch does not drown
    in many good ones; the shares (mismatches, top-1 agreement) are over all batches.
    ``only``: limits that are asked for, None for any; what they do not ask for is two thirds of the work.
    ``saturated_magnitude``: what the mixed model makes of values out of range, infinity unless it saturates.
    """

    def __init__(self, name: str, only: Limits | None = None, saturated_magnitude: float = math.inf) -> None:
        self.name = name
        self._saturated = saturated_magnitude
        self._measured = frozenset(MEASURES if only is None else only.enabled())
        self._max_abs = self._max_rel = self._normalized = 0.0
        self._cosine = 1.0
        self._reference = 0.0  # sum of squares over all batches
        self._from_zeros = 0.0  # the largest sum of squares of a difference from a batch that is all zeros
        self._differing, self._agreeing = _Share(), _Share()
        self._values = 0
        self._ignored = 0  # NaN in the reference
        self._from_nan = 0  # of batches that hold nothing but NaN
        self._revived = 0  # of those, no NaN in the mixed model
        self._other_infinities = 0  # infinite in the reference, and not the same in the mixed model
        self._unfit = ""  # why the first pair that cannot be compared cannot

    def add(self, reference: object, mixed: object) -> None:
        """Add one batch. A value is an array, a sequence of values, a map of values by key, or None (absent)."""
        sums = _Sums()
        expected, actual = dict(nested_arrays(reference)), dict(nested_arrays(mixed))
        if expected.keys() != actual.keys():
            counts = f"{len(expected)} in the reference, {len(actual)} in the mixed model"
            self._refuse(f"it holds other tensors ({counts})", sums)
        else:
            for place, array in expected.items():
                self._add_array(array, actual[place], sums)
        self._end_batch(sums)

    def ignore(self, reference: object) -> None:
        """Count a batch whose float inputs hold nothing but NaN; its values are not compared (Rule S8.28)."""
        count = sum(array.size for _, array in nested_arrays(reference))
        self._values += count
        self._from_nan += count

    def merge(self, other: OutputAccuracy) -> None:
        """Add the batches of another one of the same output; the order makes no difference."""
        for name in ("_max_abs", "_max_rel", "_normalized", "_from_zeros"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name in ("_reference", "_values", "_ignored", "_from_nan", "_revived", "_other_infinities"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._cosine = _least(self._cosine, other._cosine)
        for share, of_other in ((self._differing, other._differing), (self._agreeing, other._agreeing)):
            if of_other.whole is not None:
                share.add(of_other.part, of_other.whole)
        self._unfit = self._unfit or other._unfit

    def cannot_pass(self, limits: Limits) -> bool:
        """Return whether a limit is broken whatever the next batches are: shares may recover, largest errors cannot."""
        if self._differing.share is not None:
            return bool(self._unfit)
        final = {"shape", "max_abs", "max_rel"} | (set() if self._from_zeros else {"normalized", "cosine", "snr"})
        return not final.isdisjoint(self.finding(limits).failed_limits)

    @property
    def ignored_share(self) -> float:
        """Return the share of values that are NaN in the reference or come from NaN alone; 1 where there are none."""
        return (self._ignored + self._from_nan) / self._values if self._values else float(not self._unfit)

    def finding(self, limits: Limits, max_ignored: float = 1.0) -> OutputFinding:
        """Return the metrics so far, with the limits that they break; ``max_ignored`` as in ``failed_limits``.

        If nothing was compared, the metrics are None.
        """
        finding = self._metrics()
        failed = failed_limits(finding, limits, max_ignored)
        return replace(finding, passed=not failed, failed_limits=failed)

    def _metrics(self) -> OutputFinding:
        """Return the metrics so far, without a judgement."""
        if self.ignored_share == 1 and not self._unfit:
            return _nothing_compared(self.name)
        normalized = self._normalized
        if self._from_zeros:  # measured by the other batches, since its own are all zeros
            normalized = max(normalized, root_of_ratio(self._from_zeros, self._reference))
        return OutputFinding(
            name=self.name,
            max_abs_error=self._max_abs,
            max_rel_error=self._max_rel,
            normalized_error=normalized,
            cosine=self._cosine,
            snr_db=-20 * math.log10(normalized) if normalized else math.inf,
            mismatches=self._differing.share,
            top1=self._agreeing.share,
            passed=True,
            failed_limits=("shape",) if self._unfit else (),
            ignored_share=self.ignored_share,
        )

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return a warning (ML603) for each kind of values that the figures leave out."""
        messages = []
        if self._unfit:
            messages.append(f"{self.name!r} cannot be compared: {self._unfit}")
        values = f"of {self._values} values of {self.name!r}"
        if self._ignored:
            revived = f"; {self._revived} of them are no NaN in the mixed model" if self._revived else ""
            messages.append(f"{self._ignored} {values} are NaN in the reference and do not count{revived}")
        if self._from_nan:
            messages.append(f"{self._from_nan} {values} do not count: all float inputs of their batches are NaN")
        if self._other_infinities:
            differ = "are infinite in the reference and not the same infinity in the mixed model"
            messages.append(f"{self._other_infinities} {values} {differ}")
        return tuple(warning("ML603", message) for message in messages)

    def _add_array(self, reference: Array, mixed: Array, sums: _Sums) -> None:
        text = reference.dtype.kind in _TEXT
        if reference.shape != mixed.shape:
            self._refuse(f"shape {list(reference.shape)} became {list(mixed.shape)}", sums)
            return
        if text != (mixed.dtype.kind in _TEXT):
            self._refuse(f"type {reference.dtype} became {mixed.dtype}", sums)
            return
        self._values += reference.size
        exact = text or (reference.dtype.kind in _EXACT and mixed.dtype.kind in _EXACT)
        if exact:
            self._differing.add(0, 0)
        elif "top1" in self._measured and has_classes(reference):
            self._agreeing.add(*count_same_argmax(reference, mixed))
        flat, flat_mixed = reference.reshape(-1), mixed.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            block, mixed_block = flat[start : start + BLOCK], flat_mixed[start : start + BLOCK]
            differing = int((block != mixed_block).sum()) if exact else 0
            if exact:
                self._differing.add(differing, block.size)
            if text:
                self._add_texts(differing, block.size, sums)
            else:
                self._add_numbers(block, mixed_block, sums)

    def _add_texts(self, differing: int, count: int, sums: _Sums) -> None:
        if differing:
            self._max_abs = self._max_rel = 1.0
        sums.difference += 2 * differing
        sums.reference += count
        sums.mixed += count
        sums.product += count - differing

    def _add_numbers(self, reference: Array, mixed: Array, sums: _Sums) -> None:
        import numpy as np

        a, b = reference.astype(np.float64), mixed.astype(np.float64)
        with np.errstate(all="ignore"):  # doubles beyond 1e154 have infinite squares: an infinite error then
            squares = dot(a, a)
            if not math.isfinite(squares):  # the reference may hold infinities and NaN
                a, b = self._finite_in_reference(a, b, sums)
                squares = dot(a, a)
            if "cosine" in self._measured:
                sums.mixed += dot(b, b)
                sums.product += dot(a, b)
            difference = np.subtract(b, a, out=b)
            error = dot(difference, difference)
            sums.reference += squares
            sums.difference += error
            if not math.isfinite(error) and not np.isfinite(difference).all():
                self._break(sums)
            elif a.size and not self._measured.isdisjoint(("max_abs", "max_rel")):
                np.abs(difference, out=difference)
                self._max_abs = max(self._max_abs, float(difference.max()))
                if "max_rel" in self._measured:
                    self._max_rel = max(self._max_rel, largest_relative_error(difference, np.abs(a, out=a)))

    def _finite_in_reference(self, reference: Doubles, mixed: Doubles, sums: _Sums) -> tuple[Doubles, Doubles]:
        """Return the values that are finite in the reference; judge its infinities, ignore its NaN (Rule S8.19)."""
        import numpy as np

        nan, infinite = np.isnan(reference), np.isinf(reference)
        # A larger value is none that saturated: a node in float32 computed it from one, so it is wrong.
        agree = (mixed == reference) | (mixed == np.copysign(self._saturated, reference))
        self._ignored += int(nan.sum())
        self._revived += int((nan & ~np.isnan(mixed)).sum())
        differing = int((infinite & ~agree).sum())
        self._other_infinities += differing
        if differing:
            self._break(sums)
        finite = ~(nan | infinite)
        return reference[finite], mixed[finite]

    def _refuse(self, reason: str, sums: _Sums) -> None:
        self._unfit = self._unfit or reason
        self._break(sums)

    def _break(self, sums: _Sums) -> None:
        self._max_abs = self._max_rel = math.inf
        sums.broken = True

    def _end_batch(self, sums: _Sums) -> None:
        if sums.broken:
            self._normalized, self._cosine = math.inf, math.nan
            return
        self._reference += sums.reference
        if sums.difference and sums.reference:
            self._normalized = max(self._normalized, root_of_ratio(sums.difference, sums.reference))
            if "cosine" in self._measured:
                self._cosine = _least(self._cosine, sums.cosine())
        elif sums.difference:
            self._from_zeros = max(self._from_zeros, sums.difference)


def _nothing_compared(name: str) -> OutputFinding:
    """Return the finding of an output of which no value was compared (Rule S8.19)."""
    return OutputFinding(name, None, None, None, None, None, None, None, passed=True, ignored_share=1.0)


@dataclass
class _Sums:
    """Sums of squares and products over one batch."""

    difference: float = 0.0
    reference: float = 0.0
    mixed: float = 0.0
    product: float = 0.0
    broken: bool = False

    def cosine(self) -> float:
        length = math.sqrt(self.reference) * math.sqrt(self.mixed)
        if not math.isfinite(length):
            return math.nan
        return max(-1.0, min(1.0, self.product / length)) if length else 0.0


@dataclass
class _Share:
    """A part of a whole; no share (None) until something was added, if only an empty whole."""

    part: int = 0
    whole: int | None = None

    def add(self, part: int, whole: int) -> None:
        self.part += part
        self.whole = (self.whole or 0) + whole

    @property
    def share(self) -> float | None:
        return None if self.whole is None else self.part / max(self.whole, 1)


def _least(a: float, b: float) -> float:
    """Return the smaller number, NaN if one is NaN."""
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)
