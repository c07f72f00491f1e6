"""The curves of a training: geometry only, no markup. Places are in the pictures' own units, y downwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mixlist.report.number_text import figure
from mixlist.training.result import TrainingHistory, TrainReport

WIDTH, HEIGHT = 1000.0, 260.0
BINS = 250  # points of a curve: steps beyond that share one, as their mean
_LOG_FROM = 50.0  # losses that span more than this factor are drawn on a log scale
_MARKS = 2000  # skipped steps that are marked one by one


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis from ``low`` to ``high`` over the height of a chart, downwards."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return round(HEIGHT * (1 - share), 1)


def ticks(scale: Scale) -> list[tuple[float, str]]:
    """Places and texts of round values on an axis, at most eight."""
    if scale.log:
        first, last = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
        every = max(1, (last - first + 8) // 8)
        values = [10.0**power for power in range(first, last + 1, every)]
    else:
        values = _round_values(scale.low, scale.high)
    return [(scale.at(value), figure(value)) for value in values]


def _round_values(low: float, high: float) -> list[float]:
    if not high > low:
        return [low]
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(k * step, 12) for k in range(first, last + 1)]


def step_ticks(steps: int) -> list[tuple[float, str]]:
    """Places and texts along the axis of steps."""
    return [(x_at(value, steps), f"{value:.0f}") for value in _round_values(0, max(1, steps))]


def x_at(step: float, steps: int) -> float:
    """The place of a step."""
    return round(WIDTH * step / max(1, steps), 1)


@dataclass(frozen=True)
class LossChart:
    """Line (mean over runs) and band (lowest to highest run) of each side, as SVG paths; ticks; values left out."""

    lines: dict[str, str]
    bands: dict[str, str]
    ticks: list[tuple[float, str]]
    log: bool
    infinite: int


def losses(report: TrainReport) -> LossChart | None:
    """The loss curves; None where there is nothing finite to draw."""
    sides = _sides(report)
    width = max(1, math.ceil(report.steps / BINS))
    binned = {side: [_binned(curve.loss, width) for curve in every] for side, every in sides.items()}
    finite = [v for every in binned.values() for curve in every for v in curve if v is not None]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    log = low > 0 and high / low > _LOG_FROM
    scale = Scale(low, high, log) if log else Scale(min(0.0, low) if low < high / 2 else low, high, False)
    infinite = sum(not math.isfinite(v) for every in sides.values() for curve in every for v in curve.loss)
    lines, bands = {}, {}
    for side, every in binned.items():
        points = [_spread([c[k] for c in every if k < len(c)]) for k in range(max(map(len, every), default=0))]
        xs = [x_at(min((k + 0.5) * width, report.steps), report.steps) for k in range(len(points))]
        lines[side] = _line([(x, scale.at(p[1])) if p else None for x, p in zip(xs, points, strict=True)])
        known = [(x, p) for x, p in zip(xs, points, strict=True) if p]
        if len(report.runs) > 1 and known:
            upper = [(x, scale.at(p[2])) for x, p in known]
            bands[side] = _line([*upper, *((x, scale.at(p[0])) for x, p in reversed(known))]) + "Z"
    return LossChart(lines, bands, ticks(scale), log, infinite)


def _sides(report: TrainReport) -> dict[str, list[TrainingHistory]]:
    """Return the curves of all runs in float32 and in mixed precision."""
    return {"float32": [run.float32 for run in report.runs], "mixed": [run.mixed for run in report.runs]}


def _binned(loss: Sequence[float], width: int) -> list[float | None]:
    """Means of ``width`` steps each; None where one of them is not finite."""
    parts = [loss[start : start + width] for start in range(0, len(loss), width)]
    means = [sum(part) / len(part) for part in parts]
    return [mean if math.isfinite(mean) else None for mean in means]


def _spread(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """Lowest, mean, highest of the runs that have a value."""
    known = [value for value in values if value is not None]
    return (min(known), sum(known) / len(known), max(known)) if known else None


def _line(points: Sequence[tuple[float, float] | None]) -> str:
    """An SVG path through the points, broken where there is none."""
    pieces, pen = [], "M"
    for point in points:
        if point is not None:
            pieces.append(f"{pen}{point[0]:g},{point[1]:g}")
        pen = "M" if point is None else "L"
    return "".join(pieces)


@dataclass(frozen=True)
class ScaleChart:
    """The loss scale of each run as a step line, its skipped steps as marks on it; ticks in powers of two."""

    lines: list[tuple[int, str]]
    marks: list[tuple[int, str]]
    ticks: list[tuple[float, int]]


def scales(report: TrainReport) -> ScaleChart | None:
    """The loss scale over the steps; None where no mixed step was made."""
    runs = [(run.seed, run.mixed) for run in report.runs if run.mixed.scale]
    powers = [math.log2(v) for _, curve in runs for v in curve.scale if 0 < v < math.inf]
    if not powers:
        return None
    scale = Scale(math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1, False)
    every = max(1, round((scale.high - scale.low) / 8))
    at = [(scale.at(power), power) for power in range(int(scale.low), int(scale.high) + 1, every)]
    lines = [(seed, _steps(curve, scale, report.steps)) for seed, curve in runs]
    marks = [(seed, _marks(curve, scale, report.steps)) for seed, curve in runs if curve.skipped]
    return ScaleChart(lines, marks, at)


def _power(scale: Scale, value: float) -> float:
    """The place of a scale; those that are 0 or infinite stand at the end of the axis."""
    return scale.at(
        min(scale.high, max(scale.low, math.log2(value) if 0 < value < math.inf else math.copysign(1e9, value - 1)))
    )


def _steps(curve: TrainingHistory, scale: Scale, steps: int) -> str:
    """A step line: a new piece only where the scale changes."""
    pieces = [f"M0,{_power(scale, curve.scale[0]):g}"]
    for step in range(1, len(curve.scale)):
        if curve.scale[step] != curve.scale[step - 1]:
            pieces.append(f"H{x_at(step, steps):g}V{_power(scale, curve.scale[step]):g}")
    return "".join(pieces) + f"H{x_at(len(curve.scale), steps):g}"


def _marks(curve: TrainingHistory, scale: Scale, steps: int) -> str:
    """A short stroke at each skipped step; with very many of them, at the first ones."""
    return "".join(
        f"M{x_at(step + 0.5, steps):g},{_power(scale, curve.scale[step]) - 6:g}v12" for step in curve.skipped[:_MARKS]
    )


@dataclass(frozen=True)
class MetricChart:
    """The metric of every run as a place from left to right (0 to 100), by side, and the ends of the axis."""

    dots: dict[str, list[tuple[float, str]]]
    low: str
    high: str


def metrics(report: TrainReport) -> MetricChart | None:
    """The metric per run; None where there is none."""
    sides = {side: [curve.metric for curve in every] for side, every in _sides(report).items()}
    known = [v for every in sides.values() for v in every if v is not None and math.isfinite(v)]
    if not known:
        return None
    reach = max(max(known) - min(known), report.tolerance, 1e-9)
    low, high = min(known) - reach / 4, max(known) + reach / 4
    dots = {
        side: [
            (round(100 * (v - low) / (high - low), 2), f"seed {run.seed}: {figure(v, 5)}")
            for run, v in zip(report.runs, every, strict=True)
            if v is not None and math.isfinite(v)
        ]
        for side, every in sides.items()
    }
    return MetricChart(dots, figure(low), figure(high))
