"""Build the gated graph of a model, in which each node is behind gates that boolean inputs switch, and split it.

The graph is the float32 reference with an If in place of every node that some plan makes low. The If has the node as it
is in one branch, and the node with rounded inputs, constants and outputs in the other. (A Where would compute both.) So
a search builds one graph and one session, and a trial only changes the flags. Constants are rounded once, when the
graph is built: large ones become initializers, small ones Constant nodes in branches.

The graph of a model that is tuned in segments keeps its weights in their file: rounded copies of all of them would not
fit into memory. There the low branch itself rounds a weight, in each run.

Such a model is split into segments, of which a worker loads one at a time; any other model is one segment. A segment is
a model of its own. It reads inputs of the graph and outputs of earlier segments, and has an input with the flags of its
own gates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.checker.emulation import EmulationBuilder, updates_running_statistics
from mixlist.checker.intended_infinities import mask_slot
from mixlist.model import dtypes
from mixlist.model.graph import Node, Scope, Value
from mixlist.model.inferred_shapes import remove_dimension_names
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import FINITE_MAX, LOW_TYPES
from mixlist.model.naming import NameGenerator, NodeRef, names_of_unnamed_nodes, node_ref, scope_path
from mixlist.model.protos import copy_message, standard_opset
from mixlist.model.split import GraphSplitter
from mixlist.model.weights import is_external, read_pieces, stored_element_count
from mixlist.search.rounding_plan import Rounding, RoundingPoint
from mixlist.write.tensor_conversion import ConstantReport, convert_piece, limit_piece

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

    from mixlist.lists.policy import Clamp

# A constant of up to so many elements is repeated in each branch that reads it, since some kernels require that certain
# inputs are constants (the axes of a reduction).
SMALL_CONSTANT = 2**10

Gate = tuple[RoundingPoint, Rounding]


@dataclass(frozen=True)
class GatedGraph:
    """A gated graph, and the positions of its gates.

    ``proto``: the model. Its nodes read one flag (bool [1]) for each gate; ``flag_names`` are the names of the flags.
    The model does not declare these inputs: ``split_graph`` adds them. ``gates``: the point and the rounding that each
    flag turns on. ``flags_input``: a name for an input that holds several flags. ``output_names``: the names of the
    graph's outputs in the model's order; an output that may be rounded has a new name. ``tensor_types``: the types of
    the main graph's tensors by name. ``computed_constants``: the tensors that nodes compute from constants alone.
    ``origins``: the node of the model that a copy in a branch stands for, by the copy's name.
    """

    proto: ModelProto
    flags_input: str
    gates: tuple[Gate, ...]
    flag_names: tuple[str, ...]
    output_names: tuple[str, ...]
    tensor_types: Mapping[str, dtypes.Type]
    computed_constants: frozenset[str]
    origins: Mapping[str, NodeRef]

    @cached_property
    def _flags_by_point(self) -> dict[RoundingPoint, list[int]]:
        flags: dict[RoundingPoint, list[int]] = {}
        for flag, (point, _) in enumerate(self.gates):
            flags.setdefault(point, []).append(flag)
        return flags

    def find_flag(self, point: RoundingPoint, needed: Rounding) -> int | None:
        """Return the index of a flag that gives a point the needed rounding; None if no gate does.

        A gate with exactly that rounding comes first. One that rounds more inputs than needed takes more time.
        """
        flags = self._flags_by_point.get(point, ())
        exact = next((flag for flag in flags if self.gates[flag][1] == needed), None)
        if exact is not None:
            return exact
        return next((flag for flag in flags if self.gates[flag][1].covers(needed)), None)


# --- build the graph ---


class GateBuilder(EmulationBuilder):
    """Builds the gated graph of a model.

    ``roundings``: the roundings that trials may ask for, by point; each gets a gate. ``clamp``: constants beyond the
    range become the largest finite number, else they become infinite. ``saturate``: the same for computed values.
    ``keep_external``: weights stay in their file, and are rounded in branches. ``absorbing``: see ``emulate``.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        roundings: Mapping[RoundingPoint, Sequence[Rounding]],
        *,
        clamp: Clamp,
        saturate: bool,
        keep_external: bool = False,
        absorbing: AbstractSet[NodeRef] = frozenset(),
    ) -> None:
        # The base class makes the float32 graph and rounds nothing. The gates of this class round.
        super().__init__(loaded, rounding=False, saturate=saturate, keep_external=keep_external)
        self.roundings, self.clamp = roundings, clamp
        self.gates: dict[str, Gate] = {}  # by the names of their flags
        self.origins: dict[str, NodeRef] = {}
        self._absorbing = absorbing
        self.constants = _RoundedConstants(self.proto, self.new_names, loaded.folder)

    def build(self) -> GatedGraph:
        """Return the gated graph."""
        flags_input = self.new_names.make_name("mixlist_gates")
        proto = self.proto
        self._rewrite_graph()
        # Workers get the graph as bytes, and may run on another machine.
        if not self.keep_external:
            self.inline_external()
        if proto.ir_version < 4:
            _remove_initializers_from_inputs(proto)
        remove_dimension_names(proto.graph)
        output_names = tuple(output.name for output in proto.graph.output)
        values = self.graph.root.values
        tensor_types = {name: _as_float32(value.type) for name, value in values.items()}
        computed = frozenset(name for name, value in values.items() if value.is_constant and value.kind == "node")
        gates, flag_names = tuple(self.gates.values()), tuple(self.gates)
        return GatedGraph(proto, flags_input, gates, flag_names, output_names, tensor_types, computed, self.origins)

    # --- scopes and nodes ---

    def _rewrite_scope(self, scope: Scope, scope_proto: GraphProto) -> None:
        # Compute the display names of unnamed nodes now: they depend on the names of other nodes, which gates remove.
        names_of_unnamed_nodes(scope)
        super()._rewrite_scope(scope, scope_proto)
        path = scope_path(scope)
        for slot, value in enumerate(scope.outputs):
            point = RoundingPoint(NodeRef(path, ""), slot)
            for rounding in self.roundings.get(point, ()):
                flag, output = self._add_gate((point, rounding)), scope_proto.output[slot]
                gate = self._gate_value(flag, rounding.inputs[0], value, output.name)
                scope_proto.node.append(gate)
                output.name = gate.output[0]

    def _rewrite_node(self, node: Node, node_proto: NodeProto) -> tuple[list[NodeProto], list[NodeProto]]:
        ref = node_ref(node)
        # Control flow computes nothing itself: only the values that it reads are rounded, each by itself.
        if node.bodies:
            return self._gate_slots(node, node_proto, ref), []
        before, after = super()._rewrite_node(node, node_proto)
        point = RoundingPoint(ref)
        variants = self.roundings.get(point, ())
        if not variants:
            return before, after
        # Nest an If per variant: y = If(flag_2, variant 2, else If(flag_1, variant 1, else the node as it is)).
        plain = copy_message(node_proto)
        nodes = [*before, plain, *after]
        otherwise = self._build_branch(node, nodes, plain, None)
        for rounding in variants:
            low_branch = self._build_branch(node, nodes, plain, rounding)
            outputs = [self.new_names.make_name(v.name) if v is not None else "" for v in node.outputs]
            gate = self._make_if(self._add_gate((point, rounding)), low_branch, otherwise, [n for n in outputs if n])
            otherwise = self._build_node_body([gate], outputs, node)
        # The outermost If replaces the node, and makes the tensors that other nodes read by their names.
        node_proto.CopyFrom(gate)
        del node_proto.output[:]
        node_proto.output.extend(v.name for v in node.outputs if v is not None)
        return [], []

    def _gate_slots(self, node: Node, target: NodeProto, ref: NodeRef) -> list[NodeProto]:
        """Gate each slot of control flow that some plan rounds; return the nodes to put before ``target``."""
        gates: list[NodeProto] = []
        for slot, value in enumerate(node.inputs):
            point = RoundingPoint(ref, slot)
            for rounding in self.roundings.get(point, ()) if value is not None else ():
                assert value is not None
                flag = self._add_gate((point, rounding))
                gates.append(self._gate_value(flag, rounding.inputs[0], value, target.input[slot]))
                target.input[slot] = gates[-1].output[0]
        return gates

    # --- gates ---

    def _add_gate(self, gate: Gate) -> str:
        """Add a gate, and return the name of its flag."""
        flag = self.new_names.make_name(f"mixlist_gate_{len(self.gates)}")
        self.gates[flag] = gate
        return flag

    def _make_if(self, flag: str, low_branch: GraphProto, else_branch: GraphProto, outputs: Sequence[str]) -> NodeProto:
        from onnx import helper

        name = self.new_names.make_name(f"If_{flag}")
        return helper.make_node("If", [flag], outputs, name=name, then_branch=low_branch, else_branch=else_branch)

    def _gate_value(self, flag: str, elem: int, value: Value, current_name: str) -> NodeProto:
        """Return an If that yields a value rounded to ``elem`` if the flag is on, else the tensor ``current_name``.

        ``current_name``: the name of the value or, if the slot has an earlier gate, the name of that gate's output.
        """
        branches: list[GraphProto] = []
        for branch_elem in (elem, 0):
            nodes: list[NodeProto] = []
            if current_name != value.name and not branch_elem:
                # value -> If (earlier gate) -> this If: the branch that does not round reads the earlier gate.
                name = current_name
            else:
                name = self._read_value(value, branch_elem, nodes)
            # The output of a branch must be a tensor that the branch makes, so an Identity passes the value on.
            out = self.new_names.make_name(f"{value.name}_read")
            nodes.append(self.new_names.make_node("Identity", [name], out))
            branches.append(self._build_body(nodes, [(out, value.type)]))
        out = self.new_names.make_name(f"{value.name}_gated")
        return self._make_if(flag, branches[0], branches[1], [out])

    # --- branches ---

    def _build_branch(
        self, node: Node, nodes: list[NodeProto], plain: NodeProto, rounding: Rounding | None
    ) -> GraphProto:
        """Return a branch that computes a node, with its inputs and outputs rounded. If ``rounding`` is None, none is.

        ``nodes``: the message ``plain`` of the node, and the Casts around it. The copies in the branch get new names,
        because two branches of one graph must not share names.
        """
        # 1. The nodes that round the inputs, 2. copies of the node and its Casts, 3. the nodes that round the outputs.
        added: list[NodeProto] = []
        input_names = self._read_inputs(node, plain, rounding, added)
        is_low = rounding is not None and any(rounding.outputs)
        slot = mask_slot(node) if is_low and node_ref(node) in self._absorbing else None
        if slot in input_names:
            added += self.make_masked_scores_equal(input_names[slot])
            input_names[slot] = added[-1].output[0]
        new_names: dict[str, str] = {}
        for message in nodes:
            copy = copy_message(message)
            copy.name = self.new_names.make_name(message.name or message.op_type)
            if message is plain:
                self.origins[copy.name] = node_ref(node)
            for slot, name in enumerate(message.input):
                is_read = message is plain and slot in input_names
                copy.input[slot] = input_names[slot] if is_read else new_names.get(name, name)
            for slot, name in enumerate(message.output):
                if name:
                    new_names[name] = copy.output[slot] = self.new_names.make_name(name)
            if message is plain and updates_running_statistics(plain):
                self._copy_running_statistics(copy, added)
            added.append(copy)
        outputs = []
        for slot, value in enumerate(node.outputs):
            name = new_names[value.name] if value is not None else ""
            elem = rounding.outputs[slot] if rounding is not None and slot < len(rounding.outputs) else 0
            if elem:
                rounded = self.new_names.make_name(f"{name}_rounded")
                added += self.make_rounding_nodes(name, elem, rounded)
                name = rounded
            outputs.append(name)
        return self._build_node_body(added, outputs, node)

    def _copy_running_statistics(self, plain: NodeProto, added: list[NodeProto]) -> None:
        """Let a BatchNormalization read copies of its mean and variance, into which ONNX Runtime writes new ones.

        A condition that depends on the data keeps ONNX Runtime from making constants of the copies.
        """
        largest, condition = (self.new_names.make_name(f"{plain.name}_{part}") for part in ("largest", "condition"))
        added.append(self.new_names.make_node("ReduceMax", [plain.input[0]], largest, keepdims=0))
        added.append(self.new_names.make_cast(largest, condition, dtypes.BOOL))
        for slot in (3, 4):
            name, source = self.new_names.make_name(f"{plain.input[slot]}_copy"), plain.input[slot]
            added.append(self.new_names.make_node("Where", [condition, source, source], name))
            plain.input[slot] = name

    def _read_inputs(
        self, node: Node, plain: NodeProto, rounding: Rounding | None, added: list[NodeProto]
    ) -> dict[int, str]:
        """Return by slot the names of the tensors that a node reads in a branch; append the nodes that make them."""
        input_names: dict[int, str] = {}
        names_by_reading: dict[tuple[str, int, float], str] = {}  # a tensor that is read twice is rounded once
        for slot, value in enumerate(node.inputs):
            if value is None or plain.input[slot] != value.name:
                continue  # the slot is left out, or reads a Cast that the emulation made
            elem = rounding.inputs[slot] if rounding is not None else 0
            limit = rounding.magnitude_limits[slot] if rounding is not None and rounding.magnitude_limits else 0.0
            key = (value.name, elem, limit)
            if key not in names_by_reading:
                names_by_reading[key] = self._read_value(value, elem, added, limit)
            input_names[slot] = names_by_reading[key]
        return input_names

    def _read_value(self, value: Value, elem: int, added: list[NodeProto], limit: float = 0.0) -> str:
        """Return the name of a tensor that holds a value rounded to ``elem``, or as it is (0); append its nodes.

        ``limit``: the magnitude to which the constant of a mask or guard is changed, 0 for other values.
        """
        from onnx import AttributeProto, TensorProto

        constant = value.constant_proto
        # A caller can replace an overridable initializer in a feed, so it is rounded in each run.
        if isinstance(constant, TensorProto | AttributeProto) and value.kind != "overridable":
            if stored_element_count(constant) <= SMALL_CONSTANT:
                name = self.new_names.make_name(f"{value.name}_here")
                added.append(self.constants.make_constant(constant, elem, name, self.clamp, limit))
                return name
            if (elem or limit) and self.keep_external:
                return self._round_in_branch(value.name, elem, limit, added)
            if elem or limit:
                return self.constants.add_initializer(value.name, constant, elem, self.clamp, limit)
        if limit:  # the number of a ConstantOfShape
            return self._round_in_branch(value.name, elem, limit, added)
        if not elem:
            return value.name
        out = self.new_names.make_name(f"{value.name}_rounded")
        added += self.make_rounding_nodes(value.name, elem, out)
        return out

    def _round_in_branch(self, weight: str, elem: int, limit: float, added: list[NodeProto]) -> str:
        """Append the nodes that round a weight as ``_RoundedConstants`` does; return the name of the rounded weight."""
        largest = min(limit or math.inf, FINITE_MAX[elem] if elem and self.clamp else math.inf)
        if largest < math.inf:
            added += self.make_clip(weight, largest)
            weight = added[-1].output[0]
        if not elem:
            return weight
        out = self.new_names.make_name(f"{weight}_rounded")
        added += self.make_cast_pair(weight, elem, out)
        return out

    # --- bodies ---

    def _build_node_body(self, nodes: list[NodeProto], output_names: Sequence[str], node: Node) -> GraphProto:
        """Return a body whose outputs have the types of a node's outputs."""
        outputs = zip(output_names, node.outputs, strict=True)
        return self._build_body(nodes, [(name, value.type) for name, value in outputs if value is not None])

    def _build_body(self, nodes: list[NodeProto], outputs: Sequence[tuple[str, dtypes.Type]]) -> GraphProto:
        """Return a body with these nodes, and outputs with names and types."""
        from onnx import GraphProto

        body = GraphProto(name=self.new_names.make_name("branch"))
        body.node.extend(nodes)
        for name, authored_type in outputs:
            value_info = body.output.add(name=name)
            if authored_type != dtypes.UNKNOWN:
                dtypes.write_type(value_info.type, _as_float32(authored_type))
        return body


