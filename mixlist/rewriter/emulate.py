"""The float32 graph that rounds as a mixed model does, and the one that does not round at all.

ONNX Runtime's CPU provider runs float16 nodes in float32 and drops the Casts between them, so a mixed model
run there shows no overflow. An explicit pair of Casts, to the low type and back, keeps both the rounding and
the infinities. ``emulate`` turns every tensor of a low type into float32 and puts such a pair after each
node that makes one; ``raise_low`` does the same without the pairs: the exact reference.

A node is computed in float32 from rounded inputs and its output is rounded once, as a kernel with a float32
accumulator does. Tensors keep their names: what the mixed model calls ``y`` is ``y`` here.
"""

from __future__ import annotations

from typing import Any

from mixlist.graph.build import build_main
from mixlist.graph.io import Loaded
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import NewNames, names_in
from mixlist.graph.save import set_inline, tensors
from mixlist.graph.weights import is_external
from mixlist.ops import types
from mixlist.rewriter.convert import converted_tensor, stream
from mixlist.rewriter.emit import Key, reorder

LOW = frozenset({types.FLOAT16, types.BFLOAT16})
FINITE_MAX = {types.FLOAT16: 65504.0, types.BFLOAT16: float.fromhex("0x1.fep127")}

# Operators whose outputs are values of their inputs, or those negated: rounded inputs give rounded outputs.
EXACT = frozenset({
    "Abs", "Ceil", "Clip", "Compress", "Concat", "ConcatFromSequence", "DepthToSpace", "Expand", "Flatten", "Floor",
    "Gather", "GatherElements", "GatherND", "Identity", "Max", "MaxPool", "Min", "Neg", "Optional",
    "OptionalGetElement", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "SequenceAt",
    "SequenceConstruct", "SequenceErase", "SequenceInsert", "Sign", "Slice", "SpaceToDepth", "Split",
    "SplitToSequence", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip


def emulate(loaded: Loaded, *, saturate: bool = False) -> Any:
    """A new ModelProto: float32 throughout, rounded wherever ``loaded`` is low.

    With ``saturate`` a value beyond the range becomes the largest finite one, as on accelerators that saturate.
    """
    return _Emulation(loaded, rounding=True, saturate=saturate).run()


def raise_low(loaded: Loaded) -> Any:
    """A new ModelProto with every low-precision node raised to float32, its weights exact."""
    return _Emulation(loaded, rounding=False).run()


class _Emulation:
    def __init__(self, loaded: Loaded, rounding: bool, saturate: bool = False) -> None:
        self.loaded = loaded
        self.saturate = saturate
        self.rounding = rounding
        self.proto = type(loaded.proto)()
        self.proto.CopyFrom(loaded.proto)
        self.graph = build_main(self.proto, show_marked=True)
        self.new = NewNames(names_in(self.proto.graph))
        for function in self.proto.functions:
            for name in names_in(function):
                self.new.add(name)
        self.bodies: dict[int, tuple[Graph, Any]] = {}  # specialised functions by id of their Graph

    def run(self) -> Any:
        self._specialise(self.graph)
        for graph, message in [(self.graph, self.proto.graph), *self.bodies.values()]:
            self._scope(graph, graph.root, message)
        kept = [f for f in self.proto.functions if not self._is_called(f)]
        functions = [message for _, message in self.bodies.values()] + [_copy(f) for f in kept]
        del self.proto.functions[:]
        self.proto.functions.extend(functions)
        for tensor in tensors(self.proto):
            if is_external(tensor):
                set_inline(tensor, b"".join(stream(tensor, self.loaded.folder, False, {})))
        return self.proto

    def _is_called(self, function: Any) -> bool:
        return any(g.root.proto is function for g, _ in self.bodies.values())

    def _specialise(self, graph: Graph) -> None:
        """One message per function body: a body's types depend on the call."""
        for node in graph.order:
            body = node.function
            if body is None or id(body) in self.bodies:
                continue
            message = _copy(body.root.proto)
            if any(g.root.proto is body.root.proto for g, _ in self.bodies.values()):
                message.name = self.new.make(message.name)
            self.bodies[id(body)] = (body, message)
            self._specialise(body)

    # --- one scope ---

    def _scope(self, graph: Graph, scope: Scope, proto: Any) -> None:
        keys: list[Key | None] = [None] * len(proto.node)
        added: list[tuple[Key, Any]] = []
        for place, node in enumerate(scope.nodes):
            target = proto.node[node.position]
            keys[node.position] = (place, 0, 0)
            for attribute in target.attribute:
                if attribute.name in node.bodies:
                    self._scope(graph, node.bodies[attribute.name], attribute.g)
            before, after = self._node(graph, node, target)
            added += [((place - 1, 3, k), made) for k, made in enumerate(before)]
            added += [((place, 1, k), made) for k, made in enumerate(after)]
        for key, made in added:
            proto.node.add().CopyFrom(made)
            keys.append(key)
        reorder(proto.node, keys)
        self._declare(proto)
        self._initializers(proto)

    def _declare(self, proto: Any) -> None:
        fields = ("input", "output", "value_info") if proto.DESCRIPTOR.name == "GraphProto" else ("value_info",)
        for name in fields:
            for info in getattr(proto, name):
                declared = types.from_proto(info.type)
                if types.element(declared) in LOW:
                    types.set_proto(info.type, types.with_element(declared, types.FLOAT))

    def _initializers(self, proto: Any) -> None:
        if proto.DESCRIPTOR.name != "GraphProto":
            return
        for tensor in proto.initializer:
            if tensor.data_type in LOW:
                tensor.CopyFrom(converted_tensor(tensor, types.FLOAT, False, tensor.name)[0])
        for sparse in proto.sparse_initializer:
            if sparse.values.data_type in LOW:
                sparse.CopyFrom(converted_tensor(sparse, types.FLOAT, False, sparse.values.name)[0])

    # --- one node ---

    def _node(self, graph: Graph, node: Node, target: Any) -> tuple[list[Any], list[Any]]:
        """Raise a node in place; the nodes that go before and after it."""
        if node.function is not None:
            target.op_type = self.bodies[id(node.function)][1].name
            return [], []
        if node.bodies:
            return [], []
        signature = node.signature
        if signature is None or not any(_is_low(v) for v in (*node.inputs, *node.outputs)):
            return [], []
        if node.op_type == "Cast" and not node.domain:
            return [], self._cast(node, target)
        if signature.fixed:
            self._raise_attributes(target)
        elif signature.reads_any:
            return [], []
        elif not _can_rise(node):
            return self._island(node, target)
        if not self.rounding or node.op_type in EXACT or node.op_type in ("Constant", "ConstantOfShape"):
            return [], []
        return [], [made for slot, value in enumerate(node.outputs) for made in self._round(target, slot, value)]

    def _cast(self, node: Node, target: Any) -> list[Any]:
        value = node.outputs[0]
        if not _is_low(value):
            return []
        if not self.rounding:
            next(a for a in target.attribute if a.name == "to").i = types.FLOAT
            return []
        assert value is not None
        if self.saturate and types.element(node.inputs[0].type if node.inputs[0] else 0) in (types.FLOAT, *LOW):
            next(a for a in target.attribute if a.name == "to").i = types.FLOAT
            return self._round(target, 0, value)
        low = self.new.make(f"{value.name}_low")
        target.output[0] = low
        return [self._make_cast(low, value.name, types.FLOAT)]

    def _round(self, target: Any, slot: int, value: Value | None) -> list[Any]:
        """The pair of Casts after one output of a low type."""
        if value is None or not _is_low(value) or isinstance(value.type, tuple):
            return []
        raw, low = self.new.make(f"{value.name}_exact"), self.new.make(f"{value.name}_low")
        target.output[slot] = raw
        elem = types.element(value.type)
        clipped = self._clip(raw, elem) if self.saturate else []
        inside = clipped[-1].output[0] if clipped else raw
        return [*clipped, self._make_cast(inside, low, elem), self._make_cast(low, value.name, types.FLOAT)]

    def _clip(self, name: str, elem: int) -> list[Any]:
        """Nodes that bring a tensor into the finite range of a low type; NaN stays."""
        from onnx import TensorProto, helper

        largest = FINITE_MAX[elem]
        out = self.new.make(f"{name}_clipped")
        if self.graph.opsets.get("", 13) < 11:
            return [
                helper.make_node("Clip", [name], [out], name=self.new.make(f"Clip_{out}"), min=-largest, max=largest)
            ]
        bounds, nodes = [], []
        for bound in (-largest, largest):
            tensor = helper.make_tensor("", TensorProto.FLOAT, [], [bound])
            bounds.append(self.new.make(f"{out}_bound"))
            nodes.append(helper.make_node("Constant", [], [bounds[-1]], name=self.new.make("Bound"), value=tensor))
        return [*nodes, helper.make_node("Clip", [name, *bounds], [out], name=self.new.make(f"Clip_{out}"))]

    def _island(self, node: Node, target: Any) -> tuple[list[Any], list[Any]]:
        """An operator that knows no float32, or that nobody knows: it keeps its types between Casts."""
        before, after = [], []
        for slot, value in enumerate(node.inputs):
            if value is not None and _is_low(value) and not isinstance(value.type, tuple):
                low = self.new.make(f"{value.name}_low")
                before.append(self._make_cast(value.name, low, types.element(value.type)))
                target.input[slot] = low
        for slot, value in enumerate(node.outputs):
            if value is not None and _is_low(value) and not isinstance(value.type, tuple):
                low = self.new.make(f"{value.name}_low")
                target.output[slot] = low
                after.append(self._make_cast(low, value.name, types.FLOAT))
        return before, after

    def _raise_attributes(self, target: Any) -> None:
        for attribute in target.attribute:
            if attribute.name in ("dtype", "output_dtype", "output_datatype") and attribute.i in LOW:
                attribute.i = types.FLOAT
            elif attribute.name == "value" and attribute.t.data_type in LOW:
                attribute.t.CopyFrom(converted_tensor(attribute.t, types.FLOAT, False, attribute.t.name)[0])
            elif attribute.name == "sparse_value" and attribute.sparse_tensor.values.data_type in LOW:
                raised = converted_tensor(attribute.sparse_tensor, types.FLOAT, False, "")[0]
                attribute.sparse_tensor.CopyFrom(raised)

    def _make_cast(self, source: str, out: str, elem: int) -> Any:
        from onnx import helper

        return helper.make_node("Cast", [source], [out], name=self.new.make(f"Cast_{out}"), to=elem)


def _is_low(value: Value | None) -> bool:
    return value is not None and types.element(value.type) in LOW


def _can_rise(node: Node) -> bool:
    signature = node.signature
    if signature is None or signature.schema is None or not signature.groups:
        return False
    wish = tuple([types.FLOAT if g.authored in LOW else g.authored for g in signature.groups])
    return not signature.assign(wish).refused


def _copy(message: Any) -> Any:
    made = type(message)()
    made.CopyFrom(message)
    return made
