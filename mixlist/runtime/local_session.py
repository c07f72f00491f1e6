"""A session in this process: ``LocalSession.run`` calls ONNX Runtime and carries bfloat16 arrays in and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mixlist.runtime.inference_session import open_session, runtime_errors
from mixlist.runtime.session import Session, SessionOptions

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

    from mixlist.runtime.session import Array, Feed, Outputs

_BFLOAT16 = 16  # TensorProto.BFLOAT16


class LocalSession(Session):
    """A session in this process."""

    def __init__(self, session: InferenceSession) -> None:
        self._session: InferenceSession | None = session
        self.names = tuple(output.name for output in session.get_outputs())  # in the model's order
        self._bfloat16 = {output.name for output in session.get_outputs() if output.type == "tensor(bfloat16)"}

    @classmethod
    def open(cls, path: str, options: SessionOptions, folder: Path | None) -> Self:
        """Load a model file; ``folder`` is where its external data lies, None for next to it."""
        if folder is None:
            return cls(open_session(path, options))
        # ONNX Runtime looks into another folder only for a model that is given as bytes.
        return cls(open_session(Path(path).read_bytes(), options, folder=folder))

    def start(self, outputs: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Prepare a run, which takes place when its outputs are asked for."""
        return partial(self.run, outputs, feed)

    def run(self, outputs: Sequence[str] | None, feed: Feed) -> Outputs:
        """Run the model. Raises ModelError."""
        session = self.live
        names = list(self.names if outputs is None else outputs)
        with runtime_errors("run the model"):
            inputs = {name: as_ort_value(array) if _is_bfloat16(array) else array for name, array in feed.items()}
            if self._bfloat16.isdisjoint(names):
                return list(session.run(names, inputs))
            return self._run_bound(session, names, feed)

    def _run_bound(self, session: InferenceSession, names: Sequence[str], feed: Feed) -> Outputs:
        """Run with outputs in bfloat16, which ONNX Runtime returns only as its own OrtValue."""
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, as_ort_value(array))
        for name in names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        values = zip(names, binding.get_outputs(), strict=True)
        return [_from_bfloat16(value) if name in self._bfloat16 else value.numpy() for name, value in values]

    def close(self) -> None:
        """Let the session go."""
        self._session = None

    @property
    def live(self) -> InferenceSession:
        """ONNX Runtime's session, which must not be closed yet."""
        assert self._session is not None, "used after close"
        return self._session


def _is_bfloat16(array: Array) -> bool:
    return getattr(getattr(array, "dtype", None), "name", "") == "bfloat16"  # a sequence has no dtype


def as_ort_value(array: Array) -> OrtValue:
    """Return an array as ONNX Runtime's own value on the host, bfloat16 too."""
    import numpy as np
    from onnxruntime import OrtValue

    if _is_bfloat16(array):
        return OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C").view(np.uint16), _BFLOAT16)
    return OrtValue.ortvalue_from_numpy(array)


def _from_bfloat16(value: OrtValue) -> Array:
    import ctypes

    import ml_dtypes
    import numpy as np

    shape = value.shape()
    raw = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    array: Array = np.frombuffer(raw, np.uint16).copy().view(ml_dtypes.bfloat16).reshape(shape)
    return array
