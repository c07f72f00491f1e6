"""Ranks of tensors, for the few questions that they settle (is a Conv a Conv2D or a Conv3D on Ascend?)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def infer_ranks(model: Any) -> dict[str, int]:
    """Number of dimensions by tensor name, by ONNX's shape inference of the main graph without its weights.

    An inference that fails leaves what the model declares.
    """
    from onnx import ModelProto, shape_inference

    bare = ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    graph = bare.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    given = {i.name for i in graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in given:
            info = graph.input.add(name=tensor.name)
            info.type.tensor_type.elem_type = tensor.data_type
            for size in tensor.dims:
                info.type.tensor_type.shape.dim.add(dim_value=size)
    with suppress(Exception):  # ranks are a help, never a condition
        bare = shape_inference.infer_shapes(bare)
    infos = [*bare.graph.value_info, *bare.graph.input, *bare.graph.output]
    return {i.name: len(i.type.tensor_type.shape.dim) for i in infos if i.type.tensor_type.HasField("shape")}
