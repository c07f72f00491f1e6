"""Make the two models of a check, the reference in float32 and the mixed model, observed and ready to run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.conversions import Conversion, find_conversions
from mixlist.checker.emulation import has_low_types
from mixlist.checker.finding_rules import BatchRanges
from mixlist.checker.instrument import InstrumentedModel, Instrumenter, Probe
from mixlist.checker.intended_infinities import find_absorbing_softmaxes
from mixlist.checker.load_test import find_load_crash
from mixlist.checker.observer import ObservedRange, Observer, Ranges
from mixlist.checker.result import LowPart
from mixlist.checker.widened_nodes import describe_widened_nodes
from mixlist.decide import Plan
from mixlist.decide.resolve_model import Resolver
from mixlist.decide.solution import find_precision
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError, UsageError
from mixlist.lists.policy import Policy
from mixlist.model import dtypes
from mixlist.model.build import build_graph, describe_declarations, find_wrong_declarations
from mixlist.model.dataflow import DataflowNode, trace_dataflow
from mixlist.model.graph import POLICY_KEY, Graph, Node, pause_gc
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import FINITE_MAX, LOW_TYPES
from mixlist.model.naming import NodeRef, TensorRef, node_ref, output_ref
from mixlist.model.shape_propagation import count_elements
from mixlist.model.value_origins import is_random
from mixlist.option_spelling import spell
from mixlist.run.feeds import find_shapes
from mixlist.run.inputs import model_inputs
from mixlist.run.local_session import RunRefused
from mixlist.targets.estimate import compute_low_share, count_moved_bytes, count_uncounted, estimate_costs
from mixlist.targets.target import describe_refused_bfloat16
from mixlist.worker_processes import WorkerDied
from mixlist.write import rewrite
from mixlist.write.result import NOTHING_LOW

if TYPE_CHECKING:
    from mixlist.run.session import Feed

# A probe of a small tensor takes longer than the tensor: ONNX Runtime loads and runs three more nodes for it. So in a
# graph with many nodes, tensors with few elements become outputs, whose ranges numpy computes. All other tensors are
# reduced where they are computed, because all of them together may not fit into memory.
_LARGE_GRAPH = 2000  # nodes of the main graph; to infer the sizes of tensors pays off only for such a graph
_MOST_WHOLE_ELEMENTS = 2**12


@dataclass(frozen=True)
class ObservedModel:
    """A model and its probes; ``open_observer`` opens a session of the model with some statistics.

    ``graph``: the Graph of the model, None if it is not built. ``safe_reductions`` and ``extra_probes``: see
    ``Instrumenter``.
    """

    loaded: LoadedModel
    probes: Sequence[Probe]
    open_observer: Callable[[LoadedModel, InstrumentedModel, list[str]], Observer]
    graph: Graph | None = None
    safe_reductions: bool = False
    extra_probes: Mapping[str, Mapping[str, Probe]] = field(default_factory=dict)


@dataclass
class ModelPair:
    """The two models of a check: the reference in float32 and the mixed model, both observed.

    ``plan`` is None for a mixed model that was given as a file. ``graph`` is that of the original, and ``nodes`` are
    its nodes in order of computation. ``low_type_of``: the low type of each tensor that the mixed model holds in low
    precision. ``conversions``: the tensors that low nodes of the mixed model read converted. ``low_part``: how much of
    a mixed model that has a plan is low. ``original_folder``: where the original has its external data.
    """

    reference: ObservedModel
    mixed: ObservedModel
    plan: Plan | None
    sessions: CheckSessions
    reference_observer: Observer
    mixed_observer: Observer
    graph: Graph
    nodes: list[DataflowNode]
    low_type_of: dict[TensorRef, int]
    conversions: tuple[Conversion, ...]
    low_part: LowPart | None
    original_folder: Path | None
    warnings: list[Diagnostic] = field(default_factory=list)

    def conversion_ranges(self, reference: Ranges, mixed: Ranges) -> list[tuple[Conversion, ObservedRange]]:
        """Return the conversions that run in one batch, each with the range of its tensor before the conversion."""
        conversion_ranges = []
        for conversion in self.conversions:
            before = (reference if conversion.in_reference else mixed).get(conversion.observed_ref)
            if before is not None and before.ran:
                conversion_ranges.append((conversion, before))
        return conversion_ranges

    @cached_property
    def conversion_readers(self) -> dict[NodeRef, DataflowNode]:
        """Return the nodes of the original that read a conversion.

        These are nodes that compute, which are among ``nodes``, and control-flow nodes that pass it on.
        """
        readers = {reader for conversion in self.conversions for reader in conversion.readers}
        node_of = {node.ref: node for node in self.nodes if node.ref in readers}
        # A control-flow node may pass a converted tensor on to low nodes of a body. ``trace_dataflow`` has no such
        # node. It gets no inputs here, because a converted input is a first offender whatever the other inputs are.
        for node in self.graph.nodes:
            ref = node_ref(node) if node.bodies else None
            if ref is not None and ref in readers:
                node_of.setdefault(ref, DataflowNode(ref, node, ()))
        return node_of

    def batch_ranges(self, index: int, reference: Ranges, mixed: Ranges) -> BatchRanges:
        """Return the ranges of one batch in both models."""
        conversion_ranges = self.conversion_ranges(reference, mixed)
        return BatchRanges(
            index, reference, mixed, self.low_type_of, self.sessions.saturate, conversion_ranges=conversion_ranges
        )

    @property
    def low_types(self) -> tuple[int, ...]:
        """Return the low types of the mixed model's tensors and conversions, each once."""
        return tuple(dict.fromkeys((*self.low_type_of.values(), *(conversion.elem for conversion in self.conversions))))

    def precision(self, policy: Policy) -> str:
        """Return the low type of the mixed model. A model that was given as a file need not have that of the policy."""
        if self.plan is not None:
            return self.plan.policy.mode.low
        return dtypes.type_name(self.low_types[0]) if self.low_types else policy.mode.low

    @property
    def largest_finite(self) -> float:
        """Return the largest finite value of the mixed model's low type; infinity if nothing is low.

        If the model has both low types, this is the value of float16, the smaller one.
        """
        return min((FINITE_MAX[low] for low in self.low_types), default=math.inf)

    @property
    def changes_nothing(self) -> bool:
        """Return True if the policy changes no node of the original."""
        return self.plan is not None and not any(decision.changed for decision in self.plan.nodes)

    @property
    def is_low_already(self) -> bool:
        """Return True if the policy raises no node, and most of the low nodes are low in the original."""
        if self.plan is None:
            return False
        low_nodes = [node for node in self.plan.nodes if node.precision == self.plan.policy.mode.low]
        is_raised = any(node.changed and node.precision == "float32" for node in self.plan.nodes)
        return not is_raised and 2 * sum(not node.changed for node in low_nodes) > len(low_nodes)

    def naming_the_reference(self) -> AbstractContextManager[None]:
        """Return a context in which an error of loading says that it is about the reference."""
        return _naming("the reference", self.reference.loaded, self.plan is None)

    def naming_the_mixed_model(self) -> AbstractContextManager[None]:
        """Return a context in which an error of loading says that it is about the mixed model."""
        return _naming(f"the model of {spell('mixed_model')}", self.mixed.loaded, self.plan is None)

    def mixed_low_nodes(self) -> dict[NodeRef, Node]:
        """Return the nodes of the mixed model that compute an output of a low type.

        Casts and constants are left out. So are random nodes, because their outputs cannot be compared.
        """
        nodes: dict[NodeRef, Node] = {}
        for node in build_graph(self.mixed.loaded.proto).nodes:
            if node.bodies or is_random(node) or node.op_type in ("Cast", "Constant"):
                continue
            if any(value is not None and dtypes.element(value.type) in LOW_TYPES for value in node.outputs):
                nodes.setdefault(node_ref(node), node)
        return nodes

    def open_cpu_observer(self, instrumented: InstrumentedModel) -> Observer:
        """Load a float32 copy of the reference that has only these statistics as outputs, on the CPU."""
        loaded = self.reference.loaded
        session = self.sessions.cpu_session(instrumented.proto, loaded)
        return Observer(instrumented, session, [], instrumented.proto, model_inputs(loaded.proto))

    def close(self) -> None:
        """Release both sessions."""
        self.reference_observer.close()
        self.mixed_observer.close()


