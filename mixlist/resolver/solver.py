"""Decide the nodes of a graph in order, and repeat the parts that feed back until nothing changes.

Rule S4.28: Types that feed back are decided with the values `undecided`, `low` and `high`: all start `undecided`, a
vote can only raise them, a state is `low` until some vote is `high`, and a state that no vote decides keeps its
authored type; nested loops are solved together.

Each value changes at most twice. So one pass in topological order, and a worklist for the part of the graph that a Loop
or Scan feeds back to, reach the greatest fixpoint in linear time.

The rules are in files of their own: ``white_black_gray``, ``control_flow_types``, ``sequence_types``,
``function_calls``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from mixlist.graph.control_flow import TypeLink
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.ops import types
from mixlist.patterns.call_frames import CallFrame, FrameValue
from mixlist.patterns.constant_ranges import ConstantRanges
from mixlist.resolver.between_policy import find_low_gray_nodes
from mixlist.resolver.classification import Classification, Classifier, is_control_flow
from mixlist.resolver.control_flow_types import decide_link
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.function_calls import decide_call
from mixlist.resolver.gray_policies import mark_high_by_black
from mixlist.resolver.mask_protection import (
    MaskTreatment,
    find_groups_kept_after,
    find_groups_kept_at_first,
    find_mask_notes,
    find_protected_masks,
    find_reduced_slots,
)
from mixlist.resolver.node_rules import NodeRules
from mixlist.resolver.position_protection import find_protected_positions, keep_positions
from mixlist.resolver.schedule import DecisionStep, Schedule, find_read_values
from mixlist.resolver.sequence_groups import SequenceGroup, find_group, find_groups
from mixlist.resolver.sequence_types import decide_group, decide_group_node
from mixlist.resolver.solver_state import CallArguments, SolverState
from mixlist.resolver.white_black_gray import decide_node


@dataclass
class ModelSolver:
    """Decides one model under one policy, and remembers the solutions of its functions.

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
        return self.specialize(graph, CallArguments(positions=find_protected_positions(graph, policy), masks=masks))

    def fits_low_type(self, value: Value) -> bool:
        """Return whether a constant may be converted to the low type under the policy."""
        return self.classifier.policy.constants != "keep" or self.constant_ranges.fits(value, self.classifier.low_type)

    def explain_misfit(self, value: Value, frame: CallFrame | None) -> str | None:
        """Return why a constant does not fit the low type; None if it fits, or if its value is not known."""
        value_range = self.constant_ranges.range_of(value, frame)
        reason = value_range.misfit_reason(self.classifier.low_type) if value_range is not None else None
        if value_range is not None and (reason or value_range.unknown):
            source = self.constant_ranges.frames.find_source(value, frame)
            if reason:
                return f"constant {source.value.name!r} {reason}"
            self.unknown_constants.setdefault(value_range.unknown, {})[source] = None
        return None

    def specialize(self, graph: Graph, call: CallArguments) -> GraphSolution:
        """Return the solution of a function's body for one kind of call; calls share it if they can (Rule S4.31)."""
        earlier_solutions = self._specializations.setdefault((id(graph), call.key), [])
        solution = next((s for s in earlier_solutions if self.can_share(s, call.call_frame)), None)
        if solution is None:
            solution = self.solve_with_masks(graph, call)
            earlier_solutions.append(solution)
        return solution

    def can_share(self, solution: GraphSolution, frame: CallFrame | None) -> bool:
        """Return whether a call may share a solution: its constants give all the answers that led to the solution."""
        if frame is None or not frame.arguments:
            return True
        can_share = self._shareable.get((solution, frame))
        if can_share is None:
            enter = self.constant_ranges.frames.frame_of
            # One constant gave the same answer to all steps that asked about it.
            answers = {value: fits for by_value in solution.constant_fits.values() for value, fits in by_value.items()}
            callees = [(node, callee) for node, tried in solution.tried_callees.items() for callee in tried]
            can_share = all((self.explain_misfit(value, frame) is None) == fits for value, fits in answers.items())
            can_share = can_share and all(self.can_share(callee, enter(node, frame)) for node, callee in callees)
            self._shareable[solution, frame] = can_share
        return can_share

    def solve_with_masks(self, graph: Graph, call: CallArguments) -> GraphSolution:
        """Decide a graph, and again while more of its masks have to stay as authored (Rule S4.35)."""
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
        # The answers about constants in the earlier attempts led to the masks that are kept, so they count as well
        # when another call wants to share the solution.
        for earlier in earlier_solutions:
            solution.constant_fits.update({(earlier, step): fits for step, fits in earlier.constant_fits.items()})
            for node, callees in earlier.tried_callees.items():
                solution.tried_callees[node] = {**solution.tried_callees.get(node, {}), **callees}
        return solution

    def classify(self, graph: Graph, node: Node) -> Classification:
        """Return a node's classification under the lists and node rules of the policy."""
        return self.node_rules.match(graph).get(node.id) or self.classifier.classify(graph, node)

    def solve_graph(self, graph: Graph, call: CallArguments, masks: MaskTreatment) -> GraphSolution:
        """Decide a graph with some masks kept."""
        return GraphSolver(self, graph).run(call, masks)


