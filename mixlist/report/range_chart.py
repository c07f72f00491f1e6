"""Compute the coordinates of the picture of all ranges: tensors on a log2 scale, with the limits of the low type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mixlist.checker.result import TensorRange

# The style of a tensor: float32, low precision, low precision with a warning, not finite because of an input, failing.
Style = Literal["high", "low", "warning", "propagated", "failing"]
# In the order of drawing: a later style is drawn over an earlier one, so failing tensors are always visible.
STYLES: tuple[Style, ...] = ("high", "low", "warning", "propagated", "failing")

# The size of the plot, in units of the picture. check.js and check.html have the same numbers.
WIDTH, HEIGHT = 1100.0, 300.0
# More tensors than this share columns, because the eye cannot separate columns of less than two units.
MAX_COLUMNS = 550
# The height of a line of text next to the picture.
_LINE = 13.0
# The length of a mark for a tensor of which only the largest magnitude is known.
_STUB = 3.0
# The scale shows at least this number of powers of two beyond the limits of the low type.
_MARGIN = 4
# It shows at most this number of them, for tensors whose values are further away.
_MAX_MARGIN = 16


@dataclass(frozen=True)
class LowTypeLimits:
    """The limits of a low type as log2: the largest finite, the smallest normal and the smallest subnormal value."""

    largest: float
    largest_text: str
    normal: int
    subnormal: int


LOW_TYPE_LIMITS = {
    "float16": LowTypeLimits(math.log2(65504), "65504", -14, -24),
    "bfloat16": LowTypeLimits(128.0, "3.39e38", -126, -133),  # (2 - 2^-7) * 2^127
}


@dataclass(frozen=True)
class Span:
    """The magnitudes of a tensor as log2: ``low`` is the smallest one that is not zero, ``high`` the largest one.

    ``low`` is None if it was not computed. ``high`` is None if all values are zero, and infinite for infinite values.
    """

    low: float | None
    high: float | None


def find_span(tensor: TensorRange) -> Span:
    """Return the span of a tensor in float32. It ends at infinity if NaNs hide all other values of the tensor."""
    ends = abs(tensor.minimum), abs(tensor.maximum)
    high = math.inf if any(map(math.isnan, ends)) else max(ends)
    return Span(_log2(tensor.smallest) if tensor.smallest else None, _log2(high) if high else None)


def _log2(value: float) -> float:
    return math.log2(value) if math.isfinite(value) else math.inf


@dataclass(frozen=True)
class Scale:
    """The range of the powers of two in the picture. Values beyond it are drawn at its edge."""

    bottom: float
    top: float

    def place(self, power: float) -> float:
        """Return the position of a power of two: 0 at the bottom, 1 at the top."""
        return (min(max(power, self.bottom), self.top) - self.bottom) / (self.top - self.bottom)


def make_scale(spans: Sequence[Span], limits: LowTypeLimits) -> Scale:
    """Return a scale that shows the limits of the low type, and finite values up to ``_MAX_MARGIN`` beyond them."""
    ends = [p for s in spans for p in (s.low, s.high) if p is not None and math.isfinite(p)]
    bottom = max(min(ends, default=0.0), limits.subnormal - _MAX_MARGIN)
    top = min(max(ends, default=0.0), limits.largest + _MAX_MARGIN)
    return Scale(
        float(math.floor(min(bottom, limits.subnormal - _MARGIN))), float(math.ceil(max(top, limits.largest + _MARGIN)))
    )


def paths(spans: Sequence[Span], styles: Sequence[Style], scale: Scale) -> dict[Style, str]:
    """Return SVG path data by style: a vertical line for each tensor, or for each column of neighboring tensors."""
    columns: dict[tuple[int, Style], tuple[float, float]] = {}
    width = column_width(len(spans))
    for position, (span, style) in enumerate(zip(spans, styles, strict=True)):
        if span.high is None:
            continue
        # The column that holds the middle of the tensor's part of the width. A column has one line for each style, so
        # that a failing tensor is not hidden by its neighbors.
        key = (int((position + 0.5) * WIDTH / len(spans) / width), style)
        top = HEIGHT * (1 - scale.place(span.high))
        bottom = min(HEIGHT, top + _STUB) if span.low is None else HEIGHT * (1 - scale.place(span.low))
        # y increases downwards, so the top has the smaller y.
        line = columns.get(key, (top, bottom))
        # A column shows the union of its tensors, at least one unit high.
        columns[key] = min(line[0], top), max(line[1], bottom, line[0] + 1)
    lines: dict[Style, list[str]] = {style: [] for style in STYLES}
    for (column, style), (top, bottom) in columns.items():
        lines[style].append(f"M{(column + 0.5) * width:.1f} {top:.1f}V{bottom:.1f}")
    return {style: "".join(strokes) for style, strokes in lines.items() if strokes}


def column_width(tensors: int) -> float:
    """Return the width of a column, in units of the picture."""
    return WIDTH / max(1, min(tensors, MAX_COLUMNS))


def labels(scale: Scale, limits: LowTypeLimits, texts: Sequence[str]) -> list[tuple[float, str, bool]]:
    """Return the labels next to the picture, from top to bottom, as (y, text, names_limit).

    A label names a limit or, if ``names_limit`` is False, a zone between limits. ``texts``: the limits as text: the
    largest, the smallest normal and the smallest value. Labels of limits that are closer than a line of text move
    apart. A zone that is too small for its label gets no label.
    """
    limit_y = [HEIGHT * (1 - scale.place(power)) for power in (limits.largest, limits.normal, limits.subnormal)]
    limit_texts = [f"{texts[0]}, largest", f"{texts[1]}, smallest normal", f"{texts[2]}, smallest"]
    # A label that would cover the one above it goes one line below that one.
    for below in (1, 2):
        limit_y[below] = max(limit_y[below], limit_y[below - 1] + _LINE)
    placed_labels = [(y, text, True) for y, text in zip(limit_y, limit_texts, strict=True)]
    zones = (
        (0.0, limit_y[0], "overflow"),
        (limit_y[1], limit_y[2], "fewer digits"),
        (limit_y[2], HEIGHT, "become zero"),
    )
    for top, bottom, text in zones:
        # A label of a limit covers half a line above and half a line below the limit. Between two limits, the label of
        # the zone is in the middle, and the zone must be two lines high. At an edge of the picture there is one limit:
        # one and a half lines are enough, and the label is a few units from the edge.
        is_between_limits = top > 0 and bottom < HEIGHT
        if bottom - top >= (2 if is_between_limits else 1.5) * _LINE:
            edge_y = bottom - 3 if top > 0 else 6.0
            placed_labels.append(((top + bottom) / 2 if is_between_limits else edge_y, text, False))
    return sorted(placed_labels)


def ticks(scale: Scale) -> list[int]:
    """Return the powers of two to write next to the scale: at most thirteen, at multiples of 4, 8, 16, 32 or 64."""
    # One of the steps always fits: a scale has at most 293 powers of two, for bfloat16 with both margins.
    step = next(step for step in (4, 8, 16, 32, 64) if (scale.top - scale.bottom) / step <= 12)
    first = math.ceil(scale.bottom / step) * step
    return list(range(first, int(scale.top) + 1, step))
