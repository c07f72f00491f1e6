"""Build the Graph of a model: link and sort the scopes, then find the authored type of each value.

The type of a value comes from the first of these sources that knows it (Rule S4.12): ONNX's type inference or the
schema, a type hint of the user, a declaration in the model, and the tensors around the value.

Rule S4.39: A slot of unknown type that shares a type parameter with a tensor of known type has that type. Example: the
schema of MatMul(u, W) has one type parameter T for both inputs, so ``u`` has the type of ``W``.

The parts of this file: build_graph() and the types of all nodes; the links between nodes and values; the signature of a
node; the types that only the tensors around a value prove.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.lists.op_catalog import canonical_domain
from mixlist.model import control_flow, dtypes
from mixlist.model.graph import CAST_MARK, Graph, Node, Scope, Value, ValueKind, linked_scopes
from mixlist.model.protos import OLDEST_OPSET, function_key, nodes_in
from mixlist.model.schema import FormalSlots, Schema, next_opset_allowing
from mixlist.model.signature import Signature, attribute_type_key, make_call_signature, make_signature
from mixlist.model.value_origins import is_constant, is_from_shape, is_random
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, OperatorSetIdProto

    from mixlist.model.protos import ConstantProto

_MAX_CHANGES = 4  # of the type of one value: more changes come from a model that contradicts itself
_Proof = tuple[Value, dtypes.Type]  # a value of unknown type, and the type that it must have


def build_graph(
    model: ModelProto,
    type_hints: dict[str, dtypes.Type] | None = None,
    *,
    show_marked_casts: bool = False,
    allow_clashes: bool = False,
) -> Graph:
    """Return the Graph of a model.

    ``type_hints``: types by tensor name, for tensors whose type ONNX cannot infer.
    ``show_marked_casts``: whether the Casts that mixlist inserted are nodes like all others. By default they are
    hidden: a node that reads such a Cast seems to read the Cast's input.
    ``allow_clashes``: whether inputs of one node may have types that its schema does not admit together.

    Raises ModelError for an undefined tensor, a cycle, a control-flow node that does not fit its bodies, and a node
    that does not fit its schema.
    """
    graph = Graph(
        Scope(model.graph),
        model,
        _read_opsets(model.opset_import),
        {function_key(function): function for function in model.functions},
        show_marked_casts=show_marked_casts,
        type_hints=type_hints or {},
    )
    if graph.functions:
        _refuse_wrong_functions(graph)
    _link_scope(graph, graph.root)
    _type_scope(graph, graph.root)
    graph.had_unknown_types = _unify_types(graph)
    if graph.had_unknown_types:
        # _type_scope() has copied types of values to the output slots, and _unify_types() has changed some values.
        for scope in linked_scopes(graph.root):
            _set_output_types(graph, scope)
    if not allow_clashes:
        _refuse_clashes(graph)
    return graph


_REPAIRED = "convert the float32 model with mixlist convert; without one, try mixlist repair, which corrects Casts"


def _refuse_clashes(graph: Graph) -> None:
    """Raise ModelError for the first node, or output of the graph, whose types clash (Rule S4.52)."""
    clashes = find_clashes(graph)
    if clashes:
        more = f" (and {len(clashes) - 1} more)" if len(clashes) > 1 else ""
        raise ModelError(f"{describe_clash(graph, clashes[0])}{more}", hint=_clash_hint(graph, clashes[0]))


def find_clashes(graph: Graph) -> list[Node | int]:
    """Return the nodes whose inputs clash, and the indices of the graph outputs that have another type than declared.

    Rule S4.52. What bodies join is compared if no other node clashes, and outputs if no node clashes.
    """
    clashes: list[Node | int] = []
    if any(signature.clash for signature in graph.signatures.values()):
        clashes += [node for node in graph.nodes if node.signature is not None and node.signature.clash]
    # The types behind a clash are not known.
    clashes = clashes or [node for node in graph.nodes if node.bodies and find_clashing_links(node)]
    if clashes:
        return clashes
    types = zip(find_output_types(graph), graph.root.declared_output_types, strict=True)
    clashes += [k for k, pair in enumerate(types) if len(set(pair) - {dtypes.UNKNOWN}) == 2]
    return clashes


def find_clashing_links(node: Node) -> list[list[control_flow.LinkSource]]:
    """Return the float sources of each type link of a control-flow node whose floats have different types."""
    links = control_flow.type_links_of(node) if control_flow.is_control_flow(node) else ()
    floats = [[source for source in link.sources if source.type in dtypes.FLOATS] for link in links]
    return [sources for sources in floats if len({source.type for source in sources}) > 1]


def find_wrong_declarations(graph: Graph) -> list[tuple[Value, dtypes.Type]]:
    """Return the inner tensors that are declared with another type than they have, with this type.

    mixlist derives each type (Rule S4.12); ONNX Runtime refuses such a file.
    """
    wrong = []
    for scope in linked_scopes(graph.root):
        proto = scope.proto
        for info in (*proto.value_info, *(() if scope is graph.root else (*proto.input, *proto.output))):
            declared, value = dtypes.from_proto(info.type), scope.values.get(info.name)
            if value is not None and dtypes.UNKNOWN not in (declared, value.type) and declared != value.type:
                wrong.append((value, declared))
    return wrong


def describe_declarations(wrong: list[tuple[Value, dtypes.Type]]) -> str:
    """Return which declaration is wrong: the first one, and how many more."""
    value, declared = wrong[0]
    more = f", as {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{value.name!r} is declared {dtypes.type_name(declared)}, but is {dtypes.type_name(value.type)}{more}"


def find_output_types(graph: Graph) -> list[dtypes.Type]:
    """Return the type of each output of the main graph, as its node makes it."""
    root = graph.root
    return [_slot_type(graph, name, v, v.type) for name, v in zip(root.output_names(), root.outputs, strict=True)]


def describe_clash(graph: Graph, clash: Node | int) -> str:
    """Return the sentence that names a node or output, its slots and their types."""
    if isinstance(clash, int):
        made, declared = (types[clash] for types in (find_output_types(graph), graph.root.declared_output_types))
        name, producer = graph.root.output_names()[clash], graph.root.outputs[clash].producer
        maker = f"{_describe_node(producer)} makes it" if producer is not None else "it is"
        return (
            f"the graph output {name!r} is declared {dtypes.type_name(declared)}, but {maker} {dtypes.type_name(made)}"
        )
    if clash.signature is None:
        joined = [
            f"{dtypes.type_name(source.type)} {source.name!r} ("
            f"{f'output {source.slot} of {source.body.attribute_name}' if source.body else f'input {source.slot}'})"
            for source in find_clashing_links(clash)[0]
        ]
        return f"{_describe_node(clash)} joins {' and '.join(joined)}, which must have one type"
    slots = [
        f"{dtypes.type_name(clash.input_types[slot])} {clash.proto.input[slot]!r} at input {slot}"
        for slot in clash.signature.clash
    ]
    reason = (
        "which must have one type" if len(slots) == 2 else f"which opset {graph.opsets[clash.domain]} does not admit"
    )
    return f"{_describe_node(clash)} reads {' and '.join(slots)}, {reason}"


def _clash_hint(graph: Graph, clash: Node | int) -> str:
    """Return what a user can do about a clash."""
    if isinstance(clash, int):
        types = {types[clash] for types in (find_output_types(graph), graph.root.declared_output_types)}
        # No Cast can come between an input and an output that are one tensor.
        is_repaired = dtypes.FLOATS.issuperset(types) and graph.root.outputs[clash].producer is not None
        return _REPAIRED if is_repaired else "declare the type that the node makes, or insert a Cast behind the node"
    if clash.signature is None:
        return _REPAIRED
    slots, schema = clash.signature.clash, clash.signature.schema
    types_of_slots = [clash.input_types[slot] for slot in slots]
    if len(slots) == 2:
        if dtypes.FLOATS.issuperset(types_of_slots):
            return _REPAIRED
        needed = next((t for t in types_of_slots if t in dtypes.FLOATS), types_of_slots[0])
        other = slots[types_of_slots[0] == needed]
        return f"insert a Cast of {clash.proto.input[other]!r} to {dtypes.type_name(needed)}"
    elem = dtypes.element(types_of_slots[0])
    later = next_opset_allowing(clash.domain, clash.op_type, graph.opsets[clash.domain], elem)
    if later is None:
        formals = schema.formal_slots(schema.inputs, len(clash.inputs)) if schema is not None else ()
        admitted = schema.types_of(formals[slots[0]].parameter) if schema is not None else ()
        if elem in dtypes.FLOATS and dtypes.FLOAT in admitted:
            return _REPAIRED
        target = next(
            (f" to {dtypes.type_name(t)}" for t in (dtypes.FLOAT, dtypes.INT64, dtypes.BOOL) if t in admitted), ""
        )
        return f"insert a Cast of {clash.proto.input[slots[0]]!r}{target}: no opset of {clash.op_type} admits the type"
    return f"convert the model: mixlist apply with {spell('opset', later)}, the first that admits the type"


def _read_opsets(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Return the imported opset version by domain; raise ModelError for a version below OLDEST_OPSET (Rule S7.15)."""
    versions = {canonical_domain(entry.domain): entry.version for entry in imports}
    if versions.get("", OLDEST_OPSET) < OLDEST_OPSET:
        raise ModelError(
            f"the model is written in opset {versions['']}; mixlist handles opsets from {OLDEST_OPSET} on",
            hint="convert the model: mixlist apply --opset 13 does so before it applies the lists",
        )
    return versions


