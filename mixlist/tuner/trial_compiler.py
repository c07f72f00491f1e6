"""Turn a set of edits into a plan, and the plan into flags of the gated graph, which workers run."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from mixlist.checker.evidence import holds_only_nan
from mixlist.checker.result import TensorRange
from mixlist.cost.estimate import compute_low_share, estimate_costs
from mixlist.errors import ModelError
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.graph.constants_and_shapes import is_random
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Graph
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.save import INLINE_LIMIT
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.ops.low_precision import overflow_bound
from mixlist.resolver import Plan, Resolver
from mixlist.resolver.decisions import GraphSolution
from mixlist.runtime.feeds import as_float32
from mixlist.runtime.inputs import model_inputs
from mixlist.tuner.candidates import EditSet, edit_policy
from mixlist.tuner.gated_graph import GateBuilder, GatedGraph
from mixlist.tuner.graph_partition import cuts, split
from mixlist.tuner.mask_classifier import MaskClassifier
from mixlist.tuner.rounding_plan import Calls, Rounding, RoundingPlanner, RoundingPoint
from mixlist.tuner.trial_statistics import NEAR, TrialStatistics, add_statistics
from mixlist.tuner.trial_verdict import TrialLimits
from mixlist.tuner.trial_worker import BatchResult, Payload, pack

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.checker.label_accuracy import Labels
    from mixlist.runtime.session import Feed


class TrialCompiler:
    """One model that is tried under many sets of edits; ``feeds`` and ``labels`` are the data of the trials.

    ``tensors``: what the reference's values are like; ``limits``: what a trial must keep. Raises ModelError for a model
    that outgrows protobuf.
    """

    def __init__(
        self,
        resolver: Resolver,
        base: Policy,
        feeds: Sequence[Feed],
        tensors: Sequence[TensorRange],
        *,
        labels: Labels | None = None,
        saturate: bool = False,
        threads: int | None = None,
        limits: TrialLimits | None = None,
    ) -> None:
        self.resolver, self.base, self.tensors, self.limits = resolver, base, tensors, limits
        self.saturate, self.threads, self.labels = saturate, threads, labels
        inputs = model_inputs(resolver.loaded.proto)
        self.feeds = tuple(as_float32(feed, inputs) for feed in feeds)  # as the gated graph takes them
        self.judged_batches = [at for at, feed in enumerate(self.feeds) if not holds_only_nan(feed)]  # Rule S8.28
        self.low_type = types.ELEMENT_BY_NAME[base.mode.low]
        self.output_names = tuple(output.name for output in resolver.loaded.proto.graph.output)
        self.classifier = MaskClassifier(resolver.loaded, resolver.graph, self.low_type, saturate)
        self.costs = estimate_costs(resolver.graph, {}, self.shapes)
        self.observed_model, self.statistics = self._add_statistics(self.classifier.nodes)
        self.solver = resolver.make_incremental_solver(base)
        self.planner = RoundingPlanner()
        self.gated_roundings: dict[RoundingPoint, tuple[Rounding, ...]] = {}
        self.gated_graph: GatedGraph | None = None
        # the flags of this gated graph that are on, None for one that it lacks
        self._on: WeakKeyDictionary[GraphSolution, dict[Calls, list[int | None]]] = WeakKeyDictionary()
        self.token = self.payload = ""
        self._home = ScratchFolder()
        self._shares: dict[EditSet, float | None] = {}

    def plan(self, edits: EditSet) -> Plan:
        """Return what ``resolve`` decides under the edits."""
        return self.resolver.plan(edit_policy(self.base, edits))

    def solution(self, edits: EditSet) -> GraphSolution:
        """Return the same decisions without the plan around them, made from those of an earlier solution."""
        return self.solver.solve(edit_policy(self.base, edits))

    def add_gates(self, edits: EditSet) -> None:
        """Let the gated graph round as under the edits, also where one of its low nodes alone is low.

        The two differ in the inputs that are rounded already: to round them again changes nothing, but takes time.
        """
        main = self.solution(edits)
        for every in (True, False):  # gates nest, and the one that is built last is asked first
            for point, rounding in self.planner.find_roundings(main, include_low_inputs=every).items():
                offered = self.gated_roundings.get(point, ())
                saves_time = not every and len(offered) == 1 and offered[0] != rounding
                if saves_time or not any(other.covers(rounding) for other in offered):
                    self.gated_roundings[point] = (*offered, rounding)
                    self._drop_graph()

    def build_flags(self, edits: EditSet | None) -> bytes:
        """Return the flags of the edits, None for the reference; makes the gated graph where none serves."""
        flags = self.find_flags(edits)
        if flags is None:
            if edits is not None:
                self.add_gates(edits)
            self._build()
            flags = self.find_flags(edits)
            assert flags is not None, "a plan that was offered is served"
        return flags

    def find_flags(self, edits: EditSet | None) -> bytes | None:
        """Return the flags of the edits; None where there is no gated graph yet that can round so."""
        if self.gated_graph is None:
            return None
        flags: list[int] = []
        for calls, solution in self.planner.walk_calls(self.solution(edits)) if edits is not None else ():
            known = self._on.setdefault(solution, {})
            if calls not in known:
                local = self.planner.find_local(solution, self.solver.find_origin)
                wanted = (*local.nodes.items(), *local.slots.items())
                known[calls] = [
                    self.gated_graph.find_flag(point.called_through(calls), rounding) for point, rounding in wanted
                ]
            for flag in known[calls]:
                if flag is None:
                    return None
                flags.append(flag)
        return pack(flags, len(self.gated_graph.gates))

    def classify(self, edits: EditSet, index: int, batch: BatchResult) -> BatchResult:
        """Return a batch of a trial: ambiguous ranges classified, and a refused node under its name in the model."""
        if batch.refusal is not None and self.gated_graph is not None:
            node = self.gated_graph.origins.get(batch.refusal.node, batch.refusal.node)
            return replace(batch, refusal=replace(batch.refusal, node=str(node)))
        if batch.ambiguous is None:
            return batch
        main = self.solution(edits)
        roundings = [
            self.planner.find_local(each, self.solver.find_origin) for _, each in self.planner.walk_calls(main)
        ]
        overflow = self.classifier.first_overflow(self.feeds[index], batch.ambiguous, main, roundings)
        return replace(batch, overflow=overflow, ambiguous=None)

    def low_share(self, edits: EditSet) -> float | None:
        """Return the share of matrix and convolution work that is low; None where there is no such work."""
        if edits not in self._shares:
            self._shares[edits] = compute_low_share(self.solution(edits), self.base.mode.low, self.costs)
        return self._shares[edits]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The input shapes of the first batch."""
        first = self.feeds[0] if self.feeds else {}
        return {name: tuple(value.shape) for name, value in first.items() if hasattr(value, "shape")}

    def low_nodes(self, edits: EditSet) -> set[NodeRef]:
        """Return the nodes that round anything under the edits."""
        reached = self.planner.walk_calls(self.solution(edits))
        local = (self.planner.find_local(solution, self.solver.find_origin).nodes for _, solution in reached)
        return {point.node for points in local for point in points}

    def collect_all_statistics(self) -> None:
        """Take statistics of every tensor from now on, also of those that were skippable."""
        self.observed_model, self.statistics = self._add_statistics(())
        self._drop_graph()

    def _drop_graph(self) -> None:
        self.gated_graph = None
        self._on.clear()

    def _add_statistics(self, nodes: Sequence[DataflowNode]) -> tuple[ModelProto, TrialStatistics]:
        graph, masks, range_of = (
            self.resolver.graph,
            self.classifier.masks,
            self.resolver.constant_ranges.known_range_of,
        )
        ends = cuts(graph, self.costs)
        proto = self.resolver.loaded.proto
        inputs = _near_inputs(self.resolver.graph, self.feeds, NEAR * overflow_bound(self.low_type))
        return add_statistics(proto, self.tensors, masks, self.low_type, self.saturate, nodes, ends, range_of, inputs)

    def _build(self) -> None:
        """Make the gated graph, and the file from which workers read it."""
        loaded = replace(self.resolver.loaded, proto=self.observed_model)
        clamp = self.base.constants == "clamp"
        gated = GateBuilder(loaded, self.gated_roundings, clamp=clamp, saturate=self.saturate).build()
        if gated.proto.ByteSize() > INLINE_LIMIT:  # a session of bytes takes no larger one
            raise ModelError(
                f"{loaded.name} is too large to be tuned: its weights, rounded and not, outgrow 2 GiB",
                hint="check single lists with mixlist check",
            )
        payload = Payload(
            segments=split(gated, self.statistics.ends),
            flag_count=len(gated.gates),
            outputs=self.output_names,
            gated_outputs=gated.output_names[: len(self.output_names)],
            statistics=self.statistics,
            feeds=self.feeds,
            first_counts=self.limits is not None and self.limits.one_overflow_fails(len(self.judged_batches)),
            limits=self.limits.outputs if self.limits is not None else None,
            deterministic=not any(is_random(node) for graph in self.solver.graphs.values() for node in graph.nodes),
            labels=self.labels,
            threads=self.threads,
        )
        data = pickle.dumps(payload, protocol=5)
        self.token = hashlib.sha256(data).hexdigest()[:16]
        path = self._home.path / self.token
        write_scratch(path, data)
        self.gated_graph, self.payload = gated, str(path)

    def close(self) -> None:
        """Remove what was written for the workers."""
        self.classifier.close()
        self._home.remove()


def _near_inputs(graph: Graph, feeds: Sequence[Feed], least: float) -> frozenset[TensorRef]:
    """Return the float inputs of the main graph that have a value of at least this magnitude in a batch."""
    found = set()
    for slot, value in enumerate(graph.root.inputs):
        arrays = (feed.get(value.name) for feed in feeds) if value.type in types.MIXABLE else ()
        if any(isinstance(array, np.ndarray) and bool((np.abs(array) >= least).any()) for array in arrays):
            found.add(TensorRef("", "", slot))
    return frozenset(found)
