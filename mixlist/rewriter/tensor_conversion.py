"""Constants in another float type: converted as the policy says, and what that did to them counted.

float32 to float16 or bfloat16 rounds to nearest, ties to even. ``ieee`` lets a value beyond the range become
infinite; ``clamp`` makes it the largest finite one. Signs, zeros, infinities and NaNs of the constant survive.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mixlist.errors import ModelError
from mixlist.graph.proto_edits import copy_message
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, flush_bound, overflow_bound

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto, SparseTensorProto, TensorProto
    from onnxruntime import InferenceSession

    from mixlist.graph.proto_types import ConstantProto


@dataclass
class ConstantReport:
    """The changes of one constant by its conversion: numbers of elements, and the largest finite magnitude before.

    ``masked``: values of a mask that were reduced (Rule S4.36).
    """

    name: str
    flushed: int = 0
    clamped: int = 0
    overflowed: int = 0
    max_abs: float = 0.0
    masked: int = 0


def numpy_type(elem: int) -> np.dtype[np.generic]:
    """Return the numpy dtype of a float element type (ml_dtypes has bfloat16).

    Raises ModelError for any other type: only a model whose types contradict each other asks for one.
    """
    from onnx import helper

    if elem not in types.MIXABLE:
        message = f"a float constant is read as {types.type_name(elem)}: the model's types contradict each other"
        raise ModelError(message, hint="check the model with onnx.checker")
    return helper.tensor_dtype_to_np_dtype(elem)


def convert_piece(
    piece: NDArray[np.generic], elem: int, clamp: bool, report: ConstantReport, many: bool = False
) -> NDArray[np.generic]:
    """One flat piece of a constant in element type ``elem``; adds to the report. ``many``: of a large constant."""
    import numpy as np

    dtype = numpy_type(elem)
    if piece.size == 0:
        return piece.astype(dtype)
    wide = np.ascontiguousarray(piece, np.float32)
    narrow = _narrowed(wide, elem, dtype, many)
    size = wide.view(np.uint32) & np.uint32(0x7FFFFFFF)  # magnitudes: without the sign, floats sort as their bits do
    largest = float(size.max().view(np.float32))
    infinite = None
    if not np.isfinite(largest):
        finite = np.isfinite(wide)
        largest = float(np.abs(wide[finite]).max()) if finite.any() else 0.0
        infinite = np.isinf(narrow) & finite
    elif largest >= overflow_bound(elem):
        infinite = np.isinf(narrow)
    report.max_abs = max(report.max_abs, largest)
    if infinite is not None and (count := int(np.count_nonzero(infinite))):
        if clamp:
            largest_finite = np.copysign(np.float32(FINITE_MAX[elem]), wide).astype(dtype)
            narrow = np.where(infinite, largest_finite, narrow)
            report.clamped += count
        else:
            report.overflowed += count
    if elem != types.FLOAT:
        size -= np.uint32(1)  # zero wraps around, so that one comparison finds what is tiny and not zero
        report.flushed += int(np.count_nonzero(size < np.float32(flush_bound(elem)).view(np.uint32)))
    return narrow


def _narrowed(wide: NDArray[np.float32], elem: int, dtype: np.dtype[np.generic], many: bool) -> NDArray[np.generic]:
    """Rounded to nearest, ties to even: by numpy, and for much float16 by ONNX Runtime, which is faster."""
    import numpy as np

    if elem == types.FLOAT16 and many:
        session = _half_session()
        return cast("NDArray[np.generic]", session.run(None, {"x": wide})[0])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return wide.astype(dtype)


# A model of one Cast node; 10 is float16.
_CAST_TO_HALF = """<ir_version: 8, opset_import: ["" : 13]>
half (float[n] x) => (float16[n] y) { y = Cast <to = 10> (x) }"""
_MANY = 2**21  # elements from which importing ONNX Runtime (a fifth of a second) may pay; numpy does 1 to 3 GB/s


@cache
def _half_session() -> InferenceSession:
    """A session of one Cast node: the same bits as numpy, several times faster."""
    import onnxruntime
    from onnx import parser

    model = parser.parse_model(_CAST_TO_HALF)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # its threads would spin between the pieces, where others read and write
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def converted_tensor(
    tensor: ConstantProto, elem: int, clamp: bool, name: str, limit: float = 0.0, folder: Path | None = None
) -> tuple[TensorProto | SparseTensorProto, ConstantReport | None]:
    """Return a new TensorProto (or SparseTensorProto) that holds the constant in ``elem``, and the report.

    ``tensor`` is a TensorProto, a Constant's attribute, or a SparseTensorProto; ``name`` the new tensor's name. A
    tensor in another file stays there, marked as pending, and has no report yet: ``stream`` converts it. With a
    ``limit``, finite magnitudes are reduced to it (Rule S4.36), and a tensor in another file of ``folder`` is read.
    """
    from onnx import SparseTensorProto, TensorProto

    from mixlist.graph import weights

    if isinstance(tensor, SparseTensorProto):
        sparse = copy_message(tensor)
        values, report = converted_tensor(tensor.values, elem, clamp, name, limit, folder)
        assert isinstance(values, TensorProto)
        sparse.values.CopyFrom(values)
        return sparse, report
    made = TensorProto(name=name, data_type=elem)
    if isinstance(tensor, TensorProto):
        made.dims.extend(tensor.dims)
        made.doc_string = tensor.doc_string
    elif tensor.name == "value_floats":
        made.dims.append(len(tensor.floats))
    if weights.is_external(tensor) and not limit:
        made.data_location = TensorProto.EXTERNAL
        made.external_data.extend(tensor.external_data)
        made.external_data.add(key=weights.STORED_TYPE, value=str(tensor.data_type))
        return made, None
    report = ConstantReport(name)
    many = weights.stored_element_count(tensor) >= _MANY
    found = weights.read_pieces(tensor, folder)
    if limit:
        found = (reduce_piece(piece, limit, report) for piece in found)
    parts = [convert_piece(piece, elem, clamp, report, many).tobytes() for piece in found]
    made.raw_data = b"".join(parts)
    return made, report


def reduce_piece(piece: NDArray[np.generic], limit: float, report: ConstantReport) -> NDArray[np.generic]:
    """Return one flat piece of a mask's constant without finite magnitudes above ``limit``; infinities stay."""
    import numpy as np

    wide = np.array(piece, np.float32)
    beyond = np.isfinite(wide) & (np.abs(wide) > limit)
    if beyond.any():
        report.max_abs = max(report.max_abs, float(np.abs(wide[beyond]).max()))
        report.masked += int(np.count_nonzero(beyond))
        wide[beyond] = np.copysign(np.float32(limit), wide[beyond])
    return wide


