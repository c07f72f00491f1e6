"""The float32 graph that rounds as a mixed model does, and the one that does not round at all.

ONNX Runtime's CPU provider runs float16 nodes in float32 and drops the Casts between them, so a mixed model
run there shows no overflow. An explicit pair of Casts, to the low type and back, keeps both the rounding and
the infinities. ``emulate`` turns every tensor of a low type into float32 and puts such a pair after each
node that makes one; ``raise_to_float32`` does the same without the pairs: the exact reference.

A node is computed in float32 from rounded inputs and its output is rounded once, as a kernel with a float32
accumulator does. Tensors keep their names: what the mixed model calls ``y`` is ``y`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from mixlist.graph.build import build_graph
from mixlist.graph.load import LoadedModel
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import NameGenerator, names_in
from mixlist.graph.proto_edits import SortKey, copy_message, reorder_messages
from mixlist.graph.save import set_inline
from mixlist.graph.traversal import (
    is_graph,
    nodes_in_model,
    protos_by_scope,
    reachable_graphs,
    scopes_in_model,
    tensors_in_model,
)
from mixlist.graph.weights import (
    declare_stored_type,
    embedded_array,
    is_external,
    read_pieces,
    stored_element_count,
    stored_type,
)
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, LOW_TYPES
from mixlist.ops.schema import TYPE_ATTRIBUTES
from mixlist.ops.signature import Signature
from mixlist.ops.traits import Trait, operators
from mixlist.rewriter.tensor_conversion import inline_external_data, stream_tensor

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto, TensorProto

    from mixlist.graph.proto_types import ScopeProto

_SHORT = 1024  # elements of a constant that inference may want to read: sizes, scales, bounds
_TYPED = TYPE_ATTRIBUTES - {"to"}  # what Cast and BitCast make is not raised by their attribute
_VALUE_PRESERVING = operators(Trait.VALUE_PRESERVING)


def emulate(loaded: LoadedModel, *, saturate: bool = False, keep_external: bool = False) -> ModelProto:
    """A new ModelProto: float32 throughout, rounded wherever ``loaded`` is low.

    With ``saturate`` a value beyond the range becomes the largest finite one, as on accelerators that saturate.
    With ``outside`` external data stays where it lies, but for what changes.
    """
    return EmulationBuilder(loaded, rounding=True, saturate=saturate, keep_external=keep_external).run()


def raise_to_float32(loaded: LoadedModel, *, keep_external: bool = False) -> ModelProto:
    """A new ModelProto with every low-precision node raised to float32, its weights exact; ``outside`` as above."""
    return EmulationBuilder(loaded, rounding=False, keep_external=keep_external).run()


def has_low_types(model: ModelProto) -> bool:
    """Return whether anything in a model may be of a low type: tensors, declarations, types in attributes."""
    if model.graph.sparse_initializer or any(tensor.data_type in LOW_TYPES for tensor in tensors_in_model(model)):
        return True
    infos = chain(model.graph.input, model.graph.output, *(scope.value_info for scope in scopes_in_model(model)))
    if any(types.element(types.from_proto(info.type)) in LOW_TYPES for info in infos):
        return True
    for node in nodes_in_model(model):
        for attribute in node.attribute:
            if attribute.i in LOW_TYPES and (node.domain or attribute.name in TYPE_ATTRIBUTES):
                return True
            if attribute.type in (attribute.SPARSE_TENSOR, attribute.TYPE_PROTO):
                return True
    return False


def raise_to_float64(loaded: LoadedModel, has_kernel: Callable[[Node], bool]) -> ModelProto:
    """A new ModelProto in float64 wherever the operators allow it and ``runs`` says that float64 is computed.

    What stays float32 stands between Casts; the graph's float inputs and outputs are float64.
    """
    return EmulationBuilder(
        loaded, rounding=False, raised_types=types.MIXABLE, target=types.DOUBLE, has_kernel=has_kernel
    ).run()


@dataclass(eq=False)
class EmulationBuilder:
    """One rewriting of a model; ``_node`` and ``run`` may be replaced to do more with each node."""

    loaded: LoadedModel
    rounding: bool
    saturate: bool = False
    raised_types: frozenset[int] = LOW_TYPES
    target: int = types.FLOAT
    has_kernel: Callable[[Node], bool] = lambda _: True
    keep_external: bool = False

    def __post_init__(self) -> None:
        self.proto = copy_message(self.loaded.proto)
        self.graph = build_graph(self.proto, show_marked_casts=True)
        functions = self.proto.functions
        self.new_names = NameGenerator(
            chain(names_in(self.proto.graph, *functions), (function.name for function in functions))
        )
        self.specialized: dict[Graph, FunctionProto] = {}  # one for each body: its types depend on the call

    def run(self) -> ModelProto:
        """Rewrite the main graph and a copy of each function body; return the model."""
        for body in reachable_graphs(self.graph)[1:]:
            function = copy_message(body.function)
            if any(other.function is body.function for other in self.specialized):
                function.name = self.new_names.make_name(function.name)
            self.specialized[body] = function
        self._rewrite_graph(self.graph, self.proto.graph)
        for body, function in self.specialized.items():
            self._rewrite_graph(body, function)
        called = [body.function for body in self.specialized]
        kept = [copy_message(f) for f in self.proto.functions if not any(f is original for original in called)]
        del self.proto.functions[:]
        self.proto.functions.extend([*self.specialized.values(), *kept])
        if not self.keep_external:
            self.inline_external()
        return self.proto

    def inline_external(self) -> None:
        """Bring in what lies in other files: a session is made of these bytes alone."""
        inline_external_data(self.proto, self.loaded.folder)

    # --- one scope ---

    def _rewrite_graph(self, graph: Graph, message: ScopeProto) -> None:
        """Rewrite the message of a graph: bodies first, since they read the weights of outer scopes as authored."""
        for scope, proto in reversed(protos_by_scope(graph.root, message).items()):
            self._rewrite_scope(graph, scope, proto)

    def _rewrite_scope(self, graph: Graph, scope: Scope, proto: ScopeProto) -> None:
        keys: list[SortKey | None] = [None] * len(proto.node)
        added: list[NodeProto] = []
        for place, node in enumerate(scope.nodes):
            before, after = self._rewrite_node(graph, node, proto.node[node.position])
            keys[node.position] = (place, 0, 0)
            keys += [(place - 1, 3, order) for order in range(len(before))]
            keys += [(place, 1, order) for order in range(len(after))]
            added += before + after
        proto.node.extend(added)
        reorder_messages(proto.node, keys)
        infos = [*proto.value_info]
        if is_graph(proto):
            infos += [*proto.input, *proto.output]
            weights = [*proto.initializer, *(sparse.values for sparse in proto.sparse_initializer)]
            for tensor in weights:
                if tensor.data_type in self.raised_types:
                    self._raise_tensor(tensor)
        for info in infos:
            declared = types.from_proto(info.type)
            if types.element(declared) in self.raised_types:
                types.set_proto(info.type, types.with_element(declared, self.target))

    def _raise_tensor(self, tensor: TensorProto) -> None:
        """The same numbers in the wider type: exact."""
        import numpy as np

        if self.keep_external and declare_stored_type(tensor, self.target):
            return
        wide = np.float64 if self.target == types.DOUBLE else np.float32
        if is_external(tensor) and stored_type(tensor) != tensor.data_type:  # to be converted on the way
            set_inline(tensor, b"".join(stream_tensor(tensor, self.loaded.folder, False, {})))
        data = b"".join(p.astype(wide).tobytes() for p in read_pieces(tensor, self.loaded.folder))
        tensor.data_type = self.target
        set_inline(tensor, data)

    # --- one node ---

    def _rewrite_node(self, graph: Graph, node: Node, target: NodeProto) -> tuple[list[NodeProto], list[NodeProto]]:
        """Raise a node in place; the nodes that go before and after it."""
        if node.function is not None:
            target.op_type = self.specialized[node.function].name
            return [], []
        signature = node.signature
        if node.bodies or signature is None or not any(self._is_low(v) for v in (*node.inputs, *node.outputs)):
            return [], []
        if node.op_type == "Cast" and not node.domain:
            return [], self._cast(node, target)
        if signature.reads_any_type and not signature.has_fixed_output:
            return [], []
        if not self._can_rise(node, signature):  # nobody knows the operator, or it takes no float32: it keeps its types
            return self._fit(node, target, node.input_types, [None if v is None else v.type for v in node.outputs])
        before: list[NodeProto] = []
        after: list[NodeProto] = []
        if signature.has_fixed_output:
            self._raise_attributes(node, target)
        else:
            assignment = signature.assign(self._wish(signature))
            before, after = self._fit(node, target, assignment.inputs, assignment.outputs)
        if not self.rounding or node.op_type in _VALUE_PRESERVING or node.op_type in ("Constant", "ConstantOfShape"):
            return before, after
        after += [made for slot, value in enumerate(node.outputs) for made in self._round(target, slot, value)]
        return before, after

    def _fit(
        self, node: Node, target: NodeProto, inputs: Iterable[types.Type | None], outputs: Iterable[types.Type | None]
    ) -> tuple[list[NodeProto], list[NodeProto]]:
        """Return Casts for the slots whose types, as given, are not raised (Resize's scales, a norm's Mean)."""
        before, after = [], []
        for slot, (value, wanted) in enumerate(zip(node.inputs, inputs, strict=False)):
            if value is not None and self._is_low(value) and isinstance(wanted, int) and wanted in self.raised_types:
                name = self.new_names.make_name(f"{value.name}_low")
                before.append(self._kept(value, name, wanted) or self.new_names.make_cast(value.name, name, wanted))
                target.input[slot] = name
        for slot, (value, made) in enumerate(zip(node.outputs, outputs, strict=False)):
            if value is not None and self._is_low(value) and isinstance(made, int) and made in self.raised_types:
                name = self.new_names.make_name(f"{value.name}_low")
                after.append(self.new_names.make_cast(name, value.name, self.target))
                target.output[slot] = name
        return before, after

    def _cast(self, node: Node, target: NodeProto) -> list[NodeProto]:
        value, source = node.outputs[0], node.inputs[0]
        given = types.element(source.type) if source is not None else types.UNKNOWN
        elem = self.target if given in self.raised_types else given
        if not self._is_low(value):
            if value is not None and types.element(value.type) == elem:
                _make_identity(target)
            return []
        if not self.rounding:
            self._cast_to(target, elem, self.target)
            return []
        assert value is not None
        if self.saturate and given in (types.FLOAT, *LOW_TYPES):
            self._cast_to(target, elem, types.FLOAT)
            return self._round(target, 0, value)
        low = self.new_names.make_name(f"{value.name}_low")
        target.output[0] = low
        return [self.new_names.make_cast(low, value.name, types.FLOAT)]

    def _cast_to(self, target: NodeProto, given: int, elem: int) -> None:
        if given == elem:
            _make_identity(target)
        else:
            next(a for a in target.attribute if a.name == "to").i = elem

    def _round(self, target: NodeProto, slot: int, value: Value | None) -> list[NodeProto]:
        """The pair of Casts after one output of a low type."""
        if value is None or not self._is_low(value) or isinstance(value.type, tuple):
            return []
        raw = target.output[slot] = self.new_names.make_name(f"{value.name}_exact")
        return self.rounding_nodes(raw, types.element(value.type), value.name)

    def rounding_nodes(self, name: str, elem: int, out: str) -> list[NodeProto]:
        """The nodes that make ``out`` of a float32 tensor: rounded to ``elem`` and float32 again."""
        low = self.new_names.make_name(f"{out}_low")
        clipped = self._clip(name, elem) if self.saturate else []
        inside = clipped[-1].output[0] if clipped else name
        return [*clipped, self.new_names.make_cast(inside, low, elem), self.new_names.make_cast(low, out, types.FLOAT)]

    def _clip(self, name: str, elem: int) -> list[NodeProto]:
        """Return nodes that bring a tensor into the finite range of a low type; NaN stays."""
        largest = FINITE_MAX[elem]
        out = self.new_names.make_name(f"{name}_clipped")
        if self.graph.opsets.get("", 13) < 11:
            return [self.new_names.make_node("Clip", [name], out, min=-largest, max=largest)]
        bounds = {self.new_names.make_name(f"{out}_bound"): number for number in (-largest, largest)}
        nodes = [self.new_names.make_constant(bound, types.FLOAT, [], [number]) for bound, number in bounds.items()]
        return [*nodes, self.new_names.make_node("Clip", [name, *bounds], out)]

    def _kept(self, value: Value, name: str, elem: int) -> NodeProto | None:
        """A small constant as it was, for a slot whose value inference reads; None for what is no plain tensor."""
        from onnx import TensorProto, helper, numpy_helper

        tensor = value.constant_proto
        if not isinstance(tensor, TensorProto) or is_external(tensor) or stored_element_count(tensor) > _SHORT:
            return None
        plain = embedded_array(tensor).astype(helper.tensor_dtype_to_np_dtype(elem))
        return self.new_names.make_node("Constant", [], name, value=numpy_helper.from_array(plain))

    def _raise_attributes(self, node: Node, target: NodeProto) -> None:
        """Raise the attributes that fix the type of the node's output, also those that it has by default."""
        from onnx import TensorProto, helper

        for attribute in target.attribute:
            if attribute.name in _TYPED and attribute.i in self.raised_types:
                attribute.i = self.target
            elif attribute.name == "value" and attribute.t.data_type in self.raised_types:
                self._raise_tensor(attribute.t)
            elif attribute.name == "sparse_value" and attribute.sparse_tensor.values.data_type in self.raised_types:
                self._raise_tensor(attribute.sparse_tensor.values)
            elif attribute.name in ("value_float", "value_floats") and self.target == types.DOUBLE:
                many = attribute.name == "value_floats"
                numbers = list(attribute.floats) if many else [attribute.f]
                tensor = helper.make_tensor("", TensorProto.DOUBLE, [len(numbers)] if many else [], numbers)
                attribute.CopyFrom(helper.make_attribute("value", tensor))
        schema = node.signature.schema if node.signature is not None else None
        given = {a.name for a in target.attribute}
        if node.op_type == "ConstantOfShape" and "value" not in given and self.target == types.DOUBLE:
            zero = helper.make_tensor("", TensorProto.DOUBLE, [1], [0.0])
            target.attribute.append(helper.make_attribute("value", zero))
        for name, default in (schema.type_attributes if schema is not None else {}).items():
            if name in _TYPED and name not in given and default in self.raised_types:
                target.attribute.append(helper.make_attribute(name, self.target))

    def _is_low(self, value: Value | None) -> bool:
        return value is not None and types.element(value.type) in self.raised_types

    def _can_rise(self, node: Node, signature: Signature) -> bool:
        if not self.has_kernel(node):
            return False
        if signature.has_fixed_output:
            return True
        if signature.schema is None or not signature.groups:
            return False
        return not signature.assign(self._wish(signature)).refused

    def _wish(self, signature: Signature) -> tuple[int, ...]:
        return tuple([self.target if g.authored in self.raised_types else g.authored for g in signature.groups])


def _make_identity(cast: NodeProto) -> None:
    """A Cast to the type that its input has. ONNX Runtime drops such Casts even where a subgraph reads them."""
    cast.op_type = "Identity"
    del cast.attribute[:]