# --- types of all nodes of a scope ---


def _type_scope(graph: Graph, scope: Scope) -> None:
    """Find the types of all values of a scope, and append its nodes to ``graph.nodes``."""
    # The nodes are sorted, so the types of a node's inputs are known before those of its outputs.
    for node in scope.nodes:
        _set_input_types(graph, node)
        if node.bodies:
            _type_node_with_bodies(graph, node)
        else:
            _type_node(graph, node)
        # After the nodes of the bodies: these come before their owner in graph.nodes.
        node.id = len(graph.nodes)
        graph.nodes.append(node)
    # A declaration is used only where inference and the type hints gave no type (Rule S4.12).
    for value, declared_type in zip(scope.outputs, scope.declared_output_types, strict=True):
        if value.type == dtypes.UNKNOWN:
            value.type = declared_type
    _set_output_types(graph, scope)


def _set_input_types(graph: Graph, node: Node) -> None:
    """Set the authored type of each input slot of a node."""
    node.input_types = tuple([dtypes.UNKNOWN if v is None else v.type for v in node.inputs])
    if graph.marked_cast_types:
        slots = zip(node.proto.input, node.inputs, node.input_types, strict=True)
        node.input_types = tuple([_slot_type(graph, name, value, t) for name, value, t in slots])


def _set_output_types(graph: Graph, scope: Scope) -> None:
    """Set the authored type of each output slot of a scope."""
    scope.output_types = [v.type for v in scope.outputs]
    # Only bodies need this: nothing reads the output types of a main graph.
    if graph.marked_cast_types and scope.owner is not None:
        slots = zip(scope.output_names(), scope.outputs, scope.output_types, strict=True)
        scope.output_types = [_slot_type(graph, name, value, t) for name, value, t in slots]


