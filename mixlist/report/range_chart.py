"""The dynamic range of every tensor on a log2 scale against the limits of the low type: geometry only, no markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mixlist.checker.result import TensorRange

# The look of a tensor: float32, low precision, low with a warning, not finite because of an input, a failing finding.
Look = Literal["high", "low", "warning", "propagated", "failing"]
LOOKS: tuple[Look, ...] = ("high", "low", "warning", "propagated", "failing")

WIDTH, HEIGHT = 1100.0, 300.0  # of the picture's plot, in its own units
COLUMNS = 550  # more tensors than this share columns: two units are what the eye can still tell apart
_LINE = 13.0  # height of a line of text beside the picture
_STUB = 3.0  # length of a mark for a tensor of which only the upper end is known
_MARGIN = 4  # powers of two drawn beyond the low type's limits, whatever the values
_REACH = 16  # and at most, for values further out


@dataclass(frozen=True)
class Format:
    """The limits of a low type: largest finite value, smallest normal and smallest subnormal, as log2."""

    largest: float
    largest_text: str
    normal: int
    subnormal: int


FORMATS = {
    "float16": Format(math.log2(65504), "65504", -14, -24),
    "bfloat16": Format(128.0, "3.39e38", -126, -133),  # (2 - 2^-7) * 2^127
}


@dataclass(frozen=True)
class Span:
    """The magnitudes of a tensor as log2: ``low`` of the smallest that is not zero, ``high`` of the largest.

    ``low`` is None if it was not computed, ``high`` None if all values are zero; infinite values give infinity.
    """

    low: float | None
    high: float | None


def span(tensor: TensorRange) -> Span:
    """The span of a tensor in float32; NaN counts as infinite."""
    ends = abs(tensor.minimum), abs(tensor.maximum)
    high = math.inf if any(map(math.isnan, ends)) else max(ends)
    return Span(_log2(tensor.smallest) if tensor.smallest else None, _log2(high) if high else None)


def _log2(value: float) -> float:
    return math.log2(value) if math.isfinite(value) else math.inf


@dataclass(frozen=True)
class Scale:
    """The powers of two that are drawn; what lies beyond is drawn at the edge."""

    bottom: float
    top: float

    def place(self, power: float) -> float:
        """From 0 at the bottom to 1 at the top."""
        return (min(max(power, self.bottom), self.top) - self.bottom) / (self.top - self.bottom)


def scale(spans: Sequence[Span], low: Format) -> Scale:
    """Return a scale for the limits of the low type, and for values up to a fixed distance beyond them."""
    ends = [p for s in spans for p in (s.low, s.high) if p is not None and math.isfinite(p)]
    bottom = max(min(ends, default=0.0), low.subnormal - _REACH)
    top = min(max(ends, default=0.0), low.largest + _REACH)
    return Scale(
        float(math.floor(min(bottom, low.subnormal - _MARGIN))), float(math.ceil(max(top, low.largest + _MARGIN)))
    )


def paths(spans: Sequence[Span], looks: Sequence[Look], drawn: Scale) -> dict[Look, str]:
    """SVG path data by look: a vertical line per tensor in the model's order, or per column of neighbours."""
    columns: dict[tuple[int, Look], tuple[float, float]] = {}
    width = column_width(len(spans))
    for at, (one, look) in enumerate(zip(spans, looks, strict=True)):
        if one.high is None:
            continue
        key = (int((at + 0.5) * WIDTH / len(spans) / width), look)
        top = HEIGHT * (1 - drawn.place(one.high))
        bottom = min(HEIGHT, top + _STUB) if one.low is None else HEIGHT * (1 - drawn.place(one.low))
        known = columns.get(key, (top, bottom))
        columns[key] = min(known[0], top), max(known[1], bottom, known[0] + 1)
    lines: dict[Look, list[str]] = {look: [] for look in LOOKS}
    for (column, look), (top, bottom) in columns.items():
        lines[look].append(f"M{(column + 0.5) * width:.1f} {top:.1f}V{bottom:.1f}")
    return {look: "".join(strokes) for look, strokes in lines.items() if strokes}


def column_width(tensors: int) -> float:
    """The width of one tensor's column, in the picture's units."""
    return WIDTH / max(1, min(tensors, COLUMNS))


def labels(drawn: Scale, low: Format, texts: Sequence[str]) -> list[tuple[float, str, bool]]:
    """Return the labels next to the picture, from its top: (y, text, whether it names a limit or else a zone).

    ``texts`` are the limits: largest, smallest normal, smallest. Limits closer than a line of text move apart, and a
    zone without room for its name has none.
    """
    at = [HEIGHT * (1 - drawn.place(power)) for power in (low.largest, low.normal, low.subnormal)]
    limits = [(f"{texts[0]}, largest"), f"{texts[1]}, smallest normal", f"{texts[2]}, smallest"]
    for below in (1, 2):
        at[below] = max(at[below], at[below - 1] + _LINE)
    found = [(y, text, True) for y, text in zip(at, limits, strict=True)]
    for top, bottom, text in ((0.0, at[0], "overflow"), (at[1], at[2], "fewer digits"), (at[2], HEIGHT, "become zero")):
        if bottom - top >= (1 if top and bottom < HEIGHT else 0.75) * 2 * _LINE:
            middle = (top + bottom) / 2 if top and bottom < HEIGHT else (top and bottom - 3) or 6.0
            found.append((middle, text, False))
    return sorted(found)


def ticks(drawn: Scale) -> list[int]:
    """The powers of two to write beside the scale: at most a dozen, round ones."""
    step = next(step for step in (4, 8, 16, 32, 64) if (drawn.top - drawn.bottom) / step <= 12)
    first = math.ceil(drawn.bottom / step) * step
    return list(range(first, int(drawn.top) + 1, step))
