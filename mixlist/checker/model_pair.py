"""The two models of a check: the reference in float32 and the mixed one, observed and ready to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mixlist.diagnostics import Diagnostic, warning
from mixlist.emulation.conversions import Conversion, find_conversions
from mixlist.emulation.emulate import emulate, has_low_types, raise_to_float32, raise_to_float64
from mixlist.emulation.float64_reference import describe_float32_nodes, has_float64_kernel
from mixlist.emulation.graph_statistics import InstrumentedModel, Probe
from mixlist.emulation.instrument import Instrumenter, instrument
from mixlist.emulation.observed_range import ObservedRange
from mixlist.emulation.observer import Observer, Ranges
from mixlist.emulation.shared_weights import SharedWeights
from mixlist.errors import ModelError, UsageError
from mixlist.graph.build import build_graph
from mixlist.graph.dataflow import DataflowNode, trace_dataflow
from mixlist.graph.gc_pause import pause_gc
from mixlist.graph.load import LoadedModel, load_model
from mixlist.graph.model import POLICY_KEY, Graph
from mixlist.graph.naming import node_ref
from mixlist.graph.prune import prune_model
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.traversal import reachable_graphs
from mixlist.lists.policy import Policy
from mixlist.ops.low_precision import FINITE_MAX, LOW_TYPES
from mixlist.resolver import Plan, resolve
from mixlist.rewriter import rewrite
from mixlist.runtime.executors import Workers
from mixlist.runtime.guarded_session import GuardedSession
from mixlist.runtime.inputs import model_inputs
from mixlist.runtime.provider_rounding import start_rounding_tests
from mixlist.runtime.remote_session import RemoteSession
from mixlist.runtime.session import Session, SessionOptions
from mixlist.runtime.subprocess_session import SessionProcess, SubprocessSession

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.graph.proto_types import ModelSource
    from mixlist.runtime.session import Feed


@dataclass(frozen=True)
class SessionConfig:
    """Configure how the two models run: the provider, the process (None: this one), saturating or not."""

    provider: str
    process: SessionProcess | None
    saturate: bool
    float64_reference: bool = False  # the reference in float64 where the operators allow it
    skip_optimization: bool = False  # for few batches, where to optimize sessions takes longer than it saves
    weights: SharedWeights = field(default_factory=SharedWeights)
    workers: Workers | None = None  # sessions run there: every model is sent whole

    @property
    def mode(self) -> Literal["emulated", "native"]:
        """Real low precision where the provider has it; the CPU provider hides it, and no GPU saturates."""
        return "emulated" if self.provider == "cpu" or self.saturate else "native"

    @property
    def guard(self) -> bool:
        """Return whether the provider refuses to reduce an empty tensor."""
        return self.provider == "cuda"

    def observe_mixed(self, mixed: LoadedModel, instrumented: InstrumentedModel, outputs: list[str]) -> Observer:
        """Load the mixed model with its statistics: emulated in float32, or as it is (Rule S8.2)."""
        if self.mode == "native":
            return Observer(instrumented, self._session(instrumented.proto, mixed), outputs)
        loaded = replace(mixed, proto=instrumented.proto)
        proto = emulate(loaded, saturate=self.saturate, keep_external=self._is_shared(mixed))
        prune_model(proto, [*outputs, *instrumented.widths])
        return Observer(instrumented, self._session(proto, mixed), outputs, model_inputs(mixed.proto))

    def observe_reference(self, original: LoadedModel, instrumented: InstrumentedModel, outputs: list[str]) -> Observer:
        """Load the original with its statistics, in float32 or float64."""
        raised = replace(original, proto=self.raised(replace(original, proto=instrumented.proto)))
        prune_model(raised.proto, [*outputs, *instrumented.widths])
        inputs = model_inputs(original.proto)
        if not self.float64_reference:
            return Observer(instrumented, self._session(raised.proto, original), outputs, inputs)
        try:
            session = self.plain_session(raise_to_float64(raised, has_float64_kernel), original)
        except ModelError as problem:
            raise ModelError(
                f"the reference of {original.name} cannot be computed in float64: {problem.message}",
                hint="use --baseline float32",
            ) from None
        return Observer(instrumented, session, outputs, inputs, float64_inputs=True)

    def plain_session(self, proto: ModelProto, loaded: LoadedModel) -> Session:
        """Return a session of a float32 graph on the CPU."""
        return self._start(proto, loaded.folder, SessionOptions(), wait=True)

    def share(self, loaded: LoadedModel, clamp: bool = False) -> LoadedModel:
        """Return the model with its large weights where all sessions find them; ``clamp``: what conversions do."""
        return self.weights.share(loaded, raised=self.mode == "emulated", clamp=clamp)

    def raised(self, loaded: LoadedModel) -> ModelProto:
        """Return the float32 graph of a model, exact: the model itself where it is one."""
        if self._is_shared(loaded) and not has_low_types(loaded.proto):
            return loaded.proto
        return raise_to_float32(loaded, keep_external=self._is_shared(loaded))

    def _is_shared(self, loaded: LoadedModel) -> bool:
        return loaded.folder == self.weights.folder

    def _session(self, proto: ModelProto, loaded: LoadedModel) -> Session:
        return self._start(proto, loaded.folder, SessionOptions(provider=self.provider))

    def _start(self, proto: ModelProto, folder: Path | None, options: SessionOptions, *, wait: bool = False) -> Session:
        options = replace(options, optimize=not self.skip_optimization, lean=True)
        if self.workers is not None:
            return RemoteSession(proto, options, self.workers, folder)
        if self.process is not None:
            return SubprocessSession(proto, options, folder=folder, process=self.process, wait=wait)
        return GuardedSession(proto, options, folder)

    def start_rounding_tests(self) -> Callable[[], str | None]:
        """Start to test whether such sessions round; the returned function says why they do not, None if they do."""
        options = SessionOptions(provider=self.provider, threads=1)
        return start_rounding_tests(self.provider, lambda proto: self._start(proto, None, options))


_RUNS = 2**32  # more than the iterations and calls of any specialization of a function


@dataclass(frozen=True)
class ObservedModel:
    """A model and its probes; ``observe`` opens a session of the model with some statistics.

    ``original_scopes``: what the original calls functions that mixlist specialized. ``guard``, ``read``: see
    ``instrument``.
    """

    loaded: LoadedModel
    probes: Sequence[Probe]
    observe: Callable[[LoadedModel, InstrumentedModel, list[str]], Observer]
    original_scopes: Mapping[str, str] = field(default_factory=dict)
    guard: bool = False
    read: Mapping[str, Mapping[str, Probe]] = field(default_factory=dict)

    def in_original(self, tensor: TensorRef) -> TensorRef:
        """Return the tensor under the name that the original gives the function."""
        if not self.original_scopes or not tensor.scope.startswith("function:"):
            return tensor
        head, slash, rest = tensor.scope.partition("/")
        return tensor._replace(scope=f"{self.original_scopes.get(head, head)}{slash}{rest}")

    def merge_specializations(self, ranges: Ranges) -> Ranges:
        """Return the ranges by the tensors of the original, to which all specializations of a function are one.

        A specialization counts as called after those that stand before it, which are in the order of their first calls.
        """
        if not self.original_scopes:
            return ranges
        runs = {head: at * _RUNS for at, head in enumerate(self.original_scopes, 1)}
        merged: dict[TensorRef, ObservedRange] = {}
        for tensor, span in ranges.items():
            plain = self.in_original(tensor)
            if plain != tensor:
                span = span.later(runs[tensor.scope.partition("/")[0]])
            if span.ran or plain not in merged:
                merged[plain] = merged[plain].union(span) if plain in merged and merged[plain].ran else span
        return merged


@dataclass
class ModelPair:
    """The two models of a check: the reference in float32 and the mixed model, both observed.

    ``nodes`` are those of the original. ``low``: the low type of each tensor that the mixed model holds in low
    precision. ``conversions``: the tensors that its low nodes read converted; ``readers``: these nodes of the original.
    """

    reference: ObservedModel
    mixed: ObservedModel
    plan: Plan | None
    config: SessionConfig
    reference_observer: Observer
    mixed_observer: Observer
    nodes: list[DataflowNode]
    low_type_of: dict[TensorRef, int]
    conversions: tuple[Conversion, ...]
    conversion_readers: dict[NodeRef, DataflowNode]
    warnings: list[Diagnostic] = field(default_factory=list)

    def conversion_ranges(self, reference: Ranges, mixed: Ranges) -> list[tuple[Conversion, ObservedRange]]:
        """Return the conversions that one batch computes, each with the range of its tensor before the conversion.

        ``reference`` has the tensors of the original, ``mixed`` those of the mixed model.
        """
        found = []
        for conversion in self.conversions:
            before = (reference if conversion.in_reference else mixed).get(conversion.probe)
            if before is not None and before.ran:
                found.append((conversion, before))
        return found

    @property
    def low_types(self) -> tuple[int, ...]:
        """The low types of the mixed model's tensors and conversions, each once."""
        return tuple(dict.fromkeys((*self.low_type_of.values(), *(conversion.elem for conversion in self.conversions))))

    @property
    def largest_low(self) -> float:
        """Return the largest finite value of the mixed model's low types; infinity where nothing is low."""
        return min((FINITE_MAX[elem] for elem in self.low_types), default=math.inf)

    def observe_on_cpu(self, instrumented: InstrumentedModel) -> Observer:
        """Load a float32 copy of the reference with statistics of its own, without the model's outputs."""
        loaded = self.reference.loaded
        session = self.config.plain_session(instrumented.proto, loaded)
        return Observer(instrumented, session, [], model_inputs(loaded.proto))

    def close(self) -> None:
        """Release both sessions."""
        self.reference_observer.close()
        self.mixed_observer.close()


