"""Building the Graph: register the values of every scope, link the nodes, sort them, type them."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from mixlist.errors import ModelError
from mixlist.graph import control_flow
from mixlist.graph.model import MARK, Graph, Kind, Node, Scope, Value
from mixlist.graph.traits import is_constant, is_from_shape, is_random
from mixlist.ops import types
from mixlist.ops.signature import Signature, key_of, make_signature

_DEEPEST = 100  # scopes in scopes and functions in functions; protobuf itself stops at 100 nested messages


def build_main(model: Any, hints: dict[str, types.Type] | None = None) -> Graph:
    """The Graph of a ModelProto's main graph; ``hints`` are types of tensors that nothing in the model tells.

    Raises ModelError where a tensor is used that nothing defines, where nodes form a cycle, or where
    a control-flow node does not fit its body.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    graph = Graph(Scope(model.graph), model, _opsets(model.opset_import), functions, hints=hints or {})
    _fill(graph)
    return graph


def build_function(caller: Graph, function: Any, call: Node, attributes: dict[str, Any], depth: int) -> Graph:
    """The Graph of a model-local function's body for a call's arguments: their authored types and flags.

    ``attributes`` are those of the call, by name, with the function's defaults.
    """
    if depth > _DEEPEST:
        raise ModelError(
            f"function {function.domain}:{function.name} calls itself, or functions nest deeper than {_DEEPEST}",
            hint="ONNX forbids recursive functions; inline some of them",
        )
    graph = Graph(
        Scope(function),
        caller.model,
        _opsets(function.opset_import),
        caller.functions,
        path=f"function:{function.domain}:{function.name}",
        attributes=attributes,
        calls=caller.calls,
        hints=caller.hints,
    )
    for index, name in enumerate(function.input):
        value = _new_value(graph, graph.root, name, "input")
        graph.root.inputs.append(value)
        given = call.inputs[index] if index < len(call.inputs) else None
        if given is not None:
            value.type, value.constant, value.from_shape = call.types[index], given.constant, given.from_shape
    _fill(graph, depth)
    return graph


def _fill(graph: Graph, depth: int = 0) -> None:
    _register(graph, graph.root)
    _link(graph, graph.root, depth)
    _type_scope(graph, graph.root, depth)


def _opsets(imports: Any) -> dict[str, int]:
    return {_domain(i.domain): int(i.version) for i in imports}


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _bound_attributes(function: Any, call: Any, outer: dict[str, Any]) -> dict[str, Any]:
    bound = {a.name: a for a in function.attribute_proto}
    for attribute in call.attribute:
        source = outer.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if source is not None:
            bound[attribute.name] = source
    return bound


# --- register -----------------------------------------------------------------------------------


def _new_value(graph: Graph, scope: Scope, name: str, kind: Kind) -> Value:
    value = Value(len(graph.values), name, scope, kind)
    graph.values.append(value)
    scope.values[name] = value
    return value


def _register(graph: Graph, scope: Scope) -> None:
    """Every value that the scope defines, before any node looks for one."""
    proto = scope.proto
    if scope.proto.DESCRIPTOR.name == "GraphProto":
        for info in proto.input:
            value = _new_value(graph, scope, info.name, "input")
            value.type = types.from_proto(info.type)
            scope.inputs.append(value)
        for tensor in proto.initializer:
            _initializer(graph, scope, tensor.name, tensor, int(tensor.data_type))
        for sparse in proto.sparse_initializer:
            _initializer(graph, scope, sparse.values.name, sparse, int(sparse.values.data_type))
    for position, node_proto in enumerate(proto.node):
        if node_proto.op_type == "Cast" and _marked(node_proto):
            scope.marked.add(position)
            continue
        node = Node(-1, scope, position, node_proto, node_proto.op_type, _domain(node_proto.domain))
        scope.nodes.append(node)
        for slot, name in enumerate(node_proto.output):
            if not name:
                node.outputs.append(None)
                continue
            if name in scope.values:
                raise ModelError(f"tensor {name!r} is defined twice in one graph, the second time by {_called(node)}")
            value = _new_value(graph, scope, name, "node")
            value.producer, value.out = node, slot
            node.outputs.append(value)
    for position in sorted(scope.marked):
        _alias(graph, scope, proto.node[position])


