"""Shapes of ONNX Runtime's own operators: the rules against what ONNX Runtime makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from mixlist.cost.estimate import estimate_work
from mixlist.files.package_data import data_folder
from mixlist.graph.build import build_graph
from mixlist.graph.shape_propagation import propagate_shapes
from mixlist.runtime.inference_session import open_session

F32, I32 = np.float32, np.int32
ELEMENTS = {F32: TensorProto.FLOAT, I32: TensorProto.INT32}
# op type, inputs (shape, or shape and type; None leaves the slot out), outputs named, attributes
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
    ("DynamicQuantizeMatMul", [(2, 5, 7), ((7, 3), np.uint8), (1,), None], 1, {}),
]


def of_case(op: str, inputs: list[Any], outputs: int, attributes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A model of one such node between two that ONNX knows, and a feed for it."""
    feed = {}
    for at, given in enumerate(inputs):
        if given is not None:
            shape, dtype = given if isinstance(given[0], tuple) else (given, F32)
            feed[f"i{at}"] = np.ones(shape, dtype) if dtype is not I32 else np.zeros(shape, dtype)
    names = ["" if given is None else f"i{at}" for at, given in enumerate(inputs)]
    made = [f"o{k}" for k in range(outputs)]
    nodes = [
        helper.make_node(op, names, made, domain="com.microsoft", **attributes),
        *(helper.make_node("Identity", [name], [f"y_{name}"]) for name in made),
    ]
    inputs_ = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feed.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs_, [onnx.ValueInfoProto(name=f"y_{name}") for name in made])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_rules_agree_with_the_runtime(case: tuple[Any, ...]) -> None:
    made, feed = of_case(*case)
    # which outputs ONNX Runtime makes, and of what type, its own inference tells
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as problem:
        if "Could not find an implementation" in str(problem):
            pytest.skip(str(problem).splitlines()[0])
        raise
    expected = {o.name: v.shape for o, v in zip(session.get_outputs(), session.run(None, feed), strict=True)}
    graph = build_graph(made)
    sizes = propagate_shapes(graph, {}, {})
    found = {name: sizes.shape_of(graph.root.values[name]) for name in expected}
    assert found == expected


def test_what_has_no_rule_stays_unknown() -> None:
    made, _ = of_case("FusedMatMul", [(7, 2, 5), (2, 7, 3)], 1, {"transBatchA": 1})
    graph = build_graph(made)
    assert propagate_shapes(graph, {}, {}).shape_of(graph.root.values["o0"]) is None


def test_what_onnx_runtime_fused_costs_what_it_was_made_of(tmp_path: Path) -> None:
    """The demo's network after ONNX Runtime's optimisations has the same products, some of them fused."""
    digits = data_folder("demo_data") / "digits.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(digits, options, providers=["CPUExecutionProvider"])
    fused = onnx.load(tmp_path / "fused.onnx")
    assert any(node.domain == "com.microsoft" for node in fused.graph.node)
    told = estimate_work(fused, {"batch": 3})
    assert told.unknown == ()
    assert told.matrix_flops == estimate_work(digits, {"batch": 3}).matrix_flops


def test_stand_ins_are_no_values() -> None:
    """A stand-in has the right shape, not the right numbers: nothing is computed from it."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g () => (float[M] y) <float[1] two = {2}>
    { a = com.microsoft.QuickGelu (two)  n = Cast <to = 7> (a)  y = ConstantOfShape (n) }"""
    made = onnx.parser.parse_model(text)
    graph = build_graph(made)
    sizes = propagate_shapes(graph, {}, {})
    assert sizes.shape_of(graph.root.values["a"]) == (1,)
    assert graph.root.values["a"] not in sizes.arrays
    assert sizes.shape_of(graph.root.values["y"]) is None
    assert open_session(made.SerializeToString()) is not None


@pytest.mark.parametrize("packed", [False, True])
def test_grouped_attention(packed: bool) -> None:
    """4 heads of size 8 for queries, 2 for keys and values, 5 places."""
    widths = [(1, 5, 64), None, None] if packed else [(1, 5, 32), (1, 5, 16), (1, 5, 16)]
    made, feed = of_case(
        "GroupQueryAttention", [*widths, None, None, ((1,), I32), ((1,), I32)], 3, {"num_heads": 4, "kv_num_heads": 2}
    )
    feed["i5"][:], feed["i6"][:] = 4, 5  # the last place that counts, and how many there are
    names = [output.name for output in made.graph.output]
    results = dict(zip(names, open_session(made.SerializeToString()).run(names, feed), strict=True))
    graph = build_graph(made)
    assert propagate_shapes(graph, {}, {}).shape_of(graph.root.values["o0"]) == results["y_o0"].shape
    for name in ("o1", "o2"):  # the cache's size is data; a model that declares it lets the node be counted
        made.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, results[f"y_{name}"].shape))
    assert estimate_work(made).matrix_flops == 2 * 2 * 4 * 5 * 5 * 8
