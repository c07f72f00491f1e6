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

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING

from mixlist.emulation.graph_statistics import RANGE, Instrumented, Place, Probe, Statistic
from mixlist.emulation.packing import Packed, Result, add_output, join_rows, neutral, pack
from mixlist.emulation.safe_reductions import guarded
from mixlist.graph.build import build_graph
from mixlist.graph.model import FunctionKey, Graph, Node, Scope, function_key
from mixlist.graph.naming import NameGenerator, display_name, names_in, scope_path
from mixlist.graph.proto_edits import SortKey, copy_message, reorder_messages
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.ops.traits import Trait, operators

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from mixlist.graph.proto_types import ScopeProto

_SAME_VALUES = operators(Trait.SAME_VALUES)
_OBSERVED = frozenset({types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE})


def instrument(
    model: ModelProto,
    statistics: tuple[Statistic, ...] = RANGE,
    wanted: Callable[[Probe], bool] = lambda _: True,
    *,
    guard: bool = False,
    own: Callable[[TensorRef], bool] = lambda _: False,
    cuts: Container[str] = (),
    read: Mapping[str, Mapping[str, Probe]] | None = None,
) -> Instrumented:
    """A copy of ``model`` that also yields ``statistics`` of every observed tensor that is ``wanted``.

    ``guard``: for a provider that does not reduce empty tensors (CUDA). ``own``: tensors that are reduced themselves
    though they only hold another one's values, because they may be rounded. ``cuts``: tensors of the main graph; behind
    the node that makes one, the statistics so far are packed, so that the graph can be cut there. ``read``: see
    ``Instrumenter``.
    """
    return Instrumenter(model, statistics, wanted, guard, own, cuts, read or {}).run()


