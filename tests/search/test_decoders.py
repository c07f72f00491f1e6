"""Searches on graphs of ONNX Runtime's exporter of language models: fused attention with a cache in and out."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mixlist
from tests.support.builders import policy

HEADS, CACHE_HEADS, SIZE = 4, 2, 16


def make_decoder() -> onnx.ModelProto:
    """Return a decoder of one layer: GroupQueryAttention behind a SimplifiedLayerNormalization."""
    random = np.random.default_rng(0)
    width, cache_width = HEADS * SIZE, CACHE_HEADS * SIZE
    weights = {
        "gain": np.ones(width),
        "query_weight": random.normal(size=(width, width)) / 8,
        "key_weight": random.normal(size=(width, cache_width)) / 8,
        "value_weight": random.normal(size=(width, cache_width)) / 8,
        "output_weight": random.normal(size=(width, 10)) / 8,
    }
    attention = ["query", "key", "value", "past_key", "past_value", "last_positions", "total_length"]
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["hidden", "gain"], ["normed"], "norm", axis=-1, epsilon=1e-6),
        *(helper.make_node("MatMul", ["normed", f"{name}_weight"], [name], name) for name in ("query", "key", "value")),
        helper.make_node(
            "GroupQueryAttention",
            attention,
            ["context", "present_key", "present_value"],
            "attention",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=CACHE_HEADS,
        ),
        helper.make_node("MatMul", ["context", "output_weight"], ["logits"], "logits"),
    ]
    cache = [("key", "past", "total"), ("value", "past", "total")]
    info = helper.make_tensor_value_info
    inputs = [
        info("hidden", TensorProto.FLOAT, ["batch", "length", width]),
        *(info(f"past_{n}", TensorProto.FLOAT, ["batch", CACHE_HEADS, past, SIZE]) for n, past, _ in cache),
        info("last_positions", TensorProto.INT32, ["batch"]),
        info("total_length", TensorProto.INT32, []),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, ["batch", "length", 10]),
        *(info(f"present_{n}", TensorProto.FLOAT, ["batch", CACHE_HEADS, total, SIZE]) for n, _, total in cache),
    ]
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def make_feed(past: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(past)
    cache = (1, CACHE_HEADS, past, SIZE)
    return {
        "hidden": random.normal(size=(1, length, HEADS * SIZE)).astype(np.float32),
        "past_key": random.normal(size=cache).astype(np.float32),
        "past_value": random.normal(size=cache).astype(np.float32),
        "last_positions": np.array([past + length - 1], np.int32),
        "total_length": np.array(past + length, np.int32),
    }


def test_a_cache_that_grows_does_not_stop_a_trial() -> None:
    """ONNX Runtime takes the new cache for as long as the past one where a branch declares no shapes."""
    white = ["MatMul", "GroupQueryAttention", "SimplifiedLayerNormalization"]
    report = mixlist.tune(
        make_decoder(),
        policy(white=white),
        [make_feed(0, 12), make_feed(6, 1)],
        limits=mixlist.Limits(normalized=1e-4),
        jobs=1,
    )
    assert report.keeps_nothing_low and report.edits
    assert not [edit for edit in report.edits if "refuses" in edit.without]
