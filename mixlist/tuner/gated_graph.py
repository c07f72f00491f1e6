"""Make one graph that can round as any plan does: each node behind a gate, chosen by a boolean input.

The float32 reference with an If in place of every node that some plan makes low: one branch computes the node as
it is, the others with rounded inputs, weights and outputs. (A Where would compute every branch.) Weights are rounded
once, when the graph is made. A function's body is copied for each call, since each may be decided by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.emulation.emulate import EmulationBuilder
from mixlist.graph.load import LoadedModel
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import display_names, node_ref, scope_path
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.refs import NodeRef
from mixlist.graph.traversal import is_graph
from mixlist.graph.weights import is_external, read_pieces, stored_element_count
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.rewriter.tensor_conversion import ConstantReport, convert_piece, reduce_piece
from mixlist.tuner.rounding_plan import Calls, Rounding, RoundingPoint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

    from mixlist.graph.proto_types import ScopeProto

SMALL = 2**10  # elements up to which a constant is repeated in a branch: some kernels want theirs as constants
Gate = tuple[RoundingPoint, Rounding]


@dataclass(frozen=True)
class GatedGraph:
    """``proto``, whose nodes read a boolean [1] of each of ``names``; ``gates`` says what each turns on.

    ``flags`` is a name for all of them together, which ``split`` gives each piece as an input. ``outputs`` are the
    names of the graph's outputs, in the model's order: one that may be rounded has another name. ``kinds`` are the
    types of the main graph's tensors; ``constants`` those that nodes compute of constants alone, rounded or not.
    ``origins``: which node of the model is behind a gate, by the name of each copy of it.
    """

    proto: ModelProto
    flags: str
    gates: tuple[Gate, ...]
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    kinds: Mapping[str, types.Type]
    constants: frozenset[str]
    origins: Mapping[str, NodeRef]

    @cached_property
    def _flags_of(self) -> dict[RoundingPoint, list[int]]:
        flags: dict[RoundingPoint, list[int]] = {}
        for flag, (point, _) in enumerate(self.gates):
            flags.setdefault(point, []).append(flag)
        return flags

    def find(self, point: RoundingPoint, wanted: Rounding) -> int | None:
        """Return the flag that rounds a point so; None where no gate does."""
        offered = self._flags_of.get(point, ())
        exact = next((flag for flag in offered if self.gates[flag][1] == wanted), None)
        return exact if exact is not None else next((f for f in offered if self.gates[f][1].covers(wanted)), None)


class GateBuilder(EmulationBuilder):
    """Makes the gated graph of a model; ``wanted`` are the roundings that each point may be asked for.

    ``clamp``: constants beyond the low range become its largest value, else infinite; ``saturate``: computed values do.
    """

    def __init__(
        self, loaded: LoadedModel, wanted: Mapping[RoundingPoint, Sequence[Rounding]], *, clamp: bool, saturate: bool
    ) -> None:
        super().__init__(loaded, rounding=False, saturate=saturate)
        self.wanted = wanted
        self.clamp = clamp
        self.calls: Calls = ()
        self.gates: dict[str, Gate] = {}  # by the names of their flags
        self.origins: dict[str, NodeRef] = {}  # of the copies in branches
        self.functions: list[FunctionProto] = []
        self.rounded: dict[tuple[int, int, bool, float], str] = {}  # weights, by id of the tensor and the treatment

    def build(self) -> GatedGraph:
        """Return the graph in which every scope is gated."""
        flags = self.new_names.make_name("mixlist_gates")
        proto = self.proto
        self._rewrite_graph(self.graph, proto.graph)
        del proto.functions[:]
        proto.functions.extend(self.functions)  # one copy per call
        self.inline_external()
        if proto.ir_version < 4:
            _initializers_alone(proto)
        outputs = tuple(output.name for output in proto.graph.output)
        values = self.graph.root.values
        kinds = {name: _as_float32(value.type) for name, value in values.items()}
        constants = frozenset(name for name, value in values.items() if value.is_constant and value.kind == "node")
        gates, names = tuple(self.gates.values()), tuple(self.gates)
        return GatedGraph(proto, flags, gates, names, outputs, kinds, constants, self.origins)

    # --- what is gated ---

    def _rewrite_scope(self, graph: Graph, scope: Scope, proto: ScopeProto) -> None:
        display_names(scope)  # now: gates take the names of nodes away, and those decide what others are called
        super()._rewrite_scope(graph, scope, proto)
        if not is_graph(proto):  # the calls of a function round its outputs
            return
        path = scope_path(graph, scope)
        for slot, value in enumerate(scope.outputs):
            point = RoundingPoint(self.calls, NodeRef(path, ""), slot)
            for rounding in self.wanted.get(point, ()):
                plain = proto.output[slot].name
                gate = self._gate_read(self._flag((point, rounding)), rounding.inputs[0], value, plain)
                proto.node.append(gate)
                proto.output[slot].name = gate.output[0]

    def _rewrite_node(self, graph: Graph, node: Node, target: NodeProto) -> tuple[list[NodeProto], list[NodeProto]]:
        ref = node_ref(graph, node)
        if node.function is not None or node.bodies:
            before: list[NodeProto] = []
            for slot, value in enumerate(node.inputs):
                point = RoundingPoint(self.calls, ref, slot)
                for rounding in self.wanted.get(point, ()) if value is not None else ():
                    assert value is not None
                    flag = self._flag((point, rounding))
                    before.append(self._gate_read(flag, rounding.inputs[0], value, target.input[slot]))
                    target.input[slot] = before[-1].output[0]
            if node.function is not None:
                self._call(node, target, ref)
            return before, []
        before, after = super()._rewrite_node(graph, node, target)
        point = RoundingPoint(self.calls, ref)
        variants = self.wanted.get(point, ())
        if not variants:
            return before, after
        if any(v is not None and not isinstance(v.type, int) for v in node.outputs):
            return [*before, *self._gate_reads(point, variants, node, target)], after
        plain = copy_message(target)
        nodes = [*before, plain, *after]
        otherwise = self._branch(graph, node, nodes, plain, None)
        for rounding in variants:
            low = self._branch(graph, node, nodes, plain, rounding)
            outputs = [self.new_names.make_name(v.name) if v is not None else "" for v in node.outputs]
            gate = self._if(self._flag((point, rounding)), low, otherwise, [n for n in outputs if n])
            otherwise = self._body([gate], outputs, node)
        target.CopyFrom(gate)
        del target.output[:]
        target.output.extend(v.name for v in node.outputs if v is not None)
        return [], []

    def _call(self, node: Node, target: NodeProto, ref: NodeRef) -> None:
        """Add a copy of the function for this call, with the flags of its gates as further inputs."""
        body = node.function
        assert body is not None
        message = copy_message(body.function)
        message.name = target.op_type = self.new_names.make_name(message.name)
        first, self.calls = len(self.gates), (*self.calls, ref)
        self._rewrite_graph(body, message)
        self.calls = self.calls[:-1]
        flags = list(self.gates)[first:]
        if flags:
            target.input.extend([""] * (len(message.input) - len(target.input)))
            target.input.extend(flags)
            message.input.extend(flags)
        self.functions.append(message)

    # --- gates ---

    def _flag(self, what: Gate) -> str:
        """Add a gate; return the name of its flag."""
        flag = self.new_names.make_name(f"mixlist_gate_{len(self.gates)}")
        self.gates[flag] = what
        return flag

    def _if(self, flag: str, low: GraphProto, plain: GraphProto, outputs: Sequence[str]) -> NodeProto:
        from onnx import helper

        name = self.new_names.make_name(f"If_{flag}")
        return helper.make_node("If", [flag], outputs, name=name, then_branch=low, else_branch=plain)

    def _gate_read(self, flag: str, elem: int, value: Value, plain: str) -> NodeProto:
        """Make the node that hands out a tensor that is ``plain``, or where the gate is on the value rounded."""

        branches: list[GraphProto] = []
        for low in (elem, 0):
            inside: list[NodeProto] = []
            outer = value.scope.owner is None and bool(self.calls)
            name = plain if plain != value.name and not low else self._read(value, low, inside, outer)
            out = self.new_names.make_name(f"{value.name}_read")
            inside.append(self.new_names.make_node("Identity", [name], out))
            branches.append(self._graph(inside, [(out, value.type)]))
        out = self.new_names.make_name(f"{value.name}_gated")
        return self._if(flag, branches[0], branches[1], [out])

    def _gate_reads(
        self, point: RoundingPoint, variants: Sequence[Rounding], node: Node, target: NodeProto
    ) -> list[NodeProto]:
        """Add gates at the inputs of a node that makes a sequence or optional, which no If yields before opset 16."""
        nodes: list[NodeProto] = []
        for rounding in variants:
            flag = self._flag((point, rounding))
            for slot, (value, elem) in enumerate(zip(node.inputs, rounding.inputs, strict=True)):
                if value is not None and elem:
                    nodes.append(self._gate_read(flag, elem, value, target.input[slot]))
                    target.input[slot] = nodes[-1].output[0]
        return nodes

    def _branch(
        self, graph: Graph, node: Node, nodes: list[NodeProto], plain: NodeProto, rounding: Rounding | None
    ) -> GraphProto:
        """Make a body that computes ``plain`` among ``nodes``, as it is or rounded; tensors inside get new names."""
        reads: list[NodeProto] = []
        read = self._reads(graph, node, plain, rounding, reads)
        names: dict[str, str] = {}
        inside: list[NodeProto] = []
        for made in nodes:
            copy = copy_message(made)
            copy.name = self.new_names.make_name(made.name or made.op_type)
            if made is plain:
                self.origins[copy.name] = node_ref(graph, node)
            for slot, name in enumerate(made.input):
                copy.input[slot] = read[slot] if made is plain and slot in read else names.get(name, name)
            for slot, name in enumerate(made.output):
                if name:
                    names[name] = copy.output[slot] = self.new_names.make_name(name)
            inside.append(copy)
        outputs = []
        for slot, value in enumerate(node.outputs):
            name = names[value.name] if value is not None else ""
            elem = rounding.outputs[slot] if rounding is not None and slot < len(rounding.outputs) else 0
            if elem:
                out = self.new_names.make_name(f"{name}_rounded")
                inside += self.rounding_nodes(name, elem, out)
                name = out
            outputs.append(name)
        return self._body([*reads, *inside], outputs, node)

    def _reads(
        self, graph: Graph, node: Node, plain: NodeProto, rounding: Rounding | None, nodes: list[NodeProto]
    ) -> dict[int, str]:
        """Return what the node reads by slot; the nodes that make it are added."""
        found: dict[int, str] = {}
        done: dict[tuple[str, int, float], str] = {}
        for slot, value in enumerate(node.inputs):
            if value is None or plain.input[slot] != value.name:
                continue  # left out, or fitted to another type already
            elem = rounding.inputs[slot] if rounding is not None else 0
            limit = rounding.limits[slot] if rounding is not None and rounding.limits else 0.0
            key = (value.name, elem, limit)
            if key not in done:
                done[key] = self._read(value, elem, nodes, bool(graph.path), limit)
            found[slot] = done[key]
        return found

    def _read(self, value: Value, elem: int, nodes: list[NodeProto], in_function: bool, limit: float = 0.0) -> str:
        """Return the name of a value as it is or rounded; small constants are copied, as kernels may want constants.

        With a ``limit`` the value is a mask's constant, whose magnitudes are reduced.
        """
        from onnx import AttributeProto, TensorProto

        tensor = value.constant_proto
        if isinstance(tensor, TensorProto | AttributeProto) and value.kind != "overridable":
            if stored_element_count(tensor) <= SMALL or (limit and in_function):
                name = self.new_names.make_name(f"{value.name}_here")
                nodes.append(self._constant(tensor, elem, name, limit))
                return name
            if (elem or limit) and not in_function:
                return self._weight(value.name, tensor, elem, self.clamp, limit)
        if not elem:
            return value.name
        carried = self._carried(value) if not in_function and not self.saturate else None
        if carried is not None and isinstance(carried.constant_proto, TensorProto):
            rounded = self._weight(carried.name, carried.constant_proto, elem, clamp=False)
            return rounded if rounded != carried.name else value.name
        out = self.new_names.make_name(f"{value.name}_rounded")
        nodes += self.rounding_nodes(value.name, elem, out)
        return out

    # --- constants ---

    def _carried(self, value: Value) -> Value | None:
        """Return the main graph's constant that a loop hands on from turn to turn; None for what else a body reads.

        (Paddle's exporter gives a loop its weights so. They would be rounded in each turn.)
        """
        at: Value | None = value
        while at is not None and at.kind == "input" and at.scope.owner is not None:
            body, loop = at.scope, at.scope.owner
            slot = body.inputs.index(at)
            if loop.op_type != "Loop" or loop.domain or slot < 2 or body.outputs[slot - 1] is not at:
                return None
            if RoundingPoint((), node_ref(self.graph, loop), slot) in self.wanted:
                return None  # some plan converts it on the way in, by the policy for constants
            at = loop.inputs[slot]
        if at is None or at is value or at.kind == "overridable" or at.scope.owner is not None:
            return None
        return at if types.element(at.type) == types.FLOAT else None

    def _weight(
        self, name: str, tensor: TensorProto | AttributeProto, elem: int, clamp: bool, limit: float = 0.0
    ) -> str:
        """Return the initializer that holds a weight rounded; the weight itself where that changes nothing."""
        from onnx import numpy_helper

        key = (id(tensor), elem, clamp, limit)
        if key not in self.rounded:
            exact, rounded = self._numbers(tensor, 0, clamp), self._numbers(tensor, elem, clamp, limit)
            self.rounded[key] = name
            if exact.tobytes() != rounded.tobytes():
                self.rounded[key] = self.new_names.make_name(f"{name}_{types.type_name(elem) if elem else 'mask'}")
                self.proto.graph.initializer.append(numpy_helper.from_array(rounded, self.rounded[key]))
        return self.rounded[key]

    def _constant(self, tensor: TensorProto | AttributeProto, elem: int, name: str, limit: float) -> NodeProto:
        from onnx import TensorProto, helper, numpy_helper

        node = self.new_names.make_node("Constant", [], name)
        is_stored = isinstance(tensor, TensorProto) and (tensor.data_type in LOW_TYPES or is_external(tensor))
        if elem or limit or is_stored:
            tensor = numpy_helper.from_array(self._numbers(tensor, elem, self.clamp, limit))
        # A Constant's number or list of numbers is an attribute itself.
        node.attribute.append(helper.make_attribute("value", tensor) if isinstance(tensor, TensorProto) else tensor)
        return node

    def _numbers(
        self, tensor: TensorProto | AttributeProto, elem: int, clamp: bool, limit: float = 0.0
    ) -> NDArray[np.generic]:
        """Return the numbers of a constant in its shape: rounded to ``elem`` and float32 again, or (0) as they are.

        A ``limit`` that is not zero reduces them first.
        """
        import numpy as np
        from onnx import TensorProto

        if isinstance(tensor, TensorProto):
            dims, is_low = list(tensor.dims), tensor.data_type in LOW_TYPES
        else:
            dims, is_low = [len(tensor.floats)] if tensor.name == "value_floats" else [], False
        report = ConstantReport("")
        parts = [np.asarray(p) for p in read_pieces(tensor, self.loaded.folder)]
        if limit:
            parts = [reduce_piece(p, limit, report) for p in parts]
        if elem:
            parts = [convert_piece(p, elem, clamp, report).astype(np.float32) for p in parts]
        elif is_low:
            parts = [p.astype(np.float32) for p in parts]
        return (np.concatenate(parts) if parts else np.zeros(0, np.float32)).reshape(dims)

    # --- bodies ---

    def _body(self, nodes: list[NodeProto], outputs: Sequence[str], node: Node) -> GraphProto:
        made = zip(outputs, node.outputs, strict=True)
        return self._graph(nodes, [(name, value.type) for name, value in made if value is not None])

    def _graph(self, nodes: list[NodeProto], outputs: Sequence[tuple[str, types.Type]]) -> GraphProto:
        from onnx import GraphProto

        body = GraphProto(name=self.new_names.make_name("branch"))
        body.node.extend(nodes)
        for name, kind in outputs:
            info = body.output.add(name=name)
            if kind != types.UNKNOWN:
                types.set_proto(info.type, _as_float32(kind))
        return body


def _initializers_alone(proto: ModelProto) -> None:
    """Bring a model to IR version 4, from which on an initializer need not be an input.

    One that is may be given another value then, which it could not before: ONNX Runtime takes it for no constant.
    """
    proto.ir_version = 4
    held = {tensor.name for tensor in proto.graph.initializer}
    inputs = [info for info in proto.graph.input if info.name not in held]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)


def _as_float32(kind: types.Type) -> types.Type:
    """Return the type that a value authored in ``kind`` has in the gated graph."""
    return types.with_element(kind, types.FLOAT) if types.element(kind) in LOW_TYPES else kind