@dataclass(eq=False)
class Instrumenter:
    """One instrumentation; ``observe`` may be replaced to compute something else of each tensor.

    ``read``: further tensors to observe, by scope and name. No node of the scope computes them itself: captured
    tensors, and the results of calls and control flow.
    """

    model: InitVar[ModelProto]
    statistics: tuple[Statistic, ...] = RANGE
    wanted: Callable[[Probe], bool] = lambda _: True
    guard: bool = False
    own: Callable[[TensorRef], bool] = lambda _: False
    cuts: Container[str] = ()
    read: Mapping[str, Mapping[str, Probe]] = field(default_factory=dict)

    def __post_init__(self, model: ModelProto) -> None:
        self.proto = copy_message(model)
        self.graph = build_graph(self.proto)
        self.new = NameGenerator(names_in(self.proto.graph, *self.proto.functions))
        self.made = Instrumented(self.proto)
        self.handed: dict[FunctionKey, tuple[int, list[Packed]]] = {}  # a function's own outputs, and what it adds

    def run(self) -> Instrumented:
        """Instrument everything."""
        for packed in self._scope(self.graph, self.graph.root, self.proto.graph):
            add_output(self.proto.graph, packed, packed.name, rows=packed.stacked)
            self.made.widths[packed.name] = len(packed.refs)
            for column, ref in enumerate(packed.refs):
                place = Place(packed.name, column, packed.stacked)
                self.made.outputs.setdefault((ref, packed.statistic.name), []).append(place)
        return self.made

    # --- scopes ---

    def _scope(self, graph: Graph, scope: Scope, proto: ScopeProto) -> list[Packed]:
        """Observe a scope; each reduction stands right behind what it reads, so that the tensor can go."""
        results: list[Result] = []
        handed: list[Packed] = []
        packed: list[Packed] = []
        path = scope_path(graph, scope)
        known: dict[str, TensorRef] = {}
        main = scope.owner is None and not graph.path
        opset = graph.opsets.get("") or self.graph.opsets.get("", 0)
        count = len(proto.node)
        added: list[tuple[int, list[NodeProto]]] = []  # new nodes, each list behind the node at a position
        first: list[NodeProto] = []
        for probe in (*(self._input_probes(scope) if main else ()), *self._probes_of_reads(scope, path)):
            observed, made = self.observe(probe)
            results += observed
            first += made
        added.append((-1, first))
        for node in scope.nodes:
            target = proto.node[node.position]
            behind: list[NodeProto] = []
            if node.function is not None:
                handed += self._call(node.function, target)
            elif node.bodies:
                handed += self._control_flow(graph, node, target, behind)
            for probe in self._probes(node, path, known):
                observed, made = self.observe(probe, node, target)
                results += observed
                behind += made
            if main and any(name in self.cuts for name in target.output):
                part, made = pack(results, handed, opset, self.new)
                behind += made
                self.made.parts.append((*target.output, *(vector.name for vector in part if not vector.stacked)))
                packed, results, handed = packed + part, [], []
            added.append((node.position, behind))
        part, last = pack(results, handed, opset, self.new)
        added.append((count, last))
        keys: list[SortKey] = [(position, 0, 0) for position in range(count)]
        for position, made in added:
            proto.node.extend(made)
            keys += [(position, 1, order) for order in range(len(made))]
        reorder_messages(proto.node, keys)
        return packed + part

    def _probes(self, node: Node, path: str, known: dict[str, TensorRef]) -> Iterator[Probe]:
        """The float tensors that a node makes; constants and control flow's own outputs are seen where they arise."""
        if node.op_type == "Constant" or node.bodies or node.function is not None:
            read = self.read.get(path, {})
            yield from self._take(read[v.file_name] for v in node.outputs if v is not None and v.file_name in read)
            return
        for slot, value in enumerate(node.outputs):
            if value is None or not isinstance(value.type, int) or value.type not in _OBSERVED:
                continue
            ref = TensorRef(path, display_name(node), slot)
            source = None if self.own(ref) else _source(node, known)
            known[value.name] = source or ref
            probe = Probe(ref, value.file_name, node.op_type, value.type, source)
            if self.wanted(probe):
                self.made.probes.append(probe)
                if source is None:
                    yield probe

    def observe(
        self, probe: Probe, node: Node | None = None, target: NodeProto | None = None
    ) -> tuple[list[Result], list[NodeProto]]:
        """Return the statistics of a tensor and the nodes that compute them; ``target`` is the message of ``node``."""
        results: list[Result] = []
        nodes: list[NodeProto] = []
        tensor, elem = probe.tensor, probe.elem
        called = elem == types.FLOAT and probe.ref.scope.startswith("function:")  # perhaps another type elsewhere
        if elem in LOW_TYPES or called:
            tensor, elem = self.new.make(f"{probe.tensor}_exact"), types.FLOAT
            nodes.append(self.new.cast(probe.tensor, tensor, elem))
        for statistic in self.statistics:
            out = self.new.make(f"{probe.tensor}_{statistic.name}")
            made = statistic.build(tensor, out, elem, self.new)
            nodes += guarded(made, out, statistic.elem or elem, self.new) if self.guard else made
            results.append(Result(probe.ref, statistic, out, statistic.elem or elem))
        return results, nodes

    def _input_probes(self, scope: Scope) -> Iterator[Probe]:
        """Yield the float inputs of the model."""
        yield from self._take(
            Probe(TensorRef("", "", slot), value.file_name, "", value.type)
            for slot, value in enumerate(scope.inputs)
            if value.kind == "input" and isinstance(value.type, int) and value.type in _OBSERVED
        )

    def _probes_of_reads(self, scope: Scope, path: str) -> Iterator[Probe]:
        """Yield the tensors that are read in a scope and computed outside of it."""
        read = self.read.get(path)
        if read:
            made = {v.file_name for node in scope.nodes for v in node.outputs if v is not None}
            yield from self._take(probe for name, probe in read.items() if name not in made)

    def _take(self, probes: Iterable[Probe]) -> Iterator[Probe]:
        for probe in filter(self.wanted, probes):
            self.made.probes.append(probe)
            yield probe

    # --- out of bodies ---

    def _control_flow(self, graph: Graph, node: Node, target: NodeProto, behind: list[NodeProto]) -> list[Packed]:
        """Observe the bodies of a node, and return what it hands out of them; adds the nodes that go behind it."""
        bodies = {a.name: a.g for a in target.attribute if a.name in node.bodies}
        if node.op_type == "If" and not node.domain:
            packed = {name: self._scope(graph, node.bodies[name], body) for name, body in bodies.items()}
            return self._out_of_branches(target, bodies, packed)
        if node.op_type in ("Loop", "Scan") and not node.domain:
            own = self._scope(graph, node.bodies["body"], bodies["body"])
            nested = node.scope.owner is not None or bool(graph.path)
            opset = graph.opsets.get("", 0) if nested else None
            return self._out_of_loop(target, bodies["body"], own, opset, behind)
        return []  # SequenceMap and custom operators yield nothing but what they are defined to yield

    def _out_of_branches(
        self, target: NodeProto, bodies: dict[str, GraphProto], found: dict[str, list[Packed]]
    ) -> list[Packed]:
        handed = []
        for name, own in found.items():
            for packed in own:
                out = self.new.make(packed.name)
                for other, body in bodies.items():
                    inner = packed.name if other == name else neutral(body, packed, self.new)
                    add_output(body, packed, inner)
                target.output.append(out)
                handed.append(replace(packed, name=out))
        return handed

    def _out_of_loop(
        self, target: NodeProto, body: GraphProto, own: list[Packed], opset: int | None, behind: list[NodeProto]
    ) -> list[Packed]:
        """``opset`` is that of a loop inside something else, whose iterations join here, None for one that is not."""
        _name_outputs(target, len(body.output) - (1 if target.op_type == "Loop" else 0), own)
        handed = []
        for packed in own:
            add_output(body, packed, packed.name)
            stacked = self.new.make(f"{packed.name}_stacked")
            target.output.append(stacked)
            if opset is None:
                handed.append(replace(packed, name=stacked, stacked=True))
                continue
            out = self.new.make(packed.name)
            joined = join_rows(packed.statistic.again, stacked, out, opset, self.new)
            behind += guarded(joined, out, packed.elem, self.new, len(packed.refs)) if self.guard else joined
            handed.append(replace(packed, name=out))
        for attribute in target.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.extend([0] * len(own))
        return handed

    def _call(self, body: Graph, target: NodeProto) -> list[Packed]:
        """Return the statistics of a function, as further outputs of this call."""
        function = body.function
        key = function_key(function)
        if key not in self.handed:
            count = len(function.output)
            packed = self._scope(body, body.root, function)
            if "" not in body.opsets and packed:
                function.opset_import.add(domain="", version=self.graph.opsets.get("", 0))
            function.output.extend(vector.name for vector in packed)
            self.handed[key] = count, packed
        count, packed = self.handed[key]
        _name_outputs(target, count, packed)
        handed = [replace(vector, name=self.new.make(vector.name)) for vector in packed]
        target.output.extend(vector.name for vector in handed)
        return handed


def _name_outputs(target: NodeProto, count: int, packed: list[Packed]) -> None:
    """Give a node all of its ``count`` outputs, without names, if statistics are to follow them."""
    if packed:
        target.output.extend([""] * (count - len(target.output)))


def _source(node: Node, known: dict[str, TensorRef]) -> TensorRef | None:
    """Return the TensorRef of the tensor that a node only moves."""
    if node.op_type not in _SAME_VALUES or node.domain:
        return None
    first = node.inputs[0] if node.inputs else None
    if first is None or node.types[0] != first.type:  # it reads the tensor through a Cast that mixlist made
        return None
    return known.get(first.name)
