"""The types of the values of a model that ONNX's inference of the whole model does not give.

Rule S4.12: a type comes from ONNX's inference or the schema, else from the declaration. Rule S4.39: a slot that shares
a type parameter with a tensor of known type has that type, and so has a slot that admits one type only; such types go
forward and back through nodes and control flow.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from tests.support.reference_model import FLOAT, Expansion, Node, Scope, Value, borders


def expand(model: onnx.ModelProto) -> Scope:
    """Return the main scope of a model with everything below it."""
    main = Expansion(model).main
    unify(main)
    return main


def slot_params(node: Node) -> list[tuple[Value, str, bool, int]]:
    """Return the value, type parameter, side (True: output) and index of each slot that is in use.

    Every slot of a variadic parameter whose elements may differ has a parameter of its own.
    """
    schema = node.schema()
    if schema is None:
        return []
    slots = []
    for is_output, values, formals in ((False, node.inputs, schema.inputs), (True, node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            if value is None or not formals:
                continue
            formal = formals[min(i, len(formals) - 1)]
            param = formal.type_str
            if formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous:
                param = f"{param}#{i}"
            slots.append((value, param, is_output, i))
    return slots


def unify(main: Scope) -> None:
    """Give types to values of unknown type (Rules S4.12, S4.39).

    First the schemas say what follows from the inputs, then the file's declarations count, then the tensors around.
    """
    nodes = list(main.walk())
    for step in ("forward", "declared", "around"):
        if step == "declared":
            for value in {v for n in nodes for v in n.outputs if v is not None and v.type is None}:
                value.type = value.declared
        while any(_unify_node(node, backward=step == "around") for node in nodes):
            pass


def _unify_node(node: Node, *, backward: bool) -> bool:
    schema = node.schema()
    if node.bodies and node.is_control_flow:
        unify_scopes = _unify_map_borders if node.op == "SequenceMap" else _unify_borders
        return unify_scopes(node, backward=backward)
    if schema is None or node.is_control_flow:
        return False
    slots, changed = slot_params(node), _infer(node)
    single = {
        c.type_param_str: c.allowed_type_strs[0] for c in schema.type_constraints if len(c.allowed_type_strs) == 1
    }
    for value, param, is_output, _ in slots:
        if value.type is not None or not (is_output or backward):
            continue
        known_type = next((v.type for v, p, _, _ in slots if p == param and v.elem is not None), None)
        value.type = _without_shape(known_type) or _fixed_type(single.get(param, param))
        changed = changed or value.type is not None
    return changed


def _unify_borders(node: Node, *, backward: bool) -> bool:
    """Give values on both sides of a border one type."""
    changed = False
    for takers, sources, _ in borders(node):
        values = [*takers, *(v for v in sources if v is not None)]
        known_type = next((v.type for v in values if v.elem is not None), None)
        for value in values if backward else takers:
            if value.type is None and known_type is not None:
                value.type, changed = _without_shape(known_type), True
    return changed


def _unify_map_borders(node: Node, *, backward: bool) -> bool:
    """Give a SequenceMap's sequences the types of the elements in its body, and the elements those of the sequences."""
    body, changed = node.bodies["body"], False
    for outer, inner in zip(node.inputs, body.inputs, strict=True):
        if outer is not None and outer.type is not None and inner.type is None:
            kind = outer.type
            inner.type, changed = _without_shape(kind if outer.is_tensor else kind.sequence_type.elem_type), True
    for result, yielded in zip(node.outputs, body.outputs, strict=False):
        if result is not None and result.type is None and yielded.type is not None:
            result.type, changed = helper.make_sequence_type_proto(_without_shape(yielded.type)), True
        elif backward and result is not None and result.type is not None and yielded.type is None:
            yielded.type, changed = _without_shape(result.type.sequence_type.elem_type), True
    return changed


def _infer(node: Node) -> bool:
    """Infer the outputs of one node whose inputs have known types, as ONNX does where nothing unknown is around."""
    unknown = [v for v in node.outputs if v is not None and v.type is None]
    inputs = [v for v in node.inputs if v is not None]
    target = node.attribute("to")
    if unknown and node.is_standard and node.op == "Cast" and target is not None:
        unknown[0].type = helper.make_tensor_type_proto(target.i, None)
        return True
    if not unknown or not node.is_standard or any(v.type is None for v in inputs):
        return False
    infos = {name: v.type for name, v in zip(node.proto.input, node.inputs, strict=True) if v is not None}
    values = [onnx.ValueInfoProto(name=name, type=kind) for name, kind in infos.items()]
    names = [name for name in node.proto.output if name]
    graph = onnx.GraphProto(name="g", node=[node.proto], input=values)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.scope.opsets[""])])
    typed = onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False)
    inferred = {v.name: v.type for v in typed.graph.output if v.type.WhichOneof("value")}
    for name, value in zip(node.proto.output, node.outputs, strict=True):
        if value in unknown:
            value.type = inferred.get(name)
    return any(v.type is not None for v in unknown)


def _without_shape(kind: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """Return a type without its shape, which inference would compare."""
    if kind is None or kind.WhichOneof("value") != "tensor_type":
        return kind
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, None)


def _fixed_type(param: str) -> onnx.TypeProto | None:
    """Return the type of a slot that admits just one."""
    names = {"float": FLOAT, "double": TensorProto.DOUBLE, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
    elem = names.get(param[7:-1]) if param.startswith("tensor(") else None
    return helper.make_tensor_type_proto(elem, None) if elem is not None else None
