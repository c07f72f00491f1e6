"""Draw the ranges of all tensors on a log2 scale, with the limits of the low type: a chart, and the bars of a list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from mixlist.checker.result import TensorRange
from mixlist.number_text import format_power
from mixlist.show.document import Chart, Label, Picture, Shape, rectangle

# The style of a tensor: float32, low precision, low precision with a warning, not finite because of an input, failing.
Style = Literal["high", "low", "warning", "propagated", "failing"]
# In the order of drawing: a later style is drawn over an earlier one, so failing tensors are always visible.
STYLES: tuple[Style, ...] = ("high", "low", "warning", "propagated", "failing")

# The size of the chart, in units of the picture, and of the bar of one tensor.
WIDTH, HEIGHT = 1100.0, 300.0
BAR_WIDTH, BAR_HEIGHT = 1000.0, 20.0
# More tensors than this share columns, because the eye cannot separate columns of less than two units.
MAX_COLUMNS = 550
# The height of a line of text next to the picture.
_LINE = 17.0
# The least height of a mark.
MIN_HEIGHT = 6.0
# The least width of a mark. On a phone, the picture is about a quarter as many pixels wide as it has units.
_MIN_WIDTHS: dict[Style, float] = {"failing": 6.0, "warning": 4.0}
# The scale shows at least this number of powers of two beyond the limits of the low type.
_MARGIN = 4
# It shows at most this number of them, for tensors whose values are further away.
_MAX_MARGIN = 16


# The largest finite, the smallest normal and the smallest subnormal value of a low type: their log2 by their text.
Limits: TypeAlias = Mapping[str, float]
LOW_TYPE_LIMITS: dict[str, Limits] = {
    "float16": {"65504": math.log2(65504), format_power(-14): -14, format_power(-24): -24},
    "bfloat16": {"3.39e38": 128.0, format_power(-126): -126, format_power(-133): -133},  # (2 - 2^-7) * 2^127
}


def find_power(tensor: TensorRange) -> float | None:
    """Return the largest magnitude of a tensor in float32 as log2; None if all values are zero.

    It is infinite for infinite values, and if NaNs hide all other values of the tensor.
    """
    largest = max(abs(tensor.minimum), abs(tensor.maximum))  # both ends are NaN, or none is
    if not math.isfinite(largest):
        return math.inf
    return math.log2(largest) if largest else None


class Scale(NamedTuple):
    """The range of the powers of two in the picture. Values beyond it are drawn at its edge."""

    bottom: float
    top: float

    def place(self, power: float) -> float:
        """Return the position of a power of two: 0 at the bottom, 1 at the top."""
        return (min(max(power, self.bottom), self.top) - self.bottom) / (self.top - self.bottom)


def make_scale(powers: Sequence[float | None], limits: Limits) -> Scale:
    """Return a scale that shows the limits of the low type, and finite values up to ``_MAX_MARGIN`` beyond them."""
    largest, _, subnormal = limits.values()
    finite = [power for power in powers if power is not None and math.isfinite(power)]
    bottom = max(min(finite, default=0.0), subnormal - _MAX_MARGIN)
    top = min(max(finite, default=0.0), largest + _MAX_MARGIN)
    return Scale(float(math.floor(min(bottom, subnormal - _MARGIN))), float(math.ceil(max(top, largest + _MARGIN))))


def marks(powers: Sequence[float | None], styles: Sequence[Style], scale: Scale) -> list[Shape]:
    """Return the rectangles of all tensors, or of all columns of neighboring tensors: a shape for each style.

    A rectangle is at the largest magnitude. A pale (``open``) one below goes to the bottom of the picture, because the
    smallest magnitude is unknown.
    """
    columns: dict[tuple[int, Style], tuple[float, float]] = {}
    width = WIDTH / max(1, min(len(powers), MAX_COLUMNS))
    for position, (power, style) in enumerate(zip(powers, styles, strict=True)):
        if power is None:
            continue
        # The column that holds the middle of the tensor's part of the width. A column has one mark for each style, so
        # that a failing tensor is not hidden by its neighbors.
        key = (int((position + 0.5) * WIDTH / len(powers) / width), style)
        # y increases downwards, so the top has the smaller y. A mark at the bottom edge stays inside the picture.
        top = min(HEIGHT * (1 - scale.place(power)), HEIGHT - MIN_HEIGHT)
        # A column shows the union of its tensors, high enough to be seen.
        earlier_top, earlier_bottom = columns.get(key, (top, top))
        columns[key] = min(earlier_top, top), max(earlier_bottom, top, min(earlier_top, top) + MIN_HEIGHT)
    open_columns = {key: (top, HEIGHT) for key, (top, _) in columns.items()}
    return [*_rectangles(open_columns, width, " open"), *_rectangles(columns, width)]


def _rectangles(
    columns: Mapping[tuple[int, Style], tuple[float, float]], width: float, suffix: str = ""
) -> list[Shape]:
    """Return a shape for each style, with ``suffix``: one rectangle for each of its columns."""
    pieces: dict[Style, list[str]] = {style: [] for style in STYLES}
    for (column, style), (top, bottom) in columns.items():
        # Three quarters of a column, so that neighbors stay apart; a failing tensor is never too narrow to be seen.
        drawn = max(0.75 * min(width, 24.0), _MIN_WIDTHS.get(style, 1.0))
        left = min(max(0.0, (column + 0.5) * width - drawn / 2), WIDTH - drawn)
        pieces[style].append(f"M{left:.1f} {top:.1f}h{drawn:.1f}V{bottom:.1f}h-{drawn:.1f}z")
    return [Shape(style + suffix, "".join(rectangles)) for style, rectangles in pieces.items() if rectangles]


def labels(scale: Scale, limits: Limits) -> list[Label]:
    """Return the labels of the limits and of the zones between them, from top to bottom.

    Labels of limits that are closer than a line of text move apart. A zone that is too small for its label gets no
    label.
    """
    limit_y = [HEIGHT * (1 - scale.place(power)) for power in limits.values()]
    # A label that would cover the one above it goes one line below that one.
    for below in (1, 2):
        limit_y[below] = max(limit_y[below], limit_y[below - 1] + _LINE)
    # The lowest label stays inside the picture, and pushes those above it up again.
    limit_y[2] = min(limit_y[2], HEIGHT - _LINE / 2)
    for above in (1, 0):
        limit_y[above] = min(limit_y[above], limit_y[above + 1] - _LINE)
    placed_labels = [
        Label(y, text, detail)
        for y, text, detail in zip(limit_y, limits, ("largest", "smallest normal", "smallest"), strict=True)
    ]
    zones = (
        (0.0, limit_y[0], "overflow"),
        (limit_y[1], limit_y[2], "fewer digits"),
        (limit_y[2], HEIGHT, "become zero"),
    )
    for top, bottom, text in zones:
        # A label of a limit covers half a line above and half a line below the limit. Between two limits, the label of
        # the zone is in the middle, and the zone must be two lines high. At an edge of the picture there is one limit:
        # one and a half lines are enough, and the label touches the edge.
        is_between_limits = top > 0 and bottom < HEIGHT
        if bottom - top >= (2 if is_between_limits else 1.5) * _LINE:
            edge_y = bottom - _LINE / 2 if top > 0 else _LINE / 2
            placed_labels.append(Label((top + bottom) / 2 if is_between_limits else edge_y, text))
    return sorted(placed_labels)


def ticks(scale: Scale) -> list[int]:
    """Return the powers of two to write next to the scale: at most thirteen, at multiples of 4, 8, 16, 32 or 64."""
    # One of the steps always fits: a scale has at most 293 powers of two, for bfloat16 with both margins.
    step = next(step for step in (4, 8, 16, 32, 64) if (scale.top - scale.bottom) / step <= 12)
    first = math.ceil(scale.bottom / step) * step
    return list(range(first, int(scale.top) + 1, step))


_LEGEND: dict[Style, str] = {
    "high": "float32",
    "low": "low precision",
    "warning": "low precision, with a warning",
    "propagated": "not finite because an input is not finite",
    "failing": "overflows or saturates",
}


def draw_chart(
    powers: Sequence[float | None], styles: Sequence[Style], scale: Scale, limits: Limits, chooses_from: str
) -> Chart:
    """Return the chart of all tensors. ``chooses_from``: the id of the table that lists them."""
    largest, normal, subnormal = (round(HEIGHT * (1 - scale.place(power)), 1) for power in limits.values())
    shapes = [
        rectangle("zone-over", 0, 0, WIDTH, largest),
        rectangle("zone-subnormal", 0, normal, WIDTH, subnormal - normal),
        rectangle("zone-zero", 0, subnormal, WIDTH, HEIGHT - subnormal),
        *marks(powers, styles, scale),
        *(Shape("limit", f"M0 {y:g}h{WIDTH:g}") for y in (largest, normal, subnormal)),
    ]
    return Chart(
        f"Ranges of {len(powers)} tensors. The list below has the same figures.",
        WIDTH,
        HEIGHT,
        tuple(shapes),
        y_labels=tuple((HEIGHT * (1 - scale.place(power)), format_power(power)) for power in ticks(scale)),
        side_labels=tuple(labels(scale, limits)),
        legend=tuple((style, text) for style, text in _LEGEND.items() if style in styles),
        id="overview",
        chooses_from=chooses_from,
    )


def draw_bar(power: float | None, style: Style, scale: Scale) -> Picture:
    """Return the bar of one tensor, from left to right: up to its largest magnitude."""
    if power is None:
        return Picture((), BAR_WIDTH, BAR_HEIGHT)
    end = round(BAR_WIDTH * scale.place(power), 1)
    # The smallest value is unknown: a pale bar goes to the left edge, and only a mark at the end has full color.
    shapes = [rectangle(f"{style} open", 0, 6, max(end, 4), 8)]
    if power > scale.top:
        # The largest value is outside the scale: an arrow.
        shapes.append(Shape(style, "M960 2 1000 10 960 18z"))
    else:
        shapes.append(rectangle(style, max(end - 6, 0), 4, 6, 12))
    return Picture(tuple(shapes), BAR_WIDTH, BAR_HEIGHT)


def bar_guides(scale: Scale, limits: Limits) -> tuple[tuple[float, str], ...]:
    """Return the limits as guides of the bars; the text of a limit that is too close to a larger one is ""."""
    guides: list[tuple[float, str]] = []
    for text, power in limits.items():
        place = round(100 * scale.place(power), 2)
        # A text is about as wide as 12 % of the scale.
        is_free = all(abs(place - other) > 12 for other, shown in guides if shown)
        guides.append((place, text if is_free else ""))
    return tuple(guides)
