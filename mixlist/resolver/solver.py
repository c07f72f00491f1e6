"""Decide the nodes of a graph in order, and repeat what feeds back until nothing changes.

Rule S4.28: Types that feed back are decided with the values `undecided`, `low` and `high`: all start `undecided`, a
vote can only raise them, a state is `low` until some vote is `high`, and a state that no vote decides keeps its
authored type; nested loops are solved together.

Each value changes at most twice, so one pass in topological order, and a worklist for the part of the graph that a Loop
or Scan feeds back to, reach the greatest fixpoint in linear time.

The rules are in modules of their own: ``white_black_gray``, ``control_flow``, ``sequence_types``, ``function_calls``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.ops import types
from mixlist.patterns.call_frames import CallFrame, FrameValue
from mixlist.patterns.constants import ConstantRanges
from mixlist.resolver.between_policy import low_gray_nodes
from mixlist.resolver.classification import Classification, Classifier, is_control_flow
from mixlist.resolver.control_flow_types import decide_link
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.function_calls import decide_call
from mixlist.resolver.gray_policies import mark_high_by_black
from mixlist.resolver.mask_protection import (
    Masks,
    kept_after,
    kept_at_first,
    mask_notes,
    protected_masks,
    reduced_constants,
)
from mixlist.resolver.node_rules import NodeRules
from mixlist.resolver.position_protection import keep_positions, protected_positions
from mixlist.resolver.schedule import Schedule, Step, read_by
from mixlist.resolver.sequence_groups import SequenceGroup, find_groups, group_of
from mixlist.resolver.sequence_types import decide_group, decide_member
from mixlist.resolver.solver_state import CallArguments, SolverState
from mixlist.resolver.white_black_gray import decide_node


@dataclass
class ModelSolver:
    """One resolve of a model: the policy, and the decisions for the functions so far."""

    classifier: Classifier
    rules: NodeRules
    ranges: ConstantRanges
    # Constants whose value is not known, by the reason.
    unknown: dict[str, dict[FrameValue, None]] = field(default_factory=dict)
    _specialized: dict[object, list[GraphSolution]] = field(default_factory=dict)
    _admitted: dict[tuple[GraphSolution, CallFrame], bool] = field(default_factory=dict)

    def solve(self, graph: Graph) -> GraphSolution:
        """Decide the main graph."""
        policy = self.classifier.policy
        masks = protected_masks(graph, self.ranges, policy)
        return self.specialize(graph, CallArguments(positions=protected_positions(graph, policy), masks=masks))

    def fits(self, value: Value) -> bool:
        """Return whether a constant may be converted to the low type under the policy."""
        return self.classifier.policy.constants != "keep" or self.ranges.fits(value, self.classifier.low)

    def misfit(self, value: Value, frame: CallFrame | None) -> str | None:
        """Return why a constant does not fit the low type; None if it fits, or if its value is not known."""
        found = self.ranges.range_of(value, frame)
        why = found.misfit_reason(self.classifier.low) if found is not None else None
        if found is not None and (why or found.unknown):
            source = self.ranges.frames.find_source(value, frame)
            if why:
                return f"constant {source.value.name!r} {why}"
            self.unknown.setdefault(found.unknown, {})[source] = None
        return None

    def specialize(self, graph: Graph, call: CallArguments) -> GraphSolution:
        """Return the solution of a function's body for one kind of call; calls share it if they can (Rule S4.31)."""
        known = self._specialized.setdefault((id(graph), call.key), [])
        solution = next((each for each in known if self.admits(call.frame, each)), None)
        if solution is None:
            solution = self.settle_masks(graph, call)
            known.append(solution)
        return solution

    def admits(self, frame: CallFrame | None, solution: GraphSolution) -> bool:
        """Return whether the constants of a call give all the answers that led to the decisions for a body."""
        if frame is None or not frame.arguments:
            return True
        known = self._admitted.get((solution, frame))
        if known is None:
            enter = self.ranges.frames.frame_of
            answers = {value: fits for each in solution.constant_fits.values() for value, fits in each.items()}
            callees = [(node, callee) for node, each in solution.tried_callees.items() for callee in each]
            known = all((self.misfit(value, frame) is None) == fits for value, fits in answers.items())
            known = known and all(self.admits(enter(node, frame), callee) for node, callee in callees)
            self._admitted[solution, frame] = known
        return known

    def settle_masks(self, graph: Graph, call: CallArguments) -> GraphSolution:
        """Decide a graph, and again while more of its masks have to stay as authored (Rule S4.35)."""
        groups = call.masks.groups if call.masks is not None else ()
        kept = kept_at_first(groups, lambda node: self.fact(graph, node))
        earlier: list[GraphSolution] = []
        for attempt in count(1):
            solution = self.decide(graph, call, Masks(kept, reduced_constants(groups, kept), attempt > 1))
            after = kept_after(groups, kept, solution, self.classifier.low, attempt)
            if after == kept:
                break
            kept = after
            earlier.append(solution)
        for before in earlier:  # its answers about constants led to the masks that are kept
            solution.constant_fits.update({(before, step): each for step, each in before.constant_fits.items()})
            for node, callees in before.tried_callees.items():
                solution.tried_callees[node] = {**solution.tried_callees.get(node, {}), **callees}
        return solution

    def fact(self, graph: Graph, node: Node) -> Classification:
        """Return a node's fact under the lists and node rules of the policy."""
        return self.rules.match(graph).get(node.id) or self.classifier.classify(graph, node)

    def decide(self, graph: Graph, call: CallArguments, masks: Masks) -> GraphSolution:
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

    def __init__(self, shared: ModelSolver, graph: Graph, solution: GraphSolution | None = None) -> None:
        self.graph = graph
        self.solution = solution or GraphSolution(
            graph,
            [shared.classifier.classify(graph, n) for n in graph.nodes],
            [types.element(v.type) if types.element(v.type) not in types.MIXABLE else UNDECIDED for v in graph.values],
            [None] * len(graph.nodes),
            [None] * len(graph.nodes),
        )
        self.state = SolverState(shared, self.solution)
        self.schedule = Schedule()
        self.start: StartState | None = None

    def run(self, call: CallArguments, masks: Masks) -> GraphSolution:
        """Decide the graph for one kind of call."""
        state, solution, schedule = self.state, self.solution, self.schedule
        inputs = self.graph.root.inputs
        mark_high_by_black(inputs, call.blacks, state)
        state.frame = call.frame
        self._decide_inputs(call)
        for node_id, fact in state.shared.rules.match(self.graph).items():
            solution.classifications[node_id] = fact
        solution.positions, solution.masks = call.positions, call.masks
        keep_positions(solution, self.graph.nodes)
        for node, mask in mask_notes(masks.kept):
            solution.classifications[node.id] = replace(solution.classifications[node.id], mask=mask)
        solution.kept_masks, solution.reduced_slots = masks.kept, masks.reduced
        schedule.add_scope(self.graph.root)
        solution.links = schedule.links
        state.groups = find_groups(self.graph, solution.links, self._border(call.wanted))
        schedule.steps.extend(dict.fromkeys(state.groups.values()))
        if state.policy.gray_policy == "between":
            state.low_grays = low_gray_nodes(state)
        waits_for_caller = any(
            elem == UNDECIDED and types.element(v.type) in types.MIXABLE
            for v, elem in zip(inputs, call.types, strict=False)
        )
        steps, first_repeated = schedule.steps, schedule.first_repeated
        if state.groups or (waits_for_caller and first_repeated is not None):
            self.to_fixpoint(steps, final=not waits_for_caller)
            return solution
        self.start = StartState(list(solution.decided_types), frozenset(solution.high_by_black))
        for step in steps[:first_repeated]:
            self.step(step)
        if first_repeated is not None:
            self.to_fixpoint(steps[first_repeated:], final=True)
        return solution

    def _decide_inputs(self, call: CallArguments) -> None:
        """Give the values that no step decides their types: inputs, arguments, constants."""
        decided = self.solution.decided_types
        for value in self.graph.values:
            if value.kind != "node" and (value.scope.owner is None or value.kind != "input"):
                decided[value.id] = types.element(value.type)
        for value, elem in zip(self.graph.root.inputs, call.types, strict=False):
            decided[value.id] = elem
        for body in self._custom_bodies():
            for value in body.inputs:
                decided[value.id] = types.element(value.type)

    def _border(self, wanted: tuple[int, ...]) -> Iterator[tuple[Value, int]]:
        """Yield the element types that the surroundings give to inputs and want of outputs."""
        root = self.graph.root
        for body in self._custom_bodies():
            yield from ((v, types.element(v.type)) for v in (*body.inputs, *body.outputs))
        yield from ((v, self.solution.decided_types[v.id]) for v in root.inputs)
        if self.graph.path:
            yield from zip(root.outputs, wanted, strict=False)
        else:
            yield from ((v, types.element(v.type)) for v in root.outputs)

    def _custom_bodies(self) -> Iterator[Scope]:
        """Yield the bodies of operators that are no control flow, which keep their types at the border (Rule S4.14)."""
        for node in self.graph.nodes:
            if node.bodies and not is_control_flow(node):
                yield from node.bodies.values()

    # --- the order of evaluation ---

    def to_fixpoint(self, steps: list[Step], final: bool) -> None:
        """Run steps that may feed back, until nothing changes.

        ``final`` is false for a function whose caller has yet to decide some argument: its undecided values wait.
        """
        state = self.state
        readers: dict[int, list[Step]] = {}
        for step in dict.fromkeys(steps):
            for value in read_by(step):
                readers.setdefault(value.id, []).append(step)
        state.is_settling = True
        for step in steps:
            self.step(step)
        waiting: deque[Step] = deque(dict.fromkeys(steps))
        self._drain(waiting, readers)
        if not final:
            return
        state.is_settling = False
        for value in self.graph.values:
            if state.decided_types[value.id] == UNDECIDED and value.type != types.UNKNOWN:
                state.decided_types[value.id] = types.element(value.type)
                state.authored_at_last.add(value.id)
                waiting.extend(readers.get(value.id, ()))
        waiting.extend(n for n in self.graph.nodes if self.solution.classifications[n.id].kind == "rule")
        self._drain(waiting, readers)

    def _drain(self, waiting: deque[Step], readers: dict[int, list[Step]]) -> None:
        queued = set(waiting)
        while waiting:
            step = waiting.popleft()
            queued.discard(step)
            for value in self.step(step):
                for reader in readers.get(value.id, ()):
                    if reader not in queued:
                        queued.add(reader)
                        waiting.append(reader)

    def step(self, step: Step) -> list[Value]:
        """Evaluate one step; return the values whose decided type rose."""
        state = self.state
        state.step = step
        if isinstance(step, Link):
            return decide_link(step, state)
        if isinstance(step, SequenceGroup):
            return decide_group(step, state)
        if step.function is not None:
            return decide_call(step, state)
        if is_control_flow(step):
            return []  # its links decide
        signature = step.signature
        if state.groups and signature is not None and signature.groups and not signature.has_fixed_output:
            group = group_of(step, state.groups)
            if group is not None:
                return decide_member(step, group, state)
        return decide_node(step, state)
