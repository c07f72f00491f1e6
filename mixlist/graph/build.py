"""Building the Graph: linked and sorted first, then typed: what each value is, by ONNX's inference, as authored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.graph import control_flow
from mixlist.graph.constants_and_shapes import is_constant, is_from_shape, is_random
from mixlist.graph.link import MAX_NESTING, add_value, canonical_domain, describe_node, link_scope, values_read_by
from mixlist.graph.model import Graph, Node, Scope, Value, function_key
from mixlist.graph.proto_edits import OLDEST_OPSET, copy_message
from mixlist.graph.traversal import is_graph, linked_scopes
from mixlist.graph.type_unification import unify_types
from mixlist.ops import types
from mixlist.ops.schema import Schema
from mixlist.ops.signature import Signature, attribute_type_key, make_signature

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, OperatorSetIdProto


def build_graph(
    model: ModelProto, type_hints: dict[str, types.Type] | None = None, *, show_marked_casts: bool = False
) -> Graph:
    """The Graph of a ModelProto's main graph; ``type_hints`` are types of tensors that nothing in the model tells.

    With ``show_marked_casts`` the Casts that mixlist made are nodes like all others; else their readers read their
    source.

    Raises ModelError where a tensor is used that nothing defines, where nodes form a cycle, or where
    a control-flow node does not fit its body.
    """
    functions = {function_key(function): function for function in model.functions}
    graph = Graph(
        Scope(model.graph),
        model,
        _opsets(model.opset_import),
        functions,
        show_marked_casts=show_marked_casts,
        type_hints=type_hints or {},
    )
    _fill(graph)
    return graph


def build_function(
    caller: Graph,
    function: FunctionProto,
    call: Node,
    attributes: dict[str, AttributeProto],
    depth: int,
    results: tuple[types.Type, ...] = (),
) -> Graph:
    """The Graph of a model-local function's body for a call's arguments: their authored types and flags.

    ``attributes`` are those of the call, by name, with the function's defaults. ``results`` are the types that the
    caller proves of outputs whose types the body does not tell.
    """
    if depth > MAX_NESTING:
        raise ModelError(
            f"function {function.domain}:{function.name} calls itself, or functions nest deeper than {MAX_NESTING}",
            hint="ONNX forbids recursive functions; inline some of them",
        )
    graph = Graph(
        Scope(function),
        caller.model,
        _opsets(function.opset_import, f"{function.domain}:{function.name}"),
        caller.functions,
        path=f"function:{function.domain}:{function.name}",
        call_attributes=attributes,
        function_graphs=caller.function_graphs,
        show_marked_casts=caller.show_marked_casts,
        type_hints=caller.type_hints,
    )
    for index, name in enumerate(function.input):
        given = call.inputs[index] if index < len(call.inputs) else None
        value = add_value(graph, graph.root, name, "input" if given is not None else "absent")
        graph.root.inputs.append(value)
        if given is not None:
            value.type, value.is_constant, value.is_from_shape = (
                call.input_types[index],
                given.is_constant,
                given.is_from_shape,
            )
    _fill(graph, depth, results)
    return graph


def _fill(graph: Graph, depth: int = 0, results: tuple[types.Type, ...] = ()) -> None:
    link_scope(graph, graph.root, depth)
    _type_scope(graph, graph.root, depth)
    graph.has_undeclared_types = unify_types(graph, lambda node: _retype(graph, node, depth), results)
    if graph.has_undeclared_types:
        for scope in linked_scopes(graph.root):
            _set_yields(graph, scope)


def _opsets(imports: Iterable[OperatorSetIdProto], function: str = "") -> dict[str, int]:
    """Return the imported version of each domain; raise ModelError if mixlist does not handle it (Rule S7.15).

    ``function`` names the function whose imports these are, "" for those of the model.
    """
    versions = {canonical_domain(entry.domain): entry.version for entry in imports}
    if versions.get("", OLDEST_OPSET) < OLDEST_OPSET:
        what = f"function {function}" if function else "the model"
        remedy = (
            "inline it: mixlist apply --inline-functions converts it to the model's opset; or export the model again"
            if function
            else "convert the model: mixlist apply --opset 13 does so before it applies the lists"
        )
        raise ModelError(
            f"{what} is written in opset {versions['']}; mixlist handles opsets from {OLDEST_OPSET} on", hint=remedy
        )
    return versions


def _resolved(node: NodeProto, outer: Mapping[str, AttributeProto]) -> Iterator[tuple[str, AttributeProto]]:
    """Yield the attributes of a function body's node by name, references to the function's attributes replaced."""
    for attribute in node.attribute:
        source = outer.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if source is not None:
            yield attribute.name, source


def _type_scope(graph: Graph, scope: Scope, depth: int) -> None:
    for node in scope.nodes:
        _type_slots(graph, node)
        if node.bodies:
            _type_control_flow(graph, node, depth)
        else:
            key = (node.proto.domain, node.op_type, node.proto.overload)
            function = graph.functions.get(key) if graph.functions else None
            if function is not None:
                _type_call(graph, node, function, depth)
            else:
                _type_node(graph, node)
        node.id = len(graph.nodes)
        graph.nodes.append(node)
    for value, declared in zip(scope.outputs, scope.declared_output_types, strict=True):
        if value.type == types.UNKNOWN:
            value.type = declared
    _set_yields(graph, scope)


def _type_slots(graph: Graph, node: Node) -> None:
    """Note the type that each input slot of a node was authored to read."""
    node.input_types = tuple([types.UNKNOWN if v is None else v.type for v in node.inputs])
    if graph.marked_cast_types:
        node.input_types = tuple(
            [_authored(graph, n, v, t) for n, v, t in zip(node.proto.input, node.inputs, node.input_types, strict=True)]
        )


def _set_yields(graph: Graph, scope: Scope) -> None:
    """Note the type that each output slot of a scope was authored to hand out."""
    scope.output_types = [v.type for v in scope.outputs]
    if graph.marked_cast_types and scope.owner is not None:
        slots = zip(scope.output_names(), scope.outputs, scope.output_types, strict=True)
        scope.output_types = [_authored(graph, n, v, t) for n, v, t in slots]


def _retype(graph: Graph, node: Node, depth: int) -> None:
    """Infer the types of a node's outputs again, after the types of its inputs or of values in its bodies changed."""
    _type_slots(graph, node)
    if node.function is not None:
        _type_call(graph, node, graph.functions[node.proto.domain, node.op_type, node.proto.overload], depth)
    elif node.bodies:
        for body in node.bodies.values():
            _set_yields(graph, body)
        _type_outputs(graph, node)
    else:
        _type_node(graph, node)