def _as_float32(authored_type: dtypes.Type) -> dtypes.Type:
    """Return the type that a value has in the gated graph: float32 in place of a low type."""
    if dtypes.element(authored_type) not in LOW_TYPES:
        return authored_type
    return dtypes.with_element(authored_type, dtypes.FLOAT)


# --- round the constants ---


class _RoundedConstants:
    """Makes rounded copies of a model's constants.

    The copies are float32, and a low type can hold each of their numbers. ``folder``: the folder of the model's
    external data.
    """

    def __init__(self, proto: ModelProto, new_names: NameGenerator, folder: Path | None) -> None:
        self.proto, self.new_names, self.folder = proto, new_names, folder
        # The names of initializers by the constant (the id of its message), the type, the clamping and the limit.
        self._initializers: dict[tuple[int, int, Clamp, float], str] = {}

    def add_initializer(
        self, name: str, constant: TensorProto | AttributeProto, elem: int, clamp: Clamp, limit: float
    ) -> str:
        """Return the name of an initializer that holds a constant rounded to ``elem``; add the initializer if needed.

        ``name``: the constant's own name, which is returned if rounding changes no number. ``clamp``: numbers beyond
        the range become the largest finite number, else they become infinite. ``limit``: the magnitude to which a
        mask's constant is reduced, 0 for other constants.
        """
        from onnx import numpy_helper

        key = (id(constant), elem, clamp, limit)
        if key not in self._initializers:
            unrounded = self._read_rounded(constant, 0, clamp)
            rounded = self._read_rounded(constant, elem, clamp, limit)
            self._initializers[key] = name
            # Compare bytes and not numbers: a NaN is not equal to itself, and 0.0 is equal to -0.0.
            if unrounded.tobytes() != rounded.tobytes():
                new_name = self.new_names.make_name(f"{name}_{dtypes.type_name(elem) if elem else 'mask'}")
                self._initializers[key] = new_name
                self.proto.graph.initializer.append(numpy_helper.from_array(rounded, new_name))
        return self._initializers[key]

    def make_constant(
        self, constant: TensorProto | AttributeProto, elem: int, output: str, clamp: Clamp, limit: float
    ) -> NodeProto:
        """Return a Constant node with a copy of a constant, rounded to ``elem``; if ``elem`` is 0, not rounded."""
        from onnx import TensorProto, helper, numpy_helper

        node = self.new_names.make_node("Constant", [], output)
        must_convert = isinstance(constant, TensorProto) and (
            constant.data_type in LOW_TYPES or is_external(constant)  # the gated graph is float32 and has no files
        )
        if elem or limit or must_convert:
            constant = numpy_helper.from_array(self._read_rounded(constant, elem, clamp, limit))
        # An authored Constant may hold its numbers in the attribute value_float or value_floats: copy that attribute.
        node.attribute.append(
            helper.make_attribute("value", constant) if isinstance(constant, TensorProto) else constant
        )
        return node

    def _read_rounded(
        self, constant: TensorProto | AttributeProto, elem: int, clamp: Clamp, limit: float = 0.0
    ) -> NDArray[np.generic]:
        """Return the numbers of a constant as an array of its shape; numbers of a low type become float32.

        If ``elem`` is not 0, they are rounded to that type. If ``limit`` is not 0, the numbers are first brought within
        it, as ``limit_piece`` does.
        """
        import numpy as np
        from onnx import TensorProto

        # An attribute is the value_floats (a list) or the value_float (a scalar) of a Constant node.
        if isinstance(constant, TensorProto):
            dims, is_low = list(constant.dims), constant.data_type in LOW_TYPES
        else:
            dims, is_low = [len(constant.floats)] if constant.name == "value_floats" else [], False
        report = ConstantReport("")  # counts what changes; nothing reads it here
        parts = [np.asarray(piece) for piece in read_pieces(constant, self.folder)]
        if limit:
            parts = [limit_piece(part, limit, report) for part in parts]
        if elem:
            parts = [convert_piece(part, elem, clamp, report).astype(np.float32) for part in parts]
        elif is_low:
            parts = [part.astype(np.float32) for part in parts]
        return (np.concatenate(parts) if parts else np.zeros(0, np.float32)).reshape(dims)


