"""Split the gated graph into segments, so that a trial runs only the segments from the first changed gate on.

The main graph is cut where few bytes cross, into segments of about the same cost. A segment is a model of its own. It
reads inputs of the graph and outputs of earlier segments, and has an input with the flags of its own gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.model.graph import Graph, Node
from mixlist.model.protos import standard_opset
from mixlist.model.split import GraphSplitter, count_crossing_bytes
from mixlist.search.gated_graph import GatedGraph
from mixlist.targets.estimate import Costs

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# The most segments: each costs a run of a session, some 50 microseconds.
MAX_SEGMENTS = 16
# The least cost of a segment, in the unit of ``_node_cost`` (FLOPs): some 0.8 milliseconds on one thread.
MIN_SEGMENT_COST = 8e7
_FIXED_NODE_COST = 5e4  # the part of a node's cost that does not depend on its tensors
_COST_PER_BYTE = 4.0  # the part for each byte that a node moves
# The distance by which a cut may move to a place where fewer bytes cross, as a share of a segment. It is below 0.5, so
# that the ranges of two cuts do not overlap.
_SLACK = 0.4


def choose_cost_cuts(graph: Graph, costs: Costs) -> tuple[str, ...]:
    """Return one tensor of the main graph for each cut. The graph is best cut behind the node that makes the tensor.

    ``costs``: the result of ``estimate_costs(graph, ...)``. A small model gets no cuts.
    """
    nodes = graph.root.nodes
    cost_up_to = _cumulative_costs(graph, costs)
    total = cost_up_to[-1] if cost_up_to else 0.0
    segment_count = min(MAX_SEGMENTS, int(total / MIN_SEGMENT_COST), len(nodes))
    crossing_bytes = count_crossing_bytes(graph, costs.known_shapes.shape_of)
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
    """Return for each node of the main graph the cost of all nodes up to it, with their bodies."""
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
    cost = costs.nodes.get(node_id)
    return _FIXED_NODE_COST + (cost.flops + _COST_PER_BYTE * cost.bytes if cost is not None else 0.0)


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

    ``cut_outputs``: for each cut, tensors of the nodes before it (see ``GraphSplitter.split``).
    """
    splitter = GraphSplitter(gated.proto, gated.tensor_types, gated.computed_constants)
    flag_index = {name: index for index, name in enumerate(gated.flag_names)}
    opset = standard_opset(gated.proto)
    segments = []
    for part in splitter.split(cut_outputs):
        gates = sorted(flag_index[name] for name in part.read_names if name in flag_index)
        if gates:
            _add_flags_input(part.model, gated.flags_input, [gated.flag_names[gate] for gate in gates], opset)
        flags_input = gated.flags_input if gates else ""
        model = part.model.SerializeToString()
        segments.append(Segment(model, part.input_names, part.output_names, flags_input, tuple(gates)))
    return tuple(segments)


def _add_flags_input(model: ModelProto, flags_input: str, flag_names: Sequence[str], opset: int) -> None:
    """Add the input with all flags of a segment, and the node that splits it, which comes first."""
    from onnx import TensorProto, helper

    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.append(_split_flags(flags_input, flag_names, opset))
    model.graph.node.extend(nodes)
    model.graph.input.append(helper.make_tensor_value_info(flags_input, TensorProto.BOOL, [len(flag_names)]))


def _split_flags(flags_input: str, flag_names: Sequence[str], opset: int) -> NodeProto:
    """Return the node that splits the input with all flags of a segment into one flag (bool [1]) per name."""
    from onnx import helper

    name = f"{flags_input}_spread"
    if len(flag_names) == 1:
        return helper.make_node("Identity", [flags_input], list(flag_names), name=name)
    # Split needs num_outputs from opset 18 on, and does not know it before. make_node leaves out what is None.
    num_outputs = len(flag_names) if opset >= 18 else None
    return helper.make_node("Split", [flags_input], list(flag_names), name=name, axis=0, num_outputs=num_outputs)