def _authored(graph: Graph, name: str, value: Value | None, value_type: types.Type) -> types.Type:
    """The type that a slot was authored to read: of the mixlist Cast where the name in the file is that Cast's."""
    through = value is not None and name != value.name_in_file
    return graph.marked_cast_types.get(name, value_type) if through else value_type


def _type_node(graph: Graph, node: Node) -> None:
    inputs = node.input_types
    present = tuple([v is not None for v in node.outputs])
    proto = node.proto
    attributed = attribute_type_key(proto)
    references = bool(attributed) and bool(graph.path) and any(a.ref_attr_name for a in proto.attribute)
    if references:
        proto = resolve_attribute_references(proto, graph.call_attributes)
        attributed = attribute_type_key(proto)
    key = (node.op_type, node.domain, inputs, present, attributed)
    signature = graph.signatures.get(key)
    if signature is None:
        signature = _signature(graph, node, inputs, present, proto)
        graph.signatures[key] = signature
    node.signature = signature
    for value, value_type in zip(node.outputs, signature.outputs, strict=False):
        if value is not None:
            value.type = value_type or _declared(graph, node.scope, value.name) or value.type
    if node.op_type == "Constant" and node.domain == "":
        _type_constant(node, proto, references)
    if not node.bodies:
        _flag_outputs(node, is_constant(node), is_from_shape(node))


def _flag_outputs(node: Node, constant: bool, from_shape: bool) -> None:
    for value in node.outputs:
        if value is not None:
            value.is_constant, value.is_from_shape = constant, from_shape


def _signature(
    graph: Graph, node: Node, inputs: tuple[types.Type, ...], present: tuple[bool, ...], proto: NodeProto
) -> Signature:
    if node.op_type == "Constant" and node.domain == "":
        _refuse_arity(node, 0, 1)
        if not node.proto.attribute:
            raise ModelError(f"{describe_node(node)} has no value")
        return Signature(None, (), (types.UNKNOWN,), (), has_fixed_output=True, reads_any_type=False)
    opset = graph.opsets.get(node.domain, 1 if node.domain else 0)
    if not opset:
        raise ModelError("the model imports no opset of the standard domain", hint="check the model with onnx.checker")
    signature = make_signature(node.domain, node.op_type, opset, inputs, present, proto)
    if signature.schema is not None and signature.schema.onnx_schema is not None:
        _refuse_arity(node, signature.schema.onnx_schema.min_input, signature.schema.onnx_schema.min_output)
        _refuse_attributes(node, proto, signature.schema)
    return signature


def _refuse_arity(node: Node, inputs: int, outputs: int) -> None:
    """Raise ModelError for a node with fewer inputs or outputs than its schema needs."""
    if len(node.inputs) < inputs or len(node.outputs) < outputs:
        found = f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
        raise ModelError(f"{describe_node(node)} has {found}, its schema needs {inputs} and {outputs}")


def _refuse_attributes(node: Node, proto: NodeProto, schema: Schema) -> None:
    """Raise ModelError where a required attribute is missing, or one is of the wrong kind or names no type of ONNX."""
    given = {attribute.name: attribute for attribute in proto.attribute}
    for name, formal in schema.onnx_schema.attributes.items():
        attribute = given.get(name)
        if attribute is None:
            if formal.required:
                raise ModelError(f"{describe_node(node)} has no attribute {name!r}, which its schema requires")
        elif attribute.type not in (0, formal.type.value):  # 0: files of the first versions say no kind
            raise ModelError(
                f"attribute {name!r} of {describe_node(node)} is no {formal.type.name}, as its schema wants it"
            )
        elif name in schema.type_attributes and attribute.i not in types.known_elements():
            raise ModelError(f"attribute {name!r} of {describe_node(node)} is {attribute.i}, which is no type of ONNX")


