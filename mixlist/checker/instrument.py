"""Statistics computed inside the graph, so that only scalars leave the device.

Every observed float tensor gets reductions beside it; their results become graph outputs. Out of a branch they
come as outputs of the If (the other branch yields the neutral element), out of a Loop or Scan as scan outputs, one
value per iteration (reduced once more where loops nest, since inner ones may differ in length), out of a function as
further outputs of its calls.

ONNX Runtime's ReduceMax and ReduceMin pass over NaN, a sum does not: so the range takes three reductions. The sum is
that of magnitudes: large values of both signs would overflow to inf - inf, a NaN that no value is.

Low tensors are reduced in float32: ONNX Runtime's CUDA provider has no bfloat16 ReduceMax, ReduceMin and ReduceL1, and
a sum in float16 overflows where no value does. In an emulation, float32 already, the Cast is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mixlist.graph.build import build_main
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import NewNames, label, names_in, scope_path
from mixlist.ops import types
from mixlist.rewriter.emit import Key as Order
from mixlist.rewriter.emit import reorder
from mixlist.rewriter.emulate import LOW

# Operators that only move values: their output has the range of their input, which is observed already.
_SAME_VALUES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "DepthToSpace", "SpaceToDepth"}
)
_OBSERVED = frozenset({types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE})


@dataclass(frozen=True)
class Key:
    """What is observed: output ``slot`` of a node, by the names that reports use; inputs have ``node`` ""."""

    scope: str
    node: str
    slot: int


@dataclass(frozen=True)
class Probe:
    """An observed tensor: its Key, name, operator and type; ``source`` is the Key whose range it shares, or None."""

    key: Key
    tensor: str
    op_type: str
    elem: int
    constant: bool
    source: Key | None = None


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


RANGE = (
    Statistic("minimum", float("inf"), "ReduceMin", _reduce("ReduceMin")),
    Statistic("maximum", float("-inf"), "ReduceMax", _reduce("ReduceMax")),
    Statistic("sum", 0.0, "ReduceSum", _reduce("ReduceL1")),
)


@dataclass
class Instrumented:
    """A model with statistics: ``proto``; ``outputs`` by (Key, statistic) the names of graph outputs, several where
    a function is called several times; ``probes`` in order of computation."""

    proto: Any
    probes: list[Probe] = field(default_factory=list)
    outputs: dict[tuple[Key, str], list[str]] = field(default_factory=dict)


@dataclass
class Result:
    """A statistic that a scope hands up: the tensor that holds it there, as a scalar."""

    key: Key
    statistic: Statistic
    name: str
    elem: int
    stacked: bool = False


def instrument(
    model: Any, statistics: tuple[Statistic, ...] = RANGE, wanted: Callable[[Probe], bool] = lambda _: True
) -> Instrumented:
    """A copy of ``model`` that also yields ``statistics`` of every observed tensor that is ``wanted``."""
    return Instrumenter(model, statistics, wanted).run()


class Instrumenter:
    """One instrumentation; ``observe`` may be replaced to compute something else of each tensor."""

    def __init__(self, model: Any, statistics: tuple[Statistic, ...], wanted: Callable[[Probe], bool]) -> None:
        self.proto = type(model)()
        self.proto.CopyFrom(model)
        self.graph = build_main(self.proto)
        self.statistics = statistics
        self.wanted = wanted
        self.new = NewNames(names_in(self.proto.graph))
        for function in self.proto.functions:
            for name in names_in(function):
                self.new.add(name)
        self.made = Instrumented(self.proto)
        self.handed: dict[tuple[str, str, str], list[Result]] = {}  # what a function yields, by its identity
        self.fresh: dict[int, int] = {}

    def run(self) -> Instrumented:
        """Instrument everything."""
        for result in self._scope(self.graph, self.graph.root, self.proto.graph):
            info = self.proto.graph.output.add(name=result.name)
            info.type.tensor_type.elem_type = result.elem
            info.type.tensor_type.shape.SetInParent()
            if result.stacked:
                info.type.tensor_type.shape.dim.add()
            self.made.outputs.setdefault((result.key, result.statistic.name), []).append(result.name)
        return self.made

    # --- scopes ---

    def _scope(self, graph: Graph, scope: Scope, proto: Any) -> list[Result]:
        """Observe a scope; each reduction stands right behind what it reads, so that the tensor can go."""
        results: list[Result] = []
        path = scope_path(graph, scope)
        known: dict[str, Key] = {}
        keys: list[Order | None] = [(position, 0, 0) for position in range(len(proto.node))]
        behind: list[tuple[int, list[Any]]] = []
        for node in scope.nodes:
            added: list[Any] = []
            target = proto.node[node.position]
            if node.function is not None:
                results += self._call(node, target)
            elif node.bodies:
                found, extra = self._control_flow(graph, node, target)
                results += found
                added += extra
            for probe in self._probes(node, path, known):
                made, nodes = self.observe(probe, node, target)
                results += made
                added += nodes
            behind.append((node.position, added))
        if scope.owner is None and not graph.path:
            first: list[Any] = []
            results += self._inputs(scope, first)
            behind.append((-1, first))
        for place, nodes in behind:
            for order, made_node in enumerate(nodes):
                proto.node.add().CopyFrom(made_node)
                keys.append((place, 1, order))
        reorder(proto.node, keys)
        return results

    def _probes(self, node: Node, path: str, known: dict[str, Key]) -> Iterator[Probe]:
        """The float tensors that a node makes; constants and control flow's own outputs are seen where they arise."""
        if node.op_type == "Constant" or node.bodies or node.function is not None:
            return
        for slot, value in enumerate(node.outputs):
            if value is None or not isinstance(value.type, int) or value.type not in _OBSERVED:
                continue
            key = Key(path, label(node), slot)
            source = _source(node, known)
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
        if elem in LOW:
            tensor, elem = self.new.make(f"{probe.tensor}_exact"), types.FLOAT
            nodes.append(
                helper.make_node("Cast", [probe.tensor], [tensor], name=self.new.make(f"Cast_{tensor}"), to=elem)
            )
        for statistic in self.statistics:
            out = self.new.make(f"{probe.tensor}_{statistic.name}")
            nodes += statistic.build(tensor, out, elem, self.new)
            results.append(Result(probe.key, statistic, out, statistic.elem or elem))
        return results, nodes

    def _inputs(self, scope: Scope, added: list[Any]) -> list[Result]:
        results: list[Result] = []
        for slot, value in enumerate(scope.inputs):
            if value.kind == "input" and isinstance(value.type, int) and value.type in _OBSERVED:
                probe = Probe(Key("", "", slot), value.file_name, "", value.type, False)
                if self.wanted(probe):
                    self.made.probes.append(probe)
                    made, nodes = self.observe(probe)
                    results += made
                    added += nodes
        return results

    # --- out of bodies ---

    def _control_flow(self, graph: Graph, node: Node, target: Any) -> tuple[list[Result], list[Any]]:
        bodies = {a.name: a.g for a in target.attribute if a.name in node.bodies}
        if node.op_type == "If" and not node.domain:
            found = {name: self._scope(graph, node.bodies[name], g) for name, g in bodies.items()}
            return self._out_of_branches(target, bodies, found), []
        if node.op_type in ("Loop", "Scan") and not node.domain:
            own = self._scope(graph, node.bodies["body"], bodies["body"])
            nested = node.scope.owner is not None or bool(graph.path)
            return self._out_of_loop(node, target, bodies["body"], own, nested)
        return [], []  # SequenceMap and custom operators yield nothing but what they are defined to yield

    def _out_of_branches(self, target: Any, bodies: dict[str, Any], found: dict[str, list[Result]]) -> list[Result]:
        results = []
        for name, own in found.items():
            for result in own:
                out = self.new.make(result.name)
                for other, body in bodies.items():
                    inner = result.name if other == name else self._neutral(body, result)
                    _add_output(body, inner, result.elem)
                target.output.append(out)
                results.append(Result(result.key, result.statistic, out, result.elem))
        return results

    def _neutral(self, body: Any, result: Result) -> str:
        from onnx import TensorProto, helper

        name = self.new.make(f"{result.name}_neutral")
        tensor = helper.make_tensor("", TensorProto.FLOAT, [], [result.statistic.neutral])
        exact = name if result.elem == types.FLOAT else self.new.make(f"{name}_float")
        body.node.append(
            helper.make_node("Constant", [], [exact], name=self.new.make(f"Constant_{name}"), value=tensor)
        )
        if exact != name:
            body.node.append(
                helper.make_node("Cast", [exact], [name], name=self.new.make(f"Cast_{name}"), to=result.elem)
            )
        return name

    def _out_of_loop(
        self, node: Node, target: Any, body: Any, own: list[Result], nested: bool
    ) -> tuple[list[Result], list[Any]]:
        from onnx import helper

        states_and_scans = len(body.output) - (1 if node.op_type == "Loop" else 0)
        target.output.extend([""] * (states_and_scans - len(target.output)) if own else [])
        results, added = [], []
        for result in own:
            _add_output(body, result.name, result.elem)
            out = stacked = self.new.make(f"{result.name}_stacked")
            target.output.append(stacked)
            if nested:
                out, again = self.new.make(result.name), result.statistic.again
                added.append(
                    helper.make_node(again, [stacked], [out], name=self.new.make(f"{again}_{out}"), keepdims=0)
                )
            results.append(Result(result.key, result.statistic, out, result.elem, stacked=not nested))
        for attribute in target.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.extend([0] * len(own))
        return results, added

    def _call(self, node: Node, target: Any) -> list[Result]:
        """The statistics of a function, as further outputs of this call."""
        body: Graph = node.function
        proto = body.root.proto
        key = (proto.domain, proto.name, proto.overload)
        if key not in self.handed:
            self.handed[key] = self._scope(body, body.root, proto)
            proto.output.extend(r.name for r in self.handed[key])
            self.fresh[id(proto)] = len(proto.output) - len(self.handed[key])
        own = self.fresh[id(proto)]
        target.output.extend([""] * (own - len(target.output)) if self.handed[key] else [])
        results = []
        for result in self.handed[key]:
            out = self.new.make(result.name)
            target.output.append(out)
            results.append(Result(result.key, result.statistic, out, result.elem))
        return results


def _source(node: Node, known: dict[str, Key]) -> Key | None:
    """The Key of the tensor that a node only moves."""
    if node.op_type not in _SAME_VALUES or node.domain:
        return None
    first: Value | None = node.inputs[0] if node.inputs else None
    return known.get(first.name) if first is not None else None


def _add_output(body: Any, name: str, elem: int) -> None:
    info = body.output.add(name=name)
    info.type.tensor_type.elem_type = elem
    info.type.tensor_type.shape.SetInParent()