@contextmanager
def _naming(role: str, loaded: LoadedModel, has_two_files: bool) -> Iterator[None]:
    """Add the role and the file of a model to an error about it, if the user gave two models."""
    try:
        yield
    except (RunRefused, WorkerDied):  # these are findings of the check
        raise
    except ModelError as error:
        if not has_two_files:
            raise
        raise ModelError(f"{role}, {loaded.name}: {error.message}", hint=error.hint) from error


@pause_gc()
def make_model_pair(
    original: LoadedModel,
    policy: Policy,
    mixed_model: LoadedModel | None,
    sessions: CheckSessions,
    first_feed: Feed | None = None,
) -> ModelPair:
    """Resolve and rewrite a model, then observe and load the original and the mixed model.

    ``mixed_model`` is a mixed model that replaces the one of the policy. If the reference runs in another process, it
    begins with the batch ``first_feed`` while the mixed model is made.
    """
    # Load the reference and test ONNX Runtime first: other processes do so while this one makes the mixed model.
    shared = sessions.share_weights(original)
    resolver = Resolver(shared)
    whole_tensors = _choose_whole_tensors(resolver.graph, first_feed)
    add_probes = partial(Instrumenter, safe_reductions=sessions.safe_reductions, whole_tensors=whole_tensors)
    instrumented = add_probes(shared.proto, built_graph=resolver.graph).run()
    with _naming("the reference", original, mixed_model is not None):
        reference_observer = sessions.open_reference_observer(shared, instrumented, _output_names(shared))
    wait_for_rounding_tests = sessions.start_rounding_tests()
    reference_observer.start_ahead(first_feed)

    # The mixed model comes from the policy, or from a file.
    plan, loaded, warnings = _make_mixed_model(original, resolver, policy, mixed_model)
    # The new weights of the mixed model, such as converted constants, go to the shared folder too.
    loaded = sessions.share_weights(loaded, clamp=policy.clamp)
    widened_nodes = sessions.find_widened_nodes(loaded, first_feed)
    # Add the probes. The graph of the original gives the nodes of findings: in that of ``shared``, large constants are
    # external, and masks among them would not be found.
    graph, mixed_graph = build_graph(original.proto), build_graph(loaded.proto)
    sessions = replace(sessions, widened_nodes=widened_nodes, absorbing=find_absorbing_softmaxes(graph))
    # The conversions tell which further tensors the instrumenter has to observe.
    conversions, extra_probes = find_conversions(mixed_graph, graph)
    instrumented = add_probes(loaded.proto, built_graph=mixed_graph, extra_probes=extra_probes).run()
    low_type_of = {probe.ref: probe.elem for probe in instrumented.probes if probe.elem in LOW_TYPES}
    with _naming(f"the model of {spell('mixed_model')}", loaded, mixed_model is not None):
        mixed_observer = sessions.open_mixed_observer(loaded, instrumented, _output_names(original))
    warnings += _warn_about_declarations(mixed_model)
    warnings += [_warn_nothing_low(mixed_model)] if not low_type_of and not conversions else []
    warnings += _warn_about_kernels(original, loaded if mixed_model is not None else None, sessions)
    wait_for_rounding_tests()  # last: they ran while this process made the mixed model
    probes, safe = reference_observer.instrumented.probes, sessions.safe_reductions
    reference = ObservedModel(shared, probes, sessions.open_reference_observer, resolver.graph, safe)
    mixed = ObservedModel(loaded, instrumented.probes, sessions.open_mixed_observer, mixed_graph, safe, extra_probes)
    return ModelPair(
        reference,
        mixed,
        plan,
        sessions,
        reference_observer,
        mixed_observer,
        graph,
        trace_dataflow(graph),
        low_type_of,
        conversions,
        None if plan is None else _measure_low_part(plan, first_feed),
        original.folder,
        warnings,
    )


