"""Order the steps of deciding a graph, and find the values that each step reads and writes.

Rule S4.10: Each node gets one decision, made after those of the nodes that it reads; the file position breaks ties
between nodes that are ready. (``graph.build`` sorts the nodes.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mixlist.graph.control_flow import Link, links_of
from mixlist.graph.model import Node, Scope, Value
from mixlist.resolver.classification import is_control_flow
from mixlist.resolver.sequence_groups import SequenceGroup, is_container

Step = Node | Link | SequenceGroup


@dataclass
class Schedule:
    """The steps of a graph in order. From ``first_repeated`` on they may feed back; the steps before run once."""

    steps: list[Step] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    first_repeated: int | None = None  # None if nothing feeds back

    def add_scope(self, scope: Scope) -> None:
        """Append the steps of a scope. The links of a body come before and after it."""
        for node in scope.nodes:
            if not node.bodies:
                self.steps.append(node)
                continue
            own = list(links_of(node)) if is_control_flow(node) else []
            self.links.extend(own)
            if node.op_type != "If":
                if self.first_repeated is None:
                    self.first_repeated = len(self.steps)
                self.steps.extend(own)
            for body in node.bodies.values():
                self.add_scope(body)
            self.steps.extend(own)
            self.steps.append(node)


def read_by(step: Step) -> list[Value]:
    """Return the values whose decided types a step reads."""
    if isinstance(step, Link):
        return [r.value for r in step.sources if r.votes]
    if isinstance(step, SequenceGroup):
        return [
            *step.tensors,
            *(argument.value for argument in step.arguments),
            *(v for n in step.nodes for v in n.inputs if v is not None and not is_container(v)),
        ]
    found = [v for v in step.inputs if v is not None]
    found.extend(v for v in step.outputs if v is not None and is_container(v))  # the type of the whole group
    through = [v.producer.inputs[0] for v in found if v.producer is not None and v.producer.op_type == "Cast"]
    return found + [v for v in through if v is not None]


def written_by(step: Step) -> list[Value]:
    """Return the values that a step decides; a group decides values of other steps."""
    if isinstance(step, Link):
        return list(step.targets)
    if isinstance(step, SequenceGroup) or (step.function is None and is_control_flow(step)):
        return []
    return [value for value in step.outputs if value is not None]
