"""Test that a crash of onnx's tools, which run in another process, becomes an error of the model."""

from __future__ import annotations

import pytest

from mixlist.errors import ModelError
from mixlist.model import onnx_conversion
from tests.support.builders import model
from tests.support.workers import patch_workers


def test_a_crash_of_a_tool_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version converter of onnx 1.23 crashes where a Slice reads a dimension that is declared as -1."""
    patch_workers(
        monkeypatch,
        "from mixlist.model import onnx_conversion; onnx_conversion._call_onnx = lambda *a, **k: os.abort()",
    )
    proto = model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    with pytest.raises(ModelError, match="cannot convert the model to opset 21: onnx crashed with SIGABRT"):
        onnx_conversion.convert_opset(proto, 21)
    with pytest.raises(ModelError, match="cannot be inlined: onnx crashed with SIGABRT"):
        onnx_conversion.inline_functions(proto)
