"""Decide the nodes of a graph in order, and repeat the parts that feed back until nothing changes.

Rule S4.28: Types that feed back, such as those of the states of a Loop, are decided with the values `undecided`, `low`
and `high`. All types start `undecided`, and a vote can only raise a type. A state is `low` until some vote is `high`. A
state that no vote decides keeps its authored type. Nested loops are solved together.

Each value changes at most twice. So one pass in topological order, and a worklist for the part of the graph that a Loop
or Scan feeds back to, take linear time. They reach the greatest fixpoint: the one with the most low precision.

The rules are in files of their own: ``node_types``, ``control_flow_types``, ``function_calls``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from mixlist.graph.control_flow import TypeLink
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.ops import dtypes
from mixlist.patterns.call_frames import CallFrame, FrameValue
from mixlist.patterns.constant_ranges import ConstantRanges
from mixlist.resolver.between_policy import find_low_gray_nodes
from mixlist.resolver.classification import Classification, Classifier, is_control_flow
from mixlist.resolver.control_flow_types import decide_link
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.function_calls import decide_call
from mixlist.resolver.mask_protection import (
    MaskTreatment,
    find_groups_kept_after,
    find_groups_kept_at_first,
    find_mask_notes,
    find_protected_masks,
    find_reduced_slots,
)
from mixlist.resolver.node_rules import NodeRules
from mixlist.resolver.node_types import decide_node
from mixlist.resolver.position_protection import find_protected_positions, keep_positions
from mixlist.resolver.quantized_protection import keep_quantized_units
from mixlist.resolver.schedule import DecisionStep, Schedule, find_read_values
from mixlist.resolver.solver_state import CallContext, SolverState


@dataclass
class ModelSolver:
    """Decides one model under one policy, and remembers the solutions of its functions.

    ``solve`` decides the main graph. ``specialize`` returns the solution of any graph for one kind of call.
    ``solve_with_masks`` decides a graph, several times if masks have to be kept, and ``solve_graph`` does it once.

    ``unknown_constants`` collects the constants whose value is not known, by the reason.
    """

    classifier: Classifier
    node_rules: NodeRules
    constant_ranges: ConstantRanges
    unknown_constants: dict[str, dict[FrameValue, None]] = field(default_factory=dict)
    _specializations: dict[object, list[GraphSolution]] = field(default_factory=dict)
    _shareable: dict[tuple[GraphSolution, CallFrame], bool] = field(default_factory=dict)

    def solve(self, graph: Graph) -> GraphSolution:
        """Decide the main graph, and with it all functions that it calls."""
        policy = self.classifier.policy
        masks = find_protected_masks(graph, self.constant_ranges, policy)
        return self.specialize(graph, CallContext(positions=find_protected_positions(graph, policy), masks=masks))

    def fits_low_type(self, value: Value) -> bool:
        """Return whether a constant may be converted to the low type under the policy."""
        return self.classifier.policy.constants != "keep" or self.constant_ranges.fits(value, self.classifier.low_type)

    def explain_misfit(self, value: Value, frame: CallFrame | None) -> str | None:
        """Return why a constant does not fit the low type; None if it fits, or if its value is not known.

        A constant whose value is not known is added to ``unknown_constants``.
        """
        value_range = self.constant_ranges.range_of(value, frame)
        reason = value_range.misfit_reason(self.classifier.low_type) if value_range is not None else None
        if value_range is not None and (reason or value_range.unknown):
            # Messages name the constant in the caller, and not the parameter that receives it.
            source = self.constant_ranges.frames.find_source(value, frame)
            if reason:
                return f"constant {source.value.name!r} {reason}"
            self.unknown_constants.setdefault(value_range.unknown, {})[source] = None
        return None

    def specialize(self, graph: Graph, call: CallContext) -> GraphSolution:
        """Return the solution of a function's body for a kind of call: that of an earlier call if possible (S4.31)."""
        earlier_solutions = self._specializations.setdefault((id(graph), call.key), [])
        solution = next((s for s in earlier_solutions if self.can_share(s, call.call_frame)), None)
        if solution is None:
            solution = self.solve_with_masks(graph, call)
            earlier_solutions.append(solution)
        return solution

    def can_share(self, solution: GraphSolution, frame: CallFrame | None) -> bool:
        """Return whether the call ``frame`` may share a solution that was computed for an earlier call.

        It may if each constant that the solution depends on fits the low type in both calls, or in neither.
        """
        if frame is None or not frame.arguments:  # no constant of the body depends on the call
            return True
        can_share = self._shareable.get((solution, frame))
        if can_share is None:
            frames = self.constant_ranges.frames
            # Several steps may have examined one constant. The result is the same for all of them.
            examined = {value: fits for results in solution.constant_fits.values() for value, fits in results.items()}
            calls = [(node, callee) for node, tried in solution.tried_callees.items() for callee in tried]
            can_share = all((self.explain_misfit(value, frame) is None) == fits for value, fits in examined.items())
            can_share = can_share and all(
                self.can_share(callee, frames.frame_of(node, frame)) for node, callee in calls
            )
            self._shareable[solution, frame] = can_share
        return can_share

    def solve_with_masks(self, graph: Graph, call: CallContext) -> GraphSolution:
        """Decide a graph; repeat it with more masks kept until no further mask has to be kept (Rule S4.35)."""
        groups = call.masks.groups if call.masks is not None else ()
        kept_groups = find_groups_kept_at_first(groups, lambda node: self.classify(graph, node))
        earlier_solutions: list[GraphSolution] = []
        for attempt in count(1):
            treatment = MaskTreatment(kept_groups, find_reduced_slots(groups, kept_groups), attempt > 1)
            solution = self.solve_graph(graph, call, treatment)
            kept_after = find_groups_kept_after(groups, kept_groups, solution, self.classifier.low_type, attempt)
            if kept_after == kept_groups:
                break
            kept_groups = kept_after
            earlier_solutions.append(solution)
        # The kept masks depend on the earlier attempts, and so on the constants that these attempts examined. Add these
        # constants to the solution: `can_share` compares them for another call.
        for earlier in earlier_solutions:
            solution.constant_fits.update({(earlier, step): fits for step, fits in earlier.constant_fits.items()})
            for node, callees in earlier.tried_callees.items():
                solution.tried_callees[node] = {**solution.tried_callees.get(node, {}), **callees}
        return solution

    def classify(self, graph: Graph, node: Node) -> Classification:
        """Return a node's classification under the lists and node rules of the policy."""
        return self.node_rules.match(graph).get(node.id) or self.classifier.classify(graph, node)

    def solve_graph(self, graph: Graph, call: CallContext, treatment: MaskTreatment) -> GraphSolution:
        """Decide a graph once, with the given masks kept and the others reduced."""
        return GraphSolver(self, graph).run(call, treatment)