def _slot_type(graph: Graph, name: str, value: Value | None, value_type: dtypes.Type) -> dtypes.Type:
    """Return the authored type of a slot that reads the tensor ``name`` of the file.

    If ``name`` is the output of a hidden marked Cast, the slot has the type of the Cast, not of the Cast's input.
    """
    reads_marked_cast = value is not None and name != value.name_in_file
    return graph.marked_cast_types.get(name, value_type) if reads_marked_cast else value_type


def _type_node_again(graph: Graph, node: Node) -> None:
    """Infer the output types of a node again, after the types of its inputs or in its bodies changed."""
    _set_input_types(graph, node)
    if node.bodies:
        for body in node.bodies.values():
            _set_output_types(graph, body)
        _type_outputs_after_bodies(graph, node)
    else:
        _type_node(graph, node)


def _hinted_or_declared_type(graph: Graph, scope: Scope, name: str) -> dtypes.Type:
    """Return the type that a hint, a value_info or a graph output gives a tensor; UNKNOWN without one."""
    if name in graph.type_hints:
        return graph.type_hints[name]
    if scope.declared_types is None:
        proto = scope.proto
        infos = (*proto.output, *proto.value_info)
        scope.declared_types = {i.name: dtypes.from_proto(i.type) for i in infos if i.type.WhichOneof("value")}
    return scope.declared_types.get(name, dtypes.UNKNOWN)


# --- types of one node ---


def _type_node(graph: Graph, node: Node) -> None:
    """Set the signature of a node, and the types and flags of its outputs."""
    present_outputs = tuple([v is not None for v in node.outputs])
    # Equal nodes share a signature: inference is slow, and a model has few different nodes.
    key = (node.op_type, node.domain, node.input_types, present_outputs, _attribute_key(node))
    signature = graph.signatures.get(key)
    if signature is None:
        signature = _find_signature(graph, node, present_outputs)
        graph.signatures[key] = signature
    node.signature = signature
    for value, value_type in zip(node.outputs, signature.outputs, strict=False):
        if value is not None:
            # The first source that knows the type: UNKNOWN is 0, so ``or`` goes on to the next one.
            value.type = value_type or _hinted_or_declared_type(graph, node.scope, value.name) or value.type
    if node.op_type == "Constant" and node.domain == "":
        _type_constant(node)
    if not node.bodies:  # with bodies, the captures of the bodies count too: see _type_node_with_bodies()
        _set_constant_and_shape_flags(node, is_constant(node), is_from_shape(node))


