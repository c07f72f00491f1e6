"""Classify a node by the policy alone, before anything is followed: its list, and the rule that decides it.

Rule S4.1: A node without a slot of type float32 or of the low type that may change has precision `none`, or the type
of its fixed output (S4.13), and no list changes it.

Rule S4.13: A Cast, a Constant, and an operator whose output type is given by an attribute, or by the default of that
attribute, keep that type; such an operator without the attribute and without a default is an ordinary operator.

Rule S4.14: A node stays as authored with rule `schema` if no schema of its operator is known.

Rule S4.40: A node that reads a tensor whose type is still unknown stays as authored with rule `unknown-type`.

Rule S3.8: Under `mixed_float16` with a library in Ascend names, a white node that was authored in bfloat16 becomes
float16.

Rule S3.4: Under `fp16` every node that can be float16 is float16, whatever the lists say.

Rule S3.5: Under `origin` every node keeps its authored type, except a node that `customize_dtypes` names.

Rule S3.6: Under `cube_fp16in_fp32out` and `force_fp32` every node that was authored in float16 or bfloat16 and can be
float32 is float32.

Rule S3.7: Under `allow_fp32_to_fp16` the nodes of MatMul, Gemm, Conv and ConvTranspose are float16 and all others keep
their authored type; `allow_fp32_to_bf16` does the same with bfloat16.

``white_black_gray`` finds the types of a node that is classified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mixlist.graph.control_flow import CONTROL_FLOW
from mixlist.graph.model import Graph, Node, Value
from mixlist.lists.library import ListName
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.ops.names import ListMatch, find_list
from mixlist.ops.traits import Trait, operators
from mixlist.resolver.shape_arithmetic import is_shape_arithmetic

_CUBE = operators(Trait.CUBE)  # Rule S3.7

# The ways to find a node's precision. Only `gray` looks at other nodes.
Kind = Literal["none", "cast", "rule", "shape", "low", "authored", "raise", "gray", "schema", "unknown"]

_FLOAT_OR_UNKNOWN = types.MIXABLE | {types.UNKNOWN}

_KINDS: dict[ListName, Kind] = {"white": "low", "black": "authored", "gray": "gray"}


@dataclass(frozen=True)
class Classification:
    """The classification of a node.

    ``list``: the list, or ``none``. ``kind``: how the precision is found. ``rule``: the rule as the report names it.
    ``mask``: the mask because of which a node does not become low precision; empty for another node of that mask's way.
    """

    list: str
    kind: Kind
    rule: str
    listed: ListMatch | None = None
    mask: str | None = None


class Classifier:
    """Classifies the nodes of one model under one policy; keeps the answers per operator."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.low = types.ELEMENT_BY_NAME[policy.mode.low]
        raises = policy.mode.action == "raise"  # brings up either low type; lists leave the other one alone
        self.movable = types.MIXABLE if raises else frozenset({types.FLOAT, self.low})
        in_lists = policy.mode.action == "lists"
        self.lowers_bfloat16 = in_lists and policy.space == "ascend" and self.low == types.FLOAT16  # Rule S3.8
        self.movable_if_white = types.MIXABLE if self.lowers_bfloat16 else self.movable
        self._facts: dict[tuple[str, str, int | None], Classification] = {}
        self.cast_is_black = in_lists and self.classify_operator("", "Cast").list == "black"

    def classify_operator(
        self, domain: str, op_type: str, rank: Callable[[], int | None] = lambda: None
    ) -> Classification:
        """Return the fact for nodes of an operator by its list in the policy's name space alone."""
        key = (domain, op_type, None if self.policy.space == "onnx" else rank())
        fact = self._facts.get(key)
        if fact is None:
            entry = find_list(self.policy.lists, self.policy.space, domain, op_type, lambda: key[2])
            rule = "follow" if entry.list == "gray" else entry.list
            fact = self._facts[key] = Classification(entry.list, _KINDS[entry.list], rule, entry)
        return fact

    def classify(self, graph: Graph, node: Node) -> Classification:
        """Return the fact for a node that no node rule names."""
        signature = node.signature
        if signature is None:
            return Classification("none", "none", "control-flow")
        action = self.policy.mode.action
        if action == "lists":
            by_list = self.classify_operator(node.domain, node.op_type, lambda: find_rank(graph, node))
        else:
            by_list = self._by_mode(action, node)
        if signature.has_fixed_output:
            return Classification(by_list.list, "cast", "cast", by_list.listed)
        if graph.has_undeclared_types and unknown_inputs(node):
            return Classification(by_list.list, "unknown", "unknown-type", by_list.listed)
        movable = self.movable_if_white if by_list.kind == "low" else self.movable
        if not any(g.authored in movable for g in signature.groups):
            if signature.schema is None and any(types.element(t) in _FLOAT_OR_UNKNOWN for t in _read_types(node)):
                return Classification(by_list.list, "schema", "schema", by_list.listed)
            return Classification(by_list.list, "none", "no-float", by_list.listed)
        if is_shape_arithmetic(node):
            return Classification(by_list.list, "shape", "shape", by_list.listed)
        return by_list

    def movable_by(self, fact: Classification) -> frozenset[int]:
        """Return the authored types that a node with this fact may give up."""
        return self.movable_if_white if fact.kind == "low" else self.movable

    def _by_mode(self, action: str, node: Node) -> Classification:
        in_cube = node.op_type in _CUBE and node.domain == ""
        kinds: dict[str, Kind] = {"force": "low", "raise": "raise", "cube": "low" if in_cube else "authored"}
        return Classification("none", kinds.get(action, "authored"), "mode")


def is_control_flow(node: Node) -> bool:
    """Return whether the node is one of ONNX's own operators with bodies."""
    return bool(node.bodies) and node.domain == "" and node.op_type in CONTROL_FLOW


def unknown_inputs(node: Node) -> list[Value]:
    """Return the inputs of unknown type at slots that admit float32 or a low type (Rule S4.40)."""
    signature = node.signature
    if (
        types.UNKNOWN not in node.input_types
        or signature is None
        or signature.schema is None
        or signature.reads_any_type
    ):
        return []
    schema = signature.schema
    formal = schema.formal_slots(schema.inputs, len(node.inputs))
    slots = zip(node.inputs, node.input_types, formal, strict=False)
    unknown = [(value, slot.parameter) for value, known, slot in slots if value is not None and known == types.UNKNOWN]
    return [
        v for v, parameter in unknown if not types.MIXABLE.isdisjoint(map(types.element, schema.types_of(parameter)))
    ]


def _read_types(node: Node) -> list[types.Type]:
    """Return the types of a node's inputs, without the holes."""
    return [value.type for value in node.inputs if value is not None]


def find_rank(graph: Graph, node: Node) -> int | None:
    """Return the number of dimensions of a node's first input, as far as weights or declarations tell."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    dims = getattr(weight.constant_proto, "dims", None) if weight is not None else None
    if node.op_type in ("Conv", "ConvTranspose") and dims is not None:
        return len(dims)
    first: Value | None = node.inputs[0] if node.inputs else None
    return None if first is None else graph.ranks.get(first.name)
