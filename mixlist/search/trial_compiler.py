"""Compile a set of edits: to a plan, and from the plan to the flags of the gated graph, which workers run."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.integer_outputs import find_id_outputs, find_quantity_outputs
from mixlist.checker.intended_infinities import find_absorbing_softmaxes
from mixlist.checker.limits import DEFAULT_RATE_LIMIT, Limits
from mixlist.checker.result import TensorRange
from mixlist.decide import Plan, Resolver
from mixlist.decide.solution import Solution
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.lists.policy import NEW_MODES, Policy
from mixlist.lru_cache import LruCache
from mixlist.model import dtypes
from mixlist.model.dataflow import DataflowNode
from mixlist.model.graph import Graph
from mixlist.model.low_precision import overflow_bound
from mixlist.model.naming import NodeRef, TensorRef
from mixlist.model.split import count_crossing_bytes
from mixlist.model.value_origins import is_random
from mixlist.run.executors import open_process
from mixlist.run.feeds import holds_only_nan, make_emulation_feed
from mixlist.run.inputs import model_inputs
from mixlist.run.segments import choose_weight_cuts
from mixlist.search.edits import EditSet, edit_policy
from mixlist.search.gated_graph import GateBuilder, GatedGraph, split_graph
from mixlist.search.observed_shapes import estimate_observed_costs
from mixlist.search.rounding_plan import Rounding, RoundingPlanner, RoundingPoint
from mixlist.search.trial_statistics import NEAR_RANGE, OverflowClassifier, TrialStatistics, add_statistics
from mixlist.search.trial_verdict import TrialLimits
from mixlist.search.trial_worker import BatchResult, Payload, pack_flags
from mixlist.targets.estimate import compute_low_share

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.run.session import Feed

# The solutions that stay in memory: a search asks for those of the last edits again and again.
_MOST_SOLUTIONS = 64
_DEFAULT_LIMITS = TrialLimits(Limits(), DEFAULT_RATE_LIMIT)


class TrialCompiler:
    """Compiles trials of one model, and builds the gated graph that runs them.

    ``base``: the policy without edits. ``feeds``: the data of the trials. ``tensors``: the ranges of the
    reference. ``limits``: the limits that a trial must keep. ``segment_bytes``: the most bytes of weights that a worker
    loads at a time, None if it loads the model whole. ``authored_reference``: the reference rounds what the author
    rounds.
    """

    def __init__(
        self,
        resolver: Resolver,
        base: Policy,
        feeds: Sequence[Feed],
        tensors: Sequence[TensorRange],
        *,
        saturate: bool = False,
        threads: int | None = None,
        limits: TrialLimits = _DEFAULT_LIMITS,
        segment_bytes: int | None = None,
        authored_reference: bool = True,
    ) -> None:
        self.resolver, self.base, self.tensors, self.limits = resolver, base, tensors, limits
        self.saturate, self.threads = saturate, threads
        inputs = model_inputs(resolver.loaded.proto)
        self.feeds = tuple(make_emulation_feed(feed, inputs) for feed in feeds)  # the gated graph has no low inputs
        # A batch in which all values are NaN is not judged (Rule S8.28).
        self.judged_batches = [index for index, feed in enumerate(self.feeds) if not holds_only_nan(feed)]
        self.low_type = dtypes.ELEMENT_BY_NAME[base.mode.low]
        self.output_names = tuple(output.name for output in resolver.loaded.proto.graph.output)
        self._stack = ExitStack()
        # The classifier runs the reference in one process, which starts when the first trial needs it.
        process = self._stack.enter_context(open_process())
        sessions = CheckSessions(
            "cpu", process, saturate, segment_bytes=segment_bytes, authored_reference=authored_reference
        )
        self.segment_bytes = segment_bytes
        # Segments leave the weights in files, which all processes map.
        self.loaded = sessions.share_weights(resolver.loaded) if segment_bytes is not None else resolver.loaded
        self.classifier = OverflowClassifier(self.loaded, resolver.graph, self.low_type, sessions)
        # Shapes by the names of inputs and of tensors whose shape depends on data.
        self.shapes, self.costs = estimate_observed_costs(self.loaded, resolver.graph, self.feeds, sessions)
        self.instrumented_proto, self.statistics = self._add_statistics(self.classifier.nodes)
        self._solutions: LruCache[Solution] = LruCache(_MOST_SOLUTIONS)
        self.planner = RoundingPlanner()
        self._authored: Solution | None = None  # what the reference rounds
        if authored_reference:
            self._authored = resolver.solve(replace(base, mode=NEW_MODES["origin"], rules=()))
        # The gates of the next gated graph. They are never removed, so a later graph also serves all earlier trials.
        self.gated_roundings: dict[RoundingPoint, tuple[Rounding, ...]] = {}
        self.gated_graph: GatedGraph | None = None
        # The file from which workers read the gated graph, and a digest of its content.
        self.payload_path = self.token = ""
        self._folder = ScratchFolder()
        self._low_shares: dict[EditSet, float | None] = {}

    def new_accuracies(self) -> list[OutputAccuracy]:
        """Return an object without batches for each output of the model, which measures what the limits bound."""
        limits = self.limits.outputs
        quantities, id_columns = find_quantity_outputs(self.resolver.graph), find_id_outputs(self.resolver.graph)
        return [
            OutputAccuracy(
                name,
                limits,
                self.statistics.overflow_value,
                low=self.low_type,
                quantity=name in quantities,
                id_columns=id_columns.get(name),
                per_index=limits.per_index,
            )
            for name in self.output_names
        ]

    def plan(self, edits: EditSet) -> Plan:
        """Return the plan that ``resolve`` makes under the edits."""
        return self.resolver.plan(edit_policy(self.base, edits))

    def solution(self, edits: EditSet) -> Solution:
        """Return the decisions in the plan under the edits."""
        return self._solutions.get_or_make(edits, lambda: self.resolver.solve(edit_policy(self.base, edits)))

    def add_gates(self, edits: EditSet) -> None:
        """Add the gates for a set of edits, and for every trial that makes further nodes high.

        Each low node gets a gate that rounds all its inputs, also those that are low already under the edits: in
        another trial their producers may be high. If there are such inputs, the node gets a second gate that leaves
        them alone, because rounding them again changes nothing and takes time.
        """
        self._add_gates(self.solution(edits))

    def _add_gates(self, solution: Solution) -> None:
        # The gates with all inputs are added first. Ifs nest, and the gate that is added last is the outermost If. So a
        # trial that uses the faster gate does not run the other If.
        for all_inputs in (True, False):
            for point, rounding in self.planner.compute_roundings(solution, include_low_inputs=all_inputs).items():
                roundings = self.gated_roundings.get(point, ())
                # A point gets at most one gate that only saves time.
                saves_time = not all_inputs and len(roundings) == 1 and roundings[0] != rounding
                if saves_time or not any(existing.covers(rounding) for existing in roundings):
                    self.gated_roundings[point] = (*roundings, rounding)
                    self.gated_graph = None  # the next trial builds a new one

    def build_flags(self, edits: EditSet | None) -> bytes:
        """Return the flags of a set of edits, or of the reference for None.

        Build the gated graph if there is none, or if it lacks gates.
        """
        flags = self.find_flags(edits)
        if flags is None:
            if edits is not None:
                self.add_gates(edits)
            self._build_graph()
            flags = self.find_flags(edits)
            assert flags is not None, "the gated graph has the gates that were added"
        return flags

    def find_flags(self, edits: EditSet | None) -> bytes | None:
        """Return the flags of a set of edits; None if there is no gated graph, or if it lacks a gate."""
        if self.gated_graph is None:
            return None
        solution = self.solution(edits) if edits is not None else self._authored
        # No flag is set for a reference in float32.
        roundings = self.planner.find_roundings(solution) if solution is not None else {}
        flags_on = [self.gated_graph.find_flag(*gate) for gate in roundings.items()]  # None for a missing gate
        flags = [flag for flag in flags_on if flag is not None]
        return pack_flags(flags, len(self.gated_graph.gates)) if len(flags) == len(flags_on) else None

    def complete_result(self, edits: EditSet, index: int, batch: BatchResult) -> BatchResult:
        """Return batch ``index`` of a trial with its ambiguous ranges decided: ``overflow`` is a first offender.

        A node that ONNX Runtime refused to run gets its name in the model instead of that in the gated graph.
        """
        if batch.refusal is not None and self.gated_graph is not None:
            node = self.gated_graph.origins.get(batch.refusal.node, batch.refusal.node)
            return replace(batch, refusal=replace(batch.refusal, node=str(node)))
        if batch.ambiguous is None:
            return batch
        # The classifier needs the plan, which workers do not have. So it runs in this process.
        solution = self.solution(edits)
        roundings = self.planner.find_roundings(solution)
        first = self.classifier.find_first_overflow(self.feeds[index], batch.ambiguous, solution, roundings)
        # A node that loses a value in a conversion comes before those that hand the infinity on (Rules S8.4 to S8.6).
        overflow = self.classifier.first_node(name for name in (batch.overflow, first) if name)
        return replace(batch, overflow=overflow, ambiguous=None)

    def low_share(self, edits: EditSet) -> float | None:
        """Return the share of matrix and convolution work that is low (0 to 1); None if there is no such work."""
        if edits not in self._low_shares:
            self._low_shares[edits] = compute_low_share(self.solution(edits), self.base.mode.low, self.costs)
        return self._low_shares[edits]

    def low_nodes(self, edits: EditSet) -> set[NodeRef]:
        """Return the nodes that round an input or output under the edits."""
        return {point.node for point in self.planner.find_roundings(self.solution(edits)) if point.slot < 0}

    def use_all_statistics(self) -> None:
        """Compute statistics of every tensor from now on, also of those that were skippable."""
        self.instrumented_proto, self.statistics = self._add_statistics(())
        self.gated_graph = None  # the next trial builds a new one

    def _add_statistics(self, nodes: Sequence[DataflowNode]) -> tuple[ModelProto, TrialStatistics]:
        """Return the model with the statistics of a trial; if ``nodes`` is empty, with those of every tensor."""
        graph, shape_of = self.resolver.graph, self.costs.known_shapes.shape_of
        cuts: Sequence[str] = ()
        if self.segment_bytes is not None:
            cuts = choose_weight_cuts(graph, count_crossing_bytes(graph, shape_of), self.segment_bytes)
        return add_statistics(
            self.loaded.proto,
            self.tensors,
            self.classifier.masks,
            self.classifier.harmless,
            self.low_type,
            self.saturate,
            nodes,
            cuts,
            self.resolver.constant_ranges.known_range_of,
            _find_near_inputs(graph, self.feeds, NEAR_RANGE * overflow_bound(self.low_type)),
        )

    def _build_graph(self) -> None:
        """Build the gated graph, and write the file from which workers read it."""
        loaded, in_segments = self.loaded._replace(proto=self.instrumented_proto), self.segment_bytes is not None
        clamp = self.base.clamp
        if self._authored is not None:
            self._add_gates(self._authored)
        gated = GateBuilder(
            loaded,
            self.gated_roundings,
            clamp=clamp,
            saturate=self.saturate,
            keep_external=in_segments,
            absorbing=find_absorbing_softmaxes(self.resolver.graph),
        ).build()
        self.gated_graph = gated
        reference_flags = self.find_flags(None)
        assert reference_flags is not None, "the gated graph has the gates of the reference"
        payload = Payload(
            segments=split_graph(gated, self.statistics.cut_outputs),
            weights_folder=loaded.folder if in_segments else None,
            flag_count=len(gated.gates),
            reference_flags=reference_flags,
            output_names=self.output_names,
            # The statistics follow after the model's own outputs.
            gated_output_names=gated.output_names[: len(self.output_names)],
            statistics=self.statistics,
            feeds=self.feeds,
            one_overflow_fails=self.limits.one_overflow_fails(len(self.judged_batches)),
            accuracies=tuple(self.new_accuracies()),
            deterministic=not any(map(is_random, self.resolver.graph.nodes)),
            threads=self.threads,
            returns_outputs=self.limits.judge is not None,
        )
        data = pickle.dumps(payload, protocol=5)
        # Workers keep their sessions under the token, so it must be another one for another graph or other data.
        self.token = hashlib.sha256(data).hexdigest()[:16]
        path = self._folder.path / self.token
        write_scratch(path, data)
        self.payload_path = str(path)

    def close(self) -> None:
        """Remove the files that were written for the workers, and release the sessions of this process."""
        self.classifier.close()
        self._stack.close()
        self._folder.remove()


def _find_near_inputs(graph: Graph, feeds: Sequence[Feed], bound: float) -> frozenset[TensorRef]:
    """Return the float inputs of the main graph that have a value of at least the magnitude ``bound`` in a batch."""
    near_inputs = set()
    for slot, value in enumerate(graph.root.inputs):
        arrays = (feed.get(value.name) for feed in feeds) if value.type in dtypes.MIXABLE else ()
        # The data may omit an optional input, and the value of a sequence input is a list.
        if any(isinstance(array, np.ndarray) and bool((np.abs(array) >= bound).any()) for array in arrays):
            near_inputs.add(TensorRef("", "", slot))
    return frozenset(near_inputs)
