"""Sessions of small models in the process of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from tests.support.package import DEFAULT_OPTIONS, SessionOptions, open_session

if TYPE_CHECKING:
    from pathlib import Path

    from onnxruntime import InferenceSession


def make_session(
    proto: onnx.ModelProto, options: SessionOptions = DEFAULT_OPTIONS, *, folder: Path | None = None
) -> InferenceSession:
    """Return ONNX Runtime's session of a model, whose external data is in ``folder``."""
    return open_session(proto.SerializeToString(), options, folder=folder)
