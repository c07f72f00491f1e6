"""Find the conversions of a mixed model: the tensors that nodes read in a low type they do not have (Rule S8.4).

A conversion rounds the tensor that it reads. The range of that tensor shows the result, so there is no probe at the
Cast. Only a tensor that the reader's scope does not compute is observed once more, in that scope: a body may not run,
or run several times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from mixlist.emulation.graph_statistics import Probe
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import node_ref, output_ref, scope_path
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.traversal import reachable_graphs
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES


@dataclass(frozen=True)
class Conversion:
    """A tensor called ``name`` that nodes read converted to the low type ``elem``.

    ``readers``: these nodes, as the original names them; of an output of a body, the owner of the body. ``probe``: the
    tensor's name where it is observed before its conversion: in the mixed model, or (``in_reference``: a graph input
    that the mixed model declares low) in the reference. ``source``: its name in the reference, None if the reference
    does not observe it.
    """

    name: str
    elem: int
    probe: TensorRef
    source: TensorRef | None
    readers: tuple[NodeRef, ...]
    in_reference: bool = False


@dataclass(frozen=True)
class Conversions:
    """The conversions of a mixed model, and the probes that they need in addition to those of nodes.

    ``probes``: by scope and tensor.
    """

    conversions: tuple[Conversion, ...]
    probes: dict[str, dict[str, Probe]]


def find_conversions(mixed: Graph, original: Graph, in_original: Callable[[TensorRef], TensorRef]) -> Conversions:
    """Return the conversions of a mixed model, in order of computation; constants are converted in the file already.

    ``in_original`` renames tensors of a function that mixlist specialized.
    """
    return _Finder(original, in_original).run(mixed)


class _Finder:
    def __init__(self, original: Graph, in_original: Callable[[TensorRef], TensorRef]) -> None:
        self.original, self.in_original = original, in_original
        self.probes: dict[str, dict[str, Probe]] = {}
        self.drafts: dict[tuple[TensorRef, int], Conversion] = {}
        self.readers: dict[tuple[TensorRef, int], dict[NodeRef, None]] = {}

    def run(self, mixed: Graph) -> Conversions:
        for graph in reachable_graphs(mixed):
            for node in graph.nodes:
                for slot, value in enumerate(node.inputs):
                    if value is not None and node.input_types[slot] in LOW_TYPES:
                        self._read(graph, node, slot, value)
                for body in node.bodies.values():
                    for value, wanted in zip(body.outputs, body.output_types, strict=True):
                        if wanted in LOW_TYPES and _differs(value, wanted):
                            self._add(graph, body, value, wanted, node)
        conversions = [replace(draft, readers=tuple(self.readers[key])) for key, draft in self.drafts.items()]
        return Conversions(tuple(conversions), self.probes)

    def _read(self, graph: Graph, node: Node, slot: int, value: Value) -> None:
        """Add the conversion of one input, if it is one."""
        wanted = types.element(node.input_types[slot])
        if _differs(value, wanted):
            self._add(graph, node.scope, value, wanted, node)
            return
        cast = value.producer
        if cast is None:
            if find_observed_ref(graph, value) is not None:
                self._add_declared(graph, value, wanted, node)
        elif cast.op_type == "Cast" and not cast.domain and cast.inputs[0] is not None:
            source = cast.inputs[0]
            if _differs(source, wanted) and not self._is_authored(graph, node, slot, value):
                self._add(graph, node.scope, source, wanted, node)

    def _is_authored(self, graph: Graph, node: Node, slot: int, value: Value) -> bool:
        """Return True if the Cast is the author's: the node reads its output in the original too."""
        before = self._original_nodes.get(self._reader(graph, node))
        if before is None or slot >= len(before.inputs):
            return True
        read = before.inputs[slot]
        return read is None or read.name == value.name

    @cached_property
    def _original_nodes(self) -> dict[NodeRef, Node]:
        return {
            node_ref(graph, node): node for graph in reversed(reachable_graphs(self.original)) for node in graph.nodes
        }

    @cached_property
    def _original_inputs(self) -> dict[str, tuple[int, types.Type]]:
        return {value.name: (slot, value.type) for slot, value in enumerate(self.original.root.inputs)}

    def _add_declared(self, graph: Graph, value: Value, wanted: int, node: Node) -> None:
        """Add a graph input that the mixed model declares low, and the original does not."""
        slot, authored = self._original_inputs.get(value.name, (0, wanted))
        if authored in types.MIXABLE and authored != wanted:
            ref = TensorRef("", "", slot)
            self._put(Conversion(value.name, wanted, ref, ref, (), in_reference=True), graph, node)

    def _add(self, graph: Graph, scope: Scope, value: Value, wanted: int, node: Node) -> None:
        """Add a conversion; the tensor is observed in ``scope``."""
        observed = find_observed_ref(graph, value)
        probe = observed if observed is not None and value.scope is scope else self._probe(graph, scope, value)
        source = self._source(observed, value) if observed is not None else None
        self._put(Conversion(value.name, wanted, probe, source, ()), graph, node)

    def _put(self, draft: Conversion, graph: Graph, node: Node) -> None:
        key = draft.probe, draft.elem
        self.drafts.setdefault(key, draft)
        self.readers.setdefault(key, {})[self._reader(graph, node)] = None

    def _reader(self, graph: Graph, node: Node) -> NodeRef:
        return self.in_original(TensorRef(*node_ref(graph, node), 0)).producer

    def _source(self, observed: TensorRef, value: Value) -> TensorRef:
        """Return the reference's tensor for one that the mixed model observes; inputs may have another order there."""
        if observed.node:
            return self.in_original(observed)
        slot, _ = self._original_inputs.get(value.name, (observed.slot, 0))
        return TensorRef("", "", slot)

    def _probe(self, graph: Graph, scope: Scope, value: Value) -> TensorRef:
        """Add a probe of a tensor in the scope that reads it; the slot -1 marks a tensor of an outer scope."""
        path = scope_path(graph, scope)
        if value.scope is not scope or (value.producer is None and value not in scope.inputs):
            ref = TensorRef(path, value.name, -1)
        elif value.producer is not None:
            ref = output_ref(graph, value.producer, value.output_slot)
        else:
            ref = TensorRef(path, "", scope.inputs.index(value))
        probe = Probe(ref, value.name_in_file, "", types.element(value.type))
        self.probes.setdefault(path, {})[value.name_in_file] = probe
        return ref


def find_observed_ref(graph: Graph, value: Value) -> TensorRef | None:
    """Return the tensor that a value is, if a node computes it or it is an input of the main graph.

    Return None for inputs of bodies and functions, and for outputs of control flow and calls.
    """
    producer = value.producer
    if producer is not None:
        passes = bool(producer.bodies) or producer.function is not None
        return None if passes else output_ref(graph, producer, value.output_slot)
    if value.kind == "input" and value.scope.owner is None and not graph.path:
        return TensorRef("", "", value.scope.inputs.index(value))
    return None


def _differs(value: Value, wanted: types.Type) -> bool:
    """Return whether a value is a tensor of another float type, and no constant that is stored in both types."""
    if value.type not in types.MIXABLE or value.type == wanted:
        return False
    return value.constant_proto is None or value.kind == "overridable"