def _attribute_key(node: Node) -> Hashable:
    """Return the part of a node that decides its types, besides its operator and the types that it reads."""
    if node.is_call:  # any attribute may decide a type inside the function
        attributes = (attribute.SerializeToString(deterministic=True) for attribute in node.proto.attribute)
        return (node.proto.overload, *attributes)
    return attribute_type_key(node.proto)


def _set_constant_and_shape_flags(node: Node, outputs_are_constant: bool, outputs_are_from_shape: bool) -> None:
    """Set ``is_constant`` (Rule S4.15) and ``is_from_shape`` (Rule S4.3) of all outputs of a node."""
    for value in node.outputs:
        if value is not None:
            value.is_constant, value.is_from_shape = outputs_are_constant, outputs_are_from_shape


# The element types of a Constant by its attribute: value_floats, value_ints and value_strings have the same ones.
_CONSTANT_TYPES = {"value_float": dtypes.FLOAT, "value_int": dtypes.INT64, "value_string": dtypes.STRING}


def _type_constant(node: Node) -> None:
    """Set the type and the numbers of a Constant's output."""
    value = node.outputs[0]
    if value is None or not node.proto.attribute:
        return
    # A Constant has exactly one attribute, which holds its value.
    attribute = node.proto.attribute[0]
    if attribute.name == "value":
        value.type, value.constant_proto = int(attribute.t.data_type), attribute.t
    elif attribute.name == "sparse_value":
        value.type, value.constant_proto = int(attribute.sparse_tensor.values.data_type), attribute.sparse_tensor
    else:
        value.type = _CONSTANT_TYPES.get(attribute.name.removesuffix("s"), value.type)
        # weights.read_pieces() reads only floats from an attribute, so integers and texts keep no message.
        value.constant_proto = attribute if value.type == dtypes.FLOAT else None


def _type_node_with_bodies(graph: Graph, node: Node) -> None:
    """Find the types in the bodies of a node, then those of its outputs."""
    # From the outside to the inside and back: the inputs of the bodies, the nodes in them, the outputs of the node.
    input_types = control_flow.body_input_types(node) if node.domain == "" else {}
    for name, body in node.bodies.items():
        for value, value_type in zip(body.inputs, input_types.get(name, ()), strict=False):
            value.type = value_type or value.type
        _type_scope(graph, body)
    _type_outputs_after_bodies(graph, node)
    # The outputs are constant if everything is that the bodies read, captures included, and no node in them is random.
    inner_nodes = (inner for body in node.bodies.values() for scope in linked_scopes(body) for inner in scope.nodes)
    outputs_are_constant = all(v.is_constant for v in _values_read_by(node)) and not any(map(is_random, inner_nodes))
    _set_constant_and_shape_flags(node, outputs_are_constant, False)


def _type_outputs_after_bodies(graph: Graph, node: Node) -> None:
    """Set the output types of a node with bodies. The types in the bodies are known."""
    if not control_flow.is_control_flow(node):
        # An operator with bodies that is not control flow, such as a custom one.
        _type_node(graph, node)
        output_types: list[dtypes.Type] = []
    else:
        output_types = control_flow.output_types(node)
    for slot, value in enumerate(node.outputs):
        if value is not None:
            inferred = output_types[slot] if slot < len(output_types) else value.type
            value.type = inferred or _hinted_or_declared_type(graph, node.scope, value.name) or value.type


# --- define the values of a scope ---


def _add_value(graph: Graph, scope: Scope, name: str, kind: ValueKind) -> Value:
    """Define a value in a scope, and return it."""
    value = Value(len(graph.values), name, name, scope, kind)
    graph.values.append(value)
    scope.values[name] = value
    return value


def _define_values(graph: Graph, scope: Scope) -> None:
    """Create the nodes of a scope, and every value that the scope defines.

    All values are defined before any node is connected, because the nodes of a file may come in any order.
    """
    proto = scope.proto
    for info in proto.input:
        if info.name in scope.values:
            raise ModelError(f"graph input {info.name!r} is defined twice")
        value = _add_value(graph, scope, info.name, "input")
        value.type = dtypes.from_proto(info.type)
        scope.inputs.append(value)
    for tensor in proto.initializer:
        _define_initializer(graph, scope, tensor.name, tensor, tensor.data_type)
    for sparse in proto.sparse_initializer:
        _define_initializer(graph, scope, sparse.values.name, sparse, sparse.values.data_type)
    # Nodes and their outputs, without the marked Casts.
    if not graph.show_marked_casts:
        scope.marked_casts = _find_marked_casts(scope)
    for position, node_proto in enumerate(proto.node):
        if position in scope.marked_casts:
            continue
        node = _make_node(graph, scope, position, node_proto)
        scope.nodes.append(node)
        for slot, name in enumerate(node_proto.output):
            if not name:
                node.outputs.append(None)
                continue
            if name in scope.values:
                raise ModelError(
                    f"tensor {name!r} is defined twice in one graph, the second time by {_describe_node(node)}"
                )
            value = _add_value(graph, scope, name, "node")
            value.producer, value.output_slot = node, slot
            node.outputs.append(value)
    # In the order of the file: a marked Cast can read the output of an earlier one.
    for position in sorted(scope.marked_casts):
        _hide_marked_cast(graph, scope, proto.node[position])


