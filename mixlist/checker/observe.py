"""Runs of an instrumented model, and what its statistics say of every tensor in one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mixlist.checker.instrument import Instrumented, Key
from mixlist.checker.overflow import Range
from mixlist.runtime.feeds import as_float32

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.inputs import Input
    from mixlist.runtime.isolated import Worker
    from mixlist.runtime.sessions import Runner


class Observer:
    """An instrumented model in a session; ``run`` gives its own outputs and the range of every observed tensor.

    ``raised`` are the inputs of the model before it was raised to float32, () where it runs as it is; ``wide``: its
    float inputs are float64.
    """

    def __init__(
        self,
        instrumented: Instrumented,
        runner: Runner | Worker,
        own: list[str],
        raised: tuple[Input, ...] = (),
        wide: bool = False,
    ) -> None:
        self._wide = wide
        self.instrumented = instrumented
        self.runner = runner
        self.own = own  # names of the model's own outputs
        self._raised = raised
        self._names = [*own, *(n for found in instrumented.outputs.values() for n in found)]

    def run(self, feed: Mapping[str, Any]) -> tuple[list[Any], dict[Key, Range]]:
        """One batch: the own outputs in order, and the ranges by Key."""
        values = dict(zip(self._names, self.runner.run(self._names, self._given(feed)), strict=True))
        ranges: dict[Key, Range] = {}
        for probe in self.instrumented.probes:
            if probe.source is not None:
                if probe.source in ranges:
                    ranges[probe.key] = ranges[probe.source]
                continue
            if (probe.key, "minimum") not in self.instrumented.outputs:
                continue
            found = [
                [values[n] for n in self.instrumented.outputs[probe.key, s]] for s in ("minimum", "maximum", "sum")
            ]
            ranges[probe.key] = _range(*found)
        return [values[name] for name in self.own], ranges

    def _given(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        given = as_float32(feed, self._raised) if self._raised else feed
        if not self._wide:
            return given
        return {n: v.astype(np.float64) if getattr(v, "dtype", None) == np.float32 else v for n, v in given.items()}

    def close(self) -> None:
        """Let the session go."""
        self.runner.close()

    def counts(self, feed: Mapping[str, Any], statistics: tuple[str, ...]) -> dict[tuple[Key, str], float]:
        """One batch of a model that was instrumented with counting statistics: their totals."""
        names = [n for (_, s), found in self.instrumented.outputs.items() if s in statistics for n in found]
        values = dict(zip(names, self.runner.run(names, self._given(feed)), strict=True))
        return {
            pair: float(sum(np.sum(values[n], dtype=np.float64) for n in found))
            for pair, found in self.instrumented.outputs.items()
            if pair[1] in statistics
        }


def _range(lows: list[Any], highs: list[Any], sums: list[Any]) -> Range:
    """Join the calls of a function and the iterations of a loop; a tensor that was not computed has neutral values."""
    if len(lows) == 1 and np.size(lows[0]) == 1:  # by far the most: no arrays for one number
        return _single(float(lows[0]), float(highs[0]), float(sums[0]))
    minimum, maximum, total = (_flat(x) for x in (lows, highs, sums))
    ran = ~((minimum == np.inf) & (maximum == -np.inf))
    if not ran.any():
        return Range(0.0, 0.0, nan=False, ran=False)
    nan = np.isnan(minimum) | np.isnan(maximum) | np.isnan(total)  # a sum of magnitudes that overflows is infinite
    bad = ran & (nan | np.isinf(minimum) | np.isinf(maximum))
    when = int(np.argmax(bad)) if bad.any() else None
    usual = ran & ~np.isnan(minimum) & ~np.isnan(maximum)
    if not usual.any():  # nothing but NaN
        return Range(-np.inf, np.inf, True, True, when)
    return Range(float(minimum[usual].min()), float(maximum[usual].max()), bool(nan[ran].any()), True, when)


def _single(low: float, high: float, total: float) -> Range:
    if low == math.inf and high == -math.inf:
        return Range(0.0, 0.0, nan=False, ran=False)
    nan = math.isnan(low) or math.isnan(high) or math.isnan(total)
    when = 0 if nan or math.isinf(low) or math.isinf(high) else None
    if math.isnan(low) or math.isnan(high):
        return Range(-math.inf, math.inf, True, True, when)
    return Range(low, high, nan, True, when)


def _flat(values: list[Any]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(v, np.float64).reshape(-1) for v in values])
