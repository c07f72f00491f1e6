"""Rule S4.7: does a constant fit the low type?

It does not if a finite value of it becomes infinite, or if it holds a single non-zero value (an
epsilon) that becomes zero. What only moves a constant (Transpose, Reshape, ...) is looked through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.graph.model import Node, Value
from mixlist.graph.weights import element_count, pieces
from mixlist.ops import types
from mixlist.ops.low_precision import flush_bound, overflow_bound

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Progress = Callable[[int], None]  # told the bytes read since the last call

_MOVES = frozenset(
    {"Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile", "Slice", "Gather"}
)


@dataclass(frozen=True)
class ConstantRange:
    """Largest finite magnitude, and the value itself where there is only one."""

    max_abs: float
    single: float | None

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
        self._known: dict[int, tuple[Any, ConstantRange | None]] = {}  # by id of the tensor, which is kept alive

    def of(self, value: Value) -> ConstantRange | None:
        """The range of a constant; None for what is computed, or holds no float numbers."""
        while value.tensor is None and value.producer is not None and _moves(value.producer):
            source = value.producer.inputs[0]
            if source is None or not source.constant:
                return None
            value = source
        if value.tensor is None:
            return None
        found = self._known.get(id(value.tensor))
        if found is None:
            found = self._known[id(value.tensor)] = (value.tensor, self._scan(value.tensor))
        return found[1]

    def fits(self, value: Value, low: int) -> bool:
        """Whether the low type holds the constant."""
        found = self.of(value)
        return found is None or found.misfit(low) is None

    def _scan(self, tensor: Any) -> ConstantRange:
        largest, single = 0.0, None
        alone = element_count(tensor) == 1
        for piece in pieces(tensor, self.folder):
            largest = max(largest, _finite_max(piece))
            if self._progress is not None:
                self._progress(piece.nbytes)
            if alone and piece.size:
                single = float(piece[0])
        return ConstantRange(largest, single)


def _moves(node: Node) -> bool:
    return node.domain == "" and node.op_type in _MOVES


def _finite_max(piece: NDArray[np.generic]) -> float:
    import numpy as np

    if piece.size == 0:
        return 0.0
    numbers = piece.astype(np.float32, copy=False)
    high, low = float(numbers.max()), float(numbers.min())
    if np.isfinite(high) and np.isfinite(low):
        return max(abs(high), abs(low))
    finite = numbers[np.isfinite(numbers)]
    return float(np.abs(finite).max()) if finite.size else 0.0