@pause_gc()
def make_model_pair(
    model: ModelSource | LoadedModel,
    policy: Policy,
    against: ModelSource | LoadedModel | None,
    config: SessionConfig,
    first: Feed | None = None,
) -> ModelPair:
    """Resolve, rewrite, observe and load both models; ``against`` is a mixed model that replaces the policy's.

    The reference begins with the batch ``first`` while the mixed model is made, if it runs in another process.
    """
    original = load_model(model)
    shared = config.share(original)
    instrumented = instrument(shared.proto, safe_reductions=config.guard)
    reference = ObservedModel(shared, instrumented.probes, config.observe_reference, guard=config.guard)
    reference_observer = config.observe_reference(shared, instrumented, _output_names(shared))
    rounding_problem = config.start_rounding_tests()
    reference_observer.start_ahead(first)
    warnings: list[Diagnostic] = []
    if against is None:
        plan = resolve(shared, policy)
        loaded = replace(shared, proto=rewrite(shared, plan).proto)
        warnings += plan.warnings
        if any(p.key == POLICY_KEY for p in original.proto.metadata_props):
            message = f"{original.name} is an output of mixlist: the check cannot see how its constants were rounded"
            warnings.append(warning("ML607", message, hint="check its original model with --against"))
    else:
        plan, loaded = None, load_model(against)
        _check_outputs(original, loaded)
    loaded = config.share(loaded, clamp=policy.constants == "clamp")
    main = build_graph(original.proto)
    mixed, instrumented, conversions = _observe_mixed(loaded, main, config)
    low = {mixed.in_original(p.ref): p.elem for p in mixed.probes if p.elem in LOW_TYPES}
    if not low and not conversions:
        warnings.append(warning("ML605", "no node is low: the mixed model is the original"))
    nodes = trace_dataflow(main)
    if config.float64_reference and (float32_nodes := describe_float32_nodes(nodes)):
        warnings.append(warning("ML608", float32_nodes))
    mixed_observer = config.observe_mixed(loaded, instrumented, _output_names(original))
    reason = rounding_problem()
    if reason:
        raise ModelError(f"this ONNX Runtime cannot be trusted to check: {reason}")
    return ModelPair(
        reference,
        mixed,
        plan,
        config,
        reference_observer,
        mixed_observer,
        nodes,
        low,
        conversions,
        _readers(conversions, nodes, main),
        warnings,
    )


