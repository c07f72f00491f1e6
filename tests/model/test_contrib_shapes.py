"""Test the shape rules of ONNX Runtime's own operators against the shapes that ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mixlist.model.build import build_graph
from mixlist.model.shape_propagation import propagate_shapes
from tests.support.package import data_folder, estimate_work, open_session

F32, I32 = np.float32, np.int32
# The op type; the inputs (shape, or shape and type; None for an omitted slot); the number of outputs; the attributes.
CASES: list[tuple[str, list[Any], int, dict[str, Any]]] = [
    ("FusedMatMul", [(2, 5, 7), (7, 3)], 1, {}),
    ("FusedMatMul", [(2, 7, 5), (2, 7, 3)], 1, {"transA": 1}),
    ("FusedMatMul", [(2, 5, 7), (2, 3, 7)], 1, {"transB": 1}),
    ("FusedConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], 1, {"activation": "Relu", "strides": [2, 2]}),
    ("FusedGemm", [(5, 7), (7, 3), (3,)], 1, {"activation": "Relu"}),
    ("BiasGelu", [(2, 3, 8), (8,)], 1, {}),
    ("FastGelu", [(2, 3, 8)], 1, {}),
    ("Gelu", [(2, 3)], 1, {}),
    ("QuickGelu", [(2, 3)], 1, {}),
    ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)], 1, {}),
    ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,)], 4, {}),
    ("EmbedLayerNormalization", [((2, 5), I32), ((2, 5), I32), (9, 8), (6, 8), (3, 8), (8,), (8,)], 2, {}),
    ("Attention", [(2, 5, 8), (8, 24), (24,)], 1, {"num_heads": 2}),
    ("Attention", [(2, 5, 8), (8, 20), (20,)], 1, {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
    ("MultiHeadAttention", [(2, 5, 8), (2, 6, 8), (2, 6, 4)], 1, {"num_heads": 2}),
    (
        "MatMulNBits",
        [(2, 5, 32), ((7, 2, 8), np.uint8), (14,)],
        1,
        {"K": 32, "N": 7, "bits": 4, "block_size": 16},
    ),
    ("DynamicQuantizeMatMul", [(2, 5, 7), ((7, 3), np.uint8), (1,), None], 1, {}),
]


def build_case(op: str, inputs: list[Any], outputs: int, attributes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model of one com.microsoft node with an Identity behind each output, and a feed."""
    feed = {}
    for slot, spec in enumerate(inputs):
        if spec is not None:
            shape, dtype = spec if isinstance(spec[0], tuple) else (spec, F32)
            feed[f"i{slot}"] = np.ones(shape, dtype) if dtype is not I32 else np.zeros(shape, dtype)
    names = ["" if spec is None else f"i{slot}" for slot, spec in enumerate(inputs)]
    output_names = [f"o{k}" for k in range(outputs)]
    nodes = [
        helper.make_node(op, names, output_names, domain="com.microsoft", **attributes),
        *(helper.make_node("Identity", [name], [f"y_{name}"]) for name in output_names),
    ]
    input_infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feed.items()
    ]
    output_infos = [onnx.ValueInfoProto(name=f"y_{name}") for name in output_names]
    graph = helper.make_graph(nodes, "g", input_infos, output_infos)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_rules_agree_with_the_runtime(case: tuple[Any, ...]) -> None:
    proto, feed = build_case(*case)
    # ONNX Runtime infers the types of the outputs.
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "Could not find an implementation" in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise
    results = zip(session.get_outputs(), session.run(None, feed), strict=True)
    # Before version 1.24, ONNX Runtime's CPU kernel leaves the mean and the deviation of a skip normalization out.
    expected = {output.name: array.shape for output, array in results if array is not None}
    assert expected
    graph = build_graph(proto)
    known_shapes = propagate_shapes(graph, {}, {})
    assert {name: known_shapes.shape_of(graph.root.values[name]) for name in expected} == expected


def test_a_node_without_a_rule_has_unknown_shapes() -> None:
    proto, _ = build_case("FusedMatMul", [(7, 2, 5), (2, 7, 3)], 1, {"transBatchA": 1})
    graph = build_graph(proto)
    assert propagate_shapes(graph, {}, {}).shape_of(graph.root.values["o0"]) is None