def _make_node(graph: Graph, scope: Scope, position: int, proto: NodeProto) -> Node:
    """Return the Node of a message, without its inputs and outputs. _type_scope() sets the id later."""
    is_call = bool(graph.functions) and (proto.domain, proto.op_type, proto.overload) in graph.functions
    # A function may have the name of a standard operator. Its call is no such operator, so its domain is never "".
    domain = (proto.domain or "ai.onnx") if is_call else canonical_domain(proto.domain)
    return Node(-1, scope, position, proto, proto.op_type, domain, is_call=is_call)


def _define_initializer(graph: Graph, scope: Scope, name: str, tensor: ConstantProto, elem: int) -> None:
    """Define the value of an initializer, or add the initializer to the graph input of the same name."""
    value = scope.values.get(name)
    if value is None:
        value = _add_value(graph, scope, name, "initializer")
        value.type = elem
    elif value.kind == "input":
        # Before IR version 4, every initializer had to be a graph input too.
        value.kind = "overridable"
        if value.type not in (elem, dtypes.UNKNOWN):
            declared, stored = dtypes.type_name(value.type), dtypes.type_name(elem)
            raise ModelError(f"input {name!r} is declared {declared}, but its initializer is {stored}")
    else:
        raise ModelError(f"initializer {name!r} is defined twice")
    value.constant_proto, value.is_constant = tensor, True


def _find_marked_casts(scope: Scope) -> set[int]:
    """Return the positions of the marked Casts that can be hidden.

    Hiding a Cast makes its input and its output one value, and one of the two names disappears. For a Cast that makes a
    graph output, the input's name disappears; for any other marked Cast, the output's name.

    A marked Cast cannot be hidden if another tool changed the model around the Cast. There are two signs of this. The
    Cast reads a tensor of an outer scope, for example because the tool inlined a function. Or the tool made a graph
    output of the tensor whose name would disappear. Such a Cast is a node like any other.
    """
    proto = scope.proto
    marks = {position: _read_cast_mark(node) for position, node in enumerate(proto.node) if node.op_type == "Cast"}
    # A Cast without an input or an output is an error, as any other node with too few.
    marks = {at: mark for at, mark in marks.items() if mark and proto.node[at].input and proto.node[at].output}
    if not marks:
        return set()
    # All names that this scope defines; the outputs of nodes are not in scope.values yet.
    defined = set(scope.values).union(*(node.output for node in proto.node))
    graph_outputs = set(scope.output_names()) if scope.parent is None else set()
    return {
        position
        for position, mark in marks.items()
        if proto.node[position].input[0] in defined
        # The name that would disappear must not be a graph output.
        and (proto.node[position].input if mark == "output" else proto.node[position].output)[0] not in graph_outputs
    }


def _read_cast_mark(proto: NodeProto) -> str:
    """Return the value of CAST_MARK in a node; "" if the node has none."""
    return next((p.value for p in proto.metadata_props if p.key == CAST_MARK), "")


def _hide_marked_cast(graph: Graph, scope: Scope, cast: NodeProto) -> None:
    """Let readers of a marked Cast's output read the Cast's input: x -> Cast -> Add becomes x -> Add."""
    source = scope.values.get(cast.input[0])
    if source is None:
        raise ModelError(
            f"the Cast {cast.name!r} that mixlist inserted reads the output of a later one",
            hint="the nodes of the model were moved: apply the lists to the original model",
        )
    if _read_cast_mark(cast) == "output":
        source.name = cast.output[0]  # the authored name, which the Cast's output has in the file
    scope.values[cast.output[0]] = source
    graph.marked_cast_types[cast.output[0]] = next((int(a.i) for a in cast.attribute if a.name == "to"), dtypes.UNKNOWN)


# --- connect the nodes ---


