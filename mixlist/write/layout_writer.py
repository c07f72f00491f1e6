"""Write a CastLayout into the protobuf messages of a graph: names, Casts and declared types."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.decide.constant_ranges import read_fill_value
from mixlist.decide.solution import Solution
from mixlist.model import dtypes
from mixlist.model.graph import CAST_MARK, Node, Scope, Value, linked_scopes
from mixlist.model.protos import SortKey, reorder_messages
from mixlist.write.cast_layout import CastLayout
from mixlist.write.tensor_conversion import float_dtype

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto


class LayoutWriter:
    """Writes a CastLayout into the protobuf messages of a graph.

    The messages are those from which the Graph was built, or a copy of them.
    """

    def __init__(self, solution: Solution, layout: CastLayout) -> None:
        self.solution = solution
        self.layout = layout
        # The readers of a Cast that an earlier rewrite made now read the Cast's input, which has another name.
        has_marked_casts = any(scope.marked_casts for scope in linked_scopes(solution.graph.root))
        self.renames_values = bool(layout.value_names) or has_marked_casts

    def write(self, protos: dict[Scope, GraphProto], new_constants: dict[Scope, list[tuple[Value, NodeProto]]]) -> None:
        """Rewrite the message of each scope.

        ``new_constants``: the new Constant nodes of each scope, each with the constant that it holds in another type.
        """
        for scope, proto in protos.items():
            # Node.position is the place in the file, so nodes are inserted and sorted only at the end.
            for node in scope.nodes:
                self._edit_node(node, proto)
            self._edit_outputs(scope, proto)
            self._declare_types(scope, proto)
            self._insert_nodes(scope, proto, new_constants.get(scope, []))

    # --- names ---

    def _edit_node(self, node: Node, proto: GraphProto) -> None:
        message, new_names = proto.node[node.position], self.layout.input_names.get(node, {})
        for slot, name in new_names.items():
            message.input[slot] = name
        if node.op_type == "Cast" and node.is_plain:
            # Most marked Casts of an earlier rewrite are no nodes of the graph. `_remove_mark` says which ones are.
            _remove_mark(message)
            self._edit_cast(node, message)
        if node.op_type == "ConstantOfShape":
            self._edit_fill(node, message)
        if self.renames_values:
            self._rename_values(node, message, new_names)

    def _edit_cast(self, cast: Node, message: NodeProto) -> None:
        """Let a Cast of the author make the decided type (Rule S4.45)."""
        value = cast.outputs[0]
        if value is not None and isinstance(value.type, int) and self.solution.decided_types[value.id] != value.type:
            for attribute in message.attribute:
                if attribute.name == "to":
                    attribute.i = self.solution.decided_types[value.id]

    def _edit_fill(self, node: Node, message: NodeProto) -> None:
        """Give the number of a ConstantOfShape the decided type (Rule S4.44) and magnitude (Rule S4.36)."""
        import numpy as np
        from onnx import helper, numpy_helper

        value, number = node.outputs[0], read_fill_value(node)
        if value is None or number is None or value.type not in dtypes.MIXABLE:
            return
        elem, limit = self.solution.decided_types[value.id], self.solution.reduced_fills.get(node, math.inf)
        if elem == value.type and abs(number) <= limit:
            return
        number = math.copysign(min(abs(number), limit), number)
        array = np.array([number], float_dtype(elem))
        del message.attribute[:]  # ``value`` is the only attribute
        message.attribute.append(helper.make_attribute("value", numpy_helper.from_array(array)))

    def _rename_values(self, node: Node, message: NodeProto, new_names: dict[int, str]) -> None:
        """Write the final names of the node's inputs and outputs; slots in ``new_names`` have their names."""
        for slot, value in enumerate(node.inputs):
            if value is not None and slot not in new_names:
                message.input[slot] = self.layout.final_name(value)
        for slot, value in enumerate(node.outputs):
            if value is not None:
                message.output[slot] = self.layout.final_name(value)

    def _edit_outputs(self, scope: Scope, proto: GraphProto) -> None:
        if scope is self.solution.graph.root:
            return  # the names of a model's outputs never change
        new_names = self.layout.output_names.get(scope, {})
        for slot, value in enumerate(scope.outputs):
            proto.output[slot].name = new_names.get(slot, self.layout.final_name(value))

    # --- declared types ---

    def _final_type(self, value: Value) -> dtypes.Type:
        elem = self.layout.value_types.get(value.id, self.solution.decided_types[value.id])
        return dtypes.with_element(value.type, elem) if value.type != dtypes.UNKNOWN else dtypes.UNKNOWN

    def _declare_types(self, scope: Scope, proto: GraphProto) -> None:
        """Correct the declared types of a scope's inputs, outputs and value_info; remove stale value_info."""
        for input_value, info in zip(scope.inputs, proto.input, strict=True):
            _set_declared_type(info, self._final_type(input_value))
        self._declare_output_types(scope, proto)
        cast_by_name = {cast.name: cast for cast in self.layout.casts.get(scope, ())}
        # Without renamed values, the names of the linked scope are those of the file.
        value_by_name = scope.values
        if self.renames_values or self.layout.removed_casts:
            removed = self.layout.removed_casts
            values = (value for value in scope.values.values() if value.producer not in removed)
            value_by_name = {self.layout.final_name(value): value for value in values}
        # An entry whose tensor does not exist any more gets the key None, which removes it (Rule S7.10).
        keys: list[SortKey | None] = []
        for index, info in enumerate(proto.value_info):
            cast, value = cast_by_name.get(info.name), value_by_name.get(info.name)
            keys.append((index, 0, 0) if cast is not None or value is not None else None)
            if cast is not None:
                _set_declared_type(info, dtypes.with_element(cast.value.type, cast.elem))
            elif value is not None:
                _set_declared_type(info, self._final_type(value))
        if None in keys:
            reorder_messages(proto.value_info, keys)

    def _declare_output_types(self, scope: Scope, proto: GraphProto) -> None:
        cast_types = {cast.name: cast.elem for cast in self.layout.casts.get(scope, ())}
        new_names = self.layout.output_names.get(scope, {})
        is_root = scope is self.solution.graph.root
        for slot, (value, info) in enumerate(zip(scope.outputs, proto.output, strict=True)):
            final_type = self._final_type(value)
            if is_root and value.name in cast_types:  # the Cast that makes this graph output has its name
                final_type = dtypes.with_element(value.type, cast_types[value.name])
            elif slot in new_names:  # a body yields a converted tensor instead of the value
                final_type = dtypes.with_element(value.type, self._type_of_name(new_names[slot]))
            _set_declared_type(info, final_type)

    def _type_of_name(self, name: str) -> int:
        """Return the element type of the tensor called ``name`` in the rewritten model, new tensors included."""
        if name in self._types_of_new_tensors:
            return self._types_of_new_tensors[name]
        values = (value for value in self.solution.graph.values if self.layout.final_name(value) == name)
        return next((dtypes.element(self._final_type(value)) for value in values), dtypes.UNKNOWN)

    @cached_property
    def _types_of_new_tensors(self) -> dict[str, int]:
        """Return the element types of the tensors that new Casts make and that constants become, by name."""
        by_casts = {cast.name: cast.elem for casts in self.layout.casts.values() for cast in casts}
        return by_casts | {constant.name: constant.elem for constant in self.layout.converted_constants}

    # --- new nodes ---

    def _insert_nodes(self, scope: Scope, proto: GraphProto, new_constants: list[tuple[Value, NodeProto]]) -> None:
        """Insert the new nodes of a scope, and sort its nodes topologically.

        A sort key is (position of a node in the scope, rank, order). The nodes that follow a producer directly have the
        position of the producer, and their rank sorts them: 1 for copies of a Constant, 2 for new Casts, 3 for moved
        Casts of the user.
        """
        casts = self.layout.casts.get(scope, [])
        moved_casts = [node for node in self.layout.moved_casts if node.scope is scope]
        removed_casts = [node for node in self.layout.removed_casts if node.scope is scope]
        widening_casts = self.layout.widening_casts.get(scope, [])
        if scope.is_sorted and not (
            casts or widening_casts or scope.marked_casts or new_constants or moved_casts or removed_casts
        ):
            return
        # Marked Casts of an earlier rewrite are no nodes of the scope, so their key stays None, which removes them.
        keys: list[SortKey | None] = [None] * len(proto.node)
        positions = {node: position for position, node in enumerate(scope.nodes)}
        for node, position in positions.items():
            keys[node.position] = (position, 0, 0)
        for node in moved_casts:
            keys[node.position] = self._key_after(positions, node.inputs[0], 3, node.position)
        for node in removed_casts:
            keys[node.position] = None
        for order, cast in enumerate(casts):
            mark = "output" if cast.makes_graph_output else "tensor"
            _fill_cast(proto.node.add(), cast.node_name, self.layout.final_name(cast.value), cast.name, cast.elem, mark)
            keys.append(self._key_after(positions, cast.value, 2, order))
        for order, widening in enumerate(widening_casts):
            _fill_cast(proto.node.add(), widening.node_name, widening.input_name, widening.name, dtypes.FLOAT, "tensor")
            keys.append((positions[widening.node], -1, order))
        for order, (value, constant_node) in enumerate(new_constants):
            proto.node.add().CopyFrom(constant_node)
            keys.append(self._key_after(positions, value, 1, order))
        reorder_messages(proto.node, keys)

    @staticmethod
    def _key_after(positions: dict[Node, int], value: Value | None, rank: int, order: int) -> SortKey:
        """Return the sort key after the producer of ``value``; before all nodes if no node of the scope makes it."""
        producer = value.producer if value is not None else None
        # An input, an initializer or a value of an outer scope exists before the first node.
        return (positions.get(producer, -1) if producer is not None else -1, rank, order)


