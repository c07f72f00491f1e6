"""Connect the values that pass into and out of the bodies of If, Loop, Scan and SequenceMap.

A *type link* connects values that must have one element type. Its sources *vote*: each has a type of its own, and all
votes together decide the type of the targets (Rules S4.25 to S4.27). For example, a state of a Loop makes this link:

    sources: the initial value (an input of the Loop) and the new state (an output of the body)
    targets: the old state (an input of the body) and the final state (an output of the Loop)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mixlist.model import dtypes
from mixlist.model.graph import Node, Scope, Value
from mixlist.model.traits import Trait, operators

CONTROL_FLOW = operators(Trait.CONTROL_FLOW)


def is_control_flow(node: Node) -> bool:
    """Return whether the node is If, Loop, Scan or SequenceMap of the standard domain."""
    return bool(node.bodies) and node.domain == "" and node.op_type in CONTROL_FLOW


class LinkSource(NamedTuple):
    """A value that flows into a type link.

    ``body`` None: the value is input ``slot`` of ``node``. Else the value is output ``slot`` of ``body``.
    ``votes``: whether the type of this value counts as a vote.
    """

    value: Value
    node: Node
    body: Scope | None
    slot: int
    votes: bool = True

    @property
    def name(self) -> str:
        """The name that the slot has in the file."""
        return self.node.proto.input[self.slot] if self.body is None else self.body.proto.output[self.slot].name

    @property
    def type(self) -> dtypes.Type:
        """The authored type of the slot. A hidden marked Cast can lie between the value and the slot."""
        return (self.node.input_types if self.body is None else self.body.output_types)[self.slot]


class TypeLink(NamedTuple):
    """Values that must have one element type, which the voting ``sources`` decide for the ``targets``.

    Only the element type is common. A source can be a sequence and a target its elements (the inputs of SequenceMap),
    or a source a tensor and a target the sequence of such tensors (the outputs of SequenceMap).
    ``targets`` is empty for an omitted output of an If.
    """

    targets: tuple[Value, ...]
    sources: tuple[LinkSource, ...]


def scan_layout(node: Node) -> tuple[int, int]:
    """Return the index of the first state input of a Scan, and the number of its scan inputs."""
    scan_inputs = next((a.i for a in node.proto.attribute if a.name == "num_scan_inputs"), 0)
    body = node.bodies["body"]
    return len(node.inputs) - len(body.inputs), int(scan_inputs)  # Scan-8 has sequence_lens before the states


def body_input_types(node: Node) -> dict[str, list[dtypes.Type]]:
    """Return the types that a control-flow node passes to the inputs of its bodies, by attribute name."""
    input_types = list(node.input_types)
    if node.op_type == "Loop":  # the body reads the iteration number and the condition before the states
        return {"body": [dtypes.INT64, dtypes.BOOL, *input_types[2:]]}
    if node.op_type == "Scan":
        return {"body": input_types[scan_layout(node)[0] :]}
    if node.op_type == "SequenceMap":  # the body reads one element of each sequence
        return {"body": [t[1] if isinstance(t, tuple) and t[0] == "seq" else t for t in input_types]}
    return {}


def output_types(node: Node) -> list[dtypes.Type]:
    """Return the types of the outputs of a control-flow node, given the output types of its bodies.

    The result can be longer than the outputs of the node. It has UNKNOWN for a type that no body has.
    """
    if node.op_type == "If":
        branches = [branch.output_types for branch in node.bodies.values()]
        # The first branch with a known type decides: the branches of a valid model agree.
        return [next((b[k] for b in branches if b[k]), dtypes.UNKNOWN) for k in range(len(node.outputs))]
    body_types = node.bodies["body"].output_types
    if node.op_type == "Loop":
        return body_types[1:]  # the first output of the body is the condition
    if node.op_type == "SequenceMap":
        return [("seq", t) if t != dtypes.UNKNOWN else t for t in body_types]
    return body_types


def type_links_of(node: Node) -> Iterator[TypeLink]:
    """Yield every type link of a control-flow node."""
    if node.op_type == "If":
        for k, output in enumerate(node.outputs):  # an omitted output has a link too: its branches must agree
            sources = tuple(LinkSource(b.outputs[k], node, b, k) for b in node.bodies.values())
            yield TypeLink((output,) if output is not None else (), sources)
    elif node.op_type == "Loop":
        # The body of a Loop reads the iteration number and the condition before the states, and returns the condition.
        yield from _loop_links(node, first=2, states=len(node.inputs) - 2, inputs_before=2, outputs_before=1)
    elif node.op_type == "Scan":
        first, scan_inputs = scan_layout(node)
        states = len(node.inputs) - first - scan_inputs
        yield from _loop_links(node, first, states)
        body = node.bodies["body"]
        # The body reads one slice of each scan input. Slices have the element type of the whole.
        for k in range(states, states + scan_inputs):
            yield from _input_link(node, first + k, body.inputs[k])
    elif node.op_type == "SequenceMap":
        body = node.bodies["body"]
        # Of a sequence, the body reads one element at a time. Of a tensor, which can be a later input, it reads all.
        for k, target in enumerate(body.inputs):
            yield from _input_link(node, k, target)
        for k, output in enumerate(node.outputs):
            if output is not None:
                yield TypeLink((output,), (LinkSource(body.outputs[k], node, body, k),))


def _input_link(node: Node, slot: int, target: Value) -> Iterator[TypeLink]:
    """Yield the link from input ``slot`` of a node to an input of its body; nothing for an omitted slot."""
    source = node.inputs[slot]
    if source is not None:
        yield TypeLink((target,), (LinkSource(source, node, None, slot),))


def _loop_links(
    node: Node, first: int, states: int, inputs_before: int = 0, outputs_before: int = 0
) -> Iterator[TypeLink]:
    """Yield the links of a Loop or Scan: first those of the states, then those of the scan outputs.

    ``first``: the input slot of the first state in the node. ``states``: the number of states. ``inputs_before`` and
    ``outputs_before``: the number of inputs and outputs of the body before its states.
    """
    body = node.bodies["body"]
    for k in range(states):
        initial = node.inputs[first + k]
        # A constant initial value is converted to the type of the state, so it does not vote (Rule S4.27).
        sources = [] if initial is None else [LinkSource(initial, node, None, first + k, votes=not initial.is_constant)]
        sources.append(LinkSource(body.outputs[k + outputs_before], node, body, k + outputs_before))
        # A node may omit outputs at the end. For these, the slice is empty.
        targets = (body.inputs[k + inputs_before], *node.outputs[k : k + 1])
        yield TypeLink(tuple(target for target in targets if target is not None), tuple(sources))
    # The outputs behind the states stack what the body yields in each iteration: the body alone decides their type.
    for k, output in enumerate(node.outputs[states:], states):
        if output is not None:
            yield TypeLink((output,), (LinkSource(body.outputs[k + outputs_before], node, body, k + outputs_before),))


def find_mismatch(node: Node) -> str | None:
    """Return an error if a control-flow node lacks a body, or has a body with a wrong number of inputs or outputs.

    The error is the end of a message that starts with the node. The result is None for a valid node.
    """
    for name in ("then_branch", "else_branch") if node.op_type == "If" else ("body",):
        if name not in node.bodies:
            return f"has no {name}"
    if node.op_type == "If":
        if not node.inputs or node.inputs[0] is None:
            return "has no condition"
        wrong_branches = [n for n, b in node.bodies.items() if len(b.outputs) != len(node.outputs)]
        if wrong_branches:
            return f"has {len(node.outputs)} outputs but {wrong_branches[0]} returns another number"
        return None
    body = node.bodies["body"]
    inputs, outputs = len(body.inputs), len(body.outputs)
    # A node may omit outputs at the end, so the body may have more of them, but not fewer.
    if node.op_type == "Loop":
        states = len(node.inputs) - 2
        # The body returns the condition first, so it has at least one output more than the node has.
        fits = inputs == states + 2 and outputs > max(states, len(node.outputs))
    elif node.op_type == "Scan":
        first, scan_inputs = scan_layout(node)
        states = len(node.inputs) - first - scan_inputs
        # Scan-8 has one input before the states, later versions have none: see scan_layout().
        fits = first in (0, 1) and scan_inputs >= 1 and states >= 0 and inputs == states + scan_inputs
        fits = fits and outputs >= max(states, len(node.outputs))
    else:
        fits = inputs == len(node.inputs) and outputs >= len(node.outputs)
    return None if fits else "has a body with a wrong number of inputs or outputs"
