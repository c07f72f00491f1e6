"""Decide whether a constant fits the low type (Rule S4.7).

A constant does not fit if a finite value of it becomes infinite, or if it holds a single non-zero value (an
epsilon) that becomes zero.

Rule S4.20: S4.7 applies to the value of every deterministic node without bodies whose inputs are all constants, to
constant arguments of functions, and to constants that functions return. ``Range`` and ``ConstantOfShape`` are computed
in closed form at any size, and a value mover has the range of its input. ``constant_evaluation`` computes the others.

Rule S4.21: A constant holds a single value if all of its elements are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.graph.model import Value, float_values
from mixlist.graph.weights import read_pieces, stores_all_elements
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES, flush_bound, overflow_bound
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.call_frames import CallFrame, CallFrames, FrameValue
from mixlist.patterns.constant_evaluation import ConstantEvaluator, UnknownValueError
from mixlist.progress import ProgressCounter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.graph.proto_types import ConstantProto


_MOVERS = operators(Trait.MOVES_VALUES)
_FILLERS = operators(Trait.FILLS)
_INTEGERS = frozenset({2, 3, 4, 5, 6})  # uint8, int8, uint16, int16, int32: the types of quantized weights


@dataclass(frozen=True)
class ConstantRange:
    """The largest finite magnitude of a constant, and its smallest and largest element.

    A constant without elements has ``smallest`` inf and ``largest`` -inf; one with a NaN, the other way round.
    ``unknown`` says why the values of some elements are not known; the range is that of the others.
    """

    max_abs: float
    smallest: float
    largest: float
    unknown: str = ""

    @property
    def single(self) -> float | None:
        """Return the value that all elements have; None if there are several values, or none."""
        return self.smallest if self.smallest == self.largest and not self.unknown else None

    def misfit_reason(self, low: int) -> str | None:
        """Return the reason why the low type does not hold the constant; None if it does."""
        if self.max_abs >= overflow_bound(low):
            return f"reaches {self.max_abs:.6g}, which {types.type_name(low)} turns into infinity"
        if self.single and abs(self.single) <= flush_bound(low):
            return f"is {self.single:.6g}, which {types.type_name(low)} turns into zero"
        return None

    def union(self, other: ConstantRange) -> ConstantRange:
        """Return the range of the elements of both."""
        smallest, largest = min(self.smallest, other.smallest), max(self.largest, other.largest)
        return ConstantRange(max(self.max_abs, other.max_abs), smallest, largest, self.unknown or other.unknown)


_EMPTY = ConstantRange(0.0, math.inf, -math.inf)
_ZERO = ConstantRange(0.0, 0.0, 0.0)


class ConstantRanges:
    """The ranges of a model's constants; each is found once, when first asked for."""

    def __init__(self, folder: Path | None, progress: ProgressCounter | None = None) -> None:
        self.folder = folder
        self.frames = CallFrames()
        self._progress = progress
        self._evaluator = ConstantEvaluator(folder, self.frames)
        self._scanned: dict[int, tuple[ConstantProto, ConstantRange]] = {}  # by id of the tensor, which is kept alive
        self._computed: dict[FrameValue, ConstantRange] = {}

    def range_of(self, value: Value, frame: CallFrame | None = None) -> ConstantRange | None:
        """Return the range of a constant in a call of its function; None for other values and if it holds no floats.

        A constant that value movers make has the union of the ranges of all constants that they move.
        """
        if not value.is_constant or types.element(value.type) not in types.FLOATS:
            return None
        if value.constant_proto is not None:
            return self._of_tensor(value.constant_proto)
        asked = self.frames.find_source(value, frame)
        waiting = [asked]
        while waiting:
            at = waiting[-1]
            if at in self._computed:
                waiting.pop()
                continue
            moved = [self.frames.find_source(source, at.frame) for source in _moved_inputs(at.value, _MOVERS)]
            missing = [source for source in moved if source not in self._computed]
            waiting += missing
            if not missing:
                self._computed[at] = self._moved(at, moved) if moved else self._of_leaf(at)
        return self._computed[asked]

    def known_range_of(self, value: Value, frame: CallFrame | None = None) -> ConstantRange | None:
        """Return the range of a constant whose value is known as a whole; None for every other value."""
        found = self.range_of(value, frame)
        return found if found is not None and not found.unknown else None

    def fits(self, value: Value, low: int) -> bool:
        """Return True if the low type holds the constant, or if the value is no constant of floats."""
        found = self.range_of(value)
        return found is None or found.misfit_reason(low) is None

    def _moved(self, at: FrameValue, moved: Iterable[FrameValue]) -> ConstantRange:
        fills = at.value.producer is not None and at.value.producer.op_type in _FILLERS
        return reduce(ConstantRange.union, (self._computed[source] for source in moved), _ZERO if fills else _EMPTY)

    def _of_leaf(self, at: FrameValue) -> ConstantRange:
        """Return the range of a constant that no value mover makes."""
        value, node = at.value, at.value.producer
        if value.constant_proto is not None:
            return self._of_tensor(value.constant_proto)
        if isinstance(value.type, tuple) and node is not None and not node.inputs:
            return _EMPTY  # SequenceEmpty, or an Optional without content
        operator = node.op_type if node is not None and not node.domain else ""
        try:
            if operator == "ConstantOfShape":
                return self._filled(at)
            if operator == "Range":
                return self._progression(at)
            if operator == "DequantizeLinear" and (bound := self._dequantized(at)) is not None:
                return bound
            return _range_of_pieces([self._evaluator.array(at).reshape(-1)])
        except UnknownValueError as reason:
            return replace(_EMPTY, unknown=str(reason))

    def _filled(self, at: FrameValue) -> ConstantRange:
        """Return the range of ConstantOfShape at any size."""
        (shape,) = self._evaluator.inputs(at)
        filler = self._evaluator.attribute_value(at, "value")
        if not shape.all():
            return _EMPTY
        return _range_of_pieces([filler.reshape(-1)]) if filler is not None else _ZERO

    def _progression(self, at: FrameValue) -> ConstantRange:
        """Return the range of Range at any size."""
        scalars = self._evaluator.inputs(at)
        if any(scalar.size != 1 for scalar in scalars):
            raise UnknownValueError("a Range reads tensors that are no scalars")
        start, limit, delta = (float(scalar.reshape(-1)[0]) for scalar in scalars)
        count = math.ceil((limit - start) / delta) if delta and math.isfinite((limit - start) / delta) else 0
        if count <= 0:
            return _EMPTY
        last = start + (count - 1) * delta
        return ConstantRange(max(abs(start), abs(last)), min(start, last), max(start, last))

    def _dequantized(self, at: FrameValue) -> ConstantRange | None:
        """Return a bound of a dequantized weight, if that is enough to see that it fits; it need not be evaluated."""
        assert at.value.producer is not None
        integers, *scales = [
            self.frames.find_source(value, at.frame) for value in at.value.producer.inputs if value is not None
        ]
        if integers.value.constant_proto is None or integers.value.type not in _INTEGERS:
            return None
        stored = self._of_tensor(integers.value.constant_proto)
        scale, *shift = [_range_of_pieces([self._evaluator.array(each).reshape(-1)]).max_abs for each in scales]
        bound = scale * (stored.max_abs + sum(shift))
        if stored.single is not None or bound >= min(map(overflow_bound, LOW_TYPES)):
            return None
        return ConstantRange(bound, -bound, bound)

    def _of_tensor(self, tensor: ConstantProto) -> ConstantRange:
        found = self._scanned.get(id(tensor))
        if found is None:
            known = _range_of_pieces(read_pieces(tensor, self.folder), self._progress)
            known = known if stores_all_elements(tensor) else known.union(_ZERO)
            found = self._scanned[id(tensor)] = (tensor, known)
        return found[1]


