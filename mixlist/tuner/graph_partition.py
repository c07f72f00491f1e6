"""Cut the gated graph into pieces, so that a trial runs only what lies behind the first gate that changed.

The main graph is cut where few bytes cross, into pieces of about the same cost. A piece is a model of its own: it reads
the graph's inputs and what earlier pieces made, and has flags of its own for the gates in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from mixlist.cost.estimate import Costs
from mixlist.graph.model import Graph, Node, Value, function_key
from mixlist.graph.proto_edits import standard_opset
from mixlist.graph.prune import names_read_by
from mixlist.graph.traversal import bodies_of, nodes_in
from mixlist.ops import types
from mixlist.tuner.gated_graph import GatedGraph

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto, ValueInfoProto

MOST = 16  # pieces: each costs a run of a session, some 50 microseconds
LEAST = 8e7  # what a piece costs at least, in the unit of ``_weight``: some 0.8 milliseconds on one thread
_NODE = 5e4  # what any node costs, however small its tensors
_BYTE = 4.0  # what a byte that is moved costs, in FLOPs
_UNKNOWN = (2**20,)  # the shape that a tensor is taken to have
_SLACK = 0.4  # of a piece: how far a cut may move to where fewer bytes cross


def cuts(graph: Graph, costs: Costs) -> tuple[str, ...]:
    """Return tensors of the main graph behind whose nodes it is best cut: none for a small model.

    ``costs`` are those of ``graph``.
    """
    nodes = graph.root.nodes
    ends = _ends(graph, costs)
    total = ends[-1] if ends else 0.0
    pieces = min(MOST, int(total / LEAST), len(nodes))
    crossing = _crossing(graph, costs)
    names: list[str] = []
    for number in range(1, pieces):
        target, slack = total * number / pieces, _SLACK * total / pieces
        away = [abs(end - target) for end in ends[:-1]]
        far = max(slack, min(away))
        near = [at for at, distance in enumerate(away) if distance <= far]
        best = nodes[min(near, key=lambda at: (crossing[at], away[at]))]
        name = next((v.name_in_file for v in best.outputs if v is not None), None)
        if name is not None and name not in names:
            names.append(name)
    return tuple(names)


def _ends(graph: Graph, costs: Costs) -> list[float]:
    """Return the costs up to the end of each node of the main graph; bodies and functions count with their node."""
    ends, total = [], 0.0
    for node in graph.nodes:
        total += 0.0 if _is_constant(node) else _weight(costs, node.id)
        if node.scope is graph.root:
            ends.append(total)
    return ends


def _is_constant(node: Node) -> bool:
    return all(value.is_constant for value in node.outputs if value is not None)


def _weight(costs: Costs, node: int) -> float:
    call = costs.calls.get(node)
    if call is not None:
        return sum(_weight(call, each.id) for each in call.graph.nodes)
    cost = costs.nodes.get(node)
    return _NODE + (cost.flops + _BYTE * cost.bytes if cost is not None else 0.0)


def _crossing(graph: Graph, costs: Costs) -> list[int]:
    """Return the bytes that are still needed behind each node of the main graph."""
    last: dict[Value, int] = {}
    made: list[list[Value]] = []
    for node in graph.nodes:
        inside = [value for body in node.bodies.values() for value in (*body.captures, *body.outputs)]
        for value in (*node.inputs, *inside):
            if value is not None and value.scope is graph.root and value.producer is not None and not value.is_constant:
                last[value] = len(made)
        if node.scope is graph.root:
            made.append([value for value in node.outputs if value is not None])
    gone: dict[int, int] = {}  # bytes that are read for the last time, by node
    live, found = 0, []
    for at, values in enumerate(made):
        for value in values:
            size = 4 * prod(costs.sizes.shape_of(value) or _UNKNOWN) if value in last else 0
            live += size
            gone[last.get(value, at)] = gone.get(last.get(value, at), 0) + size
        live -= gone.pop(at, 0)
        found.append(live)
    return found


@dataclass(frozen=True)
class Segment:
    """One piece: ``model`` serialised, the tensors that it ``reads`` and ``makes``, and which gates it has.

    Its flags [number of its gates] are the input ``flags``, which it has where ``gates`` is not empty.
    """

    model: bytes
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    flags: str
    gates: tuple[int, ...]


def split(gated: GatedGraph, ends: Sequence[Iterable[str]]) -> tuple[Segment, ...]:
    """Return the pieces of a gated graph in order; together they make every output.

    Each of ``ends`` names tensors behind whose nodes a piece ends, unless something crosses there that is no tensor of
    a known type. Nodes that compute constants stand in every piece that needs them.
    """
    return tuple(_Splitter(gated).run(ends))


class _Splitter:
    def __init__(self, gated: GatedGraph) -> None:
        self.gated, self.proto = gated, gated.proto
        self.names = {name: at for at, name in enumerate(gated.flag_names)}
        graph = gated.proto.graph
        nodes = list(graph.node)
        self.nodes = [node for node in nodes if not gated.computed_constants.issuperset(filter(None, node.output))]
        self.constant = {name: node for node in nodes for name in node.output if name in gated.computed_constants}
        self.order = {id(node): at for at, node in enumerate(nodes)}
        self.reads = {id(node): tuple(filter(None, names_read_by(node))) for node in nodes}
        self.functions = {function_key(function): function for function in gated.proto.functions}
        self.inputs = {info.name: info for info in graph.input}
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self.outputs = {info.name: info for info in graph.output}

    def run(self, ends: Sequence[Iterable[str]]) -> Iterator[Segment]:
        maker = {name: at for at, node in enumerate(self.nodes) for name in node.output if name}
        last_read = {name: at for at, node in enumerate(self.nodes) for name in self.reads[id(node)]}
        fixed = [(maker[name], at) for name, at in last_read.items() if name in maker and not self._may_cross(name)]
        stops = {max((maker[name] + 1 for name in end if name in maker), default=0) for end in ends}
        places = [stop for stop in sorted(stops) if 0 < stop < len(self.nodes)]
        places = [stop for stop in places if not any(made < stop <= read for made, read in fixed)]
        bounds = [*zip([0, *places], [*places, len(self.nodes)], strict=True)]
        rest = [name for name in self.outputs if name not in maker]  # constants, inputs: the last piece hands them on
        last = len(bounds) - 1
        parts = [self._part(*bound, rest if at == last else ()) for at, bound in enumerate(bounds)]
        read = [dict.fromkeys(name for node in part for name in self.reads[id(node)]) for part in parts]
        read[-1].update(dict.fromkeys(rest))
        for at, ((start, stop), part) in enumerate(zip(bounds, parts, strict=True)):
            wanted = set(self.outputs).union(*read[at + 1 :])
            makes = [name for node in self.nodes[start:stop] for name in node.output if name in wanted]
            makes += rest if at == last else ()
            given = [name for name in read[at] if name in self.inputs or maker.get(name, start) < start]
            if makes:  # else nobody reads what it computes
                yield self._segment(part, set(read[at]), given, makes)

    def _may_cross(self, name: str) -> bool:
        kind = self.gated.tensor_types.get(name, types.UNKNOWN)
        return isinstance(kind, int) and kind != types.UNKNOWN

    def _part(self, start: int, stop: int, names: Sequence[str]) -> list[NodeProto]:
        """Return nodes, and before them those that compute the constants that they, or ``names``, need."""
        nodes = self.nodes[start:stop]
        found: dict[int, NodeProto] = {}
        waiting = [*names, *(name for node in nodes for name in self.reads[id(node)])]
        while waiting:
            node = self.constant.get(waiting.pop())
            if node is not None and id(node) not in found:
                found[id(node)] = node
                waiting += self.reads[id(node)]
        return [*sorted(found.values(), key=lambda node: self.order[id(node)]), *nodes]

    def _segment(self, nodes: list[NodeProto], read: set[str], given: list[str], makes: list[str]) -> Segment:
        from onnx import TensorProto, helper

        flags = self.gated.flags_input
        gates = sorted(self.names[name] for name in read if name in self.names)
        model = type(self.proto)(ir_version=self.proto.ir_version)
        model.opset_import.extend(self.proto.opset_import)
        model.functions.extend(self._functions(nodes))
        graph = model.graph
        graph.name = self.proto.graph.name or "segment"
        if gates:
            opset = standard_opset(self.proto)
            graph.node.append(_spread(flags, [self.gated.flag_names[gate] for gate in gates], opset))
            graph.input.append(helper.make_tensor_value_info(flags, TensorProto.BOOL, [len(gates)]))
        graph.node.extend(nodes)
        for name in given:
            self._declare(graph.input.add(), name, self.inputs)
        for name in makes:
            self._declare(graph.output.add(), name, self.outputs)
        graph.initializer.extend(tensor for name, tensor in self.weights.items() if name in read)
        graph.sparse_initializer.extend(tensor for name, tensor in self.sparse.items() if name in read)
        return Segment(model.SerializeToString(), tuple(given), tuple(makes), flags if gates else "", tuple(gates))

    def _functions(self, nodes: list[NodeProto]) -> list[FunctionProto]:
        """Return the functions that nodes call, directly or not."""
        found: dict[tuple[str, str, str], FunctionProto] = {}
        waiting = [*nodes, *nodes_in(*(body for node in nodes for body in bodies_of(node)))]
        while waiting:
            node = waiting.pop()
            key = node.domain, node.op_type, node.overload
            if key in self.functions and key not in found:
                found[key] = self.functions[key]
                waiting += nodes_in(found[key])
        return list(found.values())

    def _declare(self, info: ValueInfoProto, name: str, known: dict[str, ValueInfoProto]) -> None:
        if name in known:
            info.CopyFrom(known[name])
        else:
            info.name = name
            types.set_proto(info.type, self.gated.tensor_types[name])


def _spread(flags: str, names: Sequence[str], opset: int) -> NodeProto:
    """Make the node that divides the input ``flags`` into one flag [1] for each name."""
    from onnx import helper

    name = f"{flags}_spread"
    if len(names) == 1:
        return helper.make_node("Identity", [flags], list(names), name=name)
    count = len(names) if opset >= 18 else None  # make_node leaves out an attribute that is None
    return helper.make_node("Split", [flags], list(names), name=name, axis=0, num_outputs=count)