def _make_mixed_model(
    original: LoadedModel, resolver: Resolver, policy: Policy, mixed_model: LoadedModel | None
) -> tuple[Plan | None, LoadedModel, list[Diagnostic]]:
    """Return the plan, the mixed model and the warnings; ``resolver`` is that of the original with shared weights.

    A mixed model that is given has no plan.
    """
    if mixed_model is not None:
        _check_outputs(original, mixed_model)
        return None, mixed_model, []
    # Rewrite the model with shared weights: a copy of the original would hold all weights in memory once more.
    shared, plan = resolver.loaded, resolver.plan(policy)
    loaded = shared._replace(proto=rewrite(shared, plan).proto)
    warnings = [*plan.warnings]
    if any(entry.key == POLICY_KEY for entry in original.proto.metadata_props):
        message = f"{original.name} is an output of mixlist: the check cannot see how its constants were rounded"
        warnings.append(warning("ML607", message, hint=f"check its original model with {spell('mixed_model')}"))
    return plan, loaded, warnings


def _measure_low_part(plan: Plan, first_feed: Feed | None) -> LowPart:
    """Return how much of the mixed model of a plan is low, in the shapes of the first batch."""
    solution, low_name = plan.solution, plan.policy.mode.low
    costs = estimate_costs(solution.graph, {}, find_shapes(first_feed or {}))
    precisions = Counter(find_precision(solution, node) for node in solution.graph.nodes)
    return LowPart(
        low_nodes=precisions[low_name],
        nodes=precisions[low_name] + precisions["float32"],
        low_share=compute_low_share(solution, low_name, costs),
        bytes=count_moved_bytes(solution, costs),
        reference_bytes=sum(cost.bytes for cost in costs.nodes.values()),
        uncounted=count_uncounted(costs),
    )


