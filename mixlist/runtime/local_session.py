"""A session in this process: ``LocalSession`` calls ONNX Runtime and converts bfloat16 arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mixlist.runtime.inference_session import open_session, translate_runtime_errors
from mixlist.runtime.session import Session, SessionOptions

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

    from mixlist.runtime.session import Array, Feed, Outputs

_BFLOAT16 = 16  # TensorProto.BFLOAT16


class LocalSession(Session):
    """A session in this process."""

    def __init__(self, session: InferenceSession) -> None:
        self._session: InferenceSession | None = session
        self.output_names = tuple(output.name for output in session.get_outputs())
        self._bfloat16_outputs = {o.name for o in session.get_outputs() if o.type == "tensor(bfloat16)"}

    @classmethod
    def open(cls, path: str, options: SessionOptions, folder: Path | None) -> Self:
        """Load a model file. Its external data is in ``folder``; None means the folder of the file."""
        if folder is None:
            return cls(open_session(path, options))
        # ONNX Runtime reads external data from another folder only if the model is passed as bytes.
        return cls(open_session(Path(path).read_bytes(), options, folder=folder))

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Prepare a run; the returned function executes it."""
        return partial(self.run, output_names, feed)

    def run(self, output_names: Sequence[str] | None, feed: Feed) -> Outputs:
        """Run the model. Raises ModelError."""
        session = self.inference_session
        names = list(self.output_names if output_names is None else output_names)
        with translate_runtime_errors("run the model"):
            inputs = {name: as_ort_value(array) if _is_bfloat16(array) else array for name, array in feed.items()}
            # Only bfloat16 outputs need a binding.
            if self._bfloat16_outputs.isdisjoint(names):
                return list(session.run(names, inputs))
            return self._run_with_binding(session, names, feed)

    def _run_with_binding(self, session: InferenceSession, output_names: Sequence[str], feed: Feed) -> Outputs:
        """Run with an IOBinding: ``InferenceSession.run`` cannot convert a bfloat16 output to numpy."""
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, as_ort_value(array))
        for name in output_names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        values = zip(output_names, binding.get_outputs(), strict=True)
        return [_bfloat16_array(value) if name in self._bfloat16_outputs else value.numpy() for name, value in values]

    def close(self) -> None:
        """Release ONNX Runtime's session."""
        self._session = None

    @property
    def inference_session(self) -> InferenceSession:
        """Return ONNX Runtime's session. Do not call this after ``close``."""
        assert self._session is not None, "used after close"
        return self._session


def _is_bfloat16(array: Array) -> bool:
    # The value of a sequence input is a list, which has no dtype.
    return getattr(getattr(array, "dtype", None), "name", "") == "bfloat16"


def as_ort_value(array: Array) -> OrtValue:
    """Return an array as an OrtValue in host memory; the array may be bfloat16."""
    import numpy as np
    from onnxruntime import OrtValue

    if _is_bfloat16(array):
        # ONNX Runtime does not know the dtype of ml_dtypes: pass the bits as uint16, and the element type separately.
        return OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C").view(np.uint16), _BFLOAT16)
    return OrtValue.ortvalue_from_numpy(array)


def _bfloat16_array(value: OrtValue) -> Array:
    """Return a copy of a bfloat16 OrtValue in host memory. ``OrtValue.numpy`` refuses this element type."""
    import ctypes

    import ml_dtypes
    import numpy as np

    shape = value.shape()
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    # The copy is needed because the memory belongs to ``value``.
    array: Array = np.frombuffer(bits, np.uint16).copy().view(ml_dtypes.bfloat16).reshape(shape)
    return array
