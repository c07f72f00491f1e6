"""Writing a Layout into protobuf: names, Casts, declared types. It decides nothing."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.graph.model import CAST_MARK, Node, Scope, Value
from mixlist.graph.proto_edits import SortKey, reorder_messages
from mixlist.graph.traversal import is_graph, linked_scopes
from mixlist.ops import types
from mixlist.resolver.decisions import GraphSolution
from mixlist.rewriter.cast_layout import Layout, NewCast

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto

    from mixlist.graph.proto_types import ScopeProto


class Emitter:
    """Rewrites one graph's protobuf messages, which must be a copy of those that the Graph was built from."""

    def __init__(self, solution: GraphSolution, layout: Layout, calls: dict[int, str]) -> None:
        self.solution = solution
        self.layout = layout
        self.calls = calls  # new function names by id of the call node
        marked = any(scope.marked_casts for scope in linked_scopes(solution.graph.root))
        self.renames = bool(layout.names) or marked  # the reader of a Cast that mixlist made reads the Cast's input now

    def emit(self, messages: dict[Scope, ScopeProto], constants: dict[Scope, list[tuple[Value, NodeProto]]]) -> None:
        """Bring the message of each scope into the decided form; ``constants`` are new Constant nodes by scope."""
        for scope, proto in messages.items():
            for node in scope.nodes:
                self._edit(node, proto)
            self._edit_outputs(scope, proto)
            self._retype(scope, proto)
            self._insert(scope, proto, constants.get(scope, []))

    # --- names ---

    def _edit(self, node: Node, proto: ScopeProto) -> None:
        target, edits = proto.node[node.position], self.layout.inputs.get(node, {})
        for slot, name in edits.items():
            target.input[slot] = name
        if node.id in self.calls:
            target.op_type = self.calls[node.id]
        if node.op_type == "Cast" and node.proto.metadata_props:
            _unmark(target)
        if self.renames:
            self._rename(node, target, edits)

    def _rename(self, node: Node, target: NodeProto, edits: dict[int, str]) -> None:
        for slot, value in enumerate(node.inputs):
            if value is not None and slot not in edits:
                target.input[slot] = self.layout.name(value)
        for slot, value in enumerate(node.outputs):
            if value is not None:
                target.output[slot] = self.layout.name(value)

    def _edit_outputs(self, scope: Scope, proto: ScopeProto) -> None:
        if scope is self.solution.graph.root or not is_graph(proto):
            return  # the names of a model's or function's outputs never change
        edits = self.layout.outputs.get(scope, {})
        for slot, value in enumerate(scope.outputs):
            proto.output[slot].name = edits.get(slot, self.layout.name(value))

    # --- declared types ---

    def _final(self, value: Value) -> types.Type:
        elem = self.layout.elements.get(value.id, self.solution.decided_types[value.id])
        return types.with_element(value.type, elem) if value.type != types.UNKNOWN else types.UNKNOWN

    def _retype(self, scope: Scope, proto: ScopeProto) -> None:
        if is_graph(proto):
            for value, info in zip(scope.inputs, proto.input, strict=True):
                _set_type(info, self._final(value))
            self._retype_outputs(scope, proto)
        produced = {c.name: c for c in self.layout.casts.get(scope, ())}
        by_name = scope.values if not self.renames else {self.layout.name(v): v for v in scope.values.values()}
        order: list[SortKey | None] = []
        for index, info in enumerate(proto.value_info):
            cast, known = produced.get(info.name), by_name.get(info.name)
            order.append((index, 0, 0) if cast is not None or known is not None else None)
            if cast is not None:
                _set_type(info, types.with_element(cast.value.type, cast.elem))
            elif known is not None:
                _set_type(info, self._final(known))
        if None in order:  # stale: it names a tensor that is not there
            reorder_messages(proto.value_info, order)

    def _retype_outputs(self, scope: Scope, proto: GraphProto) -> None:
        casts = {c.name: c.elem for c in self.layout.casts.get(scope, ())}
        edits = self.layout.outputs.get(scope, {})
        root = scope is self.solution.graph.root
        for slot, (value, info) in enumerate(zip(scope.outputs, proto.output, strict=True)):
            final = self._final(value)
            if root and value.name in casts:
                final = types.with_element(value.type, casts[value.name])
            elif slot in edits:
                final = types.with_element(value.type, self._named(edits[slot]))
            _set_type(info, final)

    def _named(self, name: str) -> int:
        """Return the type of a tensor that an output now names: a new one, or one of the model."""
        if name in self._made:
            return self._made[name]
        named = (v for v in self.solution.graph.values if self.layout.name(v) == name)
        return next((types.element(self._final(v)) for v in named), types.UNKNOWN)

    @cached_property
    def _made(self) -> dict[str, int]:
        """The types of the tensors that Casts make and constants become, by name."""
        by_casts = {cast.name: cast.elem for casts in self.layout.casts.values() for cast in casts}
        return by_casts | {constant.name: constant.elem for constant in self.layout.converted}

    # --- new nodes ---

    def _insert(self, scope: Scope, proto: ScopeProto, constants: list[tuple[Value, NodeProto]]) -> None:
        casts = self.layout.casts.get(scope, [])
        moved = [n for n in self.layout.moved if n.scope is scope]
        if scope.is_sorted and not (casts or scope.marked_casts or constants or moved):
            return
        keys: list[SortKey | None] = [None] * len(proto.node)
        place = {node: index for index, node in enumerate(scope.nodes)}
        for node, index in place.items():
            keys[node.position] = (index, 0, 0)
        for node in moved:
            keys[node.position] = self._after(place, node.inputs[0], 3, node.position)
        for order, cast in enumerate(casts):
            _add_cast(proto.node.add(), cast, self.layout.name(cast.value))
            keys.append(self._after(place, cast.value, 2, order))
        for order, (value, made) in enumerate(constants):
            proto.node.add().CopyFrom(made)
            keys.append(self._after(place, value, 1, order))
        reorder_messages(proto.node, keys)

    @staticmethod
    def _after(place: dict[Node, int], value: Value | None, rank: int, order: int) -> SortKey:
        """Right after the node that makes ``value``; before all nodes where no node of this scope does."""
        maker = value.producer if value is not None else None
        return (place.get(maker, -1) if maker is not None else -1, rank, order)


def _set_type(info: ValueInfoProto, final: types.Type) -> None:
    """Declare the type where something is declared and it differs; shapes stay."""
    declared = types.from_proto(info.type)
    if final == types.UNKNOWN or declared in (final, types.UNKNOWN):
        return
    if types.with_element(declared, types.element(final)) != final:
        info.ClearField("type")
    types.set_proto(info.type, final)


def _add_cast(node: NodeProto, cast: NewCast, source: str) -> None:
    node.op_type = "Cast"
    node.name = cast.node_name
    node.input.append(source)
    node.output.append(cast.name)
    node.attribute.add(name="to", i=cast.elem, type=2)
    node.metadata_props.add(key=CAST_MARK, value="output" if cast.output else "tensor")


def _unmark(cast: NodeProto) -> None:
    """Take the mark from a Cast that mixlist made and somebody put to another use: it is the user's now."""
    for position in reversed([i for i, p in enumerate(cast.metadata_props) if p.key == CAST_MARK]):
        del cast.metadata_props[position]
