"""Decide again only the steps of a graph that a change reaches, in a copy of an earlier solution.

Example: in ``a -> MatMul -> b -> Relu -> c -> MatMul -> d``, the first MatMul becomes black. Its step runs again and
changes the type of ``b``, so the step of the gray Relu runs again, too. The second MatMul is white: its list decides
it, whatever ``c`` is, so the change ends there.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from mixlist.decide.schedule import DecisionStep, Schedule, find_read_values, find_written_values
from mixlist.decide.solver import GraphSolver
from mixlist.model.graph import Node, Value


class ChangePropagator:
    """Runs again the steps that a change reaches, found by the values that each step writes and reads."""

    def __init__(self, schedule: Schedule) -> None:
        self.steps = steps = schedule.steps
        self.first_repeated = len(steps) if schedule.first_repeated is None else schedule.first_repeated
        self.node_of_step = [step if isinstance(step, Node) else None for step in steps]  # None for links
        # Links of loops come twice in the schedule; reversed, so that the first position wins.
        self.position_of = {step: position for position, step in reversed([*enumerate(steps)])}
        # These lists and the readers do not depend on a policy, so they serve all policies of a search.
        self.written_values = [find_written_values(step) for step in steps]
        self.readers: dict[int, list[int]] = {}  # positions of steps, by the id of a value
        for position, step in enumerate(steps):
            for value in find_read_values(step):
                self.readers.setdefault(value.id, []).append(position)

    def run_again(self, solver: GraphSolver, changed: set[Node]) -> frozenset[Node]:
        """Run the steps of ``changed`` nodes, and of all nodes that follow a changed value.

        Return these nodes, and those that read a changed value but whose decision does not depend on it.
        """
        solution = solver.solution
        decided_types = solution.decided_types
        # A heap of positions: each step runs after all steps that it reads from, so it runs once.
        waiting = [self.position_of[node] for node in changed]
        queued = set(waiting)
        heapify(waiting)
        affected: set[Node] = set()
        while waiting:
            position = heappop(waiting)
            # Steps in and behind a loop depend on each other: they cannot run one by one.
            if position >= self.first_repeated:
                return frozenset(affected | self._run_all_repeated(solver))
            step, written = self.steps[position], self.written_values[position]
            before = [decided_types[value.id] for value in written]
            # A type can only rise, so a step that runs again must start from the types before its first run.
            _undo_step(solver, step, written)
            if isinstance(step, Node):
                affected.add(step)
            solver.run_step(step)
            if before == [decided_types[value.id] for value in written]:
                continue
            for reader in (reader for value in written for reader in self.readers.get(value.id, ())):
                if reader in queued:
                    continue
                queued.add(reader)
                node = self.node_of_step[reader]
                if node is not None and solution.classifications[node.id].kind != "gray":
                    affected.add(node)  # its list decides it, whatever it reads
                else:
                    heappush(waiting, reader)
        return frozenset(affected)

    def _run_all_repeated(self, solver: GraphSolver) -> set[Node]:
        """Decide all steps from the first loop on anew; return the nodes among these steps."""
        steps = self.steps[self.first_repeated :]
        for step, written in zip(steps, self.written_values[self.first_repeated :], strict=True):
            _undo_step(solver, step, written)
        solver.run_to_fixpoint(steps)
        return {step for step in steps if isinstance(step, Node)}


def _undo_step(solver: GraphSolver, step: DecisionStep, written: list[Value]) -> None:
    """Undo a step: forget the types of its values, and the notes about its node."""
    solution = solver.solution
    for value in written:
        solution.decided_types[value.id] = solver.start_types[value.id]
    if isinstance(step, Node):
        solution.assignments[step.id] = solution.followed_values[step.id] = None
        solution.reason_notes.pop(step.id, None)
        solution.rule_overrides.pop(step.id, None)
