"""Rule S4.7: does a constant fit the low type?

It does not if a finite value of it becomes infinite, or if it holds a single non-zero value (an
epsilon) that becomes zero. A constant that a value mover makes (Transpose, Concat, ...) is judged by all that it moves.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.graph.model import Value, floats_of
from mixlist.graph.weights import element_count, pieces
from mixlist.ops import types
from mixlist.ops.low_precision import flush_bound, overflow_bound
from mixlist.ops.traits import Trait, operators

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.graph.protos import ConstantProto

Progress = Callable[[int], None]  # told the bytes read since the last call

_MOVERS = operators(Trait.MOVES_VALUES)
_FILLERS = operators(Trait.FILLS)


@dataclass(frozen=True)
class ConstantRange:
    """The largest finite magnitude of a constant, and the number itself if the constant holds a single one.

    ``complete`` is False for a constant that is partly computed: the range is that of the known elements.
    """

    max_abs: float
    single: float | None
    complete: bool = True

    def misfit(self, low: int) -> str | None:
        """Why the low type does not hold the constant; None where it does."""
        if self.max_abs >= overflow_bound(low):
            return f"reaches {self.max_abs:.6g}, which {types.type_name(low)} turns into infinity"
        if self.single and abs(self.single) <= flush_bound(low):
            return f"is {self.single:.6g}, which {types.type_name(low)} turns into zero"
        return None


class ConstantRanges:
    """The ranges of a model's constants; each is scanned once, when first asked for."""

    def __init__(self, folder: Path | None, progress: Progress | None = None) -> None:
        self.folder = folder
        self._progress = progress
        self._known: dict[int, tuple[ConstantProto, ConstantRange]] = {}  # by id of the tensor, which is kept alive

    def of(self, value: Value) -> ConstantRange | None:
        """Return the range of a constant; None for a computed one, and for one that holds no floats.

        A constant that value movers make has the union of the ranges of all constants that they move.
        """
        if not value.constant:
            return None
        # Through a chain of movers that read one tensor each, a single number stays a single number.
        while len(sources := _moved_inputs(value, _MOVERS)) == 1 and not _moved_inputs(value, _FILLERS):
            value = sources[0]
        if value.tensor is not None:
            return self._of_tensor(value.tensor)
        tensors = [origin.tensor for origin in origins(value)]
        ranges = [self._of_tensor(tensor) for tensor in tensors if tensor is not None]
        return ConstantRange(max(known.max_abs for known in ranges), None, None not in tensors) if ranges else None

    def fits(self, value: Value, low: int) -> bool:
        """Whether the low type holds the constant."""
        found = self.of(value)
        return found is None or found.misfit(low) is None

    def _of_tensor(self, tensor: ConstantProto) -> ConstantRange:
        found = self._known.get(id(tensor))
        if found is None:
            found = self._known[id(tensor)] = (tensor, self._scan(tensor))
        return found[1]

    def _scan(self, tensor: ConstantProto) -> ConstantRange:
        largest, single = 0.0, None
        alone = element_count(tensor) == 1
        for piece in pieces(tensor, self.folder):
            largest = max(largest, _finite_max(piece))
            if self._progress is not None:
                self._progress(piece.nbytes)
            if alone and piece.size:
                single = float(piece[0])
        return ConstantRange(largest, single)


def origins(value: Value, movers: AbstractSet[str] = _MOVERS) -> list[Value]:
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
    return floats_of(node.inputs)


def _finite_max(piece: NDArray[np.generic]) -> float:
    import numpy as np

    numbers = piece.astype(np.float32, copy=False)
    high, low = float(numbers.max(initial=0)), float(numbers.min(initial=0))
    if np.isfinite(high) and np.isfinite(low):
        return max(high, -low)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))
