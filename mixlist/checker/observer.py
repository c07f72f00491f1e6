"""Run an instrumented model, and read the range of every observed tensor in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mixlist.checker.instrument import RANGE_STATISTICS, InstrumentedModel, OutputColumn
from mixlist.model.naming import TensorRef
from mixlist.run.feeds import make_emulation_feed
from mixlist.run.session import Array, Feed, Session

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from mixlist.run.inputs import Input


@dataclass(frozen=True)
class ObservedRange:
    """The range of one tensor in one batch.

    minimum, maximum: the smallest and the largest value; NaN does not count.
    nan: True if a value is NaN.
    ran: False if the tensor was not computed (its branch was not taken, its loop had no iteration).
    first_nonfinite: the index of the first iteration in which a value was not finite; None if all values were finite.
    first_largest: the index of the first iteration in which the largest magnitude occurred.

    A tensor outside loops has one iteration, with the index 0.
    """

    minimum: float
    maximum: float
    nan: bool
    ran: bool = True
    first_nonfinite: int | None = None
    first_largest: int = 0

    @property
    def finite(self) -> bool:
        """Return True if every value was finite."""
        return self.first_nonfinite is None

    @property
    def magnitude(self) -> float:
        """Return the largest magnitude. NaN counts as infinite."""
        if not self.ran:
            return 0.0
        return math.inf if self.nan else max(abs(self.minimum), abs(self.maximum))

    @property
    def hidden_by_nan(self) -> bool:
        """Return True if the minimum and the maximum are unknown: the provider returned NaN for them.

        ``observer.py`` sets them to -inf and inf in this case.
        """
        return self.nan and self.minimum == -math.inf and self.maximum == math.inf

    @property
    def reported_magnitude(self) -> float:
        """Return the largest magnitude as reports show it: NaN if a value is NaN, where ``magnitude`` is infinite."""
        return math.nan if self.nan and self.ran else self.magnitude

    def union(self, other: ObservedRange) -> ObservedRange:
        """Return the range of the values of both ranges. Both tensors must have been computed."""
        first = min((run for run in (self.first_nonfinite, other.first_nonfinite) if run is not None), default=None)
        minimum, maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        # The range with the larger magnitude; of two equal ones that of the earlier iteration.
        larger = min(self, other, key=lambda observed: (-observed.magnitude, observed.first_largest))
        return ObservedRange(minimum, maximum, self.nan or other.nan, True, first, larger.first_largest)


Ranges: TypeAlias = Mapping[TensorRef, ObservedRange]
ObservedBatch: TypeAlias = tuple[dict[str, Array], Ranges]  # the outputs of the model by name, and the ranges
_RANGE_NAMES = tuple(statistic.name for statistic in RANGE_STATISTICS)
_NOT_COMPUTED = ObservedRange(0.0, 0.0, nan=False, ran=False)


class RangeReader:
    """Read the ranges of tensors from the outputs of an instrumented model."""

    def __init__(self, instrumented: InstrumentedModel) -> None:
        self._columns, self._whole_outputs = instrumented.columns, instrumented.whole_outputs
        # Most tensors have one value for each statistic; these values are read all at once, as vectors. A tensor in a
        # loop, or in a function that is called several times, has several values. A tensor with a source (``Probe``)
        # takes the range of its source.
        self._with_one_value: list[TensorRef] = []
        self._with_several_values: list[TensorRef] = []
        self._with_source: list[tuple[TensorRef, TensorRef]] = []
        for probe in instrumented.probes:
            columns = self._columns.get((probe.ref, _RANGE_NAMES[0]))
            if probe.source is not None:
                self._with_source.append((probe.ref, probe.source))
            elif columns is not None:
                has_several = len(columns) > 1 or columns[0].stacked
                (self._with_several_values if has_several else self._with_one_value).append(probe.ref)
        counts = instrumented.column_counts
        self._gathers = [self._plan_gather(name, counts) for name in _RANGE_NAMES] if self._with_one_value else []

    def _plan_gather(self, statistic: str, column_counts: Mapping[str, int]) -> tuple[list[str], NDArray[np.intp]]:
        """Return the outputs that hold a statistic of the tensors with one value, and the indices of these values.

        The indices refer to the concatenation of the outputs.
        """
        columns = [self._columns[tensor, statistic][0] for tensor in self._with_one_value]
        names = list(dict.fromkeys(column.output for column in columns))
        offsets = dict(zip(names, accumulate((column_counts[name] for name in names), initial=0), strict=False))
        return names, np.array([offsets[column.output] + column.column for column in columns], np.intp)

    def read(self, values: Mapping[str, Array]) -> Ranges:
        """Return the ranges of all tensors; ``values`` are the values of the outputs of a run by name."""
        ranges: dict[TensorRef, ObservedRange] = {}
        if self._with_one_value:
            statistics = [np.concatenate([values[name] for name in names])[indices] for names, indices in self._gathers]
            ranges = dict(zip(self._with_one_value, _make_ranges(*statistics), strict=True))
        if self._whole_outputs:
            arrays = [values[name] for name in self._whole_outputs.values()]
            ranges |= zip(self._whole_outputs, _reduce_arrays(arrays), strict=True)
        for tensor in self._with_several_values:
            ranges[tensor] = _join_ranges(*(_gather(values, self._columns[tensor, name]) for name in _RANGE_NAMES))
        for tensor, source in self._with_source:
            if source in ranges:
                ranges[tensor] = ranges[source]
        return ranges


class Observer:
    """A session of an instrumented model.

    output_names: the outputs of the model itself that a run returns.
    proto: the model of the session.
    original_inputs: the inputs of the model before it was widened to float32; () for a model that was not widened.
    """

    def __init__(
        self,
        instrumented: InstrumentedModel,
        session: Session,
        output_names: list[str],
        proto: ModelProto,
        original_inputs: tuple[Input, ...] = (),
    ) -> None:
        self.instrumented, self.output_names, self.proto = instrumented, output_names, proto
        self._session, self._original_inputs = session, original_inputs
        self._reader = RangeReader(instrumented)
        self._started_ahead: tuple[Feed, Callable[[], ObservedBatch]] | None = None

    def run(self, feed: Feed) -> ObservedBatch:
        """Run one batch, and return the outputs of the model and the ranges."""
        return self.start(feed)()

    def start(self, feed: Feed) -> Callable[[], ObservedBatch]:
        """Start to run one batch, and return a function that waits for the run and returns its results.

        A session in another process runs the batch while this process continues.
        """
        started, self._started_ahead = self._started_ahead, None
        if started is not None and started[0] is feed:
            return started[1]
        # A whole tensor may be an output of the model, too.
        names = list(dict.fromkeys([*self.output_names, *self.instrumented.observed_outputs]))
        outputs = self._session.start(names, self.convert_feed(feed))

        def finish() -> ObservedBatch:
            values = dict(zip(names, outputs(), strict=True))
            return {name: values[name] for name in self.output_names}, self._reader.read(values)

        return finish

    def start_ahead(self, feed: Feed | None) -> None:
        """Start to run a batch early. The next call of ``start`` with this batch returns the same run."""
        if feed is not None:
            self._started_ahead = feed, self.start(feed)

    def with_session(self, session: Session, output_names: list[str]) -> Observer:
        """Return an observer without probes of another session of the same model, which gets the same feeds."""
        nothing = InstrumentedModel(type(self.instrumented.proto)())
        return Observer(nothing, session, output_names, nothing.proto, self._original_inputs)

    def convert_feed(self, feed: Feed) -> Feed:
        """Return a feed in the types of the graph's inputs."""
        return make_emulation_feed(feed, self._original_inputs) if self._original_inputs else feed

    def read_statistics(self, feed: Feed) -> dict[tuple[TensorRef, str], NDArray[np.float64]]:
        """Run one batch, and return the statistics of each tensor by name.

        The array of a tensor has one value, or one for each call of its function and each iteration of its loop.
        """
        names = list(self.instrumented.column_counts)
        if not names:  # an empty list would request all outputs from ONNX Runtime
            return {}
        outputs = self._session.start(names, self.convert_feed(feed))
        values = dict(zip(names, outputs(), strict=True))
        return {key: _gather(values, columns) for key, columns in self.instrumented.columns.items()}

    def close(self) -> None:
        """Release the session."""
        self._session.close()


