"""Draw the charts of a training. Positions are in units of the picture; y increases downwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mixlist.number_text import format_number, format_power
from mixlist.show.document import Chart, Shape
from mixlist.training.result import TrainingHistory, TrainReport

WIDTH, HEIGHT = 1000.0, 260.0
# The number of points of a curve; with more steps, a point is the mean of several.
BINS = 250
# Losses that span more than this factor are drawn on a log scale.
_LOG_FROM = 50.0
# The number of skipped steps that get a mark. That is two for each unit of the width: more would not be visible.
_MARKS = 2000


class Axis(NamedTuple):
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


def draw_losses(report: TrainReport) -> Chart | None:
    """Return the loss curves: the mean of the runs, and a band from the lowest to the highest. None without a value."""
    # Means of equal numbers of steps, so that a long training has no more points than the picture can show.
    histories = _histories(report)
    width = max(1, math.ceil(report.steps / BINS))
    binned = {side: [_binned(run.loss, width) for run in runs] for side, runs in histories.items()}
    finite = [v for curves in binned.values() for curve in curves for v in curve if v is not None]
    if not finite:
        return None
    axis = _loss_axis(min(finite), max(finite))
    lines, bands = [], []
    # A point of a curve is (lowest, mean, highest) of the runs.
    for side, curves in binned.items():
        points = [_spread([c[k] for c in curves if k < len(c)]) for k in range(max(map(len, curves), default=0))]
        xs = [x_at(min((k + 0.5) * width, report.steps), report.steps) for k in range(len(points))]
        # The middle value is the mean. A point without a finite value interrupts the line.
        path = _line([(x, axis.y_of(p[1])) if p else None for x, p in zip(xs, points, strict=True)])
        lines.append(Shape(side, path))
        drawn = [(x, p) for x, p in zip(xs, points, strict=True) if p]
        if len(report.runs) > 1 and drawn:
            # The outline of the band: along its upper edge, and back along its lower edge.
            upper = [(x, axis.y_of(p[2])) for x, p in drawn]
            lower = [(x, axis.y_of(p[0])) for x, p in reversed(drawn)]
            bands.append(Shape(f"band {side}", _line([*upper, *lower]) + "Z"))
    return Chart(
        f"Loss in float32 and in mixed precision over {report.steps} steps. The table of runs has the final values.",
        WIDTH,
        HEIGHT,
        (*bands, *lines),
        y_labels=tuple(ticks(axis)),
        x_labels=tuple(step_ticks(report.steps)),
        legend=(("high", "float32"), ("low", "mixed (dashed)")),
        title="On a logarithmic axis" if axis.log else "",
    )


def _loss_axis(low: float, high: float) -> Axis:
    if low > 0 and high / low > _LOG_FROM:
        return Axis(low, high, log=True)
    # A linear axis begins at 0 if the curves then fill more than half of the height.
    return Axis(min(0.0, low) if low < high / 2 else low, high)


def explain_losses(report: TrainReport) -> str:
    """Return how to read the chart of the losses."""
    band = ", a band their lowest and highest loss" if len(report.runs) > 1 else ""
    text = f"The loss at each step, without the loss scale. A line shows the mean of the runs{band}."
    values = [loss for runs in _histories(report).values() for run in runs for loss in run.loss]
    infinite = sum(not math.isfinite(value) for value in values)
    return text + (f" {infinite} values are not finite and left out." if infinite else "")


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


def draw_scales(report: TrainReport) -> Chart | None:
    """Return the loss scale of each run as a step line, with marks at skipped steps. None if there is no mixed step."""
    runs = [(run.seed, run.mixed) for run in report.runs if run.mixed.scale]
    powers = [math.log2(v) for _, history in runs for v in history.scale if 0 < v < math.inf]
    if not powers:
        return None
    # The axis is linear in the exponents, with one free power of two at each end.
    axis = Axis(math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1)
    interval = max(1, round((axis.high - axis.low) / 8))
    exponents = range(int(axis.low), int(axis.high) + 1, interval)
    lines = [Shape("scale", _step_line(history, axis, report.steps), f"seed {seed}") for seed, history in runs]
    marks = [
        Shape("skipped", _marks(history, axis, report.steps), f"skipped steps of seed {seed}")
        for seed, history in runs
        if history.skipped
    ]
    return Chart(
        "Loss scale of every run over the steps, in powers of two; skipped steps are marked.",
        WIDTH,
        HEIGHT,
        (*lines, *marks),
        y_labels=tuple((axis.y_of(power), format_power(power)) for power in exponents),
        x_labels=tuple(step_ticks(report.steps)),
        legend=(("low", "scale, one line per run"), *((("skipped", "skipped step"),) if marks else ())),
    )


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


def draw_metrics(report: TrainReport) -> Chart | None:
    """Return the metric of every run as a dot, in float32 and mixed; None if no run has a finite one."""
    metrics_of = {side: [run.metric for run in runs] for side, runs in _histories(report).items()}
    finite = [v for values in metrics_of.values() for v in values if v is not None and math.isfinite(v)]
    if not finite:
        return None
    # Show at least the tolerance, so that a difference below it looks small.
    span = max(max(finite) - min(finite), report.tolerance, 1e-9)
    low, high = min(finite) - span / 4, max(finite) + span / 4
    rows = {"float32": 17, "mixed": 43}
    # A stroke of length 0 with round ends is a dot that stays round when the picture stretches.
    dots = tuple(
        Shape(
            f"dot {side}",
            f"M{WIDTH * (value - low) / (high - low):.1f} {rows[side]}h0",
            f"seed {run.seed}: {format_number(value, 5)}",
        )
        for side, values in metrics_of.items()
        for run, value in zip(report.runs, values, strict=True)
        if value is not None and math.isfinite(value)
    )
    return Chart(
        f"{report.metric} of every run. The table above has the figures.",
        WIDTH,
        60,
        dots,
        y_labels=tuple((y, side) for side, y in rows.items()),
        x_labels=((0, format_number(low)), (WIDTH, format_number(high))),
        id="metrics",
    )
