"""What the policy says of a node, before anything is followed: its list, its node rule, its kind of decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mixlist.graph.control_flow import CONTROL_FLOW
from mixlist.graph.model import Graph, Node, Value
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.ops.names import Listed, listed
from mixlist.ops.traits import Trait, operators

_CUBE = operators(Trait.CUBE)  # Rule S3.7

# How a node's precision is found. Only `gray` looks at other nodes.
Kind = Literal["none", "cast", "rule", "shape", "low", "authored", "raise", "gray", "schema"]


@dataclass(frozen=True)
class Fact:
    """``list`` as the report shows it; ``kind`` how the precision is found; ``rule`` what the report names."""

    list: str
    kind: Kind
    rule: str
    listed: Listed | None = None


class Facts:
    """The policy, asked about the nodes of one model; answers are kept per operator."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.low = types.ELEMENT[policy.mode.low]
        raises = policy.mode.action == "raise"  # brings up either low type; lists leave the other one alone
        self.movable = types.LISTED if raises else frozenset({types.FLOAT, self.low})
        self._listed: dict[tuple[str, str, int | None], Listed] = {}
        self._facts: dict[tuple[str, str, int | None], Fact] = {}
        self.cast_is_black = policy.mode.action == "lists" and self.listed("", "Cast").list == "black"

    def listed(self, domain: str, op_type: str, rank: Callable[[], int | None] = lambda: None) -> Listed:
        """The list of an operator in the policy's name space."""
        if self.policy.space == "onnx":
            key: tuple[str, str, int | None] = (domain, op_type, None)
        else:
            key = (domain, op_type, rank())
        found = self._listed.get(key)
        if found is None:
            found = self._listed[key] = listed(self.policy.lists, self.policy.space, domain, op_type, lambda: key[2])
        return found

    def of(self, graph: Graph, node: Node) -> Fact:
        """The fact for a node that no node rule names."""
        signature = node.signature
        by_list = self._by_list(graph, node)
        if signature is None:
            return Fact("none", "none", "control-flow")
        if signature.fixed:
            return Fact(by_list.list, "cast", "cast", by_list.listed)
        if not signature.groups:
            if signature.schema is None and any(
                v is not None and types.element(v.type) in types.LISTED for v in node.inputs
            ):
                return Fact(by_list.list, "schema", "schema", by_list.listed)
            return Fact(by_list.list, "none", "no-float", by_list.listed)
        if not any(g.authored in self.movable for g in signature.groups):
            return Fact(by_list.list, "none", "no-float", by_list.listed)
        if is_shape_arithmetic(node):
            return Fact(by_list.list, "shape", "shape", by_list.listed)
        return by_list

    def _by_list(self, graph: Graph, node: Node) -> Fact:
        action = self.policy.mode.action
        if action != "lists":
            return self._by_mode(action, node)
        if node.signature is None:
            return Fact("none", "none", "control-flow")
        entry = self.listed(node.domain, node.op_type, lambda: rank_of(graph, node))
        key = (node.domain, node.op_type, id(entry))
        found = self._facts.get(key)
        if found is None:
            kind: Kind = {"white": "low", "black": "authored", "gray": "gray"}[entry.list]  # type: ignore[assignment]
            found = self._facts[key] = Fact(entry.list, kind, {"gray": "follow"}.get(entry.list, entry.list), entry)
        return found

    def _by_mode(self, action: str, node: Node) -> Fact:
        if action == "force":
            return Fact("none", "low", "mode")
        if action == "raise":
            return Fact("none", "raise", "mode")
        if action == "cube" and node.op_type in _CUBE and node.domain == "":
            return Fact("none", "low", "mode")
        return Fact("none", "authored", "mode")


def is_shape_arithmetic(node: Node) -> bool:
    """Rule S4.3: all float inputs come from shapes and constants, at least one of them from a shape."""
    shaped = False
    for value in node.inputs:
        if value is None or types.element(value.type) not in types.FLOATS:
            continue
        if value.from_shape:
            shaped = True
        elif not value.constant:
            return False
    return shaped


def is_control_flow(node: Node) -> bool:
    """Whether the node is one of ONNX's own operators with bodies."""
    return bool(node.bodies) and node.domain == "" and node.op_type in CONTROL_FLOW


def rank_of(graph: Graph, node: Node) -> int | None:
    """The number of dimensions of a node's first input, as far as weights or declarations tell."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if node.op_type in ("Conv", "ConvTranspose") and weight is not None and hasattr(weight.tensor, "dims"):
        return len(weight.tensor.dims)
    first: Value | None = node.inputs[0] if node.inputs else None
    return None if first is None else graph.ranks().get(first.name)
