"""Statistics computed inside the graph, so that only scalars leave the device.

Every observed float tensor gets reductions behind it. Each scope packs their results into one vector per statistic:
thousands of outputs one by one would cost more than the model. The vectors become graph outputs. Out of a branch they
come as outputs of the If (the other branch yields the neutral elements), out of a Loop or Scan as scan outputs, one
row per iteration (reduced once more where loops nest, since inner ones may differ in length), out of a function as
further outputs of its calls.

ONNX Runtime's ReduceMax and ReduceMin pass over NaN, a sum does not: so the range takes three reductions. The sum is
that of magnitudes: large values of both signs would overflow to inf - inf, a NaN that no value is.

Low tensors are reduced in float32: ONNX Runtime's CUDA provider has no bfloat16 ReduceMax, ReduceMin and ReduceL1, and
a sum in float16 overflows where no value does. In an emulation, float32 already, the Cast is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mixlist.emulation.safe_reductions import guarded, guarded_rows
from mixlist.graph.build import build_main
from mixlist.graph.messages import NodeOrder, reorder
from mixlist.graph.model import Graph, Node, Scope, Value, function_key
from mixlist.graph.naming import NewNames, label, names_in, scope_path
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW
from mixlist.ops.traits import Trait, operators

_SAME_VALUES = operators(Trait.SAME_VALUES)
_OBSERVED = frozenset({types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE})


@dataclass(frozen=True)
class Probe:
    """An observed tensor; ``source`` is the tensor whose range it shares, or None."""

    key: TensorRef
    tensor: str
    op_type: str
    elem: int
    constant: bool
    source: TensorRef | None = None


@dataclass(frozen=True)
class Statistic:
    """One reduction: how it is computed, how values of several runs join, and the neutral element."""

    name: str
    neutral: float
    again: str  # the operator that reduces the results of a Loop's iterations
    build: Callable[[str, str, int, NewNames], list[Any]]  # (tensor, out, elem, names) -> nodes
    elem: int = types.UNKNOWN  # the type of the result; UNKNOWN: the tensor's own


def _reduce(op_type: str) -> Callable[[str, str, int, NewNames], list[Any]]:
    def build(tensor: str, out: str, elem: int, names: NewNames) -> list[Any]:
        from onnx import helper

        return [helper.make_node(op_type, [tensor], [out], name=names.make(f"{op_type}_{out}"), keepdims=0)]

    return build


SUM = Statistic("sum", 0.0, "ReduceSum", _reduce("ReduceL1"))
RANGE = (
    Statistic("minimum", float("inf"), "ReduceMin", _reduce("ReduceMin")),
    Statistic("maximum", float("-inf"), "ReduceMax", _reduce("ReduceMax")),
    SUM,
)


@dataclass
class Instrumented:
    """A model with statistics: ``proto``; ``outputs`` where each (TensorRef, statistic) is, in several places where
    a function is called several times; ``widths`` the columns of each output; ``probes`` in order of computation;
    ``parts`` what stands last before each cut: the tensor, and the statistics packed there."""

    proto: Any
    probes: list[Probe] = field(default_factory=list)
    outputs: dict[tuple[TensorRef, str], list[Place]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    parts: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """A column of a graph output: of shape [columns], or [iterations, columns] out of a Loop or Scan (``stacked``)."""

    output: str
    column: int
    stacked: bool


@dataclass
class Result:
    """One statistic of one tensor: the scalar that holds it in its scope."""

    key: TensorRef
    statistic: Statistic
    name: str
    elem: int


@dataclass
class Packed:
    """One statistic of many tensors as a scope hands it up: a vector, or a matrix with a row for each iteration."""

    keys: tuple[TensorRef, ...]
    statistic: Statistic
    name: str
    elem: int
    stacked: bool = False


def instrument(
    model: Any,
    statistics: tuple[Statistic, ...] = RANGE,
    wanted: Callable[[Probe], bool] = lambda _: True,
    *,
    guard: bool = False,
    own: Callable[[TensorRef], bool] = lambda _: False,
    cuts: Container[str] = (),
) -> Instrumented:
    """A copy of ``model`` that also yields ``statistics`` of every observed tensor that is ``wanted``.

    ``guard``: for a provider that does not reduce empty tensors (CUDA). ``own``: tensors that are reduced themselves
    though they only hold another one's values, because they may be rounded. ``cuts``: tensors of the main graph; behind
    the node that makes one, the statistics so far are packed, so that the graph can be cut there.
    """
    return Instrumenter(model, statistics, wanted, guard, own, cuts).run()


class Instrumenter:
    """One instrumentation; ``observe`` may be replaced to compute something else of each tensor."""

    def __init__(
        self,
        model: Any,
        statistics: tuple[Statistic, ...],
        wanted: Callable[[Probe], bool],
        guard: bool = False,
        own: Callable[[TensorRef], bool] = lambda _: False,
        cuts: Container[str] = (),
    ) -> None:
        self.guard, self.own, self.cuts = guard, own, cuts
        self.proto = type(model)()
        self.proto.CopyFrom(model)
        self.graph = build_main(self.proto)
        self.statistics = statistics
        self.wanted = wanted
        self.new = NewNames(names_in(self.proto.graph, *self.proto.functions))
        self.made = Instrumented(self.proto)
        self.handed: dict[tuple[str, str, str], list[Packed]] = {}  # what a function yields, by its identity
        self.fresh: dict[int, int] = {}

    def run(self) -> Instrumented:
        """Instrument everything."""
        for packed in self._scope(self.graph, self.graph.root, self.proto.graph):
            _add_output(self.proto.graph, packed, packed.name, rows=packed.stacked)
            self.made.widths[packed.name] = len(packed.keys)
            for column, key in enumerate(packed.keys):
                place = Place(packed.name, column, packed.stacked)
                self.made.outputs.setdefault((key, packed.statistic.name), []).append(place)
        return self.made

    # --- scopes ---

    def _scope(self, graph: Graph, scope: Scope, proto: Any) -> list[Packed]:
        """Observe a scope; each reduction stands right behind what it reads, so that the tensor can go."""
        results: list[Result] = []
        handed: list[Packed] = []
        path = scope_path(graph, scope)
        known: dict[str, TensorRef] = {}
        main = scope.owner is None and not graph.path
        packed: list[Packed] = []
        opset = graph.opsets.get("") or self.graph.opsets.get("", 0)
        keys: list[NodeOrder | None] = [(position, 0, 0) for position in range(len(proto.node))]
        behind: list[tuple[int, list[Any]]] = []
        if main:
            first: list[Any] = []
            results += self._inputs(scope, first)
            behind.append((-1, first))
        for node in scope.nodes:
            added: list[Any] = []
            target = proto.node[node.position]
            if node.function is not None:
                handed += self._call(node, target)
            elif node.bodies:
                found, extra = self._control_flow(graph, node, target)
                handed += found
                added += extra
            for probe in self._probes(node, path, known):
                made, nodes = self.observe(probe, node, target)
                results += made
                added += nodes
            if main and any(name in self.cuts for name in target.output):
                part = self._pack(results, handed, opset, added)
                self.made.parts.append((*target.output, *(each.name for each in part if not each.stacked)))
                packed, results, handed = packed + part, [], []
            behind.append((node.position, added))
        last: list[Any] = []
        packed += self._pack(results, handed, opset, last)
        behind.append((len(proto.node), last))
        for place, nodes in behind:
            for order, made_node in enumerate(nodes):
                proto.node.add().CopyFrom(made_node)
                keys.append((place, 1, order))
        reorder(proto.node, keys)
        return packed

    def _pack(self, results: list[Result], handed: list[Packed], opset: int, nodes: list[Any]) -> list[Packed]:
        """Statistics of a scope, own and handed up, in as few tensors as may be; adds the nodes that pack them."""
        from onnx import helper

        packed = [each for each in handed if each.stacked]
        single: dict[tuple[str, int], list[Result]] = {}
        several: dict[tuple[str, int], list[Packed]] = {}
        for result in results:
            single.setdefault((result.statistic.name, result.elem), []).append(result)
        for each in handed:
            if not each.stacked:
                several.setdefault((each.statistic.name, each.elem), []).append(each)
        for which in dict.fromkeys([*single, *several]):
            own, inner = single.get(which, []), several.get(which, [])
            vectors = [each.name for each in inner]
            if own:
                vectors.append(self._vector([result.name for result in own], opset, nodes))
            name = vectors[0]
            if len(vectors) > 1:
                name = self.new.make(f"{which[0]}_all")
                nodes.append(helper.make_node("Concat", vectors, [name], name=self.new.make(f"Concat_{name}"), axis=0))
            keys = tuple(key for each in inner for key in each.keys) + tuple(result.key for result in own)
            packed.append(Packed(keys, (own or inner)[0].statistic, name, which[1]))
        return packed

    def _vector(self, scalars: list[str], opset: int, nodes: list[Any]) -> str:
        """The scalars as one vector. A sequence takes two nodes; it is new in opset 11."""
        from onnx import helper

        out = self.new.make(f"{scalars[0]}_packed")
        if opset >= 11:
            joined, many = "ConcatFromSequence", [self.new.make(f"{out}_sequence")]
            nodes.append(
                helper.make_node("SequenceConstruct", scalars, many, name=self.new.make(f"SequenceConstruct_{out}"))
            )
        else:
            joined, many = "Concat", [self.new.make(f"{scalar}_vector") for scalar in scalars]
            nodes += [
                helper.make_node("Unsqueeze", [one], [wide], name=self.new.make(f"Unsqueeze_{wide}"), axes=[0])
                for one, wide in zip(scalars, many, strict=True)
            ]
        made = helper.make_node(joined, many, [out], name=self.new.make(f"{joined}_{out}"), axis=0)
        if joined == "ConcatFromSequence":
            made.attribute.append(helper.make_attribute("new_axis", 1))
        nodes.append(made)
        return out

    def _probes(self, node: Node, path: str, known: dict[str, TensorRef]) -> Iterator[Probe]:
        """The float tensors that a node makes; constants and control flow's own outputs are seen where they arise."""
        if node.op_type == "Constant" or node.bodies or node.function is not None:
            return
        for slot, value in enumerate(node.outputs):
            if value is None or not isinstance(value.type, int) or value.type not in _OBSERVED:
                continue
            key = TensorRef(path, label(node), slot)
            source = None if self.own(key) else _source(node, known)
            known[value.name] = source or key
            probe = Probe(key, value.file_name, node.op_type, value.type, value.constant, source)
            if self.wanted(probe):
                self.made.probes.append(probe)
                if source is None:
                    yield probe

    def observe(self, probe: Probe, node: Node | None = None, target: Any = None) -> tuple[list[Result], list[Any]]:
        """The statistics of one tensor and the nodes that compute them; ``target`` is the message of ``node``."""
        from onnx import helper

        results, nodes = [], []
        tensor, elem = probe.tensor, probe.elem
        called = elem == types.FLOAT and probe.key.scope.startswith("function:")  # perhaps another type elsewhere
        if elem in LOW or called:
            tensor, elem = self.new.make(f"{probe.tensor}_exact"), types.FLOAT
            nodes.append(
                helper.make_node("Cast", [probe.tensor], [tensor], name=self.new.make(f"Cast_{tensor}"), to=elem)
            )
        for statistic in self.statistics:
            out = self.new.make(f"{probe.tensor}_{statistic.name}")
            made = statistic.build(tensor, out, elem, self.new)
            nodes += guarded(made, out, statistic.elem or elem, self.new) if self.guard else made
            results.append(Result(probe.key, statistic, out, statistic.elem or elem))
        return results, nodes

    def _inputs(self, scope: Scope, added: list[Any]) -> list[Result]:
        results: list[Result] = []
        for slot, value in enumerate(scope.inputs):
            if value.kind == "input" and isinstance(value.type, int) and value.type in _OBSERVED:
                probe = Probe(TensorRef("", "", slot), value.file_name, "", value.type, False)
                if self.wanted(probe):
                    self.made.probes.append(probe)
                    made, nodes = self.observe(probe)
                    results += made
                    added += nodes
        return results

    # --- out of bodies ---

    def _control_flow(self, graph: Graph, node: Node, target: Any) -> tuple[list[Packed], list[Any]]:
        bodies = {a.name: a.g for a in target.attribute if a.name in node.bodies}
        if node.op_type == "If" and not node.domain:
            found = {name: self._scope(graph, node.bodies[name], g) for name, g in bodies.items()}
            return self._out_of_branches(target, bodies, found), []
        if node.op_type in ("Loop", "Scan") and not node.domain:
            own = self._scope(graph, node.bodies["body"], bodies["body"])
            nested = node.scope.owner is not None or bool(graph.path)
            opset = graph.opsets.get("", 0) if nested else None
            return self._out_of_loop(node, target, bodies["body"], own, opset)
        return [], []  # SequenceMap and custom operators yield nothing but what they are defined to yield

    def _out_of_branches(self, target: Any, bodies: dict[str, Any], found: dict[str, list[Packed]]) -> list[Packed]:
        handed = []
        for name, own in found.items():
            for packed in own:
                out = self.new.make(packed.name)
                for other, body in bodies.items():
                    inner = packed.name if other == name else self._neutral(body, packed)
                    _add_output(body, packed, inner)
                target.output.append(out)
                handed.append(replace(packed, name=out))
        return handed

    def _neutral(self, body: Any, packed: Packed) -> str:
        from onnx import TensorProto, helper

        name, count = self.new.make(f"{packed.name}_neutral"), len(packed.keys)
        tensor = helper.make_tensor("", TensorProto.FLOAT, [count], [packed.statistic.neutral] * count)
        exact = name if packed.elem == types.FLOAT else self.new.make(f"{name}_float")
        body.node.append(
            helper.make_node("Constant", [], [exact], name=self.new.make(f"Constant_{name}"), value=tensor)
        )
        if exact != name:
            body.node.append(
                helper.make_node("Cast", [exact], [name], name=self.new.make(f"Cast_{name}"), to=packed.elem)
            )
        return name

    def _out_of_loop(
        self, node: Node, target: Any, body: Any, own: list[Packed], opset: int | None
    ) -> tuple[list[Packed], list[Any]]:
        """``opset`` is that of a loop inside something else, whose iterations join here, None for one that is not."""
        states_and_scans = len(body.output) - (1 if node.op_type == "Loop" else 0)
        target.output.extend([""] * (states_and_scans - len(target.output)) if own else [])
        handed, added = [], []
        for packed in own:
            _add_output(body, packed, packed.name)
            stacked = self.new.make(f"{packed.name}_stacked")
            target.output.append(stacked)
            if opset is None:
                handed.append(replace(packed, name=stacked, stacked=True))
            else:
                out = self.new.make(packed.name)
                joined = self._join_rows(packed.statistic.again, stacked, out, opset)
                if self.guard:
                    joined = guarded_rows(joined, out, len(packed.keys), packed.elem, self.new)
                added += joined
                handed.append(replace(packed, name=out))
        for attribute in target.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.extend([0] * len(own))
        return handed, added

    def _join_rows(self, op_type: str, rows: str, out: str, opset: int) -> list[Any]:
        """Nodes that reduce over the first axis; the axes are an input since opset 13 (ReduceSum) or 18."""
        from onnx import TensorProto, helper

        name = self.new.make(f"{op_type}_{out}")
        if opset < (13 if op_type == "ReduceSum" else 18):
            return [helper.make_node(op_type, [rows], [out], name=name, axes=[0], keepdims=0)]
        axes = self.new.make(f"{out}_axes")
        first = helper.make_tensor("", TensorProto.INT64, [1], [0])
        return [
            helper.make_node("Constant", [], [axes], name=self.new.make(f"Constant_{axes}"), value=first),
            helper.make_node(op_type, [rows, axes], [out], name=name, keepdims=0),
        ]

    def _call(self, node: Node, target: Any) -> list[Packed]:
        """The statistics of a function, as further outputs of this call."""
        body = node.function
        assert body is not None
        proto = body.function
        key = function_key(proto)
        if key not in self.handed:
            self.handed[key] = self._scope(body, body.root, proto)
            if "" not in body.opsets and self.handed[key]:
                proto.opset_import.add(domain="", version=self.graph.opsets.get("", 0))
            proto.output.extend(packed.name for packed in self.handed[key])
            self.fresh[id(proto)] = len(proto.output) - len(self.handed[key])
        own = self.fresh[id(proto)]
        target.output.extend([""] * (own - len(target.output)) if self.handed[key] else [])
        handed = [replace(packed, name=self.new.make(packed.name)) for packed in self.handed[key]]
        target.output.extend(packed.name for packed in handed)
        return handed


def _source(node: Node, known: dict[str, TensorRef]) -> TensorRef | None:
    """The TensorRef of the tensor that a node only moves."""
    if node.op_type not in _SAME_VALUES or node.domain:
        return None
    first: Value | None = node.inputs[0] if node.inputs else None
    if first is None or node.types[0] != first.type:  # it reads the tensor through a Cast that mixlist made
        return None
    return known.get(first.name)


def _add_output(body: Any, packed: Packed, name: str, rows: bool = False) -> None:
    info = body.output.add(name=name)
    info.type.tensor_type.elem_type = packed.elem
    if rows:
        info.type.tensor_type.shape.dim.add()
    info.type.tensor_type.shape.dim.add(dim_value=len(packed.keys))
