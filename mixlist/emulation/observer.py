"""Runs of an instrumented model, and what its statistics say of every tensor in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from mixlist.emulation.instrument import RANGE, Instrumented, Place
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.refs import TensorRef
from mixlist.runtime.feeds import as_float32

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.inputs import Input
    from mixlist.runtime.remote_session import RemoteRunner
    from mixlist.runtime.sessions import Runner
    from mixlist.runtime.subprocess_session import Worker


Observed = tuple[list[Any], dict[TensorRef, ObservedRange]]
_RANGE = tuple(statistic.name for statistic in RANGE)


class Observer:
    """An instrumented model in a session; ``run`` gives its own outputs and the range of every observed tensor.

    ``raised`` are the inputs of the model before it was raised to float32, () where it runs as it is; ``wide``: its
    float inputs are float64.
    """

    def __init__(
        self,
        instrumented: Instrumented,
        runner: Runner | Worker | RemoteRunner,
        own: list[str],
        raised: tuple[Input, ...] = (),
        wide: bool = False,
    ) -> None:
        self._wide = wide
        self.instrumented = instrumented
        self.runner = runner
        self.own = own  # names of the model's own outputs
        self._raised = raised
        self._begun: tuple[Mapping[str, Any], Callable[[], Observed]] | None = None
        self._single: list[TensorRef] = []  # one value per statistic: told together
        self._several: list[TensorRef] = []  # a value for each call or iteration
        self._moved: list[tuple[TensorRef, TensorRef]] = []  # tensors that only move another one's values, and that one
        for probe in instrumented.probes:
            places = instrumented.outputs.get((probe.key, _RANGE[0]))
            if probe.source is not None:
                self._moved.append((probe.key, probe.source))
            elif places is not None:
                (self._several if len(places) > 1 or places[0].stacked else self._single).append(probe.key)
        self._columns = [self._find(statistic) for statistic in _RANGE] if self._single else []

    def _find(self, statistic: str) -> tuple[list[str], NDArray[np.intp]]:
        """The outputs that hold a statistic of the single ones, and where each stands when these are joined."""
        places = [self.instrumented.outputs[key, statistic][0] for key in self._single]
        names = list(dict.fromkeys(place.output for place in places))
        widths = [self.instrumented.widths[name] for name in names]
        starts = dict(zip(names, accumulate(widths, initial=0), strict=False))
        return names, np.array([starts[place.output] + place.column for place in places], np.intp)

    def run(self, feed: Mapping[str, Any]) -> Observed:
        """One batch: the own outputs in order, and the ranges by TensorRef."""
        return self.start(feed)()

    def start(self, feed: Mapping[str, Any]) -> Callable[[], Observed]:
        """The same, begun now where the session is in another process; what is returned waits for it."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is feed:
            return begun[1]
        names = [*self.own, *self.instrumented.widths]
        outputs = self.runner.start(names, self._given(feed))
        return lambda: self.read(names, outputs())

    def begin(self, feed: Mapping[str, Any] | None) -> None:
        """Begin with a batch before others are needed: ``start`` is what gives it."""
        if feed is not None:
            self._begun = feed, self.start(feed)

    def read(self, names: list[str], found: list[Any]) -> Observed:
        """What a run made of the outputs named: the own ones in order, and the ranges by TensorRef."""
        values = dict(zip(names, found, strict=True))
        ranges: dict[TensorRef, ObservedRange] = {}
        if self._single:
            told = [np.concatenate([values[n] for n in names])[at] for names, at in self._columns]
            ranges = dict(zip(self._single, _ranges(*told), strict=True))
        for key in self._several:
            found = [[_value(values, p) for p in self.instrumented.outputs[key, s]] for s in _RANGE]
            ranges[key] = _joined(*found)
        for key, source in self._moved:
            if source in ranges:
                ranges[key] = ranges[source]
        return [values[name] for name in self.own], ranges

    def _given(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        given = as_float32(feed, self._raised) if self._raised else feed
        if not self._wide:
            return given
        return {n: v.astype(np.float64) if getattr(v, "dtype", None) == np.float32 else v for n, v in given.items()}

    def close(self) -> None:
        """Let the session go."""
        self.runner.close()

    def values(
        self, feed: Mapping[str, Any], statistics: tuple[str, ...]
    ) -> dict[tuple[TensorRef, str], NDArray[np.float64]]:
        """One batch: these statistics of every tensor, a value for each call of a function and iteration of a loop."""
        wanted = {pair: found for pair, found in self.instrumented.outputs.items() if pair[1] in statistics}
        names = list(dict.fromkeys(place.output for found in wanted.values() for place in found))
        if not names:  # to ONNX Runtime that would mean all outputs
            return {}
        values = dict(zip(names, self.runner.run(names, self._given(feed)), strict=True))
        return {pair: _flat([_value(values, place) for place in found]) for pair, found in wanted.items()}

    def counts(self, feed: Mapping[str, Any], statistics: tuple[str, ...]) -> dict[tuple[TensorRef, str], float]:
        """One batch of a model that was instrumented with counting statistics: their totals."""
        return {pair: float(found.sum()) for pair, found in self.values(feed, statistics).items()}


def _value(values: Mapping[str, Any], place: Place) -> Any:
    """What stands at a place: a number, or one for each iteration."""
    return values[place.output][..., place.column]


def _ranges(low: NDArray[Any], high: NDArray[Any], total: NDArray[Any]) -> list[ObservedRange]:
    """The ranges of many tensors, each with one value per statistic."""
    lows, highs = low.tolist(), high.tolist()
    usual = np.isfinite(low) & np.isfinite(high) & (low <= high) & ~np.isnan(total)  # a sum of magnitudes may overflow
    if usual.all():
        return [ObservedRange(one, other, False) for one, other in zip(lows, highs, strict=True)]
    each = zip(usual.tolist(), lows, highs, total.tolist(), strict=True)
    return [ObservedRange(one, other, False) if fine else _single(one, other, rest) for fine, one, other, rest in each]


def _joined(lows: list[Any], highs: list[Any], sums: list[Any]) -> ObservedRange:
    """Join the calls of a function and the iterations of a loop; a tensor that was not computed has neutral values."""
    minimum, maximum, total = (_flat(x) for x in (lows, highs, sums))
    ran = ~(minimum > maximum)  # neutral: inf and -inf, on CUDA the largest finite ones
    if not ran.any():
        return ObservedRange(0.0, 0.0, nan=False, ran=False)
    nan = np.isnan(minimum) | np.isnan(maximum) | np.isnan(total)  # a sum of magnitudes that overflows is infinite
    bad = ran & (nan | np.isinf(minimum) | np.isinf(maximum))
    when = int(np.argmax(bad)) if bad.any() else None
    usual = ran & ~np.isnan(minimum) & ~np.isnan(maximum)
    if not usual.any():  # nothing but NaN
        return ObservedRange(-np.inf, np.inf, True, True, when)
    return ObservedRange(float(minimum[usual].min()), float(maximum[usual].max()), bool(nan[ran].any()), True, when)


def _single(low: float, high: float, total: float) -> ObservedRange:
    if low > high:
        return ObservedRange(0.0, 0.0, nan=False, ran=False)
    nan = math.isnan(low) or math.isnan(high) or math.isnan(total)
    when = 0 if nan or math.isinf(low) or math.isinf(high) else None
    if math.isnan(low) or math.isnan(high):
        return ObservedRange(-math.inf, math.inf, True, True, when)
    return ObservedRange(low, high, nan, True, when)


def _flat(values: list[Any]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(v, np.float64).reshape(-1) for v in values])
