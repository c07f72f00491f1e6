"""Find the tensors that each node reads, through branches, loop states and captured values."""

from __future__ import annotations

from typing import Literal, NamedTuple

from mixlist.model.control_flow import is_control_flow, type_links_of
from mixlist.model.graph import Graph, Node, Scope, Value
from mixlist.model.naming import NodeRef, TensorRef, node_ref, output_ref

# When a tensor was computed, relative to the node that reads it:
# same: in the same run of the reader's scope.
# next: the tensor becomes a loop state, and the reader sees the tensor in the next iteration.
# before: at any earlier time.
Timing = Literal["same", "next", "before"]


class InputTensor(NamedTuple):
    """A tensor that a node reads, and when the tensor was computed."""

    ref: TensorRef
    timing: Timing


class DataflowNode(NamedTuple):
    """A node that computes, with the tensors that it reads.

    ``inputs`` holds outputs of nodes and inputs of the main graph. Initializers are left out.
    """

    ref: NodeRef
    node: Node
    inputs: tuple[InputTensor, ...]


def trace_dataflow(graph: Graph) -> list[DataflowNode]:
    """Return every node of a model except control flow and Constants, in order of computation."""
    tracer = _Tracer(graph)
    return [
        DataflowNode(node_ref(node), node, tracer.find_inputs(node))
        for node in graph.nodes
        if not node.bodies and node.op_type != "Constant"
    ]


class _Tracer:
    """Trace values through the bodies of a model, to the tensors that nodes compute."""

    def __init__(self, graph: Graph) -> None:
        # An input of a body and an output of control flow only pass on other values. This dict has, for each such
        # value, the values that it passes on, and when each of them was computed.
        self.sources: dict[Value, list[tuple[Value, Timing]]] = {}
        for node in graph.nodes:
            if is_control_flow(node):
                self._add_links(node)

    def _add_links(self, node: Node) -> None:
        """Connect the values that pass into and out of the bodies of a control-flow node."""
        for link in type_links_of(node):
            for target in link.targets:
                is_body_input = target.scope.owner is node
                for source in link.sources:
                    # From the output of a body back to its input: the state of the next iteration.
                    timing: Timing = "next" if is_body_input and source.body is not None else "before"
                    if node.op_type == "If":
                        # A branch runs at most once, as a part of the scope around it.
                        timing = "same"
                    self.sources.setdefault(target, []).append((source.value, timing))

    def find_inputs(self, node: Node) -> tuple[InputTensor, ...]:
        """Return the tensors that a node reads, each once for each timing."""
        tensors = (tensor for v in node.inputs if v is not None for tensor in self._find_source_tensors(v, node))
        return tuple(dict.fromkeys(tensors))

    def _find_source_tensors(self, value: Value, reader: Node) -> list[InputTensor]:
        """Return the tensors that ``value`` can hold when ``reader`` reads it: outputs of nodes, and graph inputs."""
        tensors: list[InputTensor] = []
        seen = {value}  # a loop state is its own source
        # A body of a loop that captures the value may run many times after the value was computed.
        timing: Timing = "same" if _runs_at_most_once(value.scope, reader.scope) else "before"
        pending = [(value, timing)]
        while pending:
            source, timing = pending.pop()
            sources = self.sources.get(source)
            # x -> Loop -> input of the body -> Add: the Add reads the tensors that flow into the input, such as x.
            if sources is not None:
                for next_source, next_timing in sources:
                    if next_source not in seen:
                        seen.add(next_source)
                        pending.append((next_source, _combine_timings(timing, next_timing)))
            elif source.producer is not None and isinstance(source.type, tuple):
                # A sequence or optional holds the tensors that its producer read, as SequenceConstruct does.
                for element in source.producer.inputs:
                    if element is not None and element not in seen:
                        seen.add(element)
                        pending.append((element, timing))
            elif source.producer is not None:
                tensors.append(InputTensor(output_ref(source.producer, source.output_slot), timing))
            elif source.kind == "input":  # a graph input has its value before the first node runs
                tensors.append(InputTensor(TensorRef("", "", source.scope.inputs.index(source)), "before"))
        return tensors


def _runs_at_most_once(outer: Scope, inner: Scope) -> bool:
    """Return True if ``inner`` runs at most once in a run of ``outer``: only branches of Ifs lie between the two."""
    while inner is not outer:
        owner = inner.owner
        if owner is None or owner.op_type != "If" or owner.domain:
            return False
        inner = owner.scope
    return True


def _combine_timings(first: Timing, second: Timing) -> Timing:
    """Return the timing of a path of two steps: "before" if one step is, else "next" if one step is."""
    if "before" in (first, second):
        return "before"
    return "next" if "next" in (first, second) else "same"
