"""Find the integer outputs that hold quantities, and the float outputs that hold ids, from the text of Rule S8.34."""

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
    return {name for name, (kind, origins) in output_origins(model).items() if kind in "iu" and origins == {"quantity"}}


def id_outputs(model: onnx.ModelProto) -> set[str]:
    """Return the names of the float outputs that hold nothing but chosen ids."""
    return {name for name, (kind, origins) in output_origins(model).items() if kind == "f" and origins == {"chosen"}}


def output_origins(model: onnx.ModelProto) -> dict[str, tuple[str, set[str]]]:
    """Return the kind of each output's type in numpy, and what its values are, without constants.

    The values are "quantity", "chosen" for the ids that an operator chooses, and "id" for all other integers.
    """
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    makers = {name: node for node in graph.node for name in node.output}
    constants = {t.name for t in graph.initializer}

    def origins(name: str) -> set[str]:
        """Return what the values of a tensor are, "constant" too."""
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
        if node.op_type in ("ArgMax", "ArgMin") or (node.op_type == "TopK" and name == node.output[1]):
            return {"chosen"}
        if node.op_type in ("Add", "Sub"):
            operands = set().union(*map(origins, node.input))
            if "chosen" in operands and operands <= {"chosen", "constant"}:
                return operands
        if node.op_type == "Where":
            return origins(node.input[1]) | origins(node.input[2])
        if node.op_type == "Cast":
            return {"id"} if kinds[node.input[0]] == TensorProto.BOOL else origins(node.input[0])
        return {"quantity" if kinds[name] in FLOATS else "id"}

    return {
        y.name: (helper.tensor_dtype_to_np_dtype(kinds[y.name]).kind, origins(y.name) - {"constant"})
        for y in graph.output
    }
