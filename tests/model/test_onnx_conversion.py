"""Test what a conversion keeps, and that a crash of onnx's tools, which run in another process, becomes an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
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


def test_the_conversion_keeps_metadata_of_nodes_values_and_graphs() -> None:
    """Models of torch.onnx have some on every node. A node that the converter adds has none."""
    proto = model("""<ir_version: 10, opset_import: ["" : 17]> g (float[1,3] x, bool c) => (float[1,3] z)
        <float[3] w = {1, 2, 3}> { [add] y = Add(x, w) [mean] m = ReduceMean<axes = [1]>(y)
        [if] z = If(c) <then_branch = t () => (p) { [e] p = Exp(y) },
                        else_branch = e () => (q) { [s] q = Sub(y, m) }> }""")

    def parts(graph: onnx.GraphProto) -> Iterator[tuple[str, Any]]:
        yield from ((part.name, part) for part in (graph, *graph.input, *graph.output, *graph.initializer))
        for node in graph.node:
            yield node.output[0], node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from parts(attribute.g)

    for name, part in parts(proto.graph):
        part.metadata_props.add(key="pkg.torch", value=name)
    converted = onnx_conversion.convert_opset(proto, 22)
    entries = [(name, [entry.value for entry in part.metadata_props]) for name, part in parts(converted.graph)]
    constants = {node.output[0] for node in converted.graph.node if node.op_type == "Constant"}  # of the axes
    assert constants
    assert entries == [(name, [] if name in constants else [name]) for name, _ in parts(converted.graph)]