def test_a_fused_model_costs_as_much_as_the_original(tmp_path: Path) -> None:
    """The demo's network after ONNX Runtime's optimizations has the same matrix products, some of them fused."""
    digits = data_folder("demo_data") / "digits.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(digits, options, providers=["CPUExecutionProvider"])
    fused = onnx.load(tmp_path / "fused.onnx")
    assert any(node.domain == "com.microsoft" for node in fused.graph.node)
    work = estimate_work(fused, {"batch": 3})
    assert work.unknown == ()
    assert work.matrix_flops == estimate_work(digits, {"batch": 3}).matrix_flops


def test_values_of_replaced_nodes_are_not_used() -> None:
    """The standard node that replaces a fused one has the right shape, but not the right numbers."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g () => (float[M] y) <float[1] two = {2}>
    { a = com.microsoft.QuickGelu (two)  n = Cast <to = 7> (a)  y = ConstantOfShape (n) }"""
    proto = onnx.parser.parse_model(text)
    graph = build_graph(proto)
    known_shapes = propagate_shapes(graph, {}, {})
    assert known_shapes.shape_of(graph.root.values["a"]) == (1,)
    assert graph.root.values["a"] not in known_shapes.arrays
    assert known_shapes.shape_of(graph.root.values["y"]) is None
    assert open_session(proto.SerializeToString()) is not None


@pytest.mark.parametrize("packed", [False, True])
def test_grouped_attention(packed: bool) -> None:
    """The query has 4 heads of size 8, key and value have 2 heads. The length is 5."""
    widths = [(1, 5, 64), None, None] if packed else [(1, 5, 32), (1, 5, 16), (1, 5, 16)]
    proto, feed = build_case(
        "GroupQueryAttention", [*widths, None, None, ((1,), I32), ((1,), I32)], 3, {"num_heads": 4, "kv_num_heads": 2}
    )
    feed["i5"][:], feed["i6"][:] = 4, 5  # the last position, and the number of positions
    names = [output.name for output in proto.graph.output]
    results = dict(zip(names, open_session(proto.SerializeToString()).run(names, feed), strict=True))
    graph = build_graph(proto)
    assert propagate_shapes(graph, {}, {}).shape_of(graph.root.values["o0"]) == results["y_o0"].shape
    assert propagate_shapes(graph, {}, {}).shape_of(graph.root.values["o1"]) is None  # the total length is data
    proto.graph.initializer.append(numpy_helper.from_array(feed["i6"], "i6"))
    del proto.graph.input[-1]
    graph = build_graph(proto)
    for name in ("o1", "o2"):
        assert propagate_shapes(graph, {}, {}).shape_of(graph.root.values[name]) == results[f"y_{name}"].shape
    assert estimate_work(proto).matrix_flops == 2 * 2 * 4 * 5 * 5 * 8


@pytest.mark.parametrize("past_length", [6, 9])
def test_the_caches_of_grouped_attention_have_the_total_length(past_length: int) -> None:
    """A past cache of 6 grows to 7; one of 9, which has room for all positions, stays as it is."""
    inputs = [(1, 1, 32), (1, 1, 16), (1, 1, 16), *[(1, 2, past_length, 8)] * 2, ((1,), I32), ((1,), I32)]
    proto, feed = build_case("GroupQueryAttention", inputs, 3, {"num_heads": 4, "kv_num_heads": 2})
    feed["i5"][:], feed["i6"][:] = 6, 7
    results = open_session(proto.SerializeToString()).run(["y_o1", "y_o2"], feed)
    proto.graph.initializer.append(numpy_helper.from_array(feed["i6"], "i6"))
    del proto.graph.input[-1]
    graph = build_graph(proto)
    known_shapes = propagate_shapes(graph, {}, {})
    for name, array in zip(("o1", "o2"), results, strict=True):
        assert known_shapes.shape_of(graph.root.values[name]) == array.shape


def test_a_simplified_normalization_keeps_the_shape() -> None:
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"])
    shapes = {"x": [2, 3], "g": [3]}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    out = onnx.ValueInfoProto(name="y")
    proto = helper.make_model(helper.make_graph([node], "g", infos, [out]), opset_imports=[helper.make_opsetid("", 17)])
    graph = build_graph(proto)
    assert propagate_shapes(graph, {}, {}).shape_of(graph.root.values["y"]) == (2, 3)
