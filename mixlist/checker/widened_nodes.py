"""Round what ONNX Runtime computes in float32, though a mixed model that runs as it is has it in float16.

If a provider has no float16 kernel of a node (CUDA has none of Tan and Det), the node runs on the CPU provider in
float32. ONNX Runtime puts Casts around it, which it drops again wherever a Cast of the model follows or precedes: a
value beyond float16 then stays finite, and the probes see float32. (``insert_cast_transformer.cc``: its own Casts,
``InsertedPrecisionFreeCast_...``, count as exact.)

So Casts of the model take their place, which ONNX Runtime keeps: the nodes are emulated as on the CPU (Rule S8.2), and
all others run as they are. To call such checks ``inconclusive`` would be less work, but then no model with one of these
nodes could ever pass natively.

The profile of the first batch tells which nodes these are. Nodes of branches that this batch skips are not among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic, warning
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Node, Value, protos_by_scope
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NameGenerator, names_in, node_ref
from mixlist.model.protos import copy_message

if TYPE_CHECKING:
    from onnx import ModelProto

_MOST_NAMES = 10  # in the warning


def number_low_nodes(proto: ModelProto) -> tuple[ModelProto, dict[str, Node]]:
    """Return a copy of a model with new names for the nodes that have a low tensor, and these nodes by the names.

    The names tell nodes without a name apart, and nodes of two scopes with the same name. Casts, constants and control
    flow are left out.
    """
    graph = build_graph(proto, show_marked_casts=True)
    numbered = copy_message(proto)
    node_of: dict[str, Node] = {}
    for scope, scope_proto in protos_by_scope(graph.root, numbered.graph).items():
        for node in scope.nodes:
            slots = (*node.inputs, *node.outputs)
            if node.bodies or node.op_type in ("Cast", "Constant") or not any(map(_is_low, slots)):
                continue
            name = f"mixlist_node_{len(node_of)}"
            scope_proto.node[node.position].name = name
            node_of[name] = node
    return numbered, node_of


def describe_widened_nodes(nodes: Sequence[Node], provider: str) -> list[Diagnostic]:
    """Return a warning that names the widened nodes, [] if there are none."""
    if not nodes:
        return []
    names = ", ".join(f"{node_ref(node)} ({node.op_type})" for node in nodes[:_MOST_NAMES])
    more = f", and {len(nodes) - _MOST_NAMES} more" if len(nodes) > _MOST_NAMES else ""
    noun = "low node" if len(nodes) == 1 else "low nodes"
    message = f"{len(nodes)} {noun} ran in float32 on the CPU, not on {provider}; the check emulates: {names}{more}"
    return [warning("ML621", message)]


def round_widened_nodes(mixed: LoadedModel, nodes: Sequence[Node]) -> ModelProto:
    """Return the mixed model, or a copy with probes, with Casts around some nodes: to float32, and back.

    The names of their outputs tell which nodes these are. Two scopes may have tensors of the same name: then both nodes
    get Casts, which is right for every node.
    """
    if not nodes:
        return mixed.proto
    outputs = {value.name_in_file for node in nodes for value in node.outputs if value is not None}
    proto = copy_message(mixed.proto)
    names = NameGenerator(names_in(proto.graph))
    for scope, scope_proto in protos_by_scope(build_graph(proto, show_marked_casts=True).root, proto.graph).items():
        # From the last node of the file to the first, so that the positions of the others stay.
        for node in sorted(scope.nodes, key=lambda node: -node.position):
            message = scope_proto.node[node.position]
            if outputs.isdisjoint(message.output) or node.bodies or node.op_type in ("Cast", "Constant"):
                continue
            before, after = [], []
            for slot, value in enumerate(node.inputs):
                if _is_low(value):
                    source, message.input[slot] = message.input[slot], names.make_name(f"{message.input[slot]}_float")
                    before.append(names.make_cast(source, message.input[slot], dtypes.FLOAT))
            for slot, value in enumerate(node.outputs):
                if value is not None and _is_low(value):
                    rounded, message.output[slot] = message.output[slot], names.make_name(f"{value.name}_exact")
                    after.append(names.make_cast(message.output[slot], rounded, dtypes.element(value.type)))
            for cast in reversed(after):
                scope_proto.node.insert(node.position + 1, cast)
            for cast in reversed(before):
                scope_proto.node.insert(node.position, cast)
    return proto


def _is_low(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, int) and value.type in LOW_TYPES