def _link_scope(graph: Graph, scope: Scope) -> None:
    """Fill a scope and all bodies in it: values, nodes, the edges between them, and the topological order.

    Linking recurses once for each nested body, and protobuf reads at most 33. Raises ModelError if the graph is not
    valid.
    """
    _define_values(graph, scope)
    values = scope.values
    for node in scope.nodes:
        inputs = node.inputs
        for name in node.proto.input:
            if not name:
                inputs.append(None)
                continue
            value = values.get(name) or _capture(scope, name)
            if value is None:
                raise ModelError(
                    f"{_describe_node(node)} reads {name!r}, which nothing defines",
                    hint="check the model with onnx.checker",
                )
            inputs.append(value)
            producer = value.producer
            # Some tools write a node before the producer of its input. A node that reads its own output is a cycle,
            # which _sort() reports.
            if producer is not None and producer.scope is scope and producer.position >= node.position:
                scope.is_sorted = False
        _link_bodies(graph, scope, node)
    _link_outputs(scope)
    if not scope.is_sorted:
        _sort(scope)


def _capture(scope: Scope, name: str) -> Value | None:
    """Return the value of an enclosing scope that ``name`` means, None if there is none.

    The value becomes a capture of ``scope`` and of every scope in between.
    """
    if scope.parent is None:
        return None
    value = scope.parent.values.get(name) or _capture(scope.parent, name)
    if value is not None:
        scope.captures[value] = None
    return value


def _link_bodies(graph: Graph, scope: Scope, node: Node) -> None:
    """Link the bodies of a node, and check that the bodies of a control-flow node fit the node."""
    for attribute in node.proto.attribute:
        if attribute.type == attribute.GRAPHS:
            graph.unlinked_bodies.extend(attribute.graphs)  # no standard operator has such an attribute
        if attribute.type != attribute.GRAPH:
            continue
        body = Scope(attribute.g, scope, node, attribute.name)
        node.bodies[attribute.name] = body
        _link_scope(graph, body)
        for value in body.captures:  # the node reads the captures of its bodies
            producer = value.producer
            if producer is not None and value.scope is scope and producer.position >= node.position:
                scope.is_sorted = False
    if node.op_type in control_flow.CONTROL_FLOW and node.domain == "":
        # All later code relies on this: type_links_of() takes the values of both sides by index.
        mismatch = control_flow.find_mismatch(node)
        if mismatch:
            raise ModelError(f"{_describe_node(node)} {mismatch}", hint="check the model with onnx.checker")


def _link_outputs(scope: Scope) -> None:
    """Find the values of the scope's outputs, and their declared types."""
    for name in scope.output_names():
        value = scope.values.get(name) or _capture(scope, name)
        if value is None:
            raise ModelError(f"nothing defines the graph output {name!r}", hint="check the model with onnx.checker")
        scope.outputs.append(value)
    scope.declared_output_types = [dtypes.from_proto(info.type) for info in scope.proto.output]


def _values_read_by(node: Node) -> list[Value]:
    """Return the values that a node reads: its inputs, and the captures of its bodies."""
    captured = [v for body in node.bodies.values() for v in body.captures]
    return [v for v in node.inputs if v is not None] + captured


def _sort(scope: Scope) -> None:
    """Sort the nodes topologically. Among the nodes that are ready, the first one of the file comes first."""
    # Values of outer scopes exist before this scope runs, so they order nothing here.
    producers = {n: {v.producer for v in _values_read_by(n) if v.producer and v.scope is scope} for n in scope.nodes}
    sorter = TopologicalSorter(producers)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = sorted(set(error.args[1]), key=lambda node: node.position)
        raise ModelError(f"the graph has a cycle through {', '.join(map(_describe_node, cycle[:5]))}") from None
    ready: list[tuple[int, Node]] = []  # a heap; positions differ, so the heap never compares two Nodes
    scope.nodes = []
    # TopologicalSorter alone does not keep the order of the file: it returns all ready nodes in any order.
    while sorter.is_active():
        for node in sorter.get_ready():
            heappush(ready, (node.position, node))
        node = heappop(ready)[1]
        scope.nodes.append(node)
        sorter.done(node)


def _describe_node(node: Node) -> str:
    """Return the text by which error messages name a node."""
    return f"node {node.proto.name!r} ({node.op_type})" if node.proto.name else f"an unnamed {node.op_type} node"


# --- the signature of a node ---