def _remove_initializers_from_inputs(proto: ModelProto) -> None:
    """Raise a model to IR version 4, and remove its initializers from the inputs.

    Before version 4 every initializer is also an input. From version 4 on, ONNX Runtime does not treat an initializer
    that is an input as a constant, because a feed may replace it.
    """
    proto.ir_version = 4
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value_info for value_info in proto.graph.input if value_info.name not in initializers]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)


# --- split the graph into segments ---


@dataclass(frozen=True)
class Segment:
    """A part of a gated graph.

    ``model``: the segment as a serialized ModelProto. ``input_names``: the graph inputs and the outputs of earlier
    segments that it reads. ``gates``: the indices of its gates in the gated graph. ``flags_input``: the name of a
    further input, the flags of these gates (bool [number of gates]); "" if the segment has no gates.
    """

    model: bytes
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    flags_input: str
    gates: tuple[int, ...]


def split_graph(gated: GatedGraph, cut_outputs: Sequence[Iterable[str]]) -> tuple[Segment, ...]:
    """Return the segments of a gated graph in order; together they make every output.

    ``cut_outputs``: for each cut, tensors of the nodes before it (see ``GraphSplitter.split``).
    """
    splitter = GraphSplitter(gated.proto, gated.tensor_types, gated.computed_constants)
    flag_index = {name: index for index, name in enumerate(gated.flag_names)}
    opset = standard_opset(gated.proto)
    segments = []
    for part in splitter.split(cut_outputs):
        gates = sorted(flag_index[name] for name in part.read_names if name in flag_index)
        if gates:
            _add_flags_input(part.model, gated.flags_input, [gated.flag_names[gate] for gate in gates], opset)
        flags_input = gated.flags_input if gates else ""
        model = part.model.SerializeToString()
        segments.append(Segment(model, part.input_names, part.output_names, flags_input, tuple(gates)))
    return tuple(segments)


def _add_flags_input(model: ModelProto, flags_input: str, flag_names: Sequence[str], opset: int) -> None:
    """Add the input with all flags of a segment, and the node that splits it, which comes first."""
    from onnx import TensorProto, helper

    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.append(_split_flags(flags_input, flag_names, opset))
    model.graph.node.extend(nodes)
    model.graph.input.append(helper.make_tensor_value_info(flags_input, TensorProto.BOOL, [len(flag_names)]))


def _split_flags(flags_input: str, flag_names: Sequence[str], opset: int) -> NodeProto:
    """Return the node that splits the input with all flags of a segment into one flag (bool [1]) per name."""
    from onnx import helper

    name = f"{flags_input}_spread"
    if len(flag_names) == 1:
        return helper.make_node("Identity", [flags_input], list(flag_names), name=name)
    # Split needs num_outputs from opset 18 on, and does not know it before. make_node leaves out what is None.
    num_outputs = len(flag_names) if opset >= 18 else None
    return helper.make_node("Split", [flags_input], list(flag_names), name=name, axis=0, num_outputs=num_outputs)