def _initializer(graph: Graph, scope: Scope, name: str, tensor: Any, elem: int) -> None:
    value = scope.values.get(name)
    if value is None:
        value = _new_value(graph, scope, name, "initializer")
        value.type = elem
    elif value.kind == "input":
        value.kind = "overridable"
        if value.type not in (elem, types.UNKNOWN):
            declared, held = types.type_name(value.type), types.type_name(elem)
            raise ModelError(f"input {name!r} is declared {declared}, its initializer is {held}")
    else:
        raise ModelError(f"initializer {name!r} is defined twice")
    value.tensor, value.constant = tensor, True


def _marked(proto: Any) -> bool:
    return any(p.key == MARK for p in proto.metadata_props)


def _alias(graph: Graph, scope: Scope, cast: Any) -> None:
    """A Cast that mixlist made is not there for resolution: its output is the tensor that it serves."""
    served = scope.values.get(cast.input[0])
    if served is None:
        raise ModelError(f"the Cast {cast.name!r} that mixlist made reads {cast.input[0]!r}, which is not there")
    if any(p.key == MARK and p.value == "output" for p in cast.metadata_props):
        served.name = cast.output[0]  # the Cast had taken over the name of a graph output
    scope.values[cast.output[0]] = served
    graph.marked_types[cast.output[0]] = next((int(a.i) for a in cast.attribute if a.name == "to"), types.UNKNOWN)


# --- link ---------------------------------------------------------------------------------------


def _link(graph: Graph, scope: Scope, depth: int) -> None:
    values = scope.values
    for node in scope.nodes:
        inputs = node.inputs
        for name in node.proto.input:
            if not name:
                inputs.append(None)
                continue
            value = values.get(name) or _outer(scope, name)
            if value is None:
                raise ModelError(
                    f"{_called(node)} reads {name!r}, which nothing defines", hint="check the model with onnx.checker"
                )
            inputs.append(value)
            made = value.producer
            if made is not None and made.scope is scope and made.position >= node.position:
                scope.sorted = False
        _link_bodies(graph, scope, node, depth)
    _link_outputs(scope)
    if not scope.sorted:
        _sort(scope)


def _outer(scope: Scope, name: str) -> Value | None:
    """A value of an enclosing scope; it becomes a capture of every scope in between."""
    passed = [scope]
    found, at = None, scope.parent
    while at is not None:
        found = at.values.get(name)
        if found is not None:
            break
        passed.append(at)
        at = at.parent
    if found is not None:
        for inner in passed:
            inner.captures[found] = None
    return found


def _link_bodies(graph: Graph, scope: Scope, node: Node, depth: int) -> None:
    for attribute in node.proto.attribute:
        if attribute.type != attribute.GRAPH:
            continue
        if depth > _DEEPEST:
            raise ModelError(f"subgraphs nest deeper than {_DEEPEST} at {_called(node)}")
        body = Scope(attribute.g, scope, node, attribute.name)
        node.bodies[attribute.name] = body
        _register(graph, body)
        _link(graph, body, depth + 1)
        for value in body.captures:
            made = value.producer
            if made is not None and value.scope is scope and made.position >= node.position:
                scope.sorted = False
    if node.op_type in control_flow.CONTROL_FLOW and node.domain == "":
        wrong = control_flow.check_shape(node)
        if wrong:
            raise ModelError(f"{_called(node)} {wrong}", hint="check the model with onnx.checker")


def _link_outputs(scope: Scope) -> None:
    function = scope.proto.DESCRIPTOR.name == "FunctionProto"
    for info in scope.proto.output:
        name = info if function else info.name
        value = scope.values.get(name) or _outer(scope, name)
        if value is None:
            raise ModelError(f"the graph output {name!r} is defined by nothing")
        scope.outputs.append(value)
        scope.output_types.append(types.UNKNOWN if function else types.from_proto(info.type))