@dataclass(frozen=True)
class StartState:
    """The decided types, and the values that are high by black, before the first step."""

    decided_types: list[int]
    high_by_black: frozenset[int]


class GraphSolver:
    """Decides one graph.

    ``start`` is None unless the steps before ``schedule.first_repeated`` ran once and in order, so that an
    IncrementalSolver can run some of them again.
    """

    def __init__(self, model_solver: ModelSolver, graph: Graph, solution: GraphSolution | None = None) -> None:
        self.graph = graph
        self.solution = solution or GraphSolution(
            graph,
            [model_solver.classifier.classify(graph, node) for node in graph.nodes],
            # Types that no list moves are decided from the start.
            [types.element(v.type) if types.element(v.type) not in types.MIXABLE else UNDECIDED for v in graph.values],
            [None] * len(graph.nodes),
            [None] * len(graph.nodes),
        )
        self.state = SolverState(model_solver, self.solution)
        self.schedule = Schedule()
        self.start: StartState | None = None

    def run(self, call: CallArguments, masks: MaskTreatment) -> GraphSolution:
        """Decide the graph for one kind of call."""
        # Phase 1: set everything that the call and the policy decide before the first step.
        state, solution, schedule = self.state, self.solution, self.schedule
        inputs = self.graph.root.inputs
        mark_high_by_black(inputs, call.high_by_black, state)
        state.call_frame = call.call_frame
        self._decide_inputs(call)
        for node_id, classification in state.model_solver.node_rules.match(self.graph).items():
            solution.classifications[node_id] = classification
        solution.positions, solution.masks = call.positions, call.masks
        keep_positions(solution, self.graph.nodes)
        for node, mask_note in find_mask_notes(masks.kept_groups):
            solution.classifications[node.id] = replace(solution.classifications[node.id], mask_note=mask_note)
        solution.kept_masks, solution.reduced_slots = masks.kept_groups, masks.reduced_slots
        # Phase 2: the steps.
        schedule.add_scope(self.graph.root)
        solution.links = schedule.links
        state.sequence_groups = find_groups(self.graph, solution.links, self._find_border_types(call.wanted_outputs))
        schedule.steps.extend(dict.fromkeys(state.sequence_groups.values()))
        if state.policy.gray_policy == "between":
            state.low_gray_ids = find_low_gray_nodes(state)
        # Phase 3: run them. An argument is undecided if the call is in a loop of the caller that is not decided yet.
        waits_for_caller = any(
            elem == UNDECIDED and types.element(value.type) in types.MIXABLE
            for value, elem in zip(inputs, call.argument_types, strict=False)
        )
        steps, first_repeated = schedule.steps, schedule.first_repeated
        # A sequence group also decides values of nodes before it, so with sequences any step may have to run again.
        if state.sequence_groups or (waits_for_caller and first_repeated is not None):
            self.run_to_fixpoint(steps, is_final=not waits_for_caller)
            return solution
        self.start = StartState(list(solution.decided_types), frozenset(solution.high_by_black))
        for step in steps[:first_repeated]:
            self.run_step(step)
        if first_repeated is not None:
            self.run_to_fixpoint(steps[first_repeated:], is_final=True)
        return solution

    def _decide_inputs(self, call: CallArguments) -> None:
        """Set the types of the values that no step decides: inputs, arguments, constants."""
        decided_types = self.solution.decided_types
        for value in self.graph.values:
            # A link decides the inputs of bodies; a node decides its outputs.
            if value.kind != "node" and (value.scope.owner is None or value.kind != "input"):
                decided_types[value.id] = types.element(value.type)
        for value, elem in zip(self.graph.root.inputs, call.argument_types, strict=False):
            decided_types[value.id] = elem
        for body in self._find_custom_bodies():
            for value in body.inputs:
                decided_types[value.id] = types.element(value.type)

    def _find_border_types(self, wanted_outputs: tuple[int, ...]) -> Iterator[tuple[Value, int]]:
        """Yield the element types that inputs and outputs of the graph have, or need, for its caller or user."""
        root = self.graph.root
        for body in self._find_custom_bodies():
            yield from ((value, types.element(value.type)) for value in (*body.inputs, *body.outputs))
        yield from ((value, self.solution.decided_types[value.id]) for value in root.inputs)
        if self.graph.path:  # a function
            yield from zip(root.outputs, wanted_outputs, strict=False)
        else:
            yield from ((value, types.element(value.type)) for value in root.outputs)

    def _find_custom_bodies(self) -> Iterator[Scope]:
        """Yield the bodies of custom operators, whose inputs and outputs keep their types (Rule S4.14)."""
        for node in self.graph.nodes:
            if node.bodies and not is_control_flow(node):
                yield from node.bodies.values()

    # --- the order of evaluation ---

    def run_to_fixpoint(self, steps: list[DecisionStep], is_final: bool) -> None:
        """Run steps that may feed back, until nothing changes.

        ``is_final`` is false for a function with an argument that its caller has not decided: undecided values stay.
        """
        state = self.state
        readers: dict[int, list[DecisionStep]] = {}  # by the id of a value
        for step in dict.fromkeys(steps):  # the links of a loop come twice
            for value in find_read_values(step):
                readers.setdefault(value.id, []).append(step)
        # Phase 1: collect votes. All steps run once in order, then those that read a changed value.
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
            if state.decided_types[value.id] == UNDECIDED and value.type != types.UNKNOWN:
                state.decided_types[value.id] = types.element(value.type)
                state.unvoted_ids.add(value.id)
                waiting.extend(readers.get(value.id, ()))
        # A node rule that contradicts a sequence's type is refused only now, when the type is sure.
        waiting.extend(node for node in self.graph.nodes if self.solution.classifications[node.id].kind == "rule")
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
        """Evaluate one step; return the values whose decided type rose, or that are high by black from now on."""
        state = self.state
        state.current_step = step
        if isinstance(step, TypeLink):
            return decide_link(step, state)
        if isinstance(step, SequenceGroup):
            return decide_group(step, state)
        if step.function is not None:
            return decide_call(step, state)
        if is_control_flow(step):
            return []  # the links of the node decide its outputs
        if state.sequence_groups:
            group, signature = find_group(step, state.sequence_groups), step.signature
            has_choice = signature is not None and signature.groups and not signature.has_fixed_output
            if group is not None and has_choice:
                return decide_group_node(step, group, state)
        return decide_node(step, state)
