"""Find the conversions of a mixed model (Rule S8.4).

A *conversion* is a tensor that nodes read in a low type which the tensor does not have:

    x (float32) -> Cast to float16 -> Sigmoid        x is the tensor of a conversion, and Sigmoid is its reader

The Cast rounds ``x``. The range of ``x`` before the Cast shows whether values are lost, so the Cast needs no probe of
its own. These are conversions, too: a Cast of the author that the node reads only in the mixed model, and a graph input
that the file of ``--mixed-model`` declares low. A control-flow node reads the values that it passes on. A finding shows
the largest magnitude in the mixed model, or in the reference if only the mixed model has an infinity or a NaN there:
such values from upstream do not count as lost. A tensor that another scope computes gets one more probe in the scope of
the reader, because a body may not run, or may run several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mixlist.checker.instrument import Probe
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Scope, Value
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeRef, TensorRef, node_ref, output_ref, scope_path


@dataclass(frozen=True)
class Conversion:
    """A tensor that nodes read in the low type ``elem``.

    name: the name of the tensor.
    observed_ref: the identity under which the mixed model observes the tensor before it is converted.
    reference_ref: the identity of the tensor in the reference; None if the reference does not observe it.
    readers: the nodes that read the converted tensor. If an output of a body is converted, the reader is the node with
        the body.
    in_reference: whether the tensor is observed in the reference instead of the mixed model. This is True for an input
        of the graph that the mixed model declares in the low type: the mixed model never has its unrounded values.
    """

    name: str
    elem: int
    observed_ref: TensorRef
    reference_ref: TensorRef | None
    readers: tuple[NodeRef, ...]
    in_reference: bool = False


def find_conversions(mixed: Graph, original: Graph) -> tuple[tuple[Conversion, ...], Mapping[str, Mapping[str, Probe]]]:
    """Return the conversions of a mixed model in the order of computation, and the probes that they need.

    Constants do not count, because the file of the mixed model has their converted numbers. The probes are by scope
    path and tensor name. They come in addition to the probes of node outputs.
    """
    finder = _ConversionFinder(original)
    return finder.run(mixed), finder.probes


class _ConversionFinder:
    """Collect the conversions of a mixed model, and the probes that they need."""

    def __init__(self, original: Graph) -> None:
        self.original = original
        self.probes: dict[str, dict[str, Probe]] = {}
        # A draft is a conversion without its readers. The readers are collected in a dict of their own, because several
        # nodes can read the same conversion. The keys of both dicts are ``observed_ref`` and the low type. The inner
        # dict of ``readers`` serves as an ordered set.
        self.drafts: dict[tuple[TensorRef, int], Conversion] = {}
        self.readers: dict[tuple[TensorRef, int], dict[NodeRef, None]] = {}
        # By scope: the name that each hidden Cast reads, by the name that it makes.
        self._sources_of_casts: dict[Scope, dict[str, str]] = {}

    def run(self, mixed: Graph) -> tuple[Conversion, ...]:
        """Return the conversions of the inputs of nodes and of the outputs of bodies."""
        for node in mixed.nodes:
            for slot, value in enumerate(node.inputs):
                if value is not None and node.input_types[slot] in LOW_TYPES:
                    self._visit_input(node, slot, value)
                elif value is not None and node.scope.marked_casts:
                    self._visit_widened_input(mixed, node, slot, value)
            for body in node.bodies.values():
                for value, output_type in zip(body.outputs, body.output_types, strict=True):
                    if output_type in LOW_TYPES and _is_converted(value, output_type):
                        self._add(body, value, dtypes.element(output_type), node)
        return tuple(replace(draft, readers=tuple(self.readers[key])) for key, draft in self.drafts.items())

    def _visit_input(self, node: Node, slot: int, value: Value) -> None:
        """Add the conversion of an input that a node reads in a low type, if the input is converted."""
        elem = dtypes.element(node.input_types[slot])
        # value (float32) -> Cast of mixlist -> node. The graph hides the Casts of mixlist.
        if _is_converted(value, elem):
            self._add(node.scope, value, elem, node)
            return
        cast = value.producer
        if cast is None:
            # graph input, declared in the low type -> node
            if find_observed_ref(value) is not None:
                self._add_declared_input(value, elem, node)
        elif cast.op_type == "Cast" and not cast.domain and cast.inputs[0] is not None:
            # source (float32) -> Cast of the author -> node. A rewrite may reuse a Cast of the author: a node that read
            # ``source`` in the original then reads the Cast. Only this case is a conversion that mixlist made.
            source = cast.inputs[0]
            if _is_converted(source, elem) and not self._is_authored_conversion(node, slot, value):
                self._add(node.scope, source, elem, node)

    def _visit_widened_input(self, mixed: Graph, node: Node, slot: int, value: Value) -> None:
        """Add the conversion of an input that becomes low, and then float32 again, before the node (Rule S6.10)."""
        scope = node.scope
        if scope not in self._sources_of_casts:
            casts = (scope.proto.node[position] for position in scope.marked_casts)
            self._sources_of_casts[scope] = {cast.output[0]: cast.input[0] for cast in casts}
        source = self._sources_of_casts[scope].get(node.proto.input[slot], "")
        elem = mixed.marked_cast_types.get(source, dtypes.UNKNOWN)
        if elem in LOW_TYPES and _is_converted(value, elem):
            self._add(scope, value, elem, node)

    def _is_authored_conversion(self, node: Node, slot: int, value: Value) -> bool:
        """Return True if the author let the node read the output of a Cast, False if a rewrite did so.

        The author did so if the node reads the same tensor in the original. If the original does not have the node or
        the slot, nothing shows that a rewrite did so, and the result is True.
        """
        original_node = self._original_nodes.get(node_ref(node))
        if original_node is None or slot >= len(original_node.inputs):
            return True
        original_value = original_node.inputs[slot]
        return original_value is None or original_value.name == value.name

    @cached_property
    def _original_nodes(self) -> dict[NodeRef, Node]:
        """Return the nodes of the original, by identity."""
        return {node_ref(node): node for node in self.original.nodes}

    @cached_property
    def _original_inputs(self) -> dict[str, tuple[int, dtypes.Type]]:
        """Return the position and the type of each graph input of the original, by name."""
        return {value.name: (slot, value.type) for slot, value in enumerate(self.original.root.inputs)}

    def _add_declared_input(self, value: Value, elem: int, node: Node) -> None:
        """Add an input of the main graph that the mixed model declares in the low type and the original does not."""
        # An input that the original does not have is no conversion: ``elem`` as its authored type says so.
        slot, authored_type = self._original_inputs.get(value.name, (0, elem))
        if authored_type in dtypes.MIXABLE and authored_type != elem:
            ref = TensorRef("", "", slot)
            self._store(Conversion(value.name, elem, ref, ref, (), in_reference=True), node)

    def _add(self, scope: Scope, value: Value, elem: int, node: Node) -> None:
        """Add the conversion of a tensor that ``node`` reads in ``scope``."""
        own_ref = find_observed_ref(value)
        observed_ref = own_ref if own_ref is not None and value.scope is scope else self._add_probe(scope, value)
        reference_ref = self._reference_ref(own_ref, value) if own_ref is not None else None
        self._store(Conversion(value.name, elem, observed_ref, reference_ref, ()), node)

    def _store(self, draft: Conversion, node: Node) -> None:
        """Add a conversion if it is new, and ``node`` to its readers."""
        key = draft.observed_ref, draft.elem
        self.drafts.setdefault(key, draft)
        self.readers.setdefault(key, {})[node_ref(node)] = None

    def _reference_ref(self, observed: TensorRef, value: Value) -> TensorRef:
        """Return the identity in the reference of a tensor that the mixed model observes."""
        if observed.node:
            return observed
        # An input of the graph has its position as identity, and the inputs of the original may have another order.
        slot, _ = self._original_inputs.get(value.name, (observed.slot, 0))
        return TensorRef("", "", slot)

    def _add_probe(self, scope: Scope, value: Value) -> TensorRef:
        """Add a probe of a tensor in the scope that reads it, and return the identity of the observed tensor."""
        path = scope_path(scope)
        if value.scope is not scope or (value.producer is None and value not in scope.inputs):
            ref = TensorRef(path, value.name, -1)  # the slot -1 marks a tensor that an outer scope computes
        elif value.producer is not None:
            ref = output_ref(value.producer, value.output_slot)
        else:
            ref = TensorRef(path, "", scope.inputs.index(value))
        probe = Probe(ref, value.name_in_file, "", dtypes.element(value.type))
        self.probes.setdefault(path, {})[value.name_in_file] = probe
        return ref


def find_observed_ref(value: Value) -> TensorRef | None:
    """Return the identity of a value that a node computes or that is an input of the main graph.

    Return None for an initializer. Return None as well for an input of a body, and for an output of control flow: these
    only pass on the values of other tensors.
    """
    producer = value.producer
    if producer is not None:
        return None if producer.bodies else output_ref(producer, value.output_slot)
    if value.kind == "input" and value.scope.owner is None:
        return TensorRef("", "", value.scope.inputs.index(value))
    return None


def _is_converted(value: Value, read_type: dtypes.Type) -> bool:
    """Return True if a value has another float type than the one in which it is read.

    A constant does not count: the file of the mixed model has its converted numbers. An overridable initializer counts,
    because a feed can replace its numbers.
    """
    if value.type not in dtypes.MIXABLE or value.type == read_type:
        return False
    return value.constant_proto is None or value.kind == "overridable"