def _find_signature(graph: Graph, node: Node, present_outputs: tuple[bool, ...]) -> Signature:
    """Return the signature of a node for its input types.

    ``present_outputs``: for each output slot, whether the node has the output. Raises ModelError for a node that does
    not fit its schema.
    """
    if node.is_call:
        return make_call_signature(node.proto, graph.model, node.input_types)
    if node.op_type == "Constant" and node.domain == "":
        _refuse_wrong_counts(node, (0, 0), (1, 1))
        if not node.proto.attribute:
            raise ModelError(f"{_describe_node(node)} has no value")
        # _type_constant() reads the type of a Constant from its value.
        return Signature(None, (), (dtypes.UNKNOWN,), (), has_fixed_output=True, reads_any_type=False)
    if not node.op_type:
        raise ModelError(f"{_describe_node(node)} has no op type")
    # A custom domain without an import counts as version 1. Only the standard domain must be imported.
    opset = graph.opsets.get(node.domain, 1 if node.domain else 0)
    if not opset:
        raise ModelError("the model imports no opset of the standard domain", hint="check the model with onnx.checker")
    signature = make_signature(node.domain, node.op_type, opset, node.input_types, present_outputs, node.proto)
    if signature.schema is not None and signature.schema.onnx_schema is not None:
        schema = signature.schema.onnx_schema
        _refuse_wrong_counts(node, (schema.min_input, schema.max_input), (schema.min_output, schema.max_output))
        _refuse_invalid_attributes(node, signature.schema)
    return signature


def _refuse_wrong_functions(graph: Graph) -> None:
    """Raise ModelError for functions whose faults onnx's checker does not find.

    These are a function that is defined twice (the checker of onnx 1.19 accepts it), an output that nothing in the
    function makes, and a call with more inputs or outputs than its function.
    """
    keys = Counter(map(function_key, graph.model.functions))
    for (_, name, _), count in keys.items():
        if count > 1:
            raise ModelError(f"the function {name!r} is defined twice", hint="check the model with onnx.checker")
    for function in graph.model.functions:
        made = {*function.input, *(name for node in function.node for name in node.output)}
        for name in function.output:
            if name not in made:
                raise ModelError(f"nothing defines the output {name!r} of the function {function.name!r}")
    for node in nodes_in(graph.model.graph, *graph.model.functions):
        called = graph.functions.get((node.domain, node.op_type, node.overload))
        if called is None:
            continue
        for kind, names, formal in (("inputs", node.input, called.input), ("outputs", node.output, called.output)):
            if len(names) > len(formal):
                name = f"node {node.name!r}" if node.name else "an unnamed node"
                raise ModelError(f"{name} has {len(names)} {kind}, its function {node.op_type!r} has {len(formal)}")


def _refuse_wrong_counts(node: Node, inputs: tuple[int, int], outputs: tuple[int, int]) -> None:
    """Raise ModelError if a node has fewer or more inputs or outputs than these: the least and the most."""
    for kind, names, (least, most) in (("inputs", node.proto.input, inputs), ("outputs", node.proto.output, outputs)):
        if not least <= len(names) <= most:
            bound = f"needs {least}" if len(names) < least else f"has at most {most}"
            raise ModelError(f"{_describe_node(node)} has {len(names)} {kind}, its schema {bound}")


def _refuse_invalid_attributes(node: Node, schema: Schema) -> None:
    """Raise ModelError if an attribute is missing, has the wrong kind, or has a number that is no element type."""
    attributes = {attribute.name: attribute for attribute in node.proto.attribute}
    for name, formal in schema.onnx_schema.attributes.items():
        attribute = attributes.get(name)
        if attribute is None:
            if formal.required:
                raise ModelError(f"{_describe_node(node)} has no attribute {name!r}, which its schema requires")
        elif attribute.type not in (0, formal.type.value):  # 0: files of IR version 1 have no kind
            raise ModelError(f"attribute {name!r} of {_describe_node(node)} must be {formal.type.name} by its schema")
        elif name in schema.type_attributes and attribute.i not in dtypes.known_element_types():
            raise ModelError(f"attribute {name!r} of {_describe_node(node)} is {attribute.i}, not an element type")


# --- types that the tensors around a value prove ---