def _warn_about_declarations(mixed_model: LoadedModel | None) -> list[Diagnostic]:
    """Return a warning if a mixed model that was given declares types that ONNX Runtime refuses."""
    if mixed_model is None:
        return []
    # A hidden Cast would give its output the type of its input.
    wrong = find_wrong_declarations(build_graph(mixed_model.proto, show_marked_casts=True))
    if not wrong:
        return []
    message = f"ONNX Runtime refuses {mixed_model.name}: {describe_declarations(wrong)}"
    return [warning("ML623", message, hint="mixlist repair writes the right types")]


def _warn_nothing_low(mixed_model: LoadedModel | None) -> Diagnostic:
    if mixed_model is None:
        return NOTHING_LOW
    message = f"no node of {mixed_model.name} is low: only the outputs are compared"
    return warning("ML605", message, hint="give a mixed model with low nodes")


def _warn_about_kernels(
    original: LoadedModel, mixed_model: LoadedModel | None, sessions: CheckSessions
) -> list[Diagnostic]:
    """Return the warnings about low nodes that run in float32, and given models that the CPU provider refuses."""
    warnings = describe_widened_nodes(sessions.widened_nodes, sessions.provider)
    if sessions.provider != "cpu":
        return warnings
    files = [loaded for loaded in (original, mixed_model) if loaded is not None and has_low_types(loaded.proto)]
    hint = "write a float16 model for it, which it computes in float32, or use another provider"
    warnings += [
        warning("ML614", f"{refusal}; the check emulates them", hint=hint)
        for loaded in files
        if (refusal := describe_refused_bfloat16(loaded))
    ]
    return warnings + ([] if mixed_model is None else find_load_crash(mixed_model))


def _choose_whole_tensors(graph: Graph, feed: Feed | None) -> AbstractSet[TensorRef]:
    """Return the node outputs that become outputs of the graph: the small ones of a large graph.

    They are in the main graph, and their shapes follow from those of the feed.
    """
    if feed is None or len(graph.root.nodes) < _LARGE_GRAPH:
        return frozenset()
    counts = count_elements(graph.model, find_shapes(feed))
    return {
        output_ref(node, slot)
        for node in graph.root.nodes
        for slot, value in enumerate(node.outputs)
        if value is not None and counts.get(value.name_in_file, math.inf) <= _MOST_WHOLE_ELEMENTS
    }


def _output_names(loaded: LoadedModel) -> list[str]:
    return [output.name for output in loaded.proto.graph.output]


def _check_outputs(original: LoadedModel, mixed: LoadedModel) -> None:
    """Raise UsageError if the mixed model lacks an output of the original."""
    missing = [name for name in _output_names(original) if name not in _output_names(mixed)]
    if missing:
        raise UsageError(f"{mixed.name} has no output {missing[0]!r}, which {original.name} has")
