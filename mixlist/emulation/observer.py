"""Run an instrumented model, and read the range of every observed tensor in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mixlist.emulation.graph_statistics import RANGE, InstrumentedModel, OutputColumn
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.refs import TensorRef
from mixlist.runtime.feeds import as_float32
from mixlist.runtime.session import Array, Feed, Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.inputs import Input

Ranges: TypeAlias = Mapping[TensorRef, ObservedRange]
ObservedBatch: TypeAlias = tuple[dict[str, Array], Ranges]  # the model's outputs by name, and the ranges
_RANGE = tuple(statistic.name for statistic in RANGE)
_NOT_COMPUTED = ObservedRange(0.0, 0.0, nan=False, ran=False)


class RangeReader:
    """Reads the ranges out of the outputs of an instrumented model."""

    def __init__(self, instrumented: InstrumentedModel) -> None:
        self._places = instrumented.outputs
        # Most tensors have one value per statistic, and are read all at once. A tensor has several values where a
        # function is called several times, or in a loop. One that only moves the values of another has its range.
        self._single: list[TensorRef] = []
        self._several: list[TensorRef] = []
        self._moved: list[tuple[TensorRef, TensorRef]] = []
        for probe in instrumented.probes:
            places = self._places.get((probe.ref, _RANGE[0]))
            if probe.source is not None:
                self._moved.append((probe.ref, probe.source))
            elif places is not None:
                (self._several if len(places) > 1 or places[0].stacked else self._single).append(probe.ref)
        self._columns = [self._find(name, instrumented.widths) for name in _RANGE] if self._single else []

    def _find(self, statistic: str, widths: Mapping[str, int]) -> tuple[list[str], NDArray[np.intp]]:
        """Return the outputs that hold a statistic of the single tensors, and its positions in these outputs joined."""
        places = [self._places[tensor, statistic][0] for tensor in self._single]
        names = list(dict.fromkeys(place.output for place in places))
        starts = dict(zip(names, accumulate((widths[name] for name in names), initial=0), strict=False))
        return names, np.array([starts[place.output] + place.column for place in places], np.intp)

    def read(self, values: Mapping[str, Array]) -> Ranges:
        """Return the ranges from the values of a run's outputs."""
        ranges: dict[TensorRef, ObservedRange] = {}
        if self._single:
            columns = [np.concatenate([values[name] for name in names])[at] for names, at in self._columns]
            ranges = dict(zip(self._single, _ranges(*columns), strict=True))
        for tensor in self._several:
            ranges[tensor] = _joined(*(_values_at(values, self._places[tensor, name]) for name in _RANGE))
        for tensor, source in self._moved:
            if source in ranges:
                ranges[tensor] = ranges[source]
        return ranges


class Observer:
    """An instrumented model in a session.

    ``output_names``: the model's own outputs that are fetched. ``raised``: the inputs of the model before it was raised
    to float32, () where it runs as it is. ``wide``: its float inputs are float64.
    """

    def __init__(
        self,
        instrumented: InstrumentedModel,
        session: Session,
        output_names: list[str],
        original_inputs: tuple[Input, ...] = (),
        float64_inputs: bool = False,
    ) -> None:
        self.instrumented, self.output_names = instrumented, output_names
        self._session, self._raised, self._wide = session, original_inputs, float64_inputs
        self._reader = RangeReader(instrumented)
        self._begun: tuple[Feed, Callable[[], ObservedBatch]] | None = None

    def run(self, feed: Feed) -> ObservedBatch:
        """Run one batch; return the model's outputs, and the ranges."""
        return self.start(feed)()

    def start(self, feed: Feed) -> Callable[[], ObservedBatch]:
        """Begin to run one batch, where the session is in another process; what is returned waits for it."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is feed:
            return begun[1]
        names = [*self.output_names, *self.instrumented.widths]
        outputs = self._session.start(names, self._as_read(feed))

        def finish() -> ObservedBatch:
            values = dict(zip(names, outputs(), strict=True))
            return {name: values[name] for name in self.output_names}, self._reader.read(values)

        return finish

    def start_ahead(self, feed: Feed | None) -> None:
        """Begin with a batch for which the next ``start`` is called."""
        if feed is not None:
            self._begun = feed, self.start(feed)

    def _as_read(self, feed: Feed) -> Feed:
        """Return a feed in the types that the graph reads."""
        feed = as_float32(feed, self._raised) if self._raised else feed
        if not self._wide:
            return feed
        return {n: v.astype(np.float64) if getattr(v, "dtype", None) == np.float32 else v for n, v in feed.items()}

    def read_statistics(
        self, feed: Feed, statistics: Sequence[str]
    ) -> dict[tuple[TensorRef, str], NDArray[np.float64]]:
        """Run one batch; return these statistics: a value for each call of a function and iteration of a loop."""
        wanted = {which: places for which, places in self.instrumented.outputs.items() if which[1] in statistics}
        names = list(dict.fromkeys(place.output for places in wanted.values() for place in places))
        if not names:  # to ONNX Runtime that would mean all outputs
            return {}
        values = dict(zip(names, self._session.run(names, self._as_read(feed)), strict=True))
        return {which: _values_at(values, places) for which, places in wanted.items()}

    def close(self) -> None:
        """Release the session."""
        self._session.close()


def _values_at(values: Mapping[str, Array], places: Iterable[OutputColumn]) -> NDArray[np.float64]:
    """Return the numbers at some places: of a place in a loop one for each iteration."""
    parts = [np.asarray(values[place.output][..., place.column], np.float64) for place in places]
    return np.concatenate([part.reshape(-1) for part in parts])


def _ranges(low: NDArray[np.floating], high: NDArray[np.floating], total: NDArray[np.floating]) -> list[ObservedRange]:
    """Return the ranges of many tensors, each with one value per statistic."""
    undefined = np.isnan(low) | np.isnan(high)
    nan = undefined | np.isnan(total)  # not where the total is infinite: a sum of magnitudes may overflow
    nonfinite = nan | np.isinf(low) | np.isinf(high)
    if undefined.any():
        low, high = np.where(undefined, -math.inf, low), np.where(undefined, math.inf, high)
    rows = zip(low.tolist(), high.tolist(), nan.tolist(), nonfinite.tolist(), strict=True)
    return [
        ObservedRange(minimum, maximum, has_nan, True, 0 if is_bad else None) if minimum <= maximum else _NOT_COMPUTED
        for minimum, maximum, has_nan, is_bad in rows
    ]


def _joined(low: NDArray[np.float64], high: NDArray[np.float64], total: NDArray[np.float64]) -> ObservedRange:
    """Return the range over the calls of a function or the iterations of a loop.

    The statistics of a tensor that was not computed are neutral: inf and -inf, on CUDA the largest finite values.
    """
    ran = ~(low > high)
    if not ran.any():
        return _NOT_COMPUTED
    undefined = np.isnan(low) | np.isnan(high)
    nan = undefined | np.isnan(total)
    nonfinite = ran & (nan | np.isinf(low) | np.isinf(high))
    first = int(np.argmax(nonfinite)) if nonfinite.any() else None
    usual = ran & ~undefined
    if not usual.any():  # nothing but NaN
        return ObservedRange(-math.inf, math.inf, True, True, first)
    magnitude = np.where(usual, np.maximum(np.abs(low), np.abs(high)), -1.0)
    ends = float(low[usual].min()), float(high[usual].max())
    return ObservedRange(*ends, bool(nan[ran].any()), True, first, int(np.argmax(magnitude)))
