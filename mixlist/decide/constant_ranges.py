"""Find the range of each constant, and whether the low type holds it (Rule S4.7).

A constant does not fit if a finite value of it becomes infinite, or if it holds a single non-zero value (an
epsilon) that becomes zero.

Rule S4.20: S4.7 applies to the value of every deterministic node without bodies whose inputs are all constants. The
ranges of ``Range`` and ``ConstantOfShape`` come from their inputs alone, at any size, and a value mover has the range
of its inputs. ``constant_evaluation`` computes all other constants.

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

from mixlist.decide.constant_evaluation import ConstantEvaluator, UnknownValueError
from mixlist.model import dtypes
from mixlist.model.graph import Value, float_values
from mixlist.model.low_precision import LOW_TYPES, flush_bound, overflow_bound
from mixlist.model.traits import Trait, operators
from mixlist.model.weights import read_pieces, stores_all_elements
from mixlist.progress import ProgressCounter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.model.protos import ConstantProto


_MOVERS = operators(Trait.MOVES_VALUES)
_FILLERS = operators(Trait.FILLS)
_QUANTIZED_TYPES = frozenset({2, 3, 4, 5, 6})  # uint8, int8, uint16, int16, int32


@dataclass(frozen=True)
class ConstantRange:
    """The largest finite magnitude of a constant, and its smallest and largest element.

    A constant without elements has ``smallest`` inf and ``largest`` -inf, so that a union with it changes nothing. A
    constant with a NaN has ``smallest`` -inf and ``largest`` inf. ``unknown``: the reason why the values of
    some elements are unknown, or "" if all are known. The range is then that of the known elements.
    """

    max_abs: float
    smallest: float
    largest: float
    unknown: str = ""

    @property
    def single_value(self) -> float | None:
        """Return the value that all elements have; None if there are several values, or none."""
        return self.smallest if self.smallest == self.largest and not self.unknown else None

    def misfit_reason(self, low: int) -> str | None:
        """Return why the constant does not fit the low type, as the end of a sentence; None if it fits."""
        if self.max_abs >= overflow_bound(low):
            return f"reaches {self.max_abs:.6g}, which {dtypes.type_name(low)} turns into infinity"
        # If one small element of many becomes zero, this is a rounding error. If all elements become zero, the constant
        # has no effect any more: an epsilon that is zero does not prevent a division by zero.
        if self.single_value and abs(self.single_value) <= flush_bound(low):
            return f"is {self.single_value:.6g}, which {dtypes.type_name(low)} turns into zero"
        return None

    def union(self, second: ConstantRange) -> ConstantRange:
        """Return the range of the elements of both constants."""
        smallest, largest = min(self.smallest, second.smallest), max(self.largest, second.largest)
        return ConstantRange(max(self.max_abs, second.max_abs), smallest, largest, self.unknown or second.unknown)


_EMPTY = ConstantRange(0.0, math.inf, -math.inf)
_ZERO = ConstantRange(0.0, 0.0, 0.0)


class ConstantRanges:
    """The ranges of a model's constants; each is computed once, when it is first asked for."""

    def __init__(self, folder: Path | None, progress: ProgressCounter | None = None) -> None:
        self.folder = folder
        self._progress = progress
        self._evaluator = ConstantEvaluator(folder)
        # By id of the tensor. The tensor is kept, too, so that no other object can get its id.
        self._stored: dict[int, tuple[ConstantProto, ConstantRange]] = {}
        self._computed: dict[Value, ConstantRange] = {}

    def range_of(self, value: Value) -> ConstantRange | None:
        """Return the range of a constant; None for a value that is no constant, or that holds no floats.

        A constant that value movers make has the union of the ranges of all constants that are moved into it.
        """
        if not value.is_constant or dtypes.element(value.type) not in dtypes.FLOATS:
            return None
        if value.constant_proto is not None:
            return self._stored_range(value.constant_proto)
        # Depth first through the value movers, with a stack: a chain of them may be longer than Python's stack.
        stack = [value]
        while stack:
            step = stack[-1]
            if step in self._computed:  # computed now, or earlier: two movers can read one constant
                stack.pop()
                continue
            moved = _moved_inputs(step, _MOVERS)
            missing = [source for source in moved if source not in self._computed]
            stack += missing
            if not missing:
                self._computed[step] = (
                    self._range_of_mover_output(step, moved) if moved else self._range_of_other_constant(step)
                )
        return self._computed[value]

    def known_range_of(self, value: Value) -> ConstantRange | None:
        """Return the range of a constant if the values of all its elements are known; None for every other value."""
        constant_range = self.range_of(value)
        return constant_range if constant_range is not None and not constant_range.unknown else None

    def fits(self, value: Value, low: int) -> bool:
        """Return True if the low type holds the constant, or if the value is no constant of floats."""
        constant_range = self.range_of(value)
        return constant_range is None or constant_range.misfit_reason(low) is None

    def _range_of_mover_output(self, constant: Value, moved: Iterable[Value]) -> ConstantRange:
        """Return the union of the ranges of the constants that a value mover moves into this one."""
        fills = constant.producer is not None and constant.producer.op_type in _FILLERS
        return reduce(ConstantRange.union, (self._computed[source] for source in moved), _ZERO if fills else _EMPTY)

    def _range_of_other_constant(self, constant: Value) -> ConstantRange:
        """Return the range of a constant that no value mover makes."""
        node = constant.producer
        if constant.constant_proto is not None:
            return self._stored_range(constant.constant_proto)
        if isinstance(constant.type, tuple) and node is not None and not node.inputs:
            return _EMPTY  # SequenceEmpty, or an Optional without content
        operator = node.op_type if node is not None and not node.domain else ""
        try:
            if operator == "ConstantOfShape":
                return self._filled_range(constant)
            if operator == "Range":
                return self._progression_range(constant)
            if operator == "DequantizeLinear" and (bound := self._dequantized_bound(constant)) is not None:
                return bound
            return _range_of_pieces([self._evaluator.array(constant).reshape(-1)])
        except UnknownValueError as reason:
            return replace(_EMPTY, unknown=str(reason))

    def _filled_range(self, constant: Value) -> ConstantRange:
        """Return the range of the output of a ConstantOfShape. Its size does not matter: no element is computed."""
        (shape,) = self._evaluator.input_arrays(constant)
        fill_value = self._evaluator.attribute_value(constant, "value")
        if not shape.all():  # a dimension is 0
            return _EMPTY
        return _range_of_pieces([fill_value.reshape(-1)]) if fill_value is not None else _ZERO

    def _progression_range(self, constant: Value) -> ConstantRange:
        """Return the range of the output of a Range. Its size does not matter: no element is computed."""
        scalars = self._evaluator.input_arrays(constant)
        if any(scalar.size != 1 for scalar in scalars):
            raise UnknownValueError("a Range reads tensors that are no scalars")
        start, limit, delta = (float(scalar.reshape(-1)[0]) for scalar in scalars)
        count = math.ceil((limit - start) / delta) if delta and math.isfinite((limit - start) / delta) else 0
        if count <= 0:
            return _EMPTY
        # A Range is monotonic: its first and its last element are the ends of its range.
        last = start + (count - 1) * delta
        return ConstantRange(max(abs(start), abs(last)), min(start, last), max(start, last))

    def _dequantized_bound(self, constant: Value) -> ConstantRange | None:
        """Return a bound of a dequantized weight; None if the bound does not prove that the weight fits.

        The bound is the largest scale times the largest difference of an integer and a zero point. Without it, every
        quantized weight of an old model would be unknown: onnx.reference has DequantizeLinear from opset 19 on only.
        """
        node = constant.producer
        assert node is not None
        # The inputs are the integers, their scale and, if it is not left out, their zero point.
        integers, *parameters = [value for value in node.inputs if value is not None]
        if integers.constant_proto is None or integers.type not in _QUANTIZED_TYPES:
            return None
        integer_range = self._stored_range(integers.constant_proto)
        scale, *zero_point = [
            _range_of_pieces([self._evaluator.array(parameter).reshape(-1)]).max_abs for parameter in parameters
        ]
        bound = scale * (integer_range.max_abs + sum(zero_point))  # the zero point may be left out
        # A single value may become zero, which a bound cannot show: it needs the evaluation. The smaller of the two low
        # types decides, because the range of a constant serves both.
        if integer_range.single_value is not None or bound >= min(map(overflow_bound, LOW_TYPES)):
            return None
        return ConstantRange(bound, -bound, bound)

    def _stored_range(self, tensor: ConstantProto) -> ConstantRange:
        """Return the range of an initializer or of a Constant's attribute."""
        entry = self._stored.get(id(tensor))
        if entry is None:
            stored_range = _range_of_pieces(read_pieces(tensor, self.folder), self._progress)
            if not stores_all_elements(tensor):  # a sparse tensor: the others are zero
                stored_range = stored_range.union(_ZERO)
            entry = self._stored[id(tensor)] = (tensor, stored_range)
        return entry[1]


