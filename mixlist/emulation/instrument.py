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

from mixlist.emulation.graph_statistics import RANGE, InstrumentedModel, OutputColumn, Probe, Statistic
from mixlist.emulation.packing import PackedStatistic, ScalarStatistic, add_output, join_rows, neutral, pack
from mixlist.emulation.safe_reductions import make_reductions_safe
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
    is_observed: Callable[[Probe], bool] = lambda _: True,
    *,
    safe_reductions: bool = False,
    needs_own_range: Callable[[TensorRef], bool] = lambda _: False,
    cut_tensors: Container[str] = (),
    extra_probes: Mapping[str, Mapping[str, Probe]] | None = None,
) -> InstrumentedModel:
    """Return a copy of ``model`` that also yields ``statistics`` of every observed tensor.

    is_observed: chooses the tensors.
    safe_reductions: for a provider that refuses to reduce empty tensors (CUDA).
    needs_own_range: tensors that are reduced themselves although they only hold the values of another tensor, because
        they may be rounded.
    cut_tensors: tensors of the main graph. Behind the node that computes one, the statistics so far are packed, so that
        the graph can be cut there.
    extra_probes: see ``Instrumenter``.
    """
    instrumenter = Instrumenter(
        model, statistics, is_observed, safe_reductions, needs_own_range, cut_tensors, extra_probes or {}
    )
    return instrumenter.run()


