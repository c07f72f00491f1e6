"""Order the steps in which a graph is decided, and find the values that each step reads and writes.

Rule S4.10: Each node gets one decision, made after those of the nodes that it reads; the file position breaks ties
between nodes that are ready. (``model/build.py`` sorts the nodes.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mixlist.decide.classification import is_control_flow
from mixlist.model.control_flow import TypeLink, type_links_of
from mixlist.model.graph import Node, Scope, Value

DecisionStep = Node | TypeLink  # decided by one call of `GraphSolver.run_step`


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


def find_read_values(step: DecisionStep) -> list[Value]:
    """Return the values whose decided types a step reads."""
    if isinstance(step, TypeLink):
        return [source.value for source in step.sources if source.votes]
    values = [value for value in step.inputs if value is not None]
    # A gray node may follow the source of a Cast instead of the Cast (Rule S4.17).
    sources = [v.producer.inputs[0] for v in values if v.producer is not None and v.producer.op_type == "Cast"]
    return values + [value for value in sources if value is not None]


def find_written_values(step: DecisionStep) -> list[Value]:
    """Return the values that a step decides."""
    if isinstance(step, TypeLink):
        return list(step.targets)
    if is_control_flow(step):
        return []
    return [value for value in step.outputs if value is not None]
