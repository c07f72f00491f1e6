"""onnx's own tools, in a process of their own: some models make them abort."""

from __future__ import annotations

import pytest

from mixlist.errors import ModelError
from mixlist.graph import onnx_conversion
from tests.support.builders import model


def test_a_tool_that_dies_is_an_error_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnx 1.23's converter does where a Slice reads a dimension declared as -1."""
    monkeypatch.setattr(onnx_conversion, "_CHILD", "import os; os.abort()")
    made = model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    with pytest.raises(ModelError, match="cannot convert the model to opset 21: onnx crashed with SIGABRT"):
        onnx_conversion.convert_opset(made, 21)
    with pytest.raises(ModelError, match="cannot be inlined: onnx crashed with SIGABRT"):
        onnx_conversion.inline_functions(made)
