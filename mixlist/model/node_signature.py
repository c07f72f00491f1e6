"""Find the signature of a node, and refuse nodes that do not fit the schema of their operator."""

from __future__ import annotations

from mixlist.errors import ModelError
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node
from mixlist.model.link import describe_node
from mixlist.model.schema import Schema
from mixlist.model.signature import Signature, make_call_signature, make_signature


def find_signature(graph: Graph, node: Node, present_outputs: tuple[bool, ...]) -> Signature:
    """Return the signature of a node for its input types.

    ``present_outputs``: for each output slot, whether the node has the output. Raises ModelError for a node that does
    not fit its schema.
    """
    if node.is_call:
        return make_call_signature(node.proto, graph.model, node.input_types)
    if node.op_type == "Constant" and node.domain == "":
        _refuse_missing_slots(node, 0, 1)
        if not node.proto.attribute:
            raise ModelError(f"{describe_node(node)} has no value")
        # build.py reads the type of a Constant from its value.
        return Signature(None, (), (dtypes.UNKNOWN,), (), has_fixed_output=True, reads_any_type=False)
    # A custom domain without an import counts as version 1. Only the standard domain must be imported.
    opset = graph.opsets.get(node.domain, 1 if node.domain else 0)
    if not opset:
        raise ModelError("the model imports no opset of the standard domain", hint="check the model with onnx.checker")
    signature = make_signature(node.domain, node.op_type, opset, node.input_types, present_outputs, node.proto)
    if signature.schema is not None and signature.schema.onnx_schema is not None:
        _refuse_missing_slots(node, signature.schema.onnx_schema.min_input, signature.schema.onnx_schema.min_output)
        _refuse_invalid_attributes(node, signature.schema)
    return signature


def _refuse_missing_slots(node: Node, inputs: int, outputs: int) -> None:
    """Raise ModelError if a node has fewer than ``inputs`` inputs or ``outputs`` outputs."""
    if len(node.inputs) < inputs or len(node.outputs) < outputs:
        counts = f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
        raise ModelError(f"{describe_node(node)} has {counts}, its schema needs {inputs} and {outputs}")


def _refuse_invalid_attributes(node: Node, schema: Schema) -> None:
    """Raise ModelError if an attribute is missing, has the wrong kind, or has a number that is no element type."""
    attributes = {attribute.name: attribute for attribute in node.proto.attribute}
    for name, formal in schema.onnx_schema.attributes.items():
        attribute = attributes.get(name)
        if attribute is None:
            if formal.required:
                raise ModelError(f"{describe_node(node)} has no attribute {name!r}, which its schema requires")
        elif attribute.type not in (0, formal.type.value):  # 0: files of IR version 1 have no kind
            raise ModelError(f"attribute {name!r} of {describe_node(node)} must be {formal.type.name} by its schema")
        elif name in schema.type_attributes and attribute.i not in dtypes.known_element_types():
            raise ModelError(f"attribute {name!r} of {describe_node(node)} is {attribute.i}, not an element type")
