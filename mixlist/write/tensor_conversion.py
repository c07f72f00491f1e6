"""Convert tensors to another float type as the policy says, and count the values that the conversion changes.

float32 to float16 or bfloat16 rounds to nearest, ties to even. With ``--constants ieee`` a value beyond the range
becomes infinite; with ``clamp`` it becomes the largest finite value. Signs, zeros, infinities and NaNs of the constant
survive.

Large tensors are converted piece by piece, so that memory holds only a part of the weights at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mixlist.decide.decisions import is_guard_limit
from mixlist.errors import ModelError
from mixlist.installed_runtime import has_onnxruntime
from mixlist.model import dtypes
from mixlist.model.low_precision import FINITE_MAX, flush_bound, overflow_bound
from mixlist.model.protos import copy_message, tensors_in_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto, SparseTensorProto, TensorProto
    from onnxruntime import InferenceSession

    from mixlist.lists.policy import Clamp
    from mixlist.model.protos import ConstantProto


@dataclass
class ConstantReport:
    """The numbers of elements of one constant that its conversion changed, by the kind of change.

    ``max_abs``: the largest finite magnitude before the conversion. ``flushed``: values that became zero.
    ``nonzero``: values that were not zero before. ``clamped`` and ``overflowed``: values beyond the range that became
    the largest finite value, or infinite. ``masked``: values of a mask that were reduced (Rule S4.36). ``raised``:
    values of a guard that were raised (Rule S4.43).

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        for constant in mixlist.rewrite("digits.onnx", plan).constants:
            print(constant.name, constant.flushed, constant.max_abs)
    """

    name: str
    flushed: int = 0
    clamped: int = 0
    overflowed: int = 0
    max_abs: float = 0.0
    masked: int = 0
    raised: int = 0
    nonzero: int = 0


def float_dtype(elem: int) -> np.dtype[np.generic]:
    """Return the numpy dtype of a float element type (ml_dtypes has bfloat16).

    Raises ModelError for any other type: the types of such a model contradict each other.
    """
    from onnx import helper

    if elem not in dtypes.MIXABLE:
        message = f"a float constant is read as {dtypes.type_name(elem)}: the model's types contradict each other"
        raise ModelError(message, hint="check the model with onnx.checker")
    return helper.tensor_dtype_to_np_dtype(elem)


def convert_piece(
    piece: NDArray[np.generic], elem: int, clamp: Clamp, report: ConstantReport, is_large: bool = False
) -> NDArray[np.generic]:
    """Return one flat piece of a constant in the element type ``elem``; add its changes to the report.

    ``clamp``: with "all", infinities of the constant are clamped too, but only where ``elem`` has fewer bytes, as in
    ``constant_clip_pass.cc`` of the Ascend engine (Rule S4.19). ``is_large``: whether the piece belongs to a large
    constant, for which ONNX Runtime converts faster than numpy.
    """
    import numpy as np

    dtype = float_dtype(elem)
    if piece.size == 0:
        return piece.astype(dtype)
    # float16 and bfloat16 become float32 without a loss, so the counts below serve all three types.
    float32_piece = np.ascontiguousarray(piece, np.float32)
    converted = _round_to(float32_piece, elem, dtype, is_large)
    # The bits of a float without the sign bit, read as an integer, have the order of the magnitudes. So no array of
    # float magnitudes is needed.
    magnitude_bits = float32_piece.view(np.uint32) & np.uint32(0x7FFFFFFF)
    max_abs = float(magnitude_bits.max().view(np.float32))
    # Count the finite values that became infinite. Only pieces that reach the bound are searched for them.
    became_infinite = None
    if not np.isfinite(max_abs):
        is_finite = np.isfinite(float32_piece)
        max_abs = float(np.abs(float32_piece[is_finite]).max()) if is_finite.any() else 0.0
        became_infinite = np.isinf(converted) & (is_finite | (clamp == "all"))
    elif max_abs >= overflow_bound(elem):
        became_infinite = np.isinf(converted)
    if clamp == "all" and became_infinite is not None:
        if piece.dtype.itemsize <= dtype.itemsize:
            clamp, became_infinite = "", became_infinite & np.isfinite(float32_piece)
        elif np.isinf(float32_piece).any():
            max_abs = float("inf")
    report.max_abs = max(report.max_abs, max_abs)
    if became_infinite is not None and (count := int(np.count_nonzero(became_infinite))):
        if clamp:
            largest_finite = np.copysign(np.float32(FINITE_MAX[elem]), float32_piece).astype(dtype)
            converted = np.where(became_infinite, largest_finite, converted)
            report.clamped += count
        else:
            report.overflowed += count
    if elem != dtypes.FLOAT:
        # Zero minus one wraps around to the largest uint32, so that zeros stay, and one comparison counts the values
        # that became zero and were not zero: 0 < bits < bound.
        magnitude_bits -= np.uint32(1)
        report.flushed += int(np.count_nonzero(magnitude_bits < np.float32(flush_bound(elem)).view(np.uint32)))
        report.nonzero += int(np.count_nonzero(magnitude_bits != 0xFFFFFFFF))
    return converted


def _round_to(
    float32_piece: NDArray[np.float32], elem: int, dtype: np.dtype[np.generic], is_large: bool
) -> NDArray[np.generic]:
    """Return the values rounded to nearest, ties to even: by numpy, or by ONNX Runtime for a large float16 constant."""
    import numpy as np

    if elem == dtypes.FLOAT16 and is_large and has_onnxruntime():
        session = _float16_cast_session()
        return cast("NDArray[np.generic]", session.run(None, {"x": float32_piece})[0])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return float32_piece.astype(dtype)


# A model of one Cast node; 10 is float16.
_CAST_TO_FLOAT16 = """<ir_version: 8, opset_import: ["" : 13]>
half (float[n] x) => (float16[n] y) { y = Cast <to = 10> (x) }"""
# From this number of elements on, ONNX Runtime is faster although its import takes a fifth of a second: numpy converts
# 1 to 3 GB/s.
_LARGE_COUNT = 2**21


@cache
def _float16_cast_session() -> InferenceSession:
    """Return a session of one Cast node: it gives the same bits as numpy, several times faster."""
    import onnxruntime
    from onnx import parser

    model = parser.parse_model(_CAST_TO_FLOAT16)
    options = onnxruntime.SessionOptions()
    # More threads would spin between the pieces, and take the cores from the threads that read and write.
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def convert_tensor(
    tensor: ConstantProto, elem: int, clamp: Clamp, name: str, magnitude_limit: float = 0.0, folder: Path | None = None
) -> tuple[TensorProto | SparseTensorProto, ConstantReport | None]:
    """Return a new TensorProto (or SparseTensorProto) that holds the constant in ``elem``, and the report.

    ``tensor`` is a TensorProto, a Constant's attribute, or a SparseTensorProto. ``name`` is the new tensor's name.

    External data stays where it is: the new tensor refers to it and notes the type in which it is stored. It has no
    report yet; ``stream_tensor`` converts it later. With a ``magnitude_limit``, the numbers are first brought within
    it, as ``limit_piece`` does, and external data is read from ``folder`` at once.
    """
    from onnx import SparseTensorProto, TensorProto

    from mixlist.model import weights

    if isinstance(tensor, SparseTensorProto):
        sparse = copy_message(tensor)
        values, report = convert_tensor(tensor.values, elem, clamp, name, magnitude_limit, folder)
        assert isinstance(values, TensorProto)
        sparse.values.CopyFrom(values)
        return sparse, report
    converted = TensorProto(name=name, data_type=elem)
    if isinstance(tensor, TensorProto):
        converted.dims.extend(tensor.dims)
        converted.doc_string = tensor.doc_string
    elif tensor.name == "value_floats":
        converted.dims.append(len(tensor.floats))  # `value_float` is a scalar, without dimensions
    if weights.is_external(tensor) and not magnitude_limit:
        converted.data_location, converted.data_type = TensorProto.EXTERNAL, tensor.data_type
        converted.external_data.extend(tensor.external_data)
        # The file of a check holds weights of a low type as the same numbers in float32 (shared_weights.py). Convert
        # from float32 then, and not from the low type that the tensor declares.
        weights.cancel_lossless_conversion(converted, weights.stored_type(converted))
        if converted.data_type != elem:
            # The bytes in the data file are not touched. The entry tells the reader of the data to convert them.
            converted.external_data.add(key=weights.STORED_TYPE_KEY, value=str(converted.data_type))
            converted.data_type = elem
        return converted, None
    report = ConstantReport(name)
    is_large = weights.stored_element_count(tensor) >= _LARGE_COUNT
    pieces = weights.read_pieces(tensor, folder)
    if magnitude_limit:
        pieces = (limit_piece(piece, magnitude_limit, report) for piece in pieces)
    parts = [convert_piece(piece, elem, clamp, report, is_large).tobytes() for piece in pieces]
    converted.raw_data = b"".join(parts)
    return converted, report


def limit_piece(piece: NDArray[np.generic], magnitude_limit: float, report: ConstantReport) -> NDArray[np.generic]:
    """Return one flat piece of the constant of a mask or a guard as float32, brought within its limit.

    Of a mask, larger finite magnitudes are reduced to the limit, and infinities stay; of a guard, smaller numbers are
    raised to it. NaN stays. Adds the number of changed values to the report.
    """
    import numpy as np

    reduced = np.array(piece, np.float32)
    if is_guard_limit(magnitude_limit):
        report.raised += int(np.count_nonzero(reduced < magnitude_limit))
        return np.maximum(reduced, np.float32(magnitude_limit))
    exceeds = np.isfinite(reduced) & (np.abs(reduced) > magnitude_limit)
    if exceeds.any():
        report.max_abs = max(report.max_abs, float(np.abs(reduced[exceeds]).max()))
        report.masked += int(np.count_nonzero(exceeds))
        reduced[exceeds] = np.copysign(np.float32(magnitude_limit), reduced[exceeds])
    return reduced


def stream_tensor(
    tensor: TensorProto, folder: Path | None, clamp: Clamp, reports: dict[Hashable, ConstantReport]
) -> Iterator[bytes]:
    """Yield the bytes of a tensor in the type that the model declares.

    A tensor that is stored in another type is converted on the way, and its report is added to ``reports`` when the
    last byte was read.
    """
    from mixlist.model import weights

    if weights.stored_type(tensor) == tensor.data_type:
        yield from weights.read_raw_pieces(tensor, folder)
        return
    report = ConstantReport(tensor.name)
    is_large = weights.stored_element_count(tensor) >= _LARGE_COUNT
    for piece in weights.read_pieces(tensor, folder):
        yield convert_piece(piece, tensor.data_type, clamp, report, is_large).tobytes()
    reports[external_tensor_key(tensor)] = report


def inline_external_data(proto: ModelProto, folder: Path | None, clamp: Clamp = "") -> None:
    """Move all external data of ``folder`` into the model, in place; convert tensors stored in another type."""
    from mixlist.model import save, weights

    for tensor in tensors_in_model(proto):
        if weights.is_external(tensor):
            save.set_inline(tensor, b"".join(stream_tensor(tensor, folder, clamp, {})))


def external_tensor_key(tensor: TensorProto) -> tuple[str, ...]:
    """Return a key of a tensor with external data: its name and its place, because several may have one name."""
    return (tensor.name, *sorted(f"{entry.key}={entry.value}" for entry in tensor.external_data))
