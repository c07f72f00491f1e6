"""Choose where to cut a model so that no part has more than a number of bytes of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mixlist.graph.build import build_graph
from mixlist.graph.model import Graph, Node, Value
from mixlist.graph.shape_propagation import propagate_shapes
from mixlist.graph.split import GraphPart, GraphSplitter, count_crossing_bytes
from mixlist.graph.weights import declared_byte_size
from mixlist.runtime.array_casts import STRING

if TYPE_CHECKING:
    from onnx import ModelProto

# A cut may move back to a place where fewer bytes cross, as long as its segment keeps this share of the weights.
_LEAST_SHARE = 0.5


def split_by_weights(
    proto: ModelProto, segment_bytes: int, input_shapes: Mapping[str, tuple[int, ...]]
) -> list[GraphPart]:
    """Return the parts of a model in order. Each has at most ``segment_bytes`` of weights, or a single node.

    ``input_shapes``: the shapes of a batch by input name. They show where few bytes cross.
    """
    graph = build_graph(proto)
    known_shapes = propagate_shapes(graph, {}, input_shapes)
    cuts = choose_cuts(graph, count_crossing_bytes(graph, known_shapes.shape_of), segment_bytes)
    values = graph.root.values
    tensor_types = {name: value.type for name, value in values.items()}
    computed_constants = frozenset(n for n, value in values.items() if value.is_constant and value.kind == "node")
    return list(GraphSplitter(proto, tensor_types, computed_constants).split([(name,) for name in cuts]))


def choose_cuts(graph: Graph, crossing_bytes: list[int], segment_bytes: int) -> list[str]:
    """Return one tensor of the main graph for each cut. The graph is cut behind the node that makes the tensor.

    ``crossing_bytes``: for each node of the main graph, the bytes of the tensors that later nodes read.
    """
    nodes = graph.root.nodes
    sizes = _WeightSizes()
    cuts: list[str] = []
    start = position = 0
    weights: set[Value] = set()  # those that the segment reads so far
    sizes_up_to: list[int] = []  # for each node of the segment, the bytes of the weights up to it
    while position < len(nodes):
        new_weights = sizes.weights_read_by(nodes[position]) - weights
        total = (sizes_up_to[-1] if sizes_up_to else 0) + sum(map(sizes.size_of, new_weights))
        if total <= segment_bytes or position == start:
            weights |= new_weights
            sizes_up_to.append(total)
            position += 1
            continue
        # This node exceeds the bound. Cut before it, or further back where fewer bytes cross; of equal places the last.
        least = _LEAST_SHARE * sizes_up_to[-1]
        places = [start + index for index, size in enumerate(sizes_up_to) if size >= least]
        best = min(reversed(places), key=lambda place: crossing_bytes[place])
        name = next((value.name_in_file for value in nodes[best].outputs if value is not None), None)
        if name is not None:
            cuts.append(name)
        start = position = best + 1
        weights, sizes_up_to = set(), []
    return cuts


class _WeightSizes:
    """The weights that nodes read, and their bytes."""

    def __init__(self) -> None:
        self._sources: dict[Value, frozenset[Value]] = {}

    def weights_read_by(self, node: Node) -> set[Value]:
        """Return the weights that a node of the main graph reads, also in its bodies and through computed constants."""
        captured = [value for body in node.bodies.values() for value in (*body.captures, *body.outputs)]
        return {source for value in (*node.inputs, *captured) if value is not None for source in self._trace(value)}

    def _trace(self, value: Value) -> frozenset[Value]:
        """Return the weights from which a constant is computed: itself, if no node computes it."""
        if not value.is_constant:
            return frozenset()
        if value not in self._sources:
            producer = value.producer
            if producer is None or value.constant_proto is not None:
                self._sources[value] = frozenset({value})
            else:
                self._sources[value] = frozenset(self.weights_read_by(producer))
        return self._sources[value]

    @staticmethod
    def size_of(value: Value) -> int:
        """Return the bytes of a weight; 0 for strings and for what is not a dense tensor."""
        from onnx import TensorProto

        constant = value.constant_proto
        if not isinstance(constant, TensorProto) or constant.data_type == STRING:
            return 0
        return declared_byte_size(constant)