def stream_tensor(
    tensor: TensorProto, folder: Path | None, clamp: bool, reports: dict[Hashable, ConstantReport]
) -> Iterator[bytes]:
    """The bytes of a tensor as the model declares it; what is pending is converted on the way and reported."""
    from mixlist.graph import weights

    if weights.stored_type(tensor) == tensor.data_type:
        yield from weights.read_raw_pieces(tensor, folder)
        return
    report = ConstantReport(tensor.name)
    many = weights.stored_element_count(tensor) >= _MANY
    for piece in weights.read_pieces(tensor, folder):
        yield convert_piece(piece, tensor.data_type, clamp, report, many).tobytes()
    reports[external_tensor_key(tensor)] = report


def inline_external_data(proto: ModelProto, folder: Path | None, clamp: bool = False) -> None:
    """Set everything inline, in place, that lies in other files of ``folder``; what is pending is converted."""
    from mixlist.graph import save, weights
    from mixlist.graph.traversal import tensors_in_model

    for tensor in tensors_in_model(proto):
        if weights.is_external(tensor):
            save.set_inline(tensor, b"".join(stream_tensor(tensor, folder, clamp, {})))


def external_tensor_key(tensor: TensorProto) -> tuple[str, ...]:
    """Return a key of a tensor in another file: its name and its place, because several may have one name."""
    return (tensor.name, *sorted(f"{entry.key}={entry.value}" for entry in tensor.external_data))