def _unify_types(graph: Graph) -> bool:
    """Give the values of unknown type the types that the graph proves; return True if any type was unknown before.

    Here a node *proves* a type if the known types of its other slots leave no other choice. A known type moves forward
    through a node by ONNX's inference, and backward by the type parameters of the schema. It also moves into and out of
    bodies. When a value gets a type, only the nodes next to the value are visited again. Each value changes at most a
    few times, so the time is linear.
    """
    unknown = [value for value in graph.values if value.type == dtypes.UNKNOWN]
    if not unknown:
        return False
    neighbors = _find_neighbors(graph)
    # A queue of nodes to visit. A node is in it at most once at a time.
    pending = deque(dict.fromkeys(node for value in unknown for node in neighbors.get(value, ())))
    queued = set(pending)
    changes = Counter[Value]()
    while pending:
        node = pending.popleft()
        queued.discard(node)
        # Forward: from the inputs of the node to its outputs.
        outputs = [value for value in node.outputs if value is not None]
        before = [(value.type, value.is_from_shape) for value in outputs]
        _type_node_again(graph, node)  # never changes a known type to UNKNOWN
        changed = [v for v, old in zip(outputs, before, strict=True) if (v.type, v.is_from_shape) != old]
        # In both directions, by the schema or the bodies. The list is made first, because _prove_types() reads the
        # types that the loop changes.
        for value, proven in list(_prove_types(node)):
            # A proof never replaces a type that inference, a hint or a declaration gave.
            if value.type == dtypes.UNKNOWN and proven != dtypes.UNKNOWN:
                value.type = proven
                changed.append(value)
        changes.update(changed)
        # A model that contradicts itself would change a value forever. In a valid model, a value gets its type once and
        # its flag once; the limit is larger, so that it stops no valid model.
        to_propagate = [value for value in changed if changes[value] <= _MAX_CHANGES]
        for neighbor in (neighbor for value in to_propagate for neighbor in neighbors.get(value, ())):
            if neighbor not in queued:
                queued.add(neighbor)
                pending.append(neighbor)
    return True


def _find_neighbors(graph: Graph) -> dict[Value, list[Node]]:
    """Return the nodes next to each value: readers, the producer, and the owner of a body that it enters or leaves."""
    neighbors: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        body_slots = (value for body in node.bodies.values() for value in (*body.inputs, *body.outputs))
        for value in dict.fromkeys((*node.inputs, *node.outputs, *body_slots)):
            if value is not None:
                neighbors.setdefault(value, []).append(node)
    return neighbors


def _prove_types(node: Node) -> Iterator[_Proof]:
    """Yield the types that a node proves for its inputs and outputs, and for those of its bodies."""
    if node.signature is not None and node.signature.schema is not None:
        yield from _prove_by_schema(node, node.signature.schema)
    elif not node.domain and node.op_type == "SequenceMap":
        yield from _prove_elements(node)
    elif control_flow.is_control_flow(node):
        for link in control_flow.type_links_of(node):
            values = [*link.targets, *(source.value for source in link.sources)]
            known_types = {value.type for value in values} - {dtypes.UNKNOWN}
            # Two known types contradict each other, so they prove nothing.
            if len(known_types) == 1:
                yield from ((value, next(iter(known_types))) for value in values)


def _prove_elements(node: Node) -> Iterator[_Proof]:
    """Yield the types that the inputs and outputs of a SequenceMap prove for the inputs and outputs of its body.

    The inputs of the body prove nothing for the inputs of the node: each of these can be a sequence or a tensor.
    """
    body = node.bodies["body"]
    yield from zip(body.inputs, control_flow.body_input_types(node)["body"], strict=False)
    for sequence, element in zip(node.outputs, body.outputs, strict=False):
        if sequence is not None and isinstance(sequence.type, tuple):
            yield element, sequence.type[1]


def _prove_by_schema(node: Node, schema: Schema) -> Iterator[_Proof]:
    """Yield the types of slots that share a type parameter with a slot of known type, or that admit only one type."""
    slots = list(_read_slots(node, schema))
    known_types: dict[str, set[dtypes.Type]] = {}
    for parameter, value_type, _ in slots:
        if value_type != dtypes.UNKNOWN:
            known_types.setdefault(parameter, set()).add(value_type)
    for parameter, value_type, value in slots:
        if value_type == dtypes.UNKNOWN:
            admitted = schema.types_of(parameter.partition("#")[0])
            proven = admitted if len(admitted) == 1 else known_types.get(parameter, set()) & admitted
            # Slots of one type parameter that have two types contradict each other: they prove nothing.
            if len(proven) == 1 and len(known_types.get(parameter, proven)) == 1:
                yield value, next(iter(proven))


def _read_slots(node: Node, schema: Schema) -> Iterator[tuple[str, dtypes.Type, Value]]:
    """Yield the type parameter, the type and the value of each slot of a node.

    The inputs of a heterogeneous variadic parameter can all have different types. Therefore each of them gets a type
    parameter of its own: ``V#2`` for slot 2 of the type parameter ``V``.
    """

    def parameters(formal: FormalSlots) -> list[str]:
        return [f.parameter if f.homogeneous else f"{f.parameter}#{index}" for index, f in enumerate(formal)]

    inputs = parameters(schema.formal_slots(schema.inputs, len(node.inputs)))
    for parameter, value_type, value in zip(inputs, node.input_types, node.inputs, strict=False):
        if value is not None:
            yield parameter, value_type, value
    outputs = parameters(schema.formal_slots(schema.outputs, len(node.outputs)))
    for parameter, value in zip(outputs, node.outputs, strict=False):
        if value is not None:
            yield parameter, value.type, value