def resolve_attribute_references(proto: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a copy of a function body's node in which references to the function's attributes are replaced."""
    copy = copy_message(proto)
    del copy.attribute[:]
    for name, attribute in _resolved(proto, attributes):
        copy.attribute.add().CopyFrom(attribute)
        copy.attribute[-1].name = name
    return copy


_CONSTANT_TYPES = {"value_float": 1, "value_int": 7, "value_string": 8}  # value_floats, ... have the same


def _type_constant(node: Node, proto: NodeProto, references: bool) -> None:
    """``proto`` is the node with its references replaced; what a caller passes cannot be converted in the body."""
    value = node.outputs[0]
    if value is None or not proto.attribute:
        return
    attribute = proto.attribute[0]
    if attribute.name == "value":
        value.type, value.constant_proto = int(attribute.t.data_type), attribute.t
    elif attribute.name == "sparse_value":
        value.type, value.constant_proto = int(attribute.sparse_tensor.values.data_type), attribute.sparse_tensor
    else:
        value.type = _CONSTANT_TYPES.get(attribute.name.removesuffix("s"), value.type)
        value.constant_proto = attribute if value.type == types.FLOAT else None
    if references:
        value.constant_proto = None


def _declared(graph: Graph, scope: Scope, name: str) -> types.Type:
    """The type by hint, value_info or a graph output, which only count where no schema tells the type."""
    if name in graph.type_hints:
        return graph.type_hints[name]
    if not scope.declared_types:
        proto = scope.proto
        infos = [*proto.output, *proto.value_info] if is_graph(proto) else proto.value_info
        scope.declared_types = {i.name: types.from_proto(i.type) for i in infos if i.type.WhichOneof("value")}
        scope.declared_types[""] = types.UNKNOWN
    return scope.declared_types.get(name, types.UNKNOWN)


def _type_control_flow(graph: Graph, node: Node, depth: int) -> None:
    given = control_flow.body_input_types(node) if node.domain == "" else {}
    for name, body in node.bodies.items():
        for value, value_type in zip(body.inputs, given.get(name, ()), strict=False):
            value.type = value_type or value.type
        _type_scope(graph, body, depth)
    _type_outputs(graph, node)
    inside = (inner for body in node.bodies.values() for scope in linked_scopes(body) for inner in scope.nodes)
    constant = all(v.is_constant for v in values_read_by(node)) and not any(map(is_random, inside))
    _flag_outputs(node, constant, False)


def _type_outputs(graph: Graph, node: Node) -> None:
    """Type the outputs of a node with bodies, once the bodies are typed."""
    if node.domain or node.op_type not in control_flow.CONTROL_FLOW:
        _type_node(graph, node)  # an ordinary operator that happens to have bodies
        outputs: list[types.Type] = []
    else:
        outputs = control_flow.output_types(node)
    for slot, out in enumerate(node.outputs):
        if out is not None:
            told = outputs[slot] if slot < len(outputs) else out.type
            out.type = told or _declared(graph, node.scope, out.name) or out.type


def _type_call(graph: Graph, node: Node, function: FunctionProto, depth: int) -> None:
    """A call's outputs have the types and flags that the function's body yields for these arguments."""
    attributes = {attribute.name: attribute for attribute in function.attribute_proto}
    attributes.update(_resolved(node.proto, graph.call_attributes))
    key = (
        (node.proto.domain, node.op_type, node.proto.overload),
        tuple(
            [
                (t, v.is_constant, v.is_from_shape) if v else None
                for t, v in zip(node.input_types, node.inputs, strict=True)
            ]
        ),
        tuple([(name, a.SerializeToString(deterministic=True)) for name, a in sorted(attributes.items())]),
    )
    body = graph.function_graphs.get(key)
    if body is None:
        body = graph.function_graphs[key] = build_function(graph, function, node, attributes, depth + 1)
    pairs = zip(node.outputs, body.root.outputs, strict=False)
    unknown = [value if source.type == types.UNKNOWN else None for value, source in pairs]
    results = tuple(
        [v.type or _declared(graph, node.scope, v.name) if v is not None else types.UNKNOWN for v in unknown]
    )
    if any(results):  # the caller knows more than the body
        if (key, results) not in graph.function_graphs:
            graph.function_graphs[key, results] = build_function(graph, function, node, attributes, depth + 1, results)
        body = graph.function_graphs[key, results]
    node.function = body
    for value, source in zip(node.outputs, body.root.outputs, strict=False):
        if value is not None:
            value.type, value.is_constant, value.is_from_shape = source.type, source.is_constant, source.is_from_shape
