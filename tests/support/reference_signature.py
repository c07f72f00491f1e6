"""Find the types that the slots of a node can have, from the schema and from ONNX's inference of the node alone.

Rule S4.1: a node without a float slot that may change has no precision. Rule S4.11: a slot can be low precision only
if the schema and the inference agree; slots that share a type parameter change together. Rule S4.13: a Cast, a
Constant and an operator whose output type an attribute gives keep that type. Rule S4.14: an operator without a schema
stays as authored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.support import scopes
from tests.support.reference_model import LISTED, Node, Value
from tests.support.reference_types import slot_params

ELEM_NAMES = {TensorProto.FLOAT: "float", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
TYPE_ATTRIBUTES = {  # the attribute that gives an operator's output type
    "Bernoulli": "dtype",
    "Cast": "to",
    "Constant": "value",
    "ConstantOfShape": "value",
    "EyeLike": "dtype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}
FIRST_BFLOAT16_CAST = 13  # the first opset whose Cast makes bfloat16
WITHOUT_FLOATS = {"Shape", "Size", "SequenceLength", "OptionalHasElement"}  # read no element: nothing may vary


@dataclass
class Group:
    """The slots of a node that share one type parameter; ``elem`` is their authored type."""

    param: str
    elem: int
    allowed: frozenset[str]
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def has_fixed_output(node: Node) -> bool:
    """Return whether an attribute, or its default, gives the output type (Rule S4.13)."""
    if not node.is_standard or node.op not in TYPE_ATTRIBUTES:
        return False
    name = TYPE_ATTRIBUTES[node.op]
    has_default = node.op not in ("Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike")
    return has_default or node.attribute(name) is not None


def groups(node: Node) -> list[Group]:
    """Return the groups of float tensor slots whose type may change."""
    schema = node.schema()
    if schema is None or node.is_control_flow or has_fixed_output(node) or node.op in WITHOUT_FLOATS:
        return []
    if has_container(node):
        return []
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    groups_by_param: dict[str, Group] = {}
    for value, param, is_output, i in slot_params(node):
        types = allowed.get(param.split("#")[0])
        if types is None or value.elem not in LISTED or not value.is_tensor:
            continue
        group = groups_by_param.setdefault(param, Group(param, value.elem, types))
        (group.outputs if is_output else group.inputs).append(i)
    return list(groups_by_param.values())


def has_container(node: Node) -> bool:
    """Return whether a node reads or makes a sequence or an optional (Rule S4.29)."""
    return any(v is not None and not v.is_tensor for v in (*node.inputs, *node.outputs))


def float_slots(node: Node) -> list[tuple[Value, str, bool, int]]:
    """Return the slots whose type parameter admits float32 or a low type."""
    schema = node.schema()
    constraints = schema.type_constraints if schema is not None else []
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in constraints}
    floats = {f"tensor({name})" for name in ELEM_NAMES.values()}
    return [slot for slot in slot_params(node) if allowed.get(slot[1].split("#")[0], {slot[1]}) & floats]


def can_be(node: Node, group: Group, elem: int) -> bool:
    """Return whether the schema and the inference admit a type for a group (Rule S4.11)."""
    if f"tensor({ELEM_NAMES[elem]})" not in group.allowed:
        return False
    if elem == TensorProto.BFLOAT16 and node.scope.opsets.get("", 1) < FIRST_BFLOAT16_CAST:
        return False
    if elem == group.elem or not node.is_standard:  # ONNX infers nothing for other domains
        return True
    return _inference_accepts(*_inference_input(node, group, elem))


def admits(node: Node, elem: int) -> bool:
    """Return whether the schema of control flow admits a type in all float slots."""
    schema = node.schema()
    assert schema is not None
    floats = [c.allowed_type_strs for c in schema.type_constraints if any("(float)" in t for t in c.allowed_type_strs)]
    return all(any(f"({ELEM_NAMES[elem]})" in t for t in allowed) for allowed in floats)


def _inference_input(node: Node, group: Group, elem: int) -> tuple[int, bytes, tuple[int, ...], tuple[int, ...]]:
    """Return the node without names and shapes: what the answer depends on."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.name = ""
    proto.ClearField("metadata_props")
    inputs = [_elem(v, i in group.inputs, elem) for i, v in enumerate(node.inputs)]
    outputs = [_elem(v, i in group.outputs, elem) for i, v in enumerate(node.outputs)]
    for names, elems, letter in ((proto.input, inputs, "i"), (proto.output, outputs, "o")):
        for i, kind in enumerate(elems):
            names[i] = f"{letter}{i}" if kind else ""
    return node.scope.opsets[""], proto.SerializeToString(deterministic=True), tuple(inputs), tuple(outputs)


def _elem(value: Value | None, changes: bool, elem: int) -> int:
    return 0 if value is None else elem if changes else value.elem or 0


@cache
def _inference_accepts(opset: int, data: bytes, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> bool:
    node = onnx.NodeProto.FromString(data)
    assert all(a.type != AttributeProto.GRAPH for a in node.attribute)
    values = [helper.make_tensor_value_info(f"i{i}", elem, None) for i, elem in enumerate(inputs) if elem]
    graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name=n) for n in node.output if n])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        typed = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return False
    inferred = {v.name: scopes.elem_type(v.type) for v in typed.graph.output}
    return all(inferred.get(f"o{i}") in (elem, None) for i, elem in enumerate(outputs) if elem)


def type_name(elem: int | None, value: Value) -> str:
    """Return a type as JSON results spell it: seq(...) and optional(...) around the element type."""
    name, kind = scopes.dtype_name(elem), value.type
    layers = []
    while kind is not None and kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        is_sequence = kind.WhichOneof("value") == "sequence_type"
        layers.append("seq" if is_sequence else "optional")
        kind = kind.sequence_type.elem_type if is_sequence else kind.optional_type.elem_type
    for layer in reversed(layers):
        name = f"{layer}({name})"
    return name
