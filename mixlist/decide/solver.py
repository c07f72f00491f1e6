"""Decide the nodes of a graph in order (Rule S4.10), and repeat the parts that feed back until nothing changes.

Types that feed back, such as those of the states of a Loop, start undecided, and a vote can only raise one (Rule
S4.28). So each value changes at most twice, and one pass in topological order and a worklist for the part of the graph
that a Loop or Scan feeds back to take linear time. They reach the fixpoint with the most low precision.

The rules are in files of their own: ``node_types``, ``control_flow_types``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from mixlist.decide.control_flow_types import decide_link
from mixlist.decide.gray_policies import find_low_gray_nodes, note_scatters, skip_idle_casts
from mixlist.decide.node_types import decide_node
from mixlist.decide.plan_masks import (
    MaskTreatment,
    find_groups_kept_after,
    find_groups_kept_at_first,
    find_protected_masks,
    treat_masks,
)
from mixlist.decide.protections import protect_nodes
from mixlist.decide.solution import UNDECIDED, AppliedPolicy, Solution
from mixlist.decide.types_from_readers import find_unbound_values
from mixlist.model import dtypes
from mixlist.model.control_flow import TypeLink, is_control_flow, type_links_of
from mixlist.model.graph import Node, Scope, Value

# --- one model ---


def solve_model(applied: AppliedPolicy) -> Solution:
    """Decide a model; repeat it with more masks kept until no further mask has to be kept (Rule S4.35)."""
    groups = find_protected_masks(applied.graph, applied.constant_ranges, applied.classifier.policy)
    kept_groups = find_groups_kept_at_first(groups, applied.classify)
    for attempt in count(1):
        solution = _decide_once(applied, treat_masks(groups, kept_groups))
        kept_after = find_groups_kept_after(groups, kept_groups, solution, applied.classifier.low_type, attempt)
        if kept_after == kept_groups:
            break
        kept_groups = kept_after
    return solution


def _decide_once(applied: AppliedPolicy, treatment: MaskTreatment) -> Solution:
    """Decide a model with the given masks kept and the others reduced."""
    graph = applied.graph
    solution = Solution(
        applied,
        [applied.classifier.classify(graph, node) for node in graph.nodes],
        # Lists never change int64, float64, sequences and so on: these values are decided from the start.
        [UNDECIDED if can_change(value) else dtypes.element(value.type) for value in graph.values],
        [None] * len(graph.nodes),
        [None] * len(graph.nodes),
    )
    # Phase 1: set everything that the policy decides before the first step.
    _decide_inputs(solution)
    for node_id, classification in applied.node_rules.match().items():
        solution.classifications[node_id] = classification
    protect_nodes(solution, treatment)
    note_scatters(solution)
    solution.unbound_values = find_unbound_values(graph, solution.classifications, applied.classifier)
    # Phase 2: collect the steps. `between` needs the links.
    schedule = Schedule()
    schedule.add_scope(graph.root)
    solution.links = schedule.links
    if solution.policy.gray_policy == "between":
        solution.low_gray_ids = find_low_gray_nodes(solution)
    # Phase 3: run them.
    for step in schedule.steps[: schedule.first_repeated]:
        _run_step(step, solution)
    if schedule.first_repeated is not None:
        _run_to_fixpoint(schedule.steps[schedule.first_repeated :], solution)
    return solution


def _decide_inputs(solution: Solution) -> None:
    """Set the types of the values that no step decides: inputs and constants."""
    graph, decided_types = solution.graph, solution.decided_types
    for value in graph.values:
        # A link decides the inputs of bodies; a node decides its outputs.
        if value.kind != "node" and (value.scope.owner is None or value.kind != "input"):
            decided_types[value.id] = dtypes.element(value.type)
    for value in graph.root.inputs:
        if value.kind == "input":  # one with a default keeps its type (Rule S4.16)
            decided_types[value.id] = solution.interface.find_type(value.name, value.type)
    # The bodies of custom operators keep the types of their inputs and outputs (Rule S4.14).
    for node in graph.nodes:
        if node.bodies and not is_control_flow(node):
            for value in (value for body in node.bodies.values() for value in body.inputs):
                decided_types[value.id] = dtypes.element(value.type)


# --- the order of evaluation ---


def _run_to_fixpoint(steps: list[DecisionStep], solution: Solution) -> None:
    """Run steps that may feed back, until nothing changes."""
    readers: dict[int, list[DecisionStep]] = {}  # by the id of a value
    for step in dict.fromkeys(steps):  # the links of a loop come twice
        for value in _find_read_values(step, solution):
            readers.setdefault(value.id, []).append(step)
    # First collect votes. All steps run once in order. Then all of them wait, because a step may have read a value that
    # a later step changed. From then on only the readers of changed values wait.
    for step in steps:
        _run_step(step, solution)
    waiting: deque[DecisionStep] = deque(dict.fromkeys(steps))
    _run_waiting(waiting, readers, solution)
    # Then decide the rest. A value without a vote keeps its authored type (Rule S4.28); its readers learn it now.
    for value in solution.graph.values:
        if solution.decided_types[value.id] == UNDECIDED and value.type != dtypes.UNKNOWN:
            solution.decided_types[value.id] = dtypes.element(value.type)
            solution.unvoted_ids.add(value.id)
            waiting.extend(readers.get(value.id, ()))
    _run_waiting(waiting, readers, solution)


def _run_waiting(waiting: deque[DecisionStep], readers: Mapping[int, list[DecisionStep]], solution: Solution) -> None:
    """Run the waiting steps, and then every step that reads a value that changed."""
    queued = set(waiting)
    while waiting:
        step = waiting.popleft()
        queued.discard(step)
        for value in _run_step(step, solution):
            for reader in readers.get(value.id, ()):
                if reader not in queued:
                    queued.add(reader)
                    waiting.append(reader)


def _run_step(step: DecisionStep, solution: Solution) -> list[Value]:
    """Evaluate one step; return the values whose decided type changed."""
    if isinstance(step, TypeLink):
        return decide_link(step, solution)
    if is_control_flow(step):
        return []  # the links of the node decide its outputs
    return decide_node(step, solution)


def can_change(value: Value) -> bool:
    """Return whether lists can change the type of a value: a float tensor, and no sequence or optional (Rule S4.29)."""
    return dtypes.element(value.type) in dtypes.MIXABLE and not dtypes.is_container(value.type)


# --- the order of the steps ---

DecisionStep = Node | TypeLink  # decided by one call of `_run_step`


@dataclass
class Schedule:
    """The steps of a graph in order.

    The steps before ``first_repeated`` depend only on earlier steps and run once. From ``first_repeated`` on, a step
    may also depend on a later one, because the body of a loop feeds back. None means that no step does.
    """

    steps: list[DecisionStep] = field(default_factory=list)
    links: list[TypeLink] = field(default_factory=list)
    first_repeated: int | None = None

    def add_scope(self, scope: Scope) -> None:
        """Append the steps of a scope and of the bodies in it."""
        for node in scope.nodes:
            if not node.bodies:
                self.steps.append(node)
                continue
            node_links = list(type_links_of(node)) if is_control_flow(node) else []
            self.links.extend(node_links)
            # The links of a loop come before its body, for the initial states, and after it, for the states that the
            # body yields. An If passes nothing into its branches, so its links come only after them.
            if node.op_type != "If":
                # The body of a Loop or Scan reads states that a later step may change, so steps repeat from here on.
                if self.first_repeated is None:
                    self.first_repeated = len(self.steps)
                self.steps.extend(node_links)
            # Example of a Loop: links, nodes of the body, links, the Loop itself.
            for body in node.bodies.values():
                self.add_scope(body)
            self.steps.extend(node_links)
            self.steps.append(node)


def _find_read_values(step: DecisionStep, solution: Solution) -> list[Value]:
    """Return the values whose decided types a step reads."""
    if isinstance(step, TypeLink):
        return [source.value for source in step.sources if source.votes]
    values = [value for value in step.inputs if value is not None]
    # A gray node may follow the source of a Cast instead of the Cast (Rules S4.17, S4.48), and another value instead of
    # the result of a normalization (S4.47).
    followed = values + _find_cast_sources(values)
    squared = [solution.followed_instead[value.id] for value in followed if value.id in solution.followed_instead]
    return followed + squared + _find_cast_sources(squared)


def _find_cast_sources(values: list[Value]) -> list[Value]:
    """Return the inputs of the Casts that make some of the values, and those of the idle Casts before these."""
    sources = []
    for value in values:
        origin = skip_idle_casts(value)
        if origin is not value:
            sources.append(origin)
        cast = origin.producer
        if cast is not None and cast.op_type == "Cast" and cast.inputs[0] is not None:
            sources.append(cast.inputs[0])
    return sources
