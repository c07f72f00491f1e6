"""Quantized weights pass through ``apply``: float8, float6, float4, E8M0 scales and integers, whole and in blocks.

``make campaign`` runs every type at every opset from 19 that has it, with all forms of scales.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mixlist

SIZE, BLOCK = 64, 16
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
# By type: the number of bits, and the first opset whose DequantizeLinear reads it.
TYPES = {
    "FLOAT8E4M3FN": (8, 19),
    "FLOAT8E4M3FNUZ": (8, 19),
    "FLOAT8E5M2": (8, 19),
    "FLOAT8E5M2FNUZ": (8, 19),
    "INT8": (8, 19),
    "UINT8": (8, 19),
    "INT16": (16, 21),
    "UINT16": (16, 21),
    "INT4": (4, 21),
    "UINT4": (4, 21),
    "FLOAT4E2M1": (4, 23),
    "INT2": (2, 25),
    "UINT2": (2, 25),
    "FLOAT6E2M3": (6, 28),
    "FLOAT6E3M2": (6, 28),
}
FIRST_OPSET_WITH_BLOCKS, FIRST_OPSET_WITH_E8M0 = 21, 24
NEWEST = onnx.defs.onnx_opset_version()
OPSETS = [opset for opset in (19, 21, 23, 24, 25, 28) if opset <= NEWEST]  # those with another (De)QuantizeLinear
POLICIES = [
    {},
    {"ops_info": "mindspore-o3"},
    {"precision_mode_v2": "fp16"},
    {"precision_mode_v2": "mixed_bfloat16"},
    {"ops_info": "mindspore-o3", "protect": "none"},
]


class Form(NamedTuple):
    """How a model quantizes. ``scale``: of the whole tensor, of each channel, or of each block. ``e8m0``: its type."""

    name: str
    opset: int
    scale: str
    e8m0: bool
    activations: bool


def exists(form: Form) -> bool:
    """Return whether the installed onnx and the opset have the types and attributes of a form."""
    first = TYPES[form.name][1]
    if form.scale == "block":
        first = max(first, FIRST_OPSET_WITH_BLOCKS)
    if form.e8m0:
        first = max(first, FIRST_OPSET_WITH_E8M0)
    return form.opset >= first and hasattr(TensorProto, form.name)


CASES = [
    form
    for form in itertools.starmap(
        Form, itertools.product(TYPES, OPSETS, ("tensor", "channel", "block"), (False, True), (False, True))
    )
    if exists(form)
]
# CI runs each type at its first opset and at the newest one, in blocks where there are blocks.
SHORT = [
    form
    for form in CASES
    if form.opset in (max(TYPES[form.name][1], OPSETS[0]), OPSETS[-1])
    and form.scale == ("block" if form.opset >= FIRST_OPSET_WITH_BLOCKS else "channel")
    and form.e8m0 == (form.opset >= FIRST_OPSET_WITH_E8M0)
    and form.activations
]


def packed(name: str, type_name: str, *dims: int) -> TensorProto:
    """Return a tensor of random bytes; below 120 no byte is a NaN of any type."""
    size = (int(np.prod(dims)) * TYPES[type_name][0] + 7) // 8
    data = np.random.default_rng(0).integers(0, 120, size, np.uint8).tobytes()
    return TensorProto(name=name, data_type=TensorProto.DataType.Value(type_name), dims=dims, raw_data=data)


def quantized_model(form: Form) -> onnx.ModelProto:
    """Return ``y = Relu(a @ DequantizeLinear(w)) + x``, in which a is x, or x + c quantized and dequantized."""
    dims, attributes = {
        "tensor": ((), {}),
        "channel": ((SIZE,), {"axis": 1}),
        "block": ((SIZE // BLOCK, SIZE), {"axis": 0, "block_size": BLOCK}),
    }[form.scale]
    if form.e8m0:
        data = bytes([120] * int(np.prod(dims)))  # 2^-7
        scale = TensorProto(name="s", data_type=TensorProto.FLOAT8E8M0, dims=dims, raw_data=data)
        attributes = {**attributes, "output_dtype": TensorProto.FLOAT}
    else:
        scale = numpy_helper.from_array(np.full(dims, 0.01, np.float32), "s")
    weights, nodes, left = [packed("w", form.name, SIZE, SIZE), scale], [], "x"
    if form.activations:
        weights += [
            numpy_helper.from_array(np.ones(SIZE, np.float32), "c"),
            numpy_helper.from_array(np.array(0.1, np.float32), "t"),
            packed("z", form.name),
        ]
        nodes = [
            helper.make_node("Add", ["x", "c"], ["h"], name="shift"),
            helper.make_node("QuantizeLinear", ["h", "t", "z"], ["q"], name="quantize"),
            helper.make_node("DequantizeLinear", ["q", "t", "z"], ["a"], name="dequantize"),
        ]
        left = "a"
    nodes += [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wide"], name="weight", **attributes),
        helper.make_node("MatMul", [left, "wide"], ["product"], name="matmul"),
        helper.make_node("Relu", ["product"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "x"], ["y"], name="add"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", SIZE]) for name in "xy")
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights),
        opset_imports=[helper.make_opsetid("", form.opset)],
        ir_version=onnx.helper.VERSION_TABLE[-1][1],
    )


# Each form with its weights inline and in another file; outside the campaign one of the two, in turn.
PLACED = [(form, index % 2 == 1) for index, form in enumerate(SHORT)]
if os.environ.get("MIXLIST_CAMPAIGN"):
    PLACED = list(itertools.product(CASES, (False, True)))


@pytest.mark.parametrize(("form", "external"), PLACED)
def test_quantized_weights_and_scales_stay_as_they_are(tmp_path: Path, form: Form, external: bool) -> None:
    model, path = quantized_model(form), tmp_path / "m.onnx"
    onnx.checker.check_model(model, full_check=True)
    before = {tensor.name: tensor for tensor in quantized_model(form).graph.initializer}
    onnx.save(model, path, save_as_external_data=external, location="m.data", size_threshold=0)
    for index, (options, io) in enumerate(itertools.product(POLICIES, ("keep", "low"))):
        out = tmp_path / f"{index}.onnx"
        plan = mixlist.resolve(path, mixlist.load_policy(**options), io=io)
        assert any(decision.precision in ("float16", "bfloat16") for decision in plan.nodes)
        mixlist.rewrite(path, plan).save(out)
        mixed = onnx.load(out)
        onnx.checker.check_model(mixed, full_check=True)
        after = {tensor.name: tensor for tensor in mixed.graph.initializer}
        for name in [name for name in before if before[name].data_type != TensorProto.FLOAT]:
            assert (after[name].data_type, after[name].raw_data) == (before[name].data_type, before[name].raw_data)
        quantizers = [node.op_type for node in mixed.graph.node if node.op_type in QUANTIZERS]
        assert quantizers == [node.op_type for node in model.graph.node if node.op_type in QUANTIZERS]