def _set_declared_type(info: ValueInfoProto, final_type: dtypes.Type) -> None:
    """Correct the declared type if there is one and it differs; the declared shape stays."""
    declared = dtypes.from_proto(info.type)
    if final_type == dtypes.UNKNOWN or declared in (final_type, dtypes.UNKNOWN):
        return
    # If more than the element type differs (a stale declaration), the shape belongs to something else.
    if dtypes.with_element(declared, dtypes.element(final_type)) != final_type:
        info.ClearField("type")
    dtypes.write_type(info.type, final_type)


def _fill_cast(node: NodeProto, name: str, input_name: str, output_name: str, elem: int, mark: str) -> None:
    """Write a new Cast into an empty node. Its mark lets the next rewrite recognize it (Rule S4.18)."""
    node.op_type = "Cast"
    node.name = name
    node.input.append(input_name)
    node.output.append(output_name)
    node.attribute.add(name="to", i=elem, type=2)  # 2 is AttributeProto.INT
    node.metadata_props.add(key=CAST_MARK, value=mark)


def _remove_mark(cast: NodeProto) -> None:
    """Remove the mark of a Cast that is a node of the graph.

    mixlist made this Cast and another program changed its use, so it counts as a Cast of the user (Rule S7.7).
    """
    # Backward, because a deletion moves the entries behind it.
    for position in reversed([i for i, entry in enumerate(cast.metadata_props) if entry.key == CAST_MARK]):
        del cast.metadata_props[position]
