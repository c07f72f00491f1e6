"""Split a model into parts that run one after another; each part is a model of its own.

A part reads inputs of the model and outputs of earlier parts. It holds the initializers and constants that its nodes
need, and all model-local functions. Only the main graph is cut: a control-flow node stays whole, with its bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from mixlist.model import dtypes
from mixlist.model.graph import Graph, Value
from mixlist.model.protos import names_read_by

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

_ASSUMED_SHAPE = (2**20,)  # for a tensor whose shape is not known


class GraphPart(NamedTuple):
    """A part of a model, as a model.

    ``input_names``: the graph inputs and the outputs of earlier parts that it reads. ``read_names``: all tensors that
    its nodes read, also in bodies.
    """

    model: ModelProto
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    read_names: frozenset[str]


class GraphSplitter:
    """Splits one model. ``nodes``: the nodes of the main graph, except for those that compute constants.

    ``tensor_types``: the types of the main graph's tensors by name. ``computed_constants``: the tensors that nodes
    compute from constants alone. Such a node is repeated in each part that needs the constant.
    """

    def __init__(
        self, proto: ModelProto, tensor_types: Mapping[str, dtypes.Type], computed_constants: frozenset[str]
    ) -> None:
        self.proto, self.tensor_types = proto, tensor_types
        nodes = list(proto.graph.node)
        self.nodes = [node for node in nodes if not computed_constants.issuperset(filter(None, node.output))]
        self.constant_nodes = {name: node for node in nodes for name in node.output if name in computed_constants}
        # Messages cannot be keys, so the next two are by id.
        self.position_of = {id(node): position for position, node in enumerate(nodes)}
        self.read_names_of = {id(node): tuple(filter(None, names_read_by(node))) for node in nodes}
        self.inputs = {value_info.name: value_info for value_info in proto.graph.input}
        self.initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.sparse_initializers = {tensor.values.name: tensor for tensor in proto.graph.sparse_initializer}
        self.outputs = {value_info.name: value_info for value_info in proto.graph.output}

    def split(self, cut_outputs: Sequence[Iterable[str]]) -> Iterator[GraphPart]:
        """Yield the parts in order; together they make every output of the model.

        ``cut_outputs``: for each cut, tensors of the nodes before it. A cut is left out if a tensor crosses it that
        cannot be an output of a part.
        """
        producer = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        bounds = self._part_bounds(producer, cut_outputs)
        # Constants and inputs that are outputs of the graph have no producer. The last part yields them.
        passed_through = [name for name in self.outputs if name not in producer]
        last = len(bounds) - 1
        parts = [
            self._with_constant_nodes(start, stop, passed_through if index == last else ())
            for index, (start, stop) in enumerate(bounds)
        ]
        read_names = [dict.fromkeys(name for node in part for name in self.read_names_of[id(node)]) for part in parts]
        read_names[-1].update(dict.fromkeys(passed_through))
        # A part yields what the model yields and what later parts read. It reads inputs of the graph, and tensors that
        # nodes before its first node make.
        for index, ((start, stop), part) in enumerate(zip(bounds, parts, strict=True)):
            needed_later = set(self.outputs).union(*read_names[index + 1 :])
            outputs = [name for node in self.nodes[start:stop] for name in node.output if name in needed_later]
            outputs += passed_through if index == last else ()
            inputs = [name for name in read_names[index] if name in self.inputs or producer.get(name, start) < start]
            if outputs:  # without outputs nothing reads what the part computes
                model = self._make_model(part, frozenset(read_names[index]), inputs, outputs)
                yield GraphPart(model, tuple(inputs), tuple(outputs), frozenset(read_names[index]))

    def _part_bounds(self, producer: dict[str, int], cut_outputs: Sequence[Iterable[str]]) -> list[tuple[int, int]]:
        """Return the first node of each part, and the node after its last one, as indices into ``self.nodes``.

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
        """Return True if a tensor can be an output of a part: no sequence or optional, and of a known type."""
        tensor_type = self.tensor_types.get(name, dtypes.UNKNOWN)
        return isinstance(tensor_type, int) and tensor_type != dtypes.UNKNOWN

    def _with_constant_nodes(self, start: int, stop: int, further_names: Sequence[str]) -> list[NodeProto]:
        """Return the nodes from ``start`` to ``stop``, after the nodes that compute the constants they read.

        ``further_names``: further tensors that the part needs.
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

    def _make_model(
        self, nodes: list[NodeProto], read_names: frozenset[str], inputs: list[str], outputs: list[str]
    ) -> ModelProto:
        """Return a model of these nodes, with the initializers that they need."""
        model = type(self.proto)(ir_version=self.proto.ir_version)
        model.opset_import.extend(self.proto.opset_import)
        model.functions.extend(self.proto.functions)
        graph = model.graph
        graph.name = self.proto.graph.name or "part"
        graph.node.extend(nodes)
        for name in inputs:
            self._declare(graph.input.add(), name, self.inputs)
        for name in outputs:
            self._declare(graph.output.add(), name, self.outputs)
        graph.initializer.extend(tensor for name, tensor in self.initializers.items() if name in read_names)
        graph.sparse_initializer.extend(
            tensor for name, tensor in self.sparse_initializers.items() if name in read_names
        )
        return model

    def _declare(self, value_info: ValueInfoProto, name: str, declared: dict[str, ValueInfoProto]) -> None:
        """Fill the declaration of an input or output: as the whole graph declares it, else with its type alone."""
        if name in declared:
            value_info.CopyFrom(declared[name])
        else:
            value_info.name = name
            dtypes.write_type(value_info.type, self.tensor_types[name])


def count_crossing_bytes(graph: Graph, shape_of: Callable[[Value], tuple[int, ...] | None]) -> list[int]:
    """Return for each node of the main graph the bytes of the tensors that later nodes still read.

    Each element counts as 4 bytes. ``shape_of`` returns the shape of a tensor, None if it is not known.
    """
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
            shape = shape_of(value)
            size = 4 * prod(_ASSUMED_SHAPE if shape is None else shape) if value in last_reader else 0
            live_bytes += size
            last = last_reader.get(value, position)
            read_last[last] = read_last.get(last, 0) + size
        live_bytes -= read_last.pop(position, 0)
        crossing.append(live_bytes)
    return crossing