def _readers(
    conversions: Sequence[Conversion], nodes: Sequence[DataflowNode], main: Graph
) -> dict[NodeRef, DataflowNode]:
    """Return the nodes that read a conversion: nodes that compute, or control flow and calls that pass it on."""
    wanted = {reader for conversion in conversions for reader in conversion.readers}
    found = {node.ref: node for node in nodes if node.ref in wanted}
    if found.keys() == wanted:
        return found
    for graph in reachable_graphs(main):
        for node in graph.nodes:
            ref = node_ref(graph, node) if node.bodies or node.function is not None else None
            if ref is not None and ref in wanted:
                found.setdefault(ref, DataflowNode(ref, node, graph, ()))
    return found


def _observe_mixed(
    loaded: LoadedModel, original: Graph, config: SessionConfig
) -> tuple[ObservedModel, InstrumentedModel, tuple[Conversion, ...]]:
    """Return the mixed model, itself with its probes, and its conversions."""
    scopes = _original_scopes(loaded.proto)
    mixed = ObservedModel(loaded, (), config.observe_mixed, scopes, config.guard)
    instrumenter = Instrumenter(loaded.proto, safe_reductions=config.guard)
    conversions = find_conversions(instrumenter.graph, original, mixed.in_original)
    instrumenter.extra_probes = conversions.probes
    instrumented = instrumenter.run()
    return replace(mixed, probes=instrumented.probes, read=conversions.probes), instrumented, conversions.conversions


def _output_names(loaded: LoadedModel) -> list[str]:
    return [output.name for output in loaded.proto.graph.output]


def _check_outputs(original: LoadedModel, mixed: LoadedModel) -> None:
    """Raise UsageError if the mixed model lacks an output of the original."""
    missing = [name for name in _output_names(original) if name not in _output_names(mixed)]
    if missing:
        raise UsageError(f"{mixed.name} has no output {missing[0]!r}, which {original.name} has")


def _original_scopes(proto: ModelProto) -> dict[str, str]:
    """Return the scope of each function that mixlist specialized, and that of the function it was made from."""
    scopes = {}
    for function in proto.functions:
        for entry in function.metadata_props:
            if entry.key == "pkg.mixlist.function":
                base = f"function:{function.domain}:"
                scopes[f"{base}{function.name}"] = f"{base}{entry.value}"
    return scopes