def _reads(node: Node) -> list[Value]:
    captured = [v for body in node.bodies.values() for v in body.captures]
    return [v for v in node.inputs if v is not None] + captured


def _sort(scope: Scope) -> None:
    """Stable topological order: among the nodes that are ready the first of the file goes first."""
    waiting: dict[Node, int] = {}
    readers: dict[Node, list[Node]] = {}
    for node in scope.nodes:
        makers = {v.producer for v in _reads(node) if v.producer is not None and v.scope is scope}
        waiting[node] = len(makers)
        for maker in makers:
            readers.setdefault(maker, []).append(node)
    ready = [(n.position, i) for i, n in enumerate(scope.nodes) if not waiting[n]]
    index = {n: i for i, n in enumerate(scope.nodes)}
    heapify(ready)
    ordered: list[Node] = []
    while ready:
        node = scope.nodes[heappop(ready)[1]]
        ordered.append(node)
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (reader.position, index[reader]))
    if len(ordered) < len(scope.nodes):
        left = [_called(n) for n in scope.nodes if waiting[n]][:5]
        raise ModelError(f"the graph has a cycle through {', '.join(left)}")
    scope.nodes = ordered


# --- type ---------------------------------------------------------------------------------------


def _type_scope(graph: Graph, scope: Scope, depth: int) -> None:
    for node in scope.nodes:
        node.types = tuple([types.UNKNOWN if v is None else v.type for v in node.inputs])
        if graph.marked_types:
            node.types = tuple(
                [graph.marked_types.get(n, t) for n, t in zip(node.proto.input, node.types, strict=True)]
            )
        if node.bodies:
            _type_control_flow(graph, node, depth)
        else:
            key = (node.proto.domain, node.op_type, node.proto.overload)
            function = graph.functions.get(key) if graph.functions else None
            if function is not None:
                _type_call(graph, node, function, depth)
            else:
                _type_node(graph, node)
        node.id = len(graph.order)
        graph.order.append(node)
    for value, declared in zip(scope.outputs, scope.output_types, strict=True):
        if value.type == types.UNKNOWN:
            value.type = declared
    scope.yields = [v.type for v in scope.outputs]
    if graph.marked_types and scope.owner is not None:
        names = [o.name for o in scope.proto.output]
        scope.yields = [graph.marked_types.get(n, t) for n, t in zip(names, scope.yields, strict=True)]


def _type_node(graph: Graph, node: Node) -> None:
    inputs = node.types
    present = tuple([v is not None for v in node.outputs])
    proto = node.proto
    attributed = key_of(proto)
    references = bool(attributed) and bool(graph.path) and any(a.ref_attr_name for a in proto.attribute)
    if references:
        proto = bind(proto, graph.attributes)
        attributed = key_of(proto)
    key = (node.op_type, node.domain, inputs, present, attributed)
    signature = graph.signatures.get(key)
    if signature is None:
        signature = _signature(graph, node, inputs, present, proto)
        graph.signatures[key] = signature
    node.signature = signature
    for value, value_type in zip(node.outputs, signature.outputs, strict=False):
        if value is not None:
            value.type = value_type if value_type != types.UNKNOWN else _declared(graph, node.scope, value.name)
    if node.op_type == "Constant" and node.domain == "":
        _type_constant(node, references)
    constant, shaped = is_constant(node), is_from_shape(node)
    for value in node.outputs:
        if value is not None:
            value.constant, value.from_shape = constant, shaped


def _signature(
    graph: Graph, node: Node, inputs: tuple[types.Type, ...], present: tuple[bool, ...], proto: Any
) -> Signature:
    if node.op_type == "Constant" and node.domain == "":
        _refuse_arity(node, 0, 1)
        return Signature(None, (), (types.UNKNOWN,), (), fixed=True, reads_any=False)
    opset = graph.opsets.get(node.domain, 1 if node.domain else 0)
    if not opset:
        raise ModelError("the model imports no opset of the standard domain", hint="check the model with onnx.checker")
    signature = make_signature(node.domain, node.op_type, opset, inputs, present, proto)
    if signature.schema is not None and signature.schema.native is not None:
        _refuse_arity(node, signature.schema.native.min_input, signature.schema.native.min_output)
    return signature