def find_origins(value: Value, movers: AbstractSet[str] = _MOVERS) -> list[Value]:
    """Return the tensors whose elements ``value`` holds: itself, unless one of ``movers`` makes it."""
    unmoved: list[Value] = []
    waiting, seen = [value], {value}
    while waiting:
        value = waiting.pop()
        sources = _moved_inputs(value, movers)
        if not sources:
            unmoved.append(value)
        waiting += [source for source in dict.fromkeys(sources) if source not in seen]
        seen.update(sources)
    return unmoved


def _moved_inputs(value: Value, movers: AbstractSet[str]) -> list[Value]:
    """Return the inputs whose elements a mover puts into ``value``: the floats, as indices and shapes are integers."""
    node = value.producer
    if node is None or node.op_type not in movers or node.domain or node.function is not None:
        return []
    return float_values(node.inputs)


def _range_of_pieces(parts: Iterable[NDArray[np.generic]], progress: ProgressCounter | None = None) -> ConstantRange:
    """Return the range of a constant that comes in flat arrays."""
    import numpy as np

    known = _EMPTY
    for piece in parts:
        if progress is not None:
            progress.add(piece.nbytes)
        if not piece.size:
            continue
        numbers = piece.astype(np.float32, copy=False)
        smallest, largest = float(numbers.min()), float(numbers.max())
        if math.isfinite(smallest) and math.isfinite(largest):
            known = known.union(ConstantRange(max(-smallest, largest), smallest, largest))
            continue
        magnitude = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))
        if math.isnan(smallest):
            smallest, largest = -math.inf, math.inf
        known = known.union(ConstantRange(magnitude, smallest, largest))
    return known
