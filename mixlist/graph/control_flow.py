"""Link the values that pass into and out of the bodies of If, Loop, Scan and SequenceMap.

A *link* ties values that have one type: its ``targets`` take the type that its ``reads`` vote for.
(Rules S4.25 to S4.27.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mixlist.graph.model import Node, Scope, Value
from mixlist.ops import types
from mixlist.ops.traits import Trait, operators

CONTROL_FLOW = operators(Trait.CONTROL_FLOW)


@dataclass(frozen=True, eq=False)
class LinkSource:
    """One place that hands a value to a link: input ``slot`` of ``node``, or output ``slot`` of a body."""

    value: Value
    node: Node
    body: Scope | None
    slot: int
    votes: bool = True


@dataclass(frozen=True, eq=False)
class Link:
    """``targets`` have the element type that the voting ``reads`` agree on, in containers of their own.

    There is no target where an If has no name for an output.
    """

    targets: tuple[Value, ...]
    sources: tuple[LinkSource, ...]


def scan_layout(node: Node) -> tuple[int, int]:
    """(index of the first state input, number of scan inputs) of a Scan node."""
    count = next((a.i for a in node.proto.attribute if a.name == "num_scan_inputs"), 0)
    body = node.bodies["body"]
    return len(node.inputs) - len(body.inputs), int(count)  # Scan-8 has sequence_lens before the states


def body_input_types(node: Node) -> dict[str, list[types.Type]]:
    """The types that a control-flow node hands to the inputs of each of its bodies."""
    given = list(node.input_types)
    if node.op_type == "Loop":
        return {"body": [7, 9, *given[2:]]}
    if node.op_type == "Scan":
        return {"body": given[scan_layout(node)[0] :]}
    if node.op_type == "SequenceMap":
        return {"body": [t[1] if isinstance(t, tuple) and t[0] == "seq" else t for t in given]}
    return {}


def output_types(node: Node) -> list[types.Type]:
    """The types of a control-flow node's outputs, from what its bodies yield."""
    if node.op_type == "If":
        branches = list(node.bodies.values())
        return [
            next((b.output_types[k] for b in branches if b.output_types[k]), types.UNKNOWN)
            for k in range(len(node.outputs))
        ]
    yielded = node.bodies["body"].output_types
    if node.op_type == "Loop":
        return yielded[1:]
    if node.op_type == "SequenceMap":
        return [("seq", t) if t != types.UNKNOWN else t for t in yielded]
    return yielded


def links_of(node: Node) -> Iterator[Link]:
    """Every link of a control-flow node."""
    if node.op_type == "If":
        for k, out in enumerate(node.outputs):  # branches have to agree on an output without a name too
            reads = tuple(LinkSource(b.outputs[k], node, b, k) for b in node.bodies.values())
            yield Link((out,) if out is not None else (), reads)
    elif node.op_type == "Loop":
        yield from _state_links(node, first=2, skip=1, states=len(node.inputs) - 2)
    elif node.op_type == "Scan":
        first, scanned = scan_layout(node)
        states = len(node.inputs) - first - scanned
        yield from _state_links(node, first=first, skip=0, states=states)
        body = node.bodies["body"]
        for k in range(states, states + scanned):
            yield from _copy(node, first + k, body.inputs[k])
    elif node.op_type == "SequenceMap":
        body = node.bodies["body"]
        for k, target in enumerate(body.inputs):
            yield from _copy(node, k, target)
        for k, out in enumerate(node.outputs):
            if out is not None:
                yield Link((out,), (LinkSource(body.outputs[k], node, body, k),))


def _copy(node: Node, slot: int, target: Value) -> Iterator[Link]:
    source = node.inputs[slot]
    if source is not None:
        yield Link((target,), (LinkSource(source, node, None, slot),))


def _state_links(node: Node, first: int, skip: int, states: int) -> Iterator[Link]:
    """Carried state, then scan outputs: body input k + 2 * skip and body output k + skip belong to state k."""
    body = node.bodies["body"]
    for k in range(states):
        init = node.inputs[first + k]
        reads = [] if init is None else [LinkSource(init, node, None, first + k, votes=not init.is_constant)]
        reads.append(LinkSource(body.outputs[k + skip], node, body, k + skip))
        targets = (body.inputs[k + 2 * skip], *node.outputs[k : k + 1])
        yield Link(tuple(target for target in targets if target is not None), tuple(reads))
    for k, out in enumerate(node.outputs[states:], states):
        if out is not None:
            yield Link((out,), (LinkSource(body.outputs[k + skip], node, body, k + skip),))


def find_mismatch(node: Node) -> str | None:
    """Return the error in the numbers of inputs and outputs of a control-flow node and its bodies; None without one."""
    for name in ("then_branch", "else_branch") if node.op_type == "If" else ("body",):
        if name not in node.bodies:
            return f"has no {name}"
    if node.op_type == "If":
        if not node.inputs or node.inputs[0] is None:
            return "has no condition"
        short = [n for n, b in node.bodies.items() if len(b.outputs) != len(node.outputs)]
        return f"has {len(node.outputs)} outputs but {short[0]} yields another number" if short else None
    body = node.bodies["body"]
    inputs, outputs = len(body.inputs), len(body.outputs)
    if node.op_type == "Loop":
        states = len(node.inputs) - 2
        fits = inputs == states + 2 and outputs > max(states, len(node.outputs))
    elif node.op_type == "Scan":
        first, scanned = scan_layout(node)
        states = len(node.inputs) - first - scanned
        fits = first in (0, 1) and scanned >= 0 <= states and inputs == states + scanned
        fits = fits and outputs >= max(states, len(node.outputs))
    else:
        fits = inputs == len(node.inputs) and outputs >= len(node.outputs)
    return None if fits else "has a body whose inputs or outputs do not fit its own"