def _refuse_arity(node: Node, inputs: int, outputs: int) -> None:
    """Raise ModelError for a node with fewer inputs or outputs than its schema needs."""
    if len(node.inputs) < inputs or len(node.outputs) < outputs:
        found = f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
        raise ModelError(f"{_called(node)} has {found}, its schema needs {inputs} and {outputs}")


def bind(proto: Any, attributes: dict[str, Any]) -> Any:
    """A copy of a function body's node in which references to the function's attributes are replaced."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    del copy.attribute[:]
    for attribute in proto.attribute:
        source = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if source is not None:
            copy.attribute.add().CopyFrom(source)
            copy.attribute[-1].name = attribute.name
    return copy


_CONSTANT_TYPES = {
    "value_float": 1,
    "value_floats": 1,
    "value_int": 7,
    "value_ints": 7,
    "value_string": 8,
    "value_strings": 8,
}


def _type_constant(node: Node, references: bool) -> None:
    value = node.outputs[0]
    if value is None or not node.proto.attribute:
        return
    attribute = node.proto.attribute[0]
    if attribute.name == "value" and not references:
        value.type, value.tensor = int(attribute.t.data_type), attribute.t
    elif attribute.name == "sparse_value" and not references:
        value.type, value.tensor = int(attribute.sparse_tensor.values.data_type), attribute.sparse_tensor
    else:
        value.type = _CONSTANT_TYPES.get(attribute.name, value.type)
        if value.type == types.FLOAT and not references:
            value.tensor = attribute


def _declared(graph: Graph, scope: Scope, name: str) -> types.Type:
    """The type by hint or value_info, which only count where no schema tells the type."""
    if name in graph.hints:
        return graph.hints[name]
    if not scope.declared:
        scope.declared = {i.name: types.from_proto(i.type) for i in scope.proto.value_info}
        scope.declared[""] = types.UNKNOWN
    return scope.declared.get(name, types.UNKNOWN)


def _type_control_flow(graph: Graph, node: Node, depth: int) -> None:
    given = control_flow.body_input_types(node) if node.domain == "" else {}
    for name, body in node.bodies.items():
        for value, value_type in zip(body.inputs, given.get(name, ()), strict=False):
            value.type = value_type or value.type
        _type_scope(graph, body, depth)
    known = node.domain == "" and node.op_type in control_flow.CONTROL_FLOW
    outputs = control_flow.output_types(node) if known else []
    constant = all(v.constant for v in _reads(node)) and not any(is_random(n) for n in _inner(node))
    for slot, out in enumerate(node.outputs):
        if out is not None:
            out.type = (outputs[slot] if slot < len(outputs) else 0) or _declared(graph, node.scope, out.name)
            out.constant = constant


def _inner(node: Node) -> list[Node]:
    found: list[Node] = []
    for body in node.bodies.values():
        for inner in body.nodes:
            found.append(inner)
            found.extend(_inner(inner))
    return found


def _type_call(graph: Graph, node: Node, function: Any, depth: int) -> None:
    """A call's outputs have the types and flags that the function's body yields for these arguments."""
    attributes = _bound_attributes(function, node.proto, graph.attributes)
    key = (
        (node.proto.domain, node.op_type, node.proto.overload),
        tuple([(t, v.constant, v.from_shape) if v else None for t, v in zip(node.types, node.inputs, strict=True)]),
        tuple([(name, a.SerializeToString(deterministic=True)) for name, a in sorted(attributes.items())]),
    )
    body = graph.calls.get(key)
    if body is None:
        body = graph.calls[key] = build_function(graph, function, node, attributes, depth + 1)
    node.function = body
    for slot, value in enumerate(node.outputs):
        if value is not None and slot < len(body.root.outputs):
            source = body.root.outputs[slot]
            value.type, value.constant, value.from_shape = source.type, source.constant, source.from_shape


def _called(node: Node) -> str:
    return f"node {node.proto.name!r} ({node.op_type})" if node.proto.name else f"an unnamed {node.op_type} node"
