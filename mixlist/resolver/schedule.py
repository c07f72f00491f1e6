"""The steps of a decision in order, and what each of them looks at."""

from __future__ import annotations

from mixlist.graph.control_flow import Link, links
from mixlist.graph.model import Node, Scope, Value
from mixlist.resolver import sequence_groups
from mixlist.resolver.classification import is_control_flow
from mixlist.resolver.sequence_groups import Cluster

Step = Node | Link | Cluster


def collect(scope: Scope, steps: list[Step], found: list[Link]) -> int | None:
    """The steps of a scope in order, and where the first stands that something feeds back to; None if nothing does.

    Links stand before and after a body.
    """
    feedback: int | None = None
    for node in scope.nodes:
        if not node.bodies:
            steps.append(node)
            continue
        own = list(links(node)) if is_control_flow(node) else []
        found.extend(own)
        if node.op_type != "If":
            feedback = len(steps) if feedback is None else feedback
            steps.extend(own)
        for body in node.bodies.values():
            inner = collect(body, steps, found)
            feedback = inner if feedback is None else feedback
        steps.extend(own)
        steps.append(node)
    return feedback


def read_by(step: Step) -> list[Value]:
    """The values whose decided types a step looks at."""
    if isinstance(step, Link):
        return [r.value for r in step.reads if r.votes]
    if isinstance(step, Cluster):
        return [
            *step.tensors,
            *(v for call, slot in step.calls if (v := call.inputs[slot]) is not None),
            *(v for n in step.nodes for v in n.inputs if v is not None and not sequence_groups.is_container(v)),
        ]
    found = [v for v in step.inputs if v is not None]
    found.extend(
        v for v in step.outputs if v is not None and sequence_groups.is_container(v)
    )  # the whole cluster's type
    through = [v.producer.inputs[0] for v in found if v.producer is not None and v.producer.op_type == "Cast"]
    return found + [v for v in through if v is not None]