def _gather(values: Mapping[str, Array], columns: Iterable[OutputColumn]) -> NDArray[np.float64]:
    """Return the numbers in some columns as a vector. A stacked column has one number for each iteration."""
    parts = [np.asarray(values[column.output][..., column.column], np.float64) for column in columns]
    return np.concatenate([part.reshape(-1) for part in parts])


def _reduce_arrays(arrays: Sequence[Array]) -> list[ObservedRange]:
    """Return the ranges of whole tensors. An empty tensor was not computed, as in the graph."""
    lengths = np.array([array.size for array in arrays])
    numbers = np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays])
    # Each range of an array starts at its offset. ``reduceat`` gives an empty array the next number: leave it out.
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    minimum, maximum = np.full(len(arrays), math.inf), np.full(len(arrays), -math.inf)
    has_nan = np.zeros(len(arrays), bool)
    if starts.size:
        minimum[lengths > 0], maximum[lengths > 0] = (f.reduceat(numbers, starts) for f in (np.fmin, np.fmax))
        has_nan[lengths > 0] = np.logical_or.reduceat(np.isnan(numbers), starts)
    return _make_ranges(minimum, maximum, np.where(has_nan, math.nan, 0.0))


def _make_ranges(
    low: NDArray[np.floating], high: NDArray[np.floating], total: NDArray[np.floating]
) -> list[ObservedRange]:
    """Return the ranges of many tensors from their minimum, maximum, and sum of magnitudes."""
    undefined = np.isnan(low) | np.isnan(high)
    # The total is infinite for large finite values too, so only a NaN counts.
    nan = undefined | np.isnan(total)
    nonfinite = nan | np.isinf(low) | np.isinf(high)
    if undefined.any():
        low, high = np.where(undefined, -math.inf, low), np.where(undefined, math.inf, high)
    rows = zip(low.tolist(), high.tolist(), nan.tolist(), nonfinite.tolist(), strict=True)
    # A tensor that was not computed has the neutral elements: its minimum is above its maximum.
    return [
        ObservedRange(minimum, maximum, has_nan, True, 0 if is_bad else None) if minimum <= maximum else _NOT_COMPUTED
        for minimum, maximum, has_nan, is_bad in rows
    ]


def _join_ranges(low: NDArray[np.float64], high: NDArray[np.float64], total: NDArray[np.float64]) -> ObservedRange:
    """Return the range of one tensor over all iterations of its loop.

    An entry of an iteration that did not compute the tensor has the neutral elements inf and -inf, on CUDA the
    largest finite numbers.
    """
    ran = ~(low > high)
    if not ran.any():
        return _NOT_COMPUTED
    undefined = np.isnan(low) | np.isnan(high)
    nan = undefined | np.isnan(total)
    nonfinite = ran & (nan | np.isinf(low) | np.isinf(high))
    first_nonfinite = int(np.argmax(nonfinite)) if nonfinite.any() else None
    defined = ran & ~undefined
    if not defined.any():  # every value is NaN, or the provider returned NaN for all ranges
        return ObservedRange(-math.inf, math.inf, True, True, first_nonfinite)
    magnitude = np.where(defined, np.maximum(np.abs(low), np.abs(high)), -1.0)
    minimum, maximum = float(low[defined].min()), float(high[defined].max())
    return ObservedRange(minimum, maximum, bool(nan[ran].any()), True, first_nonfinite, int(np.argmax(magnitude)))
