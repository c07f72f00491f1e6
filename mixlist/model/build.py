"""Build the Graph of a model: link and sort the scopes, then find the authored type of each value.

The type of a value comes from the first of these sources that knows it (Rule S4.12): ONNX's type inference or the
schema, a type hint of the user, a declaration in the model, and the tensors around the value (type_unification.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.lists.op_catalog import canonical_domain
from mixlist.model import control_flow, dtypes
from mixlist.model.graph import Graph, Node, Scope, Value, function_key
from mixlist.model.link import link_scope, values_read_by
from mixlist.model.node_signature import find_signature
from mixlist.model.opsets import OLDEST_OPSET
from mixlist.model.signature import attribute_type_key
from mixlist.model.traversal import linked_scopes
from mixlist.model.type_unification import unify_types
from mixlist.model.value_origins import is_constant, is_from_shape, is_random

if TYPE_CHECKING:
    from onnx import ModelProto, OperatorSetIdProto


def build_graph(
    model: ModelProto, type_hints: dict[str, dtypes.Type] | None = None, *, show_marked_casts: bool = False
) -> Graph:
    """Return the Graph of a model.

    ``type_hints``: types by tensor name, for tensors whose type ONNX cannot infer.
    ``show_marked_casts``: whether the Casts that mixlist inserted are nodes like all others. By default they are
    hidden: a node that reads such a Cast seems to read the Cast's input.

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
    link_scope(graph, graph.root)
    _type_scope(graph, graph.root)
    graph.had_unknown_types = unify_types(graph, lambda node: _retype(graph, node))
    if graph.had_unknown_types:
        # _type_scope() has copied types of values to the output slots, and unify_types() has changed some values.
        for scope in linked_scopes(graph.root):
            _set_output_types(graph, scope)
    return graph


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
    # A declaration is used only where inference and the hints of the nodes gave no type (Rule S4.12).
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


def _retype(graph: Graph, node: Node) -> None:
    """Infer the output types of a node again, after the types of its inputs or in its bodies changed."""
    _set_input_types(graph, node)
    if node.bodies:
        for body in node.bodies.values():
            _set_output_types(graph, body)
        _type_outputs_after_bodies(graph, node)
    else:
        _type_node(graph, node)


def _declared_type(graph: Graph, scope: Scope, name: str) -> dtypes.Type:
    """Return the type that a hint, a value_info or a graph output gives a tensor; UNKNOWN without one."""
    if name in graph.type_hints:
        return graph.type_hints[name]
    if not scope.declared_types:
        proto = scope.proto
        infos = (*proto.output, *proto.value_info)
        scope.declared_types = {i.name: dtypes.from_proto(i.type) for i in infos if i.type.WhichOneof("value")}
        scope.declared_types[""] = dtypes.UNKNOWN  # so that the dict is not empty, and is not built again
    return scope.declared_types.get(name, dtypes.UNKNOWN)


# --- types of one node ---


def _type_node(graph: Graph, node: Node) -> None:
    """Set the signature of a node, and the types and flags of its outputs."""
    present_outputs = tuple([v is not None for v in node.outputs])
    # Equal nodes share a signature: inference is slow, and a model has few different nodes.
    key = (node.op_type, node.domain, node.input_types, present_outputs, _attribute_key(node))
    signature = graph.signatures.get(key)
    if signature is None:
        signature = find_signature(graph, node, present_outputs)
        graph.signatures[key] = signature
    node.signature = signature
    for value, value_type in zip(node.outputs, signature.outputs, strict=False):
        if value is not None:
            # The first source that knows the type: UNKNOWN is 0, so ``or`` goes on to the next one.
            value.type = value_type or _declared_type(graph, node.scope, value.name) or value.type
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
_CONSTANT_TYPES = {"value_float": 1, "value_int": 7, "value_string": 8}


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
        # weights.read_pieces() reads floats alone from an attribute, so integers and texts keep no message.
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
    outputs_are_constant = all(v.is_constant for v in values_read_by(node)) and not any(map(is_random, inner_nodes))
    _set_constant_and_shape_flags(node, outputs_are_constant, False)


def _type_outputs_after_bodies(graph: Graph, node: Node) -> None:
    """Set the output types of a node with bodies. The types in the bodies are known."""
    if node.domain or node.op_type not in control_flow.CONTROL_FLOW:
        # An operator with bodies that is not control flow, such as a custom one.
        _type_node(graph, node)
        output_types: list[dtypes.Type] = []
    else:
        output_types = control_flow.output_types(node)
    for slot, value in enumerate(node.outputs):
        if value is not None:
            inferred = output_types[slot] if slot < len(output_types) else value.type
            value.type = inferred or _declared_type(graph, node.scope, value.name) or value.type