def find_origins(value: Value, movers: AbstractSet[str] = _MOVERS) -> list[Value]:
    """Return the tensors from which ``movers`` take the elements of ``value``; only ``value`` if no mover makes it."""
    origins: list[Value] = []
    waiting, visited = [value], {value}
    while waiting:
        value = waiting.pop()
        sources = _moved_inputs(value, movers)
        if not sources:
            origins.append(value)
        waiting += [source for source in dict.fromkeys(sources) if source not in visited]
        visited.update(sources)
    return origins


def _moved_inputs(value: Value, movers: AbstractSet[str]) -> list[Value]:
    """Return the inputs whose elements a mover puts into ``value``: its float inputs, because indices are integers."""
    node = value.producer
    if node is None or node.op_type not in movers or node.domain:
        return []
    return float_values(node.inputs)


def _range_of_pieces(pieces: Iterable[NDArray[np.generic]], progress: ProgressCounter | None = None) -> ConstantRange:
    """Return the range of a constant from its elements in flat arrays; ``progress`` counts the bytes of the arrays."""
    import numpy as np

    total = _EMPTY
    for piece in pieces:
        if progress is not None:
            progress.add(piece.nbytes)
        if not piece.size:
            continue
        numbers = piece.astype(np.float32, copy=False)
        smallest, largest = float(numbers.min()), float(numbers.max())
        if math.isfinite(smallest) and math.isfinite(largest):
            total = total.union(ConstantRange(max(-smallest, largest), smallest, largest))
            continue
        # Infinities of the author do not count in the magnitude, because a low type holds them.
        magnitude = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))
        if math.isnan(smallest):  # numpy's minimum is NaN if one element is
            smallest, largest = -math.inf, math.inf
        total = total.union(ConstantRange(magnitude, smallest, largest))
    return total