class GraphSolver:
    """Decides one graph.

    ``start_types``: the decided types before the first step, if the steps before ``schedule.first_repeated`` ran once
    and in order. Then an IncrementalSolver can run some of them again. Otherwise it is None.
    """

    def __init__(self, model_solver: ModelSolver, graph: Graph, solution: GraphSolution | None = None) -> None:
        self.graph = graph
        self.solution = solution or GraphSolution(
            graph,
            [model_solver.classifier.classify(graph, node) for node in graph.nodes],
            # Lists never change int64, float64, sequences and so on: these values are decided from the start.
            [UNDECIDED if can_change(value) else dtypes.element(value.type) for value in graph.values],
            [None] * len(graph.nodes),
            [None] * len(graph.nodes),
        )
        self.state = SolverState(model_solver, self.solution)
        self.schedule = Schedule()
        self.start_types: list[int] | None = None

    def run(self, call: CallContext, treatment: MaskTreatment) -> GraphSolution:
        """Decide the graph for one kind of call."""
        # Phase 1: set everything that the call and the policy decide before the first step.
        state, solution, schedule = self.state, self.solution, self.schedule
        inputs = self.graph.root.inputs
        state.call_frame = call.call_frame
        self._decide_inputs(call)
        # The order counts: a node rule moves quantized units (Rule S4.41) and wins over positions (Rule S4.38), and
        # mask notes belong to the final classification of a node.
        for node_id, classification in state.model_solver.node_rules.match(self.graph).items():
            solution.classifications[node_id] = classification
        solution.positions, solution.masks = call.positions, call.masks
        keep_quantized_units(state, self.graph.nodes)
        keep_positions(solution, self.graph.nodes)
        for node, mask_note in find_mask_notes(treatment.kept_groups):
            solution.classifications[node.id] = replace(solution.classifications[node.id], mask_note=mask_note)
        solution.kept_masks, solution.reduced_slots = treatment.kept_groups, treatment.reduced_slots
        # Phase 2: collect the steps. `between` needs the links.
        schedule.add_scope(self.graph.root)
        solution.links = schedule.links
        if state.policy.gray_policy == "between":
            state.low_gray_ids = find_low_gray_nodes(state)
        # Phase 3: run them. An argument is undecided if the call is in a loop of the caller that is not decided yet.
        waits_for_caller = any(
            elem == UNDECIDED and dtypes.element(value.type) in dtypes.MIXABLE
            for value, elem in zip(inputs, call.argument_types, strict=False)
        )
        steps, first_repeated = schedule.steps, schedule.first_repeated
        if waits_for_caller and first_repeated is not None:
            self.run_to_fixpoint(steps, is_final=not waits_for_caller)
            return solution
        self.start_types = list(solution.decided_types)
        for step in steps[:first_repeated]:
            self.run_step(step)
        if first_repeated is not None:
            self.run_to_fixpoint(steps[first_repeated:], is_final=True)
        return solution

    def _decide_inputs(self, call: CallContext) -> None:
        """Set the types of the values that no step decides: inputs, arguments, constants."""
        decided_types = self.solution.decided_types
        for value in self.graph.values:
            # A link decides the inputs of bodies; a node decides its outputs.
            if value.kind != "node" and (value.scope.owner is None or value.kind != "input"):
                decided_types[value.id] = dtypes.element(value.type)
        for value, elem in zip(self.graph.root.inputs, call.argument_types, strict=False):
            decided_types[value.id] = elem
        for body in self._find_custom_bodies():
            for value in body.inputs:
                decided_types[value.id] = dtypes.element(value.type)

    def _find_custom_bodies(self) -> Iterator[Scope]:
        """Yield the bodies of custom operators, whose inputs and outputs keep their types (Rule S4.14)."""
        for node in self.graph.nodes:
            if node.bodies and not is_control_flow(node):
                yield from node.bodies.values()

    # --- the order of evaluation ---

    def run_to_fixpoint(self, steps: list[DecisionStep], is_final: bool) -> None:
        """Run steps that may feed back, until nothing changes.

        ``is_final`` is false for a function with an argument that the caller has not decided yet. Then values without a
        vote stay undecided.
        """
        state = self.state
        readers: dict[int, list[DecisionStep]] = {}  # by the id of a value
        for step in dict.fromkeys(steps):  # the links of a loop come twice
            for value in find_read_values(step):
                readers.setdefault(value.id, []).append(step)
        # Phase 1: collect votes. All steps run once in order. Then all of them wait, because a step may have read a
        # value that a later step changed. From then on only the readers of changed values wait.
        state.is_voting = True
        for step in steps:
            self.run_step(step)
        waiting: deque[DecisionStep] = deque(dict.fromkeys(steps))
        self._run_waiting(waiting, readers)
        if not is_final:
            return
        # Phase 2: a value without a vote keeps its authored type (Rule S4.28). Its readers learn the type now.
        state.is_voting = False
        for value in self.graph.values:
            if state.decided_types[value.id] == UNDECIDED and value.type != dtypes.UNKNOWN:
                state.decided_types[value.id] = dtypes.element(value.type)
                state.unvoted_ids.add(value.id)
                waiting.extend(readers.get(value.id, ()))
        self._run_waiting(waiting, readers)

    def _run_waiting(self, waiting: deque[DecisionStep], readers: dict[int, list[DecisionStep]]) -> None:
        """Run the waiting steps, and then every step that reads a value that changed."""
        queued = set(waiting)
        while waiting:
            step = waiting.popleft()
            queued.discard(step)
            for value in self.run_step(step):
                for reader in readers.get(value.id, ()):
                    if reader not in queued:
                        queued.add(reader)
                        waiting.append(reader)

    def run_step(self, step: DecisionStep) -> list[Value]:
        """Evaluate one step; return the values whose decided type changed."""
        state = self.state
        state.current_step = step
        if isinstance(step, TypeLink):
            return decide_link(step, state)
        if step.function is not None:
            return decide_call(step, state)
        if is_control_flow(step):
            return []  # the links of the node decide its outputs
        return decide_node(step, state)


def can_change(value: Value) -> bool:
    """Return whether lists can change the type of a value: a float tensor, and no sequence or optional (Rule S4.29)."""
    return dtypes.element(value.type) in dtypes.MIXABLE and not dtypes.is_container(value.type)