@dataclass(eq=False)
class Instrumenter:
    """One instrumentation; ``observe`` may be replaced to compute something else of each tensor.

    ``extra_probes``: further tensors to observe, by scope and name. No node of the scope computes them itself: captured
    tensors, and the results of calls and control flow.
    """

    model: InitVar[ModelProto]
    statistics: tuple[Statistic, ...] = RANGE
    is_observed: Callable[[Probe], bool] = lambda _: True
    safe_reductions: bool = False
    needs_own_range: Callable[[TensorRef], bool] = lambda _: False
    cut_tensors: Container[str] = ()
    extra_probes: Mapping[str, Mapping[str, Probe]] = field(default_factory=dict)

    def __post_init__(self, model: ModelProto) -> None:
        self.proto = copy_message(model)
        self.graph = build_graph(self.proto)
        self.new_names = NameGenerator(names_in(self.proto.graph, *self.proto.functions))
        self.instrumented = InstrumentedModel(self.proto)
        self.function_outputs: dict[
            FunctionKey, tuple[int, list[PackedStatistic]]
        ] = {}  # a function's own outputs, and what it adds

    def run(self) -> InstrumentedModel:
        """Instrument everything."""
        for packed in self._scope(self.graph, self.graph.root, self.proto.graph):
            add_output(self.proto.graph, packed, packed.name, rows=packed.stacked)
            self.instrumented.widths[packed.name] = len(packed.refs)
            for column, ref in enumerate(packed.refs):
                place = OutputColumn(packed.name, column, packed.stacked)
                self.instrumented.outputs.setdefault((ref, packed.statistic.name), []).append(place)
        return self.instrumented

    # --- scopes ---

    def _scope(self, graph: Graph, scope: Scope, proto: ScopeProto) -> list[PackedStatistic]:
        """Observe a scope; each reduction stands right behind what it reads, so that the tensor can go."""
        results: list[ScalarStatistic] = []
        handed: list[PackedStatistic] = []
        packed: list[PackedStatistic] = []
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
            if main and any(name in self.cut_tensors for name in target.output):
                part, made = pack(results, handed, opset, self.new_names)
                behind += made
                self.instrumented.cut_outputs.append(
                    (*target.output, *(vector.name for vector in part if not vector.stacked))
                )
                packed, results, handed = packed + part, [], []
            added.append((node.position, behind))
        part, last = pack(results, handed, opset, self.new_names)
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
            read = self.extra_probes.get(path, {})
            yield from self._take(
                read[v.name_in_file] for v in node.outputs if v is not None and v.name_in_file in read
            )
            return
        for slot, value in enumerate(node.outputs):
            if value is None or not isinstance(value.type, int) or value.type not in _OBSERVED:
                continue
            ref = TensorRef(path, display_name(node), slot)
            source = None if self.needs_own_range(ref) else _source(node, known)
            known[value.name] = source or ref
            probe = Probe(ref, value.name_in_file, node.op_type, value.type, source)
            if self.is_observed(probe):
                self.instrumented.probes.append(probe)
                if source is None:
                    yield probe

    def observe(
        self, probe: Probe, node: Node | None = None, target: NodeProto | None = None
    ) -> tuple[list[ScalarStatistic], list[NodeProto]]:
        """Return the statistics of a tensor and the nodes that compute them; ``target`` is the message of ``node``."""
        results: list[ScalarStatistic] = []
        nodes: list[NodeProto] = []
        tensor, elem = probe.tensor, probe.elem
        called = elem == types.FLOAT and probe.ref.scope.startswith("function:")  # perhaps another type elsewhere
        if elem in LOW_TYPES or called:
            tensor, elem = self.new_names.make_name(f"{probe.tensor}_exact"), types.FLOAT
            nodes.append(self.new_names.make_cast(probe.tensor, tensor, elem))
        for statistic in self.statistics:
            out = self.new_names.make_name(f"{probe.tensor}_{statistic.name}")
            made = statistic.build(tensor, out, elem, self.new_names)
            nodes += (
                make_reductions_safe(made, out, statistic.elem or elem, self.new_names)
                if self.safe_reductions
                else made
            )
            results.append(ScalarStatistic(probe.ref, statistic, out, statistic.elem or elem))
        return results, nodes

    def _input_probes(self, scope: Scope) -> Iterator[Probe]:
        """Yield the float inputs of the model."""
        yield from self._take(
            Probe(TensorRef("", "", slot), value.name_in_file, "", value.type)
            for slot, value in enumerate(scope.inputs)
            if value.kind == "input" and isinstance(value.type, int) and value.type in _OBSERVED
        )

    def _probes_of_reads(self, scope: Scope, path: str) -> Iterator[Probe]:
        """Yield the tensors that are read in a scope and computed outside of it."""
        read = self.extra_probes.get(path)
        if read:
            made = {v.name_in_file for node in scope.nodes for v in node.outputs if v is not None}
            yield from self._take(probe for name, probe in read.items() if name not in made)

    def _take(self, probes: Iterable[Probe]) -> Iterator[Probe]:
        for probe in filter(self.is_observed, probes):
            self.instrumented.probes.append(probe)
            yield probe

    # --- out of bodies ---

    def _control_flow(
        self, graph: Graph, node: Node, target: NodeProto, behind: list[NodeProto]
    ) -> list[PackedStatistic]:
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
        self, target: NodeProto, bodies: dict[str, GraphProto], found: dict[str, list[PackedStatistic]]
    ) -> list[PackedStatistic]:
        handed = []
        for name, own in found.items():
            for packed in own:
                out = self.new_names.make_name(packed.name)
                for other, body in bodies.items():
                    inner = packed.name if other == name else neutral(body, packed, self.new_names)
                    add_output(body, packed, inner)
                target.output.append(out)
                handed.append(replace(packed, name=out))
        return handed

    def _out_of_loop(
        self,
        target: NodeProto,
        body: GraphProto,
        own: list[PackedStatistic],
        opset: int | None,
        behind: list[NodeProto],
    ) -> list[PackedStatistic]:
        """``opset`` is that of a loop inside something else, whose iterations join here, None for one that is not."""
        _name_outputs(target, len(body.output) - (1 if target.op_type == "Loop" else 0), own)
        handed = []
        for packed in own:
            add_output(body, packed, packed.name)
            stacked = self.new_names.make_name(f"{packed.name}_stacked")
            target.output.append(stacked)
            if opset is None:
                handed.append(replace(packed, name=stacked, stacked=True))
                continue
            out = self.new_names.make_name(packed.name)
            joined = join_rows(packed.statistic.join_op_type, stacked, out, opset, self.new_names)
            behind += (
                make_reductions_safe(joined, out, packed.elem, self.new_names, len(packed.refs))
                if self.safe_reductions
                else joined
            )
            handed.append(replace(packed, name=out))
        for attribute in target.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.extend([0] * len(own))
        return handed

    def _call(self, body: Graph, target: NodeProto) -> list[PackedStatistic]:
        """Return the statistics of a function, as further outputs of this call."""
        function = body.function
        key = function_key(function)
        if key not in self.function_outputs:
            count = len(function.output)
            packed = self._scope(body, body.root, function)
            if "" not in body.opsets and packed:
                function.opset_import.add(domain="", version=self.graph.opsets.get("", 0))
            function.output.extend(vector.name for vector in packed)
            self.function_outputs[key] = count, packed
        count, packed = self.function_outputs[key]
        _name_outputs(target, count, packed)
        handed = [replace(vector, name=self.new_names.make_name(vector.name)) for vector in packed]
        target.output.extend(vector.name for vector in handed)
        return handed


def _name_outputs(target: NodeProto, count: int, packed: list[PackedStatistic]) -> None:
    """Give a node all of its ``count`` outputs, without names, if statistics are to follow them."""
    if packed:
        target.output.extend([""] * (count - len(target.output)))


def _source(node: Node, known: dict[str, TensorRef]) -> TensorRef | None:
    """Return the TensorRef of the tensor that a node only moves."""
    if node.op_type not in _SAME_VALUES or node.domain:
        return None
    first = node.inputs[0] if node.inputs else None
    if first is None or node.input_types[0] != first.type:  # it reads the tensor through a Cast that mixlist made
        return None
    return known.get(first.name)
