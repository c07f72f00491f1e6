"""Find the integer outputs that hold quantities, from the text of Rule S8.34."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# These move or choose the values of their first input.
MOVES = ("Gather", "GatherElements", "Identity", "Reshape", "Split", "Transpose")
FIRST = (*MOVES, "Clip", "ReduceMax", "ReduceMin", "Relu", "Round")
SIGNS = ("Abs", "Neg")  # change the sign alone
ALL = ("Concat", "Max", "Min")


def quantity_outputs(model: onnx.ModelProto) -> set[str]:
    """Return the names of the integer outputs that hold quantities: of all other kinds of values they have none."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    makers = {name: node for node in graph.node for name in node.output}
    constants = {t.name for t in graph.initializer}

    def origins(name: str) -> set[str]:
        """Return what the values of a tensor are: "constant", "id" or "quantity"."""
        if name in constants:
            return {"constant"}
        node = makers.get(name)
        if node is None:
            return {"id"}
        if node.op_type == "QuantizeLinear":
            return {"quantity"}
        if node.op_type in FIRST or node.op_type in SIGNS or (node.op_type == "TopK" and name == node.output[0]):
            return origins(node.input[0])
        if node.op_type in ALL:
            return set().union(*map(origins, node.input))
        if node.op_type == "Where":
            return origins(node.input[1]) | origins(node.input[2])
        if node.op_type == "Cast":
            return {"id"} if kinds[node.input[0]] == TensorProto.BOOL else origins(node.input[0])
        return {"quantity" if kinds[name] in FLOATS else "id"}

    integers = {y.name for y in graph.output if helper.tensor_dtype_to_np_dtype(kinds[y.name]).kind in "iu"}
    return {name for name in integers if origins(name) - {"constant"} == {"quantity"}}
