"""Add probes to a model: statistics that are computed inside the graph, so that only scalars leave the device.

Every observed float tensor is reduced to a few numbers, by nodes directly after the node that computes it. Each scope
packs these numbers into one vector for each statistic. The vectors become outputs of the main graph:
* from a branch of an If as outputs of the If, where the other branch yields the neutral elements;
* from the body of a Loop or Scan as scan outputs, with one row for each iteration. A loop inside another body reduces
  the rows to one, because its number of iterations may change from one run of the outer body to the next.

A tensor of a few values is cheaper than its probe: ``whole_tensors`` become outputs of the main graph themselves.

A range takes three reductions, because ONNX Runtime's ReduceMax and ReduceMin may ignore a NaN and a sum does not. The
third one sums the magnitudes. A sum of the values themselves could become inf - inf for large values of both signs, and
this NaN would look like a NaN in the tensor.

Tensors of a low type are reduced in float32: ONNX Runtime's CUDA provider has no ReduceMax, ReduceMin and ReduceL1 for
bfloat16, and a sum in float16 overflows although no value does. The tensors of the emulation are in float32 already and
need no Cast.

CUDA refuses to reduce an empty tensor, and by its source code one of more than eight dimensions. For this provider each
reduction is rewritten: the tensor is flattened, and the neutral element is appended to its values.

    x -> ReduceMax  becomes  x -> Reshape [-1] -> Concat with -inf -> ReduceMax

The file has four parts: what a probe and a statistic are, how the statistics of a scope are packed, the reductions for
CUDA, and the ``Instrumenter``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Node, Scope
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NameGenerator, TensorRef, display_name, names_in, scope_path
from mixlist.model.protos import SortKey, copy_message, reorder_messages
from mixlist.model.traits import Trait, operators

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from mixlist.model.graph import Graph

# --- probes and statistics ---

# Returns the nodes that compute a statistic: (name of the tensor, name of the result, element type of the tensor, new
# names).
NodeBuilder = Callable[[str, str, int, NameGenerator], "list[NodeProto]"]


@dataclass(frozen=True)
class Probe:
    """A tensor to observe.

    ref: its identity.
    tensor: its name in the file.
    op_type: the operator that computes it; "" if no node of the scope does.
    elem: its element type.
    source: another tensor with the same values, which is observed instead; None if this tensor itself is observed.
    """

    ref: TensorRef
    tensor: str
    op_type: str
    elem: int
    source: TensorRef | None = None


@dataclass(frozen=True)
class Statistic:
    """A number that probes compute of a tensor, for example its minimum.

    neutral: the neutral element of the reduction (inf for a minimum). It is the result for a tensor that a run does not
        compute.
    iterations_op_type: the operator that reduces the values of a loop's iterations to one value.
    build: returns the nodes that compute the number; None if a subclass of ``Instrumenter`` makes them.
    elem: the element type of the number; UNKNOWN if it is that of the tensor.
    of_magnitudes: True if ``build`` gets the tensor's magnitudes in float32, which all such statistics share.
    """

    name: str
    neutral: float
    iterations_op_type: str
    build: NodeBuilder | None
    elem: int = dtypes.UNKNOWN
    of_magnitudes: bool = False


def _build_reduction(op_type: str) -> NodeBuilder:
    """Return a builder of one node that reduces all elements of a tensor to a scalar."""
    return lambda tensor, out, elem, names: [names.make_node(op_type, [tensor], out, keepdims=0)]


# The sum of magnitudes is part of a range because it shows every NaN. ONNX Runtime's ReduceMin and ReduceMax ignore a
# NaN that is not the first value (1.31.1, CPU).
SUM = Statistic("sum", 0.0, "ReduceSum", _build_reduction("ReduceL1"))
RANGE_STATISTICS = (
    Statistic("minimum", float("inf"), "ReduceMin", _build_reduction("ReduceMin")),
    Statistic("maximum", float("-inf"), "ReduceMax", _build_reduction("ReduceMax")),
    SUM,
)


@dataclass
class InstrumentedModel:
    """A model that also yields statistics.

    proto: the model.
    probes: the observed tensors in the order of computation.
    columns: the columns that hold a statistic of a tensor, by tensor and name of the statistic.
    column_counts: the number of columns of each output with statistics.
    whole_outputs: the observed tensors that are outputs of the graph themselves, by identity; these have no statistics.
    cut_outputs: for each place where the graph can be cut (``cut_tensors`` of ``Instrumenter``), the names of the
        tensors that are computed right before it: the outputs of the last node, and the statistics that are packed
        there. The stacked statistics of loops are left out.
    """

    proto: ModelProto
    probes: list[Probe] = field(default_factory=list)
    columns: dict[tuple[TensorRef, str], list[OutputColumn]] = field(default_factory=dict)
    column_counts: dict[str, int] = field(default_factory=dict)
    whole_outputs: dict[TensorRef, str] = field(default_factory=dict)
    cut_outputs: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def observed_outputs(self) -> list[str]:
        """Return the outputs of the graph that a run needs to observe all tensors."""
        return [*self.column_counts, *self.whole_outputs.values()]


@dataclass(frozen=True)
class OutputColumn:
    """One column of a graph output that holds statistics.

    The output has the shape [columns], or with ``stacked`` (from a Loop or Scan) the shape [iterations, columns].
    """

    output: str
    column: int
    stacked: bool


# --- packing ---


@dataclass
class ScalarStatistic:
    """One statistic of one tensor. ``name`` is the scalar that holds it in its scope, ``elem`` its element type."""

    ref: TensorRef
    statistic: Statistic
    name: str
    elem: int


@dataclass
class PackedStatistic:
    """One statistic of many tensors, with a column for each tensor of ``refs``.

    name: the tensor that holds it, with the shape [columns], or with ``stacked`` the shape [iterations, columns].
    """

    refs: tuple[TensorRef, ...]
    statistic: Statistic
    name: str
    elem: int
    stacked: bool = False


def pack(
    scalars: Iterable[ScalarStatistic], vectors: Iterable[PackedStatistic], opset: int, names: NameGenerator
) -> tuple[list[PackedStatistic], list[NodeProto]]:
    """Pack the statistics of a scope into as few tensors as possible; return these, and the nodes that compute them.

    scalars: the statistics of the scope itself. vectors: those of its bodies. A stacked vector stays alone,
    because its number of rows is known only at run time.
    """
    packed: list[PackedStatistic] = []
    nodes: list[NodeProto] = []
    # The same statistic in the same element type goes into one tensor. Each group has its vectors and its scalars.
    groups: dict[tuple[str, int], tuple[list[PackedStatistic], list[ScalarStatistic]]] = {}
    for scalar in scalars:
        groups.setdefault((scalar.statistic.name, scalar.elem), ([], []))[1].append(scalar)
    for vector in vectors:
        if vector.stacked:
            packed.append(vector)
        else:
            groups.setdefault((vector.statistic.name, vector.elem), ([], []))[0].append(vector)
    for (statistic_name, elem), (group_vectors, group_scalars) in groups.items():
        parts = [vector.name for vector in group_vectors]
        if group_scalars:
            parts.append(_make_vector([scalar.name for scalar in group_scalars], opset, names, nodes))
        out = parts[0]
        if len(parts) > 1:
            out = names.make_name(f"{statistic_name}_all")
            nodes.append(names.make_node("Concat", parts, out, axis=0))
        # In the order in which the parts are concatenated: first the vectors, then the scalars.
        refs = (*(ref for vector in group_vectors for ref in vector.refs), *(scalar.ref for scalar in group_scalars))
        packed.append(PackedStatistic(refs, (group_scalars or group_vectors)[0].statistic, out, elem))
    return packed, nodes


def _make_vector(scalars: list[str], opset: int, names: NameGenerator, nodes: list[NodeProto]) -> str:
    """Add the nodes that join scalars to a vector, and return the name of the vector."""
    out = names.make_name(f"{scalars[0]}_packed")
    if opset >= 11:
        # Two nodes for any number of scalars. Sequences exist since opset 11.
        sequence = names.make_name(f"{out}_sequence")
        nodes.append(names.make_node("SequenceConstruct", scalars, sequence))
        nodes.append(names.make_node("ConcatFromSequence", [sequence], out, axis=0, new_axis=1))
    else:
        vectors = [names.make_name(f"{scalar}_vector") for scalar in scalars]
        nodes += [
            names.make_node("Unsqueeze", [scalar], vector, axes=[0])
            for scalar, vector in zip(scalars, vectors, strict=True)
        ]
        nodes.append(names.make_node("Concat", vectors, out, axis=0))
    return out


def add_neutral_vector(body: GraphProto, packed: PackedStatistic, names: NameGenerator) -> str:
    """Add nodes to a body that make a vector of the neutral element of a statistic, and return the name of the vector.

    The branch of an If that does not compute the tensors yields this vector.
    """
    out = names.make_name(f"{packed.name}_neutral")
    body.node.extend(names.make_float_constant(out, packed.elem, [len(packed.refs)], packed.statistic.neutral))
    return out


def reduce_rows(op_type: str, rows: str, out: str, opset: int, names: NameGenerator) -> list[NodeProto]:
    """Return the nodes that reduce a matrix [iterations, columns] to a vector [columns]."""
    # The axes are an input since opset 13 (ReduceSum) or 18 (the other reductions), before that an attribute.
    if opset < (13 if op_type == "ReduceSum" else 18):
        return [names.make_node(op_type, [rows], out, axes=[0], keepdims=0)]
    axes = names.make_name(f"{out}_axes")
    return [
        names.make_constant(axes, dtypes.INT64, [1], [0]),
        names.make_node(op_type, [rows, axes], out, keepdims=0),
    ]


def add_output(graph: GraphProto, packed: PackedStatistic, name: str, stacked: bool = False) -> None:
    """Declare the tensor ``name``, which holds packed statistics, as an output of a graph.

    stacked: the tensor has the shape [iterations, columns] instead of [columns].
    """
    tensor_type = graph.output.add(name=name).type.tensor_type
    tensor_type.elem_type = packed.elem
    if stacked:
        tensor_type.shape.dim.add()
    tensor_type.shape.dim.add(dim_value=len(packed.refs))


# --- reductions for CUDA ---

_NEUTRAL_ELEMENTS = {"ReduceMin": float("inf"), "ReduceMax": float("-inf"), "ReduceL1": 0.0, "ReduceSum": 0.0}


def make_reductions_safe(
    nodes: list[NodeProto], out: str, elem: int, names: NameGenerator, columns: int | None = None
) -> list[NodeProto]:
    """Return ``nodes`` with the reduction to the tensor ``out`` rewritten so that it reduces at least one value.

    elem: the element type of the reduced tensor.
    columns: None if all values are reduced. Otherwise a matrix [rows, ``columns``] is reduced over its rows, and gets a
        row of neutral elements.
    """
    safe_nodes: list[NodeProto] = []
    for node in nodes:
        if out in node.output and node.op_type in _NEUTRAL_ELEMENTS:
            tensor, dims = node.input[0], [1] if columns is None else [1, columns]
            if columns is None:
                shape, flat = names.make_name(f"{out}_shape"), names.make_name(f"{out}_flat")
                safe_nodes.append(names.make_constant(shape, dtypes.INT64, [1], [-1]))
                safe_nodes.append(names.make_node("Reshape", [tensor, shape], flat))
                tensor = flat
            neutral, extended = names.make_name(f"{out}_neutral"), names.make_name(f"{out}_more")
            safe_nodes += names.make_float_constant(neutral, elem, dims, _NEUTRAL_ELEMENTS[node.op_type])
            safe_nodes.append(names.make_node("Concat", [tensor, neutral], extended, axis=0))
            node.input[0] = extended
        safe_nodes.append(node)
    return safe_nodes


# --- the instrumenter ---

StatisticsOf: TypeAlias = Callable[[Probe], Sequence[Statistic]]
_SAME_VALUES = operators(Trait.SAME_VALUES)
_OBSERVED_TYPES = frozenset({dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.DOUBLE})


@dataclass(eq=False)
class Instrumenter:
    """Makes a copy of ``model`` that also yields statistics of its float tensors; ``run`` returns it.

    statistics_of: returns the statistics of a tensor; none for a tensor that is not observed.
    safe_reductions: for a provider that refuses to reduce empty tensors (CUDA).
    needs_own_range: some tensors only hold the values of another tensor, for example the output of a Transpose. By
        default such a tensor takes the range of the other one. This function returns True for a tensor that may be
        rounded on the way and needs reductions of its own.
    cut_tensors: tensors of the main graph. After the node that computes one, the statistics so far are packed, so that
        the graph can be cut there.
    extra_probes: further tensors to observe, by scope path and tensor name. No node of the scope computes them: they
        are tensors of outer scopes, and results of control flow.
    whole_tensors: node outputs of the main graph that become outputs of the graph, instead of their statistics.
    built_graph: the Graph of the model, if it was built already. Its messages do not change.

    A subclass may override ``make_statistics`` to compute other numbers of each tensor.
    """

    model: InitVar[ModelProto]
    statistics_of: StatisticsOf = lambda _: RANGE_STATISTICS
    safe_reductions: bool = False
    needs_own_range: Callable[[TensorRef], bool] = lambda _: False
    cut_tensors: Container[str] = ()
    extra_probes: Mapping[str, Mapping[str, Probe]] = field(default_factory=dict)
    whole_tensors: Container[TensorRef] = ()
    built_graph: InitVar[Graph | None] = None

    def __post_init__(self, model: ModelProto, built_graph: Graph | None) -> None:
        self.proto = copy_message(model)
        self.graph = built_graph or build_graph(self.proto)
        self.new_names = NameGenerator(names_in(self.proto.graph))
        self.instrumented = InstrumentedModel(self.proto)

    def run(self) -> InstrumentedModel:
        """Instrument the whole model, and return it."""
        for packed in self._instrument_scope(self.graph.root, self.proto.graph):
            add_output(self.proto.graph, packed, packed.name, stacked=packed.stacked)
            self.instrumented.column_counts[packed.name] = len(packed.refs)
            for index, ref in enumerate(packed.refs):
                column = OutputColumn(packed.name, index, packed.stacked)
                self.instrumented.columns.setdefault((ref, packed.statistic.name), []).append(column)
        declared = {output.name for output in self.proto.graph.output}
        for probe in self.instrumented.probes:
            if probe.ref in self.instrumented.whole_outputs and probe.tensor not in declared:
                self.proto.graph.output.add(name=probe.tensor).type.tensor_type.elem_type = probe.elem
        return self.instrumented

    # --- scopes ---

    def _instrument_scope(self, scope: Scope, scope_proto: GraphProto) -> list[PackedStatistic]:
        """Add probes to a scope and to its bodies, and return the packed statistics that the scope yields.

        The reductions come directly after the node that computes their tensor, so that the tensor can be freed.
        """
        scalars: list[ScalarStatistic] = []  # statistics of this scope that are not packed yet
        vectors: list[PackedStatistic] = []  # statistics of its bodies that are not packed yet
        packed: list[PackedStatistic] = []
        path = scope_path(scope)
        sources: dict[str, TensorRef] = {}  # by name of a tensor: the observed tensor that has the same range
        is_main = scope.owner is None
        opset = self.graph.opsets.get("", 0)
        node_count = len(scope_proto.node)
        added: list[tuple[int, list[NodeProto]]] = []  # the new nodes after the node at a position of the file
        # Tensors that no node of the scope computes: their reductions come first.
        first_nodes: list[NodeProto] = []
        for probe in (*(self._input_probes(scope) if is_main else ()), *self._outer_probes(scope, path)):
            statistics, nodes = self.make_statistics(probe)
            scalars += statistics
            first_nodes += nodes
        added.append((-1, first_nodes))
        # The nodes of the scope, each with the probes of its outputs.
        for node in scope.nodes:
            node_proto = scope_proto.node[node.position]
            nodes_after: list[NodeProto] = []
            if node.bodies:
                vectors += self._instrument_control_flow(node, node_proto, nodes_after)
            for probe in self._output_probes(node, path, sources):
                if probe.ref in self.whole_tensors:
                    self.instrumented.whole_outputs[probe.ref] = probe.tensor
                    continue
                statistics, nodes = self.make_statistics(probe, node, node_proto)
                scalars += statistics
                nodes_after += nodes
            # A cut: all statistics so far are packed here. Only the main graph can be cut.
            if is_main and any(name in self.cut_tensors for name in node_proto.output):
                packed_here, nodes = pack(scalars, vectors, opset, self.new_names)
                nodes_after += nodes
                last_outputs = (*node_proto.output, *(vector.name for vector in packed_here if not vector.stacked))
                self.instrumented.cut_outputs.append(last_outputs)
                packed, scalars, vectors = packed + packed_here, [], []
            added.append((node.position, nodes_after))
        packed_here, last_nodes = pack(scalars, vectors, opset, self.new_names)
        added.append((node_count, last_nodes))
        # Move the new nodes to their positions.
        keys: list[SortKey] = [(position, 0, 0) for position in range(node_count)]
        for position, nodes in added:
            scope_proto.node.extend(nodes)
            keys += [(position, 1, index) for index in range(len(nodes))]
        reorder_messages(scope_proto.node, keys)
        return packed + packed_here

    def _output_probes(self, node: Node, path: str, sources: dict[str, TensorRef]) -> Iterator[Probe]:
        """Yield the probes of the float outputs of a node, and enter the outputs in ``sources``.

        A constant is not observed. The outputs of control flow are observed in the bodies that compute them, and here
        only if they are in ``extra_probes``.
        """
        if node.op_type == "Constant" or node.bodies:
            extra_probes = self.extra_probes.get(path, {})
            yield from self._record_observed(
                extra_probes[v.name_in_file] for v in node.outputs if v is not None and v.name_in_file in extra_probes
            )
            return
        for slot, value in enumerate(node.outputs):
            if value is None or not isinstance(value.type, int) or value.type not in _OBSERVED_TYPES:
                continue
            ref = TensorRef(path, display_name(node), slot)
            source = None if self.needs_own_range(ref) else _find_source(node, sources)
            sources[value.name] = source or ref
            probe = Probe(ref, value.name_in_file, node.op_type, value.type, source)
            if self.statistics_of(probe):
                self.instrumented.probes.append(probe)
                if source is None:
                    yield probe

    def make_statistics(
        self, probe: Probe, node: Node | None = None, node_proto: NodeProto | None = None
    ) -> tuple[list[ScalarStatistic], list[NodeProto]]:
        """Return the statistics of one tensor, and the nodes that compute them.

        node: the node that computes the tensor, and ``node_proto`` its message; None if no node of the scope does.
        """
        scalars: list[ScalarStatistic] = []
        nodes: list[NodeProto] = []
        tensor, elem = probe.tensor, probe.elem
        if elem in LOW_TYPES:
            tensor, elem = self.new_names.make_name(f"{probe.tensor}_exact"), dtypes.FLOAT
            nodes.append(self.new_names.make_cast(probe.tensor, tensor, elem))
        magnitudes = ""
        for statistic in self.statistics_of(probe):
            out = self.new_names.make_name(f"{probe.tensor}_{statistic.name}")
            result_elem = statistic.elem or elem
            if statistic.of_magnitudes and not magnitudes:
                float32, magnitudes = (self.new_names.make_name(f"{tensor}_{part}") for part in ("float32", "abs"))
                nodes.append(self.new_names.make_cast(tensor, float32, dtypes.FLOAT))
                nodes.append(self.new_names.make_node("Abs", [float32], magnitudes))
            operand = magnitudes if statistic.of_magnitudes else tensor
            assert statistic.build is not None, "the subclass overrides this method"
            reductions = statistic.build(operand, out, elem, self.new_names)
            if self.safe_reductions:
                reductions = make_reductions_safe(reductions, out, result_elem, self.new_names)
            nodes += reductions
            scalars.append(ScalarStatistic(probe.ref, statistic, out, result_elem))
        return scalars, nodes

    def _input_probes(self, scope: Scope) -> Iterator[Probe]:
        """Yield the probes of the float inputs of the model."""
        yield from self._record_observed(
            Probe(TensorRef("", "", slot), value.name_in_file, "", value.type)
            for slot, value in enumerate(scope.inputs)
            if value.kind == "input" and isinstance(value.type, int) and value.type in _OBSERVED_TYPES
        )

    def _outer_probes(self, scope: Scope, path: str) -> Iterator[Probe]:
        """Yield the extra probes of tensors that a scope reads and does not compute."""
        extra_probes = self.extra_probes.get(path)
        if extra_probes:
            computed = {v.name_in_file for node in scope.nodes for v in node.outputs if v is not None}
            yield from self._record_observed(probe for name, probe in extra_probes.items() if name not in computed)

    def _record_observed(self, probes: Iterable[Probe]) -> Iterator[Probe]:
        """Yield the probes that are observed, and add them to the result."""
        for probe in filter(self.statistics_of, probes):
            self.instrumented.probes.append(probe)
            yield probe

    # --- statistics out of bodies ---

    def _instrument_control_flow(
        self, node: Node, node_proto: NodeProto, nodes_after: list[NodeProto]
    ) -> list[PackedStatistic]:
        """Instrument the bodies of a node, and return the statistics that the node yields.

        New nodes that must come after the node are added to ``nodes_after``.
        """
        bodies = {a.name: a.g for a in node_proto.attribute if a.name in node.bodies}
        if node.op_type == "If" and not node.domain:
            packed = {name: self._instrument_scope(node.bodies[name], body) for name, body in bodies.items()}
            return self._yield_from_branches(node_proto, bodies, packed)
        if node.op_type in ("Loop", "Scan") and not node.domain:
            body_packed = self._instrument_scope(node.bodies["body"], bodies["body"])
            opset = self.graph.opsets.get("", 0) if node.scope.owner is not None else None
            return self._yield_from_loop(node_proto, bodies["body"], body_packed, opset, nodes_after)
        return []  # the number of outputs of SequenceMap and of custom operators is fixed

    def _yield_from_branches(
        self, if_proto: NodeProto, bodies: dict[str, GraphProto], packed_by_branch: dict[str, list[PackedStatistic]]
    ) -> list[PackedStatistic]:
        """Add the statistics of both branches to the outputs of an If, and return them.

        The branch that does not compute a statistic yields its neutral elements.
        """
        yielded = []
        for branch, branch_packed in packed_by_branch.items():
            for packed in branch_packed:
                out = self.new_names.make_name(packed.name)
                for body_name, body in bodies.items():
                    is_own = body_name == branch
                    inner_name = packed.name if is_own else add_neutral_vector(body, packed, self.new_names)
                    add_output(body, packed, inner_name)
                if_proto.output.append(out)
                yielded.append(replace(packed, name=out))
        return yielded

    def _yield_from_loop(
        self,
        loop_proto: NodeProto,
        body: GraphProto,
        body_packed: list[PackedStatistic],
        opset: int | None,
        nodes_after: list[NodeProto],
    ) -> list[PackedStatistic]:
        """Add the statistics of a body to the scan outputs of a Loop or Scan, and return them.

        opset: for a loop inside another body, the version of the standard domain: the iterations are reduced to one
            vector. None for a loop in the main graph, whose statistics stay stacked.
        """
        # A Loop has one output less than its body, which also yields the condition.
        _fill_outputs(loop_proto, len(body.output) - (1 if loop_proto.op_type == "Loop" else 0), body_packed)
        yielded = []
        for packed in body_packed:
            add_output(body, packed, packed.name)
            stacked = self.new_names.make_name(f"{packed.name}_stacked")
            loop_proto.output.append(stacked)
            if opset is None:
                yielded.append(replace(packed, name=stacked, stacked=True))
                continue
            out = self.new_names.make_name(packed.name)
            reductions = reduce_rows(packed.statistic.iterations_op_type, stacked, out, opset, self.new_names)
            if self.safe_reductions:
                reductions = make_reductions_safe(reductions, out, packed.elem, self.new_names, len(packed.refs))
            nodes_after += reductions
            yielded.append(replace(packed, name=out))
        # A Scan may list an axis and a direction for each scan output. 0 is the default of both.
        for attribute in loop_proto.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.extend([0] * len(body_packed))
        return yielded


def _fill_outputs(node_proto: NodeProto, count: int, packed: list[PackedStatistic]) -> None:
    """Give a node empty names for omitted trailing outputs, up to ``count``, if statistics follow them."""
    if packed:
        node_proto.output.extend([""] * (count - len(node_proto.output)))


def _find_source(node: Node, sources: dict[str, TensorRef]) -> TensorRef | None:
    """Return the tensor whose values a node only moves: x -> Transpose -> y has the range of x. None otherwise."""
    if node.op_type not in _SAME_VALUES or node.domain:
        return None
    first = node.inputs[0] if node.inputs else None
    if first is None or node.input_types[0] != first.type:  # a Cast of mixlist before the node rounds the values
        return None
    return sources.get(first.name)
