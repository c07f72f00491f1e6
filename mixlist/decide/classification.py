"""Classify each node by the policy alone, before any type is decided: find its list and the rule that decides it.

docs/semantics.md has the rules: of the modes (S3.4 to S3.8), nodes with nothing to vary (S4.1), shape arithmetic (S4.3;
``value_origins`` finds the values that come from a shape), fixed output types (S4.13), unknown operators (S4.14) and
types (S4.40), calls of functions (S4.31), and under Ascend names kernels (S4.50), fused operators (S5.7) and scatters
(S5.8). ``node_types`` finds the types of a node from its classification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from mixlist.lists.library import ListName
from mixlist.lists.policy import LOWERING_ACTIONS, Policy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, float_values, has_container
from mixlist.model.inferred_shapes import find_ranks
from mixlist.model.operator_names import ListMatch, find_list, fused_op
from mixlist.model.traits import Trait, operators
from mixlist.model.value_origins import come_from_shapes

_CUBE = operators(Trait.CUBE)  # Rule S3.7
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})  # Rule S5.8

# Each kind is one way to find the precision of a node. Only the precision of a `gray` node depends on other nodes.
#   none      no slot can change (Rule S4.1), or control flow
#   cast      an attribute fixes the output type (Rule S4.13)
#   rule      a node rule gives the types (Rule S4.2)
#   shape     shape arithmetic stays as authored (Rule S4.3)
#   low       white, or lowered by the mode: the low type
#   authored  black, or kept by the mode: the authored type
#   raise     the mode brings the node up to float32 (Rule S3.6)
#   gray      the type of the nodes around it, by the gray policy
#   schema    no schema of the operator is known (Rule S4.14), or the call of a function (Rule S4.31)
#   unknown   an input has an unknown type (Rule S4.40)
DecisionKind = Literal["none", "cast", "rule", "shape", "low", "authored", "raise", "gray", "schema", "unknown"]

# The kinds of a node that the lists or the mode decide. Another rule may keep such a node as authored.
DECIDED_BY_LIST: frozenset[DecisionKind] = frozenset({"low", "authored", "gray"})

_FLOAT_OR_UNKNOWN = dtypes.MIXABLE | {dtypes.UNKNOWN}

_KIND_OF_LIST: dict[ListName, DecisionKind] = {"white": "low", "black": "authored", "gray": "gray"}


class Classification(NamedTuple):
    """The list of a node and the way to find its precision.

    ``list_name``: ``white``, ``black`` or ``gray``; ``none`` under a mode without lists. ``rule``: the name of the rule
    in the reports. ``list_match``: the entry that put the op type on the list.
    """

    list_name: str
    kind: DecisionKind
    rule: str
    list_match: ListMatch | None = None

    @property
    def is_black(self) -> bool:
        """Return whether the node is on the black list and keeps its authored type because of it."""
        return self.kind == "authored" and self.list_name == "black"


class Classifier:
    """Classifies the nodes of one model under one policy, and remembers the answers per operator.

    ``movable_types`` are the authored types that a slot may give up, ``white_movable_types`` those that a slot of a
    white node may give up.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.low_type = dtypes.ELEMENT_BY_NAME[policy.mode.low]
        # Rule S3.6 brings float16 and bfloat16 up to float32. Lists never change the other low type (Rule S4.9).
        raises = policy.mode.action == "raise"
        self.movable_types = dtypes.MIXABLE if raises else frozenset({dtypes.FLOAT, self.low_type})
        has_lists = policy.mode.action == "lists"
        # A forced node (Rule S3.4) and a white node of an Ascend library (Rule S3.8) become float16 from bfloat16, too.
        is_forced = policy.mode.action == "force"
        self.lowers_bfloat16 = self.low_type == dtypes.FLOAT16 and (
            is_forced or (has_lists and policy.space == "ascend")
        )
        self.white_movable_types = dtypes.MIXABLE if self.lowers_bfloat16 else self.movable_types
        self._by_operator: dict[tuple[str, str, int | None, str | None], Classification] = {}
        self.cast_is_black = has_lists and self.classify_operator("", "Cast").list_name == "black"
        # Rule S4.48. The lists of an engine follow its own rules, and these say nothing of such a Cast.
        lowers = policy.mode.action in LOWERING_ACTIONS
        self.skips_idle_casts = lowers and policy.space == "onnx" and not self.cast_is_black

    @property
    def adapts_to_readers(self) -> bool:
        """Return whether gray nodes without a precision of their own take that of their readers (Rules S4.46, S4.49).

        The lists of an engine say what the engine does, and it has no such rules.
        """
        policy = self.policy
        return policy.space == "onnx" and policy.gray_policy == "ascend" and policy.mode.action == "lists"

    def classify_operator(
        self,
        domain: str,
        op_type: str,
        get_rank: Callable[[], int | None] = lambda: None,
        fused: str | None = None,
    ) -> Classification:
        """Return the classification of an operator's nodes by its list alone.

        ``get_rank`` returns the number of dimensions of the node's first input, or None. It is called only for Ascend
        names, because some of them stand for one rank: Conv2D, Conv3D. ``fused``: the op type of ``fused_op``.
        """
        # ONNX names do not depend on the rank, and finding a rank may run shape inference.
        rank = None if self.policy.space == "onnx" else get_rank()
        key = (domain, op_type, rank, fused)
        classification = self._by_operator.get(key)
        if classification is None:
            entry = find_list(self.policy.lists, self.policy.space, domain, op_type, lambda: rank, fused)
            rule: str = "follow" if entry.list == "gray" else entry.list
            kind = _KIND_OF_LIST[entry.list]
            if self.policy.space == "ascend" and kind != "authored":
                # Rule S4.50: the engine takes the nearest type in which the chip has a kernel.
                library, low = self.policy.lists.library, self.policy.mode.low
                if library.lacks_kernel(entry.op, low):
                    kind, rule = "authored", "kernel"
                elif kind == "gray" and library.lacks_kernel(entry.op, "float32"):
                    kind, rule = "low", "kernel"
            classification = Classification(entry.list, kind, rule, entry)
            self._by_operator[key] = classification
        return classification

    def classify(self, graph: Graph, node: Node) -> Classification:
        """Return the classification of a node that no node rule names."""
        signature = node.signature
        if signature is None:
            return Classification("none", "none", "control-flow")
        if node.is_call:  # no list names a call (Rule S4.31)
            return Classification("none", "schema", "schema")
        action = self.policy.mode.action
        if action == "lists":
            by_list_or_mode = self.classify_by_list(graph, node)
            if by_list_or_mode.kind == "gray" and self._adds_up(node):
                by_list_or_mode = self.classify_operator("", "ReduceSum")
        else:
            by_list_or_mode = self._classify_by_mode(action, graph, node)
        list_name, entry = by_list_or_mode.list_name, by_list_or_mode.list_match
        # These rules keep the node from its list or mode. Their order counts: the first one that applies gives the
        # reason in the reports.
        if signature.has_fixed_output:
            return Classification(list_name, "cast", "cast", entry)
        if graph.had_unknown_types and find_unknown_inputs(node):
            return Classification(list_name, "unknown", "unknown-type", entry)
        if not any(group.authored in self.movable_types_of(by_list_or_mode) for group in signature.groups):
            # Without a schema there are no groups, and none with sequences (Rule S4.29). The reports say so only if the
            # node reads a type that a list could change.
            reads_float = any(dtypes.element(t) in _FLOAT_OR_UNKNOWN for t in _input_types(node))
            if reads_float and (signature.schema is None or has_container(node)):
                return Classification(list_name, "schema", "schema", entry)
            return Classification(list_name, "none", "no-float", entry)
        if come_from_shapes(float_values(node.inputs)):
            return Classification(list_name, "shape", "shape", entry)
        return by_list_or_mode

    def classify_by_list(self, graph: Graph, node: Node) -> Classification:
        """Return the classification of a node by the list of its operator alone, after the engine's fusion (S5.7)."""
        fused = fused_op(node) if self.policy.space == "ascend" else None
        return self.classify_operator(node.domain, node.op_type, lambda: find_input_rank(graph, node), fused)

    def _adds_up(self, node: Node) -> bool:
        """Return whether a node is a scatter that adds up values, under lists of ONNX operators (Rule S5.8)."""
        if node.op_type not in _SCATTERS or self.policy.space != "onnx" or self.policy.gray_policy != "ascend":
            return False
        return node.text_attributes.get("reduction", "none") in ("add", "mul")

    def movable_types_of(self, classification: Classification) -> frozenset[int]:
        """Return the authored types that the slots of a node with this classification may give up."""
        return self.white_movable_types if classification.kind == "low" else self.movable_types

    def _classify_by_mode(self, action: str, graph: Graph, node: Node) -> Classification:
        """Return the classification of a node under a mode without lists (Rules S3.4 to S3.7)."""
        in_cube = node.op_type in _CUBE and node.domain == ""
        library, low = self.policy.lists.library, self.policy.mode.low
        if action == "cube" and self.policy.space == "ascend" and library.kernels:
            # Rule S4.50, but whatever the list is.
            entry = self.classify_by_list(graph, node).list_match
            if entry is not None and library.lacks_kernel(entry.op, low if in_cube else "float32"):
                has_low = not library.lacks_kernel(entry.op, low)
                return Classification(entry.list, "low" if has_low else "authored", "kernel", entry)
        kinds: dict[str, DecisionKind] = {"force": "low", "raise": "raise", "cube": "low" if in_cube else "authored"}
        return Classification("none", kinds.get(action, "authored"), "mode")


