"""Compute the coordinates of the charts of a training. Positions are in units of the picture; y increases downwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mixlist.ops import dtypes
from mixlist.ops.low_precision import SMALLEST_NORMAL
from mixlist.report.number_text import format_number, format_power
from mixlist.training.result import TrainingHistory, TrainReport

WIDTH, HEIGHT = 1000.0, 260.0
# The number of points of a curve; with more steps, a point is the mean of several.
BINS = 250
# Losses that span more than this factor are drawn on a log scale.
_LOG_FROM = 50.0
# The number of skipped steps that get a mark. That is two for each unit of the width: more would not be visible.
_MARKS = 2000


@dataclass(frozen=True)
class Axis:
    """A vertical axis, linear or logarithmic, with ``low`` at the bottom and ``high`` at the top of a chart."""

    low: float
    high: float
    log: bool = False

    def y_of(self, value: float) -> float:
        """Return the y position of a value."""
        low, high, position = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (position - low) / (high - low) if high > low else 0.5
        return round(HEIGHT * (1 - share), 1)


def ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return positions and texts of round values on an axis, at most eight."""
    if axis.log:
        first, last = math.ceil(math.log10(axis.low)), math.floor(math.log10(axis.high))
        # The number of powers of ten divided by eight, rounded up.
        interval = max(1, (last - first + 8) // 8)
        values = [10.0**power for power in range(first, last + 1, interval)]
    else:
        values = _round_values(axis.low, axis.high)
    return [(axis.y_of(value), format_number(value)) for value in values]


def _round_values(low: float, high: float) -> list[float]:
    if not high > low:
        return [low]
    # About six intervals of 1, 2 or 5 times a power of ten.
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    # round() removes the error of the product: 3 * 0.1 is 0.30000000000000004.
    return [round(k * step, 12) for k in range(first, last + 1)]


def step_ticks(steps: int) -> list[tuple[float, str]]:
    """Return positions and texts of round values on the axis of steps."""
    return [(x_at(value, steps), f"{value:.0f}") for value in _round_values(0, max(1, steps))]


def x_at(step: float, steps: int) -> float:
    """Return the x position of a step."""
    return round(WIDTH * step / max(1, steps), 1)


@dataclass(frozen=True)
class LossChart:
    """The loss curves as SVG paths.

    ``lines``: the mean over the runs, in float32 and mixed. ``bands``: from the lowest to the highest run.
    ``infinite``: the number of values that are not drawn because they are not finite.
    """

    lines: dict[str, str]
    bands: dict[str, str]
    ticks: list[tuple[float, str]]
    log: bool
    infinite: int


def losses(report: TrainReport) -> LossChart | None:
    """Return the loss curves; None if no value is finite."""
    # Means of equal numbers of steps, so that a long training has no more points than the picture can show.
    histories = _histories(report)
    width = max(1, math.ceil(report.steps / BINS))
    binned = {side: [_binned(run.loss, width) for run in runs] for side, runs in histories.items()}
    finite = [v for curves in binned.values() for curve in curves for v in curve if v is not None]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    log = low > 0 and high / low > _LOG_FROM
    # A linear axis begins at 0 if the curves then fill more than half of the height.
    axis = Axis(low, high, log) if log else Axis(min(0.0, low) if low < high / 2 else low, high, False)
    infinite = sum(not math.isfinite(v) for runs in histories.values() for run in runs for v in run.loss)
    lines, bands = {}, {}
    # A point of a curve is (lowest, mean, highest) of the runs.
    for side, curves in binned.items():
        points = [_spread([c[k] for c in curves if k < len(c)]) for k in range(max(map(len, curves), default=0))]
        xs = [x_at(min((k + 0.5) * width, report.steps), report.steps) for k in range(len(points))]
        # The middle value is the mean. A point without a finite value interrupts the line.
        lines[side] = _line([(x, axis.y_of(p[1])) if p else None for x, p in zip(xs, points, strict=True)])
        drawn = [(x, p) for x, p in zip(xs, points, strict=True) if p]
        if len(report.runs) > 1 and drawn:
            # The outline of the band: along its upper edge, and back along its lower edge.
            upper = [(x, axis.y_of(p[2])) for x, p in drawn]
            bands[side] = _line([*upper, *((x, axis.y_of(p[0])) for x, p in reversed(drawn))]) + "Z"
    return LossChart(lines, bands, ticks(axis), log, infinite)


def _histories(report: TrainReport) -> dict[str, list[TrainingHistory]]:
    """Return the histories of all runs, in float32 and mixed."""
    return {"float32": [run.float32 for run in report.runs], "mixed": [run.mixed for run in report.runs]}


def _binned(loss: Sequence[float], width: int) -> list[float | None]:
    """Return the means of each ``width`` steps; None for a mean that is not finite."""
    parts = [loss[start : start + width] for start in range(0, len(loss), width)]
    means = [sum(part) / len(part) for part in parts]
    return [mean if math.isfinite(mean) else None for mean in means]


def _spread(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """Return the lowest, the mean and the highest of the values that are not None; None if there is no value."""
    finite = [value for value in values if value is not None]
    return (min(finite), sum(finite) / len(finite), max(finite)) if finite else None


def _line(points: Sequence[tuple[float, float] | None]) -> str:
    """Return an SVG path through the points; None interrupts the path."""
    pieces, pen = [], "M"
    for point in points:
        if point is not None:
            pieces.append(f"{pen}{point[0]:g},{point[1]:g}")
        pen = "M" if point is None else "L"
    return "".join(pieces)


@dataclass(frozen=True)
class ScaleChart:
    """The loss scale of each run as a step line, with marks at skipped steps.

    ``lines`` and ``marks``: the seed of a run and its SVG path. ``ticks``: the y positions and texts of powers of two.
    """

    lines: list[tuple[int, str]]
    marks: list[tuple[int, str]]
    ticks: list[tuple[float, str]]


def scales(report: TrainReport) -> ScaleChart | None:
    """Return the loss scale over the steps; None if there is no mixed step."""
    runs = [(run.seed, run.mixed) for run in report.runs if run.mixed.scale]
    powers = [math.log2(v) for _, history in runs for v in history.scale if 0 < v < math.inf]
    if not powers:
        return None
    # The axis is linear in the exponents, with one free power of two at each end.
    axis = Axis(math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1, False)
    interval = max(1, round((axis.high - axis.low) / 8))
    tick_marks = [
        (axis.y_of(power), format_power(power)) for power in range(int(axis.low), int(axis.high) + 1, interval)
    ]
    lines = [(seed, _step_line(history, axis, report.steps)) for seed, history in runs]
    marks = [(seed, _marks(history, axis, report.steps)) for seed, history in runs if history.skipped]
    return ScaleChart(lines, marks, tick_marks)


def _y_of_loss_scale(axis: Axis, value: float) -> float:
    """Return the y position of a loss scale. Loss scales of 0 and infinity are at the ends of the axis."""
    if not 0 < value < math.inf:
        return axis.y_of(axis.low if value <= 0 else axis.high)
    return axis.y_of(min(axis.high, max(axis.low, math.log2(value))))


def _step_line(history: TrainingHistory, axis: Axis, steps: int) -> str:
    """Return the loss scale as an SVG path, with a new piece only where the loss scale changes."""
    pieces = [f"M0,{_y_of_loss_scale(axis, history.scale[0]):g}"]
    for step in range(1, len(history.scale)):
        if history.scale[step] != history.scale[step - 1]:
            # H draws to the step at the old loss scale, V then draws to the new one.
            pieces.append(f"H{x_at(step, steps):g}V{_y_of_loss_scale(axis, history.scale[step]):g}")
    return "".join(pieces) + f"H{x_at(len(history.scale), steps):g}"


def _marks(history: TrainingHistory, axis: Axis, steps: int) -> str:
    """Return a short stroke at each of the first ``_MARKS`` skipped steps, as an SVG path."""
    return "".join(
        f"M{x_at(step + 0.5, steps):g},{_y_of_loss_scale(axis, history.scale[step]) - 6:g}v12"
        for step in history.skipped[:_MARKS]
    )


@dataclass(frozen=True)
class MetricChart:
    """The metric of every run in float32 and mixed, as a position from 0 (left) to 100, and the ends of the axis."""

    dots: dict[str, list[tuple[float, str]]]
    low: str
    high: str


def metrics(report: TrainReport) -> MetricChart | None:
    """Return the metric of every run; None if no run has a finite one."""
    metrics_of = {side: [run.metric for run in runs] for side, runs in _histories(report).items()}
    finite = [v for values in metrics_of.values() for v in values if v is not None and math.isfinite(v)]
    if not finite:
        return None
    # Show at least the tolerance, so that a difference below it looks small.
    span = max(max(finite) - min(finite), report.tolerance, 1e-9)
    low, high = min(finite) - span / 4, max(finite) + span / 4
    dots = {
        side: [
            (round(100 * (v - low) / (high - low), 2), f"seed {run.seed}: {format_number(v, 5)}")
            for run, v in zip(report.runs, values, strict=True)
            if v is not None and math.isfinite(v)
        ]
        for side, values in metrics_of.items()
    }
    return MetricChart(dots, format_number(low), format_number(high))


@dataclass(frozen=True)
class HistogramBar:
    """A bin of a histogram: its position from the left, its height from 0 to 10, and whether its values are lost."""

    x: int
    height: float
    is_lost: bool


@dataclass(frozen=True)
class HistogramRow:
    """The gradient of one parameter, with the loss scaled and unscaled: the share that is lost, and the histogram.

    A value is lost if it became zero, or if it is below the smallest normal number of the low type.
    """

    parameter: str
    lost: tuple[float, float]
    histograms: tuple[list[HistogramBar], list[HistogramBar]]


def gradient_histograms(report: TrainReport) -> list[HistogramRow]:
    """Return the histograms of all parameters, those that lose the most first."""
    if report.underflow is None:
        return []
    # The bins: zeros, the numbers below the range, then the subnormal numbers up to the smallest normal one.
    smallest_normal = SMALLEST_NORMAL[dtypes.ELEMENT_BY_NAME[report.precision]]
    lost_bins = 2 + report.underflow.exponent_edges.index(round(math.log2(smallest_normal)))
    rows = []
    for histogram in report.underflow.histograms:
        both = histogram.scaled, histogram.unscaled
        scaled, unscaled = (sum(counts[:lost_bins]) / max(sum(counts), 1) for counts in both)
        pictures = tuple(_bars(counts, lost_bins) for counts in both)
        rows.append(HistogramRow(histogram.parameter, (scaled, unscaled), (pictures[0], pictures[1])))
    return sorted(rows, key=lambda row: row.lost, reverse=True)


def _bars(counts: Sequence[int], lost_bins: int) -> list[HistogramBar]:
    highest = max(counts) or 1
    return [
        HistogramBar(index, round(10 * count / highest, 2), index < lost_bins)
        for index, count in enumerate(counts)
        if count
    ]
