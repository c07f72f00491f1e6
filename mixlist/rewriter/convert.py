"""Constants in another float type: converted as the policy says, and what that did to them counted.

float32 to float16 or bfloat16 rounds to nearest, ties to even. ``ieee`` lets a value beyond the range become
infinite; ``clamp`` makes it the largest finite one. Signs, zeros, infinities and NaNs of the constant survive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.ops import types

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class ConstantReport:
    """What conversion did to one constant: numbers of elements, and the largest finite magnitude before it."""

    name: str
    flushed: int = 0
    clamped: int = 0
    overflowed: int = 0
    max_abs: float = 0.0


def numpy_type(elem: int) -> Any:
    """The numpy dtype of a float element type (ml_dtypes has bfloat16)."""
    import ml_dtypes
    import numpy as np

    return {
        types.FLOAT: np.dtype(np.float32),
        types.FLOAT16: np.dtype(np.float16),
        types.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    }[elem]


def convert_piece(piece: NDArray[Any], elem: int, clamp: bool, report: ConstantReport) -> NDArray[Any]:
    """One flat piece of a constant in element type ``elem``; adds to the report."""
    import numpy as np

    dtype = numpy_type(elem)
    if piece.size == 0:
        return piece.astype(dtype)
    wide = piece.astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        narrow = wide.astype(dtype)
    high, low = float(wide.max()), float(wide.min())
    if np.isfinite(high) and np.isfinite(low):
        report.max_abs = max(report.max_abs, abs(high), abs(low))
        infinite = None if np.isfinite(_extreme(narrow)) else np.isinf(narrow)
    else:
        finite = np.isfinite(wide)
        report.max_abs = max(report.max_abs, float(np.abs(wide[finite]).max()) if finite.any() else 0.0)
        infinite = np.isinf(narrow) & finite
    if infinite is not None and infinite.any():
        count = int(infinite.sum())
        if clamp:
            largest = _largest(elem)
            narrow = np.where(infinite, np.where(wide > 0, largest, -largest).astype(dtype), narrow).astype(dtype)
            report.clamped += count
        else:
            report.overflowed += count
    report.flushed += int(np.count_nonzero(wide) - np.count_nonzero(narrow))
    return narrow


def _extreme(piece: NDArray[Any]) -> float:
    import numpy as np

    return max(abs(float(np.max(piece))), abs(float(np.min(piece))))


def _largest(elem: int) -> float:
    return 65504.0 if elem == types.FLOAT16 else float.fromhex("0x1.fep127")


def converted_tensor(tensor: Any, elem: int, clamp: bool, name: str) -> tuple[Any, ConstantReport | None]:
    """A new TensorProto (or SparseTensorProto) that holds the constant in ``elem``, and the report.

    ``tensor`` is a TensorProto, a Constant's attribute, or a SparseTensorProto; ``name`` the new tensor's name. A
    tensor in another file stays there, marked as pending, and has no report yet: ``stream`` converts it.
    """
    from onnx import SparseTensorProto, TensorProto

    from mixlist.graph import weights

    if tensor.DESCRIPTOR.name == "SparseTensorProto":
        sparse = SparseTensorProto()
        sparse.CopyFrom(tensor)
        values, report = converted_tensor(tensor.values, elem, clamp, name)
        sparse.values.CopyFrom(values)
        return sparse, report
    made = TensorProto(name=name, data_type=elem)
    if tensor.DESCRIPTOR.name == "TensorProto":
        made.dims.extend(tensor.dims)
        made.doc_string = tensor.doc_string
    elif tensor.name == "value_floats":
        made.dims.append(len(tensor.floats))
    if weights.is_external(tensor):
        made.data_location = TensorProto.EXTERNAL
        made.external_data.extend(tensor.external_data)
        made.external_data.add(key=weights.PENDING, value=str(tensor.data_type))
        return made, None
    report = ConstantReport(name)
    parts = [convert_piece(p, elem, clamp, report).tobytes() for p in weights.pieces(tensor, None)]
    made.raw_data = b"".join(parts)
    return made, report


def stream(tensor: Any, folder: Path | None, clamp: bool, reports: dict[str, ConstantReport]) -> Iterator[bytes]:
    """The bytes of a tensor as the model declares it; what is pending is converted on the way and reported."""
    from mixlist.graph import weights

    if weights.stored_type(tensor) == tensor.data_type:
        yield from weights.raw_pieces(tensor, folder)
        return
    report = ConstantReport(tensor.name)
    for piece in weights.pieces(tensor, folder):
        yield convert_piece(piece, tensor.data_type, clamp, report).tobytes()
    reports[tensor.name] = report