def find_unknown_inputs(node: Node) -> list[Value]:
    """Return the inputs of unknown type at slots that admit float32 or a low type (Rule S4.40)."""
    signature = node.signature
    if dtypes.UNKNOWN not in node.input_types or signature is None:
        return []
    if signature.schema is None or signature.reads_any_type:
        return []
    schema = signature.schema
    formal_inputs = schema.formal_slots(schema.inputs, len(node.inputs))
    slots = zip(node.inputs, node.input_types, formal_inputs, strict=False)
    unknown = [
        (value, formal.parameter)
        for value, value_type, formal in slots
        if value is not None and value_type == dtypes.UNKNOWN
    ]
    return [
        value
        for value, parameter in unknown
        if not dtypes.MIXABLE.isdisjoint(map(dtypes.element, schema.types_of(parameter)))
    ]


def explain_unknown_types(values: list[Value]) -> str:
    """Return the clause that says which values have an unknown type."""
    names = [*dict.fromkeys(repr(value.name) for value in values)]
    return (
        f"the type of {names[0]} is not known" if len(names) == 1 else f"the types of {', '.join(names)} are not known"
    )


def _input_types(node: Node) -> list[dtypes.Type]:
    """Return the types of a node's inputs. Optional inputs that the node leaves out are skipped."""
    return [value.type for value in node.inputs if value is not None]


def find_input_rank(graph: Graph, node: Node) -> int | None:
    """Return the number of dimensions of a node's first input; None if it is not known."""
    # The weight of a convolution has the rank of its input. Initializers have a shape in every model; inputs may not.
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    dims = getattr(weight.constant_proto, "dims", None) if weight is not None else None
    if node.op_type in ("Conv", "ConvTranspose") and dims is not None:
        return len(dims)
    first_input: Value | None = node.inputs[0] if node.inputs else None
    return None if first_input is None else find_ranks(graph).get(first_input.name)
