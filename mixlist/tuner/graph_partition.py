"""Split the gated graph into segments, so that a trial runs only the segments from the first changed gate on.

The main graph is cut where few bytes cross, into segments of about the same cost. A segment is a model of its own. It
reads inputs of the graph and outputs of earlier segments, and has an input with the flags of its own gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from mixlist.cost.estimate import Costs
from mixlist.graph.model import Graph, Node, Value, function_key
from mixlist.graph.opsets import standard_opset
from mixlist.graph.prune import names_read_by
from mixlist.graph.traversal import bodies_of, nodes_in
from mixlist.ops import dtypes
from mixlist.tuner.gated_graph import GatedGraph

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto, ValueInfoProto

# The most segments: each costs a run of a session, some 50 microseconds.
MAX_SEGMENTS = 16
# The least cost of a segment, in the unit of ``_node_cost`` (FLOPs): some 0.8 milliseconds on one thread.
MIN_SEGMENT_COST = 8e7
_FIXED_NODE_COST = 5e4  # the part of a node's cost that does not depend on its tensors
_COST_PER_BYTE = 4.0  # the part for each byte that a node moves
_ASSUMED_SHAPE = (2**20,)  # for a tensor whose shape is not known
# The distance by which a cut may move to a place where fewer bytes cross, as a share of a segment. It is below 0.5, so
# that the ranges of two cuts do not overlap.
_SLACK = 0.4


def choose_cuts(graph: Graph, costs: Costs) -> tuple[str, ...]:
    """Return one tensor of the main graph for each cut. The graph is best cut behind the node that makes the tensor.

    ``costs``: the result of ``estimate_costs(graph, ...)``. A small model gets no cuts.
    """
    nodes = graph.root.nodes
    cost_up_to = _cumulative_costs(graph, costs)
    total = cost_up_to[-1] if cost_up_to else 0.0
    segment_count = min(MAX_SEGMENTS, int(total / MIN_SEGMENT_COST), len(nodes))
    crossing_bytes = _crossing_bytes(graph, costs)
    names: list[str] = []
    for number in range(1, segment_count):
        # Cut near the place that makes segments of equal cost: within the slack, where the fewest bytes cross.
        target, slack = total * number / segment_count, _SLACK * total / segment_count
        distances = [abs(cost - target) for cost in cost_up_to[:-1]]
        # If no node is within the slack, the nearest one is.
        max_distance = max(slack, min(distances))
        nearby = [position for position, distance in enumerate(distances) if distance <= max_distance]
        best = nodes[min(nearby, key=lambda position: (crossing_bytes[position], distances[position]))]
        # Two cuts can fall behind the same node, if it costs more than a segment: one of them is left out.
        name = next((v.name_in_file for v in best.outputs if v is not None), None)
        if name is not None and name not in names:
            names.append(name)
    return tuple(names)


def _cumulative_costs(graph: Graph, costs: Costs) -> list[float]:
    """Return for each node of the main graph the cost of all nodes up to it, with their bodies and called functions."""
    cumulative, total = [], 0.0
    # The nodes of a body come before its owner in ``graph.nodes``, so their costs count for the owner.
    for node in graph.nodes:
        total += 0.0 if _is_constant(node) else _node_cost(costs, node.id)
        if node.scope is graph.root:
            cumulative.append(total)
    return cumulative


def _is_constant(node: Node) -> bool:
    return all(value.is_constant for value in node.outputs if value is not None)


def _node_cost(costs: Costs, node_id: int) -> float:
    """Return the cost of a node in FLOPs: its operations, its bytes, and a fixed part for the node itself."""
    call = costs.calls.get(node_id)
    if call is not None:
        return sum(_node_cost(call, node.id) for node in call.graph.nodes)
    cost = costs.nodes.get(node_id)
    return _FIXED_NODE_COST + (cost.flops + _COST_PER_BYTE * cost.bytes if cost is not None else 0.0)


def _crossing_bytes(graph: Graph, costs: Costs) -> list[int]:
    """Return for each node of the main graph the bytes of the tensors that later nodes still read."""
    # For each tensor find the last node of the main graph that reads it, also in a body.
    last_reader: dict[Value, int] = {}
    outputs_of_nodes: list[list[Value]] = []
    for node in graph.nodes:  # the nodes of a body come before the node that owns the body
        read_by_bodies = [value for body in node.bodies.values() for value in (*body.captures, *body.outputs)]
        for value in (*node.inputs, *read_by_bodies):
            if value is None or value.scope is not graph.root or value.producer is None or value.is_constant:
                continue
            last_reader[value] = len(outputs_of_nodes)
        if node.scope is graph.root:
            outputs_of_nodes.append([value for value in node.outputs if value is not None])
    # Then go through the nodes in order: add the bytes of what a node makes, remove what it reads for the last time.
    read_last: dict[int, int] = {}  # by node, the bytes of the tensors that it is the last to read
    live_bytes, crossing = 0, []
    for position, outputs in enumerate(outputs_of_nodes):
        for value in outputs:
            # 4 bytes per element, because the gated graph is float32.
            size = 4 * prod(costs.known_shapes.shape_of(value) or _ASSUMED_SHAPE) if value in last_reader else 0
            live_bytes += size
            last = last_reader.get(value, position)
            read_last[last] = read_last.get(last, 0) + size
        live_bytes -= read_last.pop(position, 0)
        crossing.append(live_bytes)
    return crossing


@dataclass(frozen=True)
class Segment:
    """A part of a gated graph.

    ``model``: the segment as a serialized ModelProto. ``input_names``: the graph inputs and the outputs of earlier
    segments that it reads. ``gates``: the indices of its gates in the gated graph. ``flags_input``: the name of a
    further input, the flags of these gates (bool [number of gates]); "" if the segment has no gates.
    """

    model: bytes
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    flags_input: str
    gates: tuple[int, ...]


def split_graph(gated: GatedGraph, cut_outputs: Sequence[Iterable[str]]) -> tuple[Segment, ...]:
    """Return the segments of a gated graph in order; together they make every output.

    ``cut_outputs``: for each cut, tensors of the nodes before it. A cut is left out if a tensor crosses it that cannot
    be an output of a segment. A node that computes a constant is repeated in each segment that needs the constant.
    """
    return tuple(_GraphSplitter(gated).split(cut_outputs))


class _GraphSplitter:
    """Splits one gated graph. ``nodes``: the nodes of the main graph, except for those that compute constants."""

    def __init__(self, gated: GatedGraph) -> None:
        self.gated, self.proto = gated, gated.proto
        self.flag_index = {name: index for index, name in enumerate(gated.flag_names)}
        graph = gated.proto.graph
        nodes = list(graph.node)
        computed = gated.computed_constants
        self.nodes = [node for node in nodes if not computed.issuperset(filter(None, node.output))]
        self.constant_nodes = {name: node for node in nodes for name in node.output if name in computed}
        # Messages cannot be keys, so the next two are by id.
        self.position_of = {id(node): position for position, node in enumerate(nodes)}
        self.read_names_of = {id(node): tuple(filter(None, names_read_by(node))) for node in nodes}
        self.functions = {function_key(function): function for function in gated.proto.functions}
        self.inputs = {value_info.name: value_info for value_info in graph.input}
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.sparse_initializers = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self.outputs = {value_info.name: value_info for value_info in graph.output}

    def split(self, cut_outputs: Sequence[Iterable[str]]) -> Iterator[Segment]:
        """Yield the segments in order."""
        producer = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        bounds = self._segment_bounds(producer, cut_outputs)
        # Constants and inputs that are outputs of the graph have no producer. The last segment yields them.
        passed_through = [name for name in self.outputs if name not in producer]
        last = len(bounds) - 1
        parts = [
            self._with_constant_nodes(start, stop, passed_through if index == last else ())
            for index, (start, stop) in enumerate(bounds)
        ]
        read_names = [dict.fromkeys(name for node in part for name in self.read_names_of[id(node)]) for part in parts]
        read_names[-1].update(dict.fromkeys(passed_through))
        # A segment yields what the model yields and what later segments read. It reads inputs of the graph, and tensors
        # that nodes before its first node make.
        for index, ((start, stop), part) in enumerate(zip(bounds, parts, strict=True)):
            needed_later = set(self.outputs).union(*read_names[index + 1 :])
            outputs = [name for node in self.nodes[start:stop] for name in node.output if name in needed_later]
            outputs += passed_through if index == last else ()
            inputs = [name for name in read_names[index] if name in self.inputs or producer.get(name, start) < start]
            if outputs:  # without outputs nothing reads what the segment computes
                yield self._make_segment(part, set(read_names[index]), inputs, outputs)

    def _segment_bounds(self, producer: dict[str, int], cut_outputs: Sequence[Iterable[str]]) -> list[tuple[int, int]]:
        """Return the first node of each segment, and the node after its last one, as indices into ``self.nodes``.

        ``producer``: the index of the node that makes each tensor.
        """
        last_reader = {name: index for index, node in enumerate(self.nodes) for name in self.read_names_of[id(node)]}
        # No cut may lie between the producer and the last reader of a tensor that cannot cross:
        # SequenceInsert -> (no cut) -> SequenceAt.
        uncut_spans = [
            (producer[name], reader)
            for name, reader in last_reader.items()
            if name in producer and not self._can_cross(name)
        ]
        # A cut lies behind the last node that makes one of its tensors: outputs of a node, and packed statistics.
        stops = {max((producer[name] + 1 for name in names if name in producer), default=0) for names in cut_outputs}
        stops_in_order = [
            stop
            for stop in sorted(stops)
            if 0 < stop < len(self.nodes) and not any(first < stop <= last for first, last in uncut_spans)
        ]
        return [*zip([0, *stops_in_order], [*stops_in_order, len(self.nodes)], strict=True)]

    def _can_cross(self, name: str) -> bool:
        """Return True if a tensor can be an output of a segment: no sequence or optional, and of a known type."""
        tensor_type = self.gated.tensor_types.get(name, dtypes.UNKNOWN)
        return isinstance(tensor_type, int) and tensor_type != dtypes.UNKNOWN

    def _with_constant_nodes(self, start: int, stop: int, further_names: Sequence[str]) -> list[NodeProto]:
        """Return the nodes from ``start`` to ``stop``, after the nodes that compute the constants they read.

        ``further_names``: further tensors that the segment needs.
        """
        nodes = self.nodes[start:stop]
        constant_nodes: dict[int, NodeProto] = {}
        # Find the nodes from their readers backwards, in any order. The end result is sorted by position.
        pending = [*further_names, *(name for node in nodes for name in self.read_names_of[id(node)])]
        while pending:
            node = self.constant_nodes.get(pending.pop())
            if node is not None and id(node) not in constant_nodes:
                constant_nodes[id(node)] = node
                pending += self.read_names_of[id(node)]
        return [*sorted(constant_nodes.values(), key=lambda node: self.position_of[id(node)]), *nodes]

    def _make_segment(
        self, nodes: list[NodeProto], read_names: set[str], inputs: list[str], outputs: list[str]
    ) -> Segment:
        """Return a segment with these nodes, and the initializers and functions that they need."""
        from onnx import TensorProto, helper

        flags_input = self.gated.flags_input
        gates = sorted(self.flag_index[name] for name in read_names if name in self.flag_index)
        model = type(self.proto)(ir_version=self.proto.ir_version)
        model.opset_import.extend(self.proto.opset_import)
        model.functions.extend(self._called_functions(nodes))
        graph = model.graph
        graph.name = self.proto.graph.name or "segment"
        if gates:
            flag_names = [self.gated.flag_names[gate] for gate in gates]
            graph.node.append(_split_flags(flags_input, flag_names, standard_opset(self.proto)))
            graph.input.append(helper.make_tensor_value_info(flags_input, TensorProto.BOOL, [len(gates)]))
        graph.node.extend(nodes)
        for name in inputs:
            self._declare(graph.input.add(), name, self.inputs)
        for name in outputs:
            self._declare(graph.output.add(), name, self.outputs)
        graph.initializer.extend(tensor for name, tensor in self.initializers.items() if name in read_names)
        graph.sparse_initializer.extend(
            tensor for name, tensor in self.sparse_initializers.items() if name in read_names
        )
        used_flags_input = flags_input if gates else ""
        return Segment(model.SerializeToString(), tuple(inputs), tuple(outputs), used_flags_input, tuple(gates))

    def _called_functions(self, nodes: list[NodeProto]) -> list[FunctionProto]:
        """Return the functions that nodes call, directly, in a body, or from another function."""
        called: dict[tuple[str, str, str], FunctionProto] = {}
        pending = [*nodes, *nodes_in(*(body for node in nodes for body in bodies_of(node)))]
        while pending:
            node = pending.pop()
            key = node.domain, node.op_type, node.overload
            if key in self.functions and key not in called:
                called[key] = self.functions[key]
                pending += nodes_in(called[key])
        return list(called.values())

    def _declare(self, value_info: ValueInfoProto, name: str, declared: dict[str, ValueInfoProto]) -> None:
        """Fill the declaration of an input or output: as the whole graph declares it, else with its type alone."""
        if name in declared:
            value_info.CopyFrom(declared[name])
        else:
            value_info.name = name
            dtypes.write_type(value_info.type, self.gated.tensor_types[name])


def _split_flags(flags_input: str, flag_names: Sequence[str], opset: int) -> NodeProto:
    """Return the node that splits the input with all flags of a segment into one flag (bool [1]) per name."""
    from onnx import helper

    name = f"{flags_input}_spread"
    if len(flag_names) == 1:
        return helper.make_node("Identity", [flags_input], list(flag_names), name=name)
    # Split needs num_outputs from opset 18 on, and does not know it before. make_node leaves out what is None.
    num_outputs = len(flag_names) if opset >= 18 else None
    return helper.make_node("Split", [flags_input], list(flag_names), name=name, axis=0, num_outputs=num_outputs)
