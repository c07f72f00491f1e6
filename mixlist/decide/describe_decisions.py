"""Describe the decisions for a model to a user: names, scopes, reasons, and the chain to the node that decided.

A Solution uses the ids of nodes and values. Names and reasons are written here, when they are first read.

Rule S4.33: A decision names its rule, the list entry or node rule that caused it (with file, line and column), the
producer that it follows, the node that decided, and the schema's refusal, if any.

Example: ``gray by library onnx (Div): follows Sum_1, whose output 's' is float32 (S4.6)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from mixlist.decide.classification import (
    Classification,
    explain_unknown_types,
    find_unknown_inputs,
)
from mixlist.decide.decisions import Decision, is_guard_limit
from mixlist.decide.gray_policies import can_be_followed, is_idle_cast
from mixlist.decide.plan_masks import cite_mask_rule
from mixlist.decide.protections import EXPLANATIONS
from mixlist.decide.solution import Solution, find_precision, is_changed
from mixlist.decide.types_from_readers import find_moving_nodes
from mixlist.errors import UsageError
from mixlist.lists.policy import Action, GrayPolicy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, has_container, linked_scopes
from mixlist.model.naming import NodeRef, accepted_names, display_name, node_ref, scope_path, scoped_name
from mixlist.model.operator_names import onnx_names
from mixlist.model.schema import next_opset_allowing
from mixlist.option_spelling import spell

_MAX_NAMES = 5  # the number of nodes of an op type in a hint
_RULES_WITHOUT_FOLLOWING = ("schema", "mask", "constant")  # these keep a gray node as authored
# The rules of docs/semantics.md that a reason cites if the rule depends on the mode or on the gray policy.
_MODE_RULES: dict[Action, str] = {"force": "S3.4", "origin": "S3.5", "raise": "S3.6", "cube": "S3.7"}
# By gray policy: the rule of a gray node that follows an input, and the rule of one whose inputs decide nothing.
GRAY_RULES: dict[GrayPolicy, tuple[str, str]] = {
    "ascend": ("S4.6", "S4.28"),
    "between": ("S4.22", "S4.22"),
    "promote": ("S4.24", "S4.28"),
}


# --- the decisions, by name ---


def describe_decisions(solution: Solution) -> tuple[Decision, ...]:
    """Return the decision for every node, in topological order of each scope."""
    return tuple(_describe_nodes(solution))


def find_chain(decisions: Sequence[Decision], name: str, graph: Graph) -> list[Decision]:
    """Return the decisions from the named node up to the one that decided; raise UsageError if no node has the name.

    ``graph``: the main graph, whose inputs and constants the error names.
    """
    # Reversed, so that the first one wins if nodes of one scope share a name.
    by_ref = {decision.ref: decision for decision in reversed(decisions)}
    chain = [_find_named(decisions, name, graph)]
    decider = chain[0].decider
    while chain[-1].producer is not None and chain[-1].ref != decider:
        chain.append(by_ref[chain[-1].producer])
    return chain


def _find_named(decisions: Sequence[Decision], name: str, graph: Graph) -> Decision:
    """Return the decision for the node that a user names (Rules S6.4, S6.5)."""
    by_name: dict[str, list[Decision]] = {}
    for decision in decisions:
        for node_name in accepted_names(decision.ref):
            by_name.setdefault(node_name, []).append(decision)
    candidates = by_name.get(name) or [decision for decision in decisions if name in decision.outputs]
    if not candidates:
        _refuse_source(graph, name)
        # Do not suggest both `fc` and `./fc`: keep the form that the user typed.
        node_names = [node_name for node_name in by_name if node_name.startswith("./") == name.startswith("./")]
        close_names = get_close_matches(name, node_names, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(close_names)}?" if close_names else "mixlist resolve --all lists all nodes"
        if same_type := [str(decision.ref) for decision in decisions if decision.op_type == name]:
            more = f" and {len(same_type) - _MAX_NAMES} more" if len(same_type) > _MAX_NAMES else ""
            hint = f"{name} is an op type; its nodes are {', '.join(same_type[:_MAX_NAMES])}{more}"
        raise UsageError(f"no node and no tensor that a node makes is called {name!r}", hint=hint)
    # `./fc` and `i/then_branch/fc` name one node each; `fc` may name nodes of several scopes.
    exact = [decision for decision in candidates if scoped_name(decision.ref) == name]
    if not exact and len({decision.scope for decision in candidates}) > 1:
        names = ", ".join(scoped_name(decision.ref) for decision in candidates)
        raise UsageError(f"several nodes are called {name!r}", hint=f"choose one of {names}")
    return (exact or candidates)[0]


def _refuse_source(graph: Graph, name: str) -> None:
    """Raise UsageError if ``name`` is an input or a constant of the main graph, which no node makes."""
    is_input = any(value.name == name for value in graph.root.inputs)
    # Bodies also read the tensors of the main graph. Their own inputs have no producer either, and another scope.
    readers = [
        node
        for node in graph.nodes
        if any(v is not None and v.name == name and v.producer is None and v.scope is graph.root for v in node.inputs)
    ]
    if not is_input and not readers:
        return
    shown = ", ".join(scoped_name(node_ref(node)) for node in readers[:3])
    more = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
    raise UsageError(
        f"{name!r} is {'an input' if is_input else 'a constant'} of the graph: no node makes it, so no rule decides it",
        hint=f"explain a node that reads it: {shown}{more}" if readers else "no node reads it",
    )


def _describe_nodes(solution: Solution) -> Iterator[Decision]:
    reason_writer, deciders = _ReasonWriter(solution), _find_deciders(solution)
    # Name all nodes first: a node may follow a node of another scope.
    paths = {scope: scope_path(scope) for scope in linked_scopes(solution.graph.root)}
    names: dict[Node | Value, str] = {node: display_name(node) for scope in paths for node in scope.nodes}
    names.update((value, value.name) for value in solution.graph.root.inputs)
    refs: dict[Node | Value, NodeRef] = {}
    for scope, path in paths.items():
        refs.update((node, NodeRef(path, names[node])) for node in scope.nodes)
    for scope, path in paths.items():
        for node in scope.nodes:
            producer, decider = _find_followed_producer(solution, node), deciders[node.id]
            follows: tuple[str, ...] = ()
            follows_refs: tuple[NodeRef | None, ...] = ()
            if producer is not None:
                follows, follows_refs = (names[producer], names[decider]), (refs.get(producer), refs.get(decider))
            yield Decision(
                scope=path,
                name=names[node],
                op_type=node.op_type,
                domain=node.domain,
                list=solution.classifications[node.id].list_name,
                precision=find_precision(solution, node),
                changed=is_changed(solution, node),
                rule=find_rule_name(solution, node),
                follows=follows,
                outputs={value.name: show_type(solution, value) for value in node.outputs if value is not None},
                reason=reason_writer.write(node, follows),
                follows_refs=follows_refs,
            )


def _find_deciders(solution: Solution) -> dict[int, Node | Value]:
    """Return, by node id, the node or graph input that decided: the end of the chain of followed values."""
    deciders: dict[int, Node | Value] = {}
    for node in solution.graph.nodes:
        producer = _find_followed_producer(solution, node)
        if isinstance(producer, Node):
            # Nodes come in topological order, so the decider of the producer is known. Only a node that owns the body
            # comes later, and it follows none.
            deciders[node.id] = deciders.get(producer.id, producer)
        else:
            deciders[node.id] = producer or node
    return deciders


def _find_followed_producer(solution: Solution, node: Node) -> Node | Value | None:
    """Return the producer of the value that a gray node follows; None for every other node.

    The producer is a node, or the control-flow node whose body has the value as an input, or a graph input. A node that
    its schema, a mask or a constant keeps as authored follows none.
    """
    value, classification = solution.followed_values[node.id], solution.classifications[node.id]
    is_kept = solution.rule_overrides.get(node.id) in _RULES_WITHOUT_FOLLOWING
    if value is None or classification.kind != "gray" or is_kept:
        return None
    return value.producer or value.scope.owner or value


def find_rule_name(solution: Solution, node: Node) -> str:
    """Return the rule that decided a node, as the reports name it."""
    return solution.rule_overrides.get(node.id, solution.classifications[node.id].rule)


def show_type(solution: Solution, value: Value) -> str:
    """Return the decided type of a value as the reports show it."""
    if value.type == dtypes.UNKNOWN:
        return dtypes.type_name(value.type)
    return dtypes.type_name(dtypes.with_element(value.type, solution.decided_types[value.id]))


# --- the reasons ---


class _ReasonWriter:
    """Writes the reasons of the decisions.

    In its methods, ``kept_type`` is the name of the node's precision, for example ``float32``. ``follows`` is that of a
    Decision: empty, or the name of the producer that the node follows and the name of the node that decided.
    """

    def __init__(self, solution: Solution) -> None:
        self.solution, self.policy = solution, solution.policy
        self.low_type, self.low_name = solution.low_type, dtypes.type_name(solution.low_type)

    def write(self, node: Node, follows: tuple[str, ...]) -> str:
        """Return the reason for a node's decision, with the constants that it treats specially."""
        reason = self._explain_rule(node, follows)
        note = self.solution.reason_notes.get(node.id)
        # Under the rules `constant` and `mask`, the reason has the note already. Under other rules, the note says why
        # some slots of the node did not become low precision.
        if note and find_rule_name(self.solution, node) not in ("constant", "mask"):
            reason += f"; a slot keeps its authored type because {note} (S4.7)"
        for slot, limit in self.solution.changed_slots.get(node, {}).items():
            value = node.inputs[slot]
            if value is not None and is_guard_limit(limit):
                reason += f"; constant {value.name!r} of a guard is raised to {limit:.6g} (S4.43)"
            elif value is not None and value.constant_proto is not None:
                reason += f"; constant {value.name!r} of a mask is reduced to magnitude {limit:.6g} (S4.36)"
        if node in self.solution.reduced_fills:
            limit = self.solution.reduced_fills[node]
            reason += f"; its number is that of a mask and is reduced to magnitude {limit:.6g} (S4.36)"
        entry = self.solution.classifications[node.id].list_match
        if entry is not None and entry.note and entry.source:
            reason += f"; {entry.note}"
        return reason

    def _explain_rule(self, node: Node, follows: tuple[str, ...]) -> str:
        """Return the reason that the node's rule gives."""
        classification, rule = self.solution.classifications[node.id], find_rule_name(self.solution, node)
        kept_type = find_precision(self.solution, node)
        entry = _show_entry(classification)
        if rule == "control-flow":
            return f"{node.op_type} has no precision of its own; each output has the type that its bodies yield (S4.25)"
        # Nodes that no list changes
        if rule == "no-float":
            return self._explain_no_float(node)
        if rule == "readers":
            return self._explain_moved_constants(node, kept_type)
        if rule == "cast":
            return f"{self._explain_fixed_output(node)} (S4.13)"
        if rule == "node-rule":
            return self._explain_node_rule(node, kept_type)
        if rule == "shape":
            return f"all its float inputs come from shapes and constants: shape arithmetic stays {kept_type} (S4.3)"
        if rule in EXPLANATIONS:
            return EXPLANATIONS[rule](self.solution, node, kept_type)
        if rule == "unknown-type":
            unknown = explain_unknown_types(find_unknown_inputs(node))
            return f"{unknown}, so it stays as authored; {spell('type_hints')} can give the type (S4.40)"
        if rule == "mode":
            mode = self.policy.mode
            return f"precision mode {mode.name} makes it {kept_type} ({_MODE_RULES[mode.action]})"
        # Nodes that could not become low precision
        if rule == "schema" and has_container(node):
            return f"it reads or makes sequences or optionals, so it stays as authored, {kept_type} (S4.29)"
        if rule == "schema":
            return self._explain_refusal(node, kept_type)
        if rule == "constant":
            note = self.solution.reason_notes.get(node.id, "a constant does not fit")
            return f"{entry}, but {note}: it stays {kept_type} (S4.7)"
        if rule == "mask":
            note = self.solution.reason_notes[node.id]
            return f"{entry}, but {note}: it stays {kept_type} ({cite_mask_rule(self.solution, node)})"
        # The three lists
        if rule == "white" and kept_type != self.low_name:
            # Its main slots have the other low type, and only slots of a second type parameter can change.
            return f"{entry}, but {self._explain_other_low_type(kept_type)}"
        if rule == "white":
            number = "S3.8" if _is_lowered_bfloat16(node, kept_type) else "S4.4"
            return f"{entry}: computed in {self.low_name} ({number})"
        if rule == "kernel":
            missing = "float32" if classification.kind == "low" else self.low_name
            return f"{entry}, but the chip has no {missing} kernel: computed in {kept_type} (S4.50)"
        if rule == "black":
            return f"{entry}: keeps the type it was authored in, {kept_type} (S4.5)"
        return self._explain_gray(node, follows, kept_type)

    def _explain_gray(self, node: Node, follows: tuple[str, ...], kept_type: str) -> str:
        """Return the reason for a gray node that no other rule kept."""
        entry, policy = _show_entry(self.solution.classifications[node.id]), self.policy.gray_policy
        if policy == "between" and kept_type == self.low_name:
            return f"{entry}: lies between white nodes, so it is {kept_type} (S4.22)"
        if policy == "between":
            return (
                f"{entry}: does not lie between white nodes, or a black node reaches it, so it is {kept_type} (S4.22)"
            )
        value = self.solution.followed_values[node.id]
        if not follows or value is None:
            floats = [v for v in node.inputs if v is not None and can_be_followed(v)]
            if floats and all(v.id in self.solution.unbound_values for v in floats):
                effect = f"and not all of its readers want another type: it stays {kept_type}"
                return f"{entry}: it computes with constants and converted integers alone, {effect} (S4.46)"
            if not floats:
                return f"{entry}: all its float inputs are constants, so it stays {kept_type} (S4.6)"
            return f"{entry}: no input decides its type, so it stays {kept_type} ({GRAY_RULES[policy][1]})"
        producer, decider = follows
        reason = f"{entry}: follows {producer}, whose output {value.name!r} is {show_type(self.solution, value)}"
        if decider != producer:
            reason += f", which {decider} decided"
        is_norm = any(v is not None and v.id in self.solution.followed_instead for v in node.inputs)
        is_idle = any(v is not None and v.producer is not None and is_idle_cast(v.producer) for v in node.inputs)
        through_cast = ", S4.48" if is_idle else ", S4.17"
        through_cast = "" if value in node.inputs else ", S4.47 or S5.8" if is_norm else through_cast
        return f"{reason} ({GRAY_RULES[policy][0]}{through_cast})"

    def _explain_fixed_output(self, node: Node) -> str:
        if node.op_type == "Constant":
            return "it holds a constant; readers that need another type get a converted copy"
        outputs = ", ".join(show_type(self.solution, value) for value in node.outputs if value is not None)
        return f"an attribute of {node.op_type} sets its output type, {outputs}, which no list changes"

    def _explain_moved_constants(self, node: Node, kept_type: str) -> str:
        if node.op_type == "ConstantOfShape":
            return f"all its readers want {kept_type}, so its attribute is changed (S4.44)"
        if node.op_type == "Cast":
            return f"it converts integers, and all its readers want {kept_type} (S4.45)"
        if node in find_moving_nodes(self.solution.graph):
            return f"it only moves constants, and all its readers want {kept_type} (S4.44)"
        if not any(value is not None and value.id in self.solution.unbound_values for value in node.outputs):
            return f"it only moves values, and all its readers want {kept_type}: the Cast comes before it (S4.49)"
        return f"it computes with constants and converted integers alone, and all its readers want {kept_type} (S4.46)"

    def _explain_no_float(self, node: Node) -> str:
        signature = node.signature
        if signature is not None and signature.reads_any_type:
            return f"{node.op_type} reads only the shape of its input (S4.1)"
        if any(value is not None and dtypes.element(value.type) == dtypes.DOUBLE for value in node.inputs):
            return "it computes in float64, which lists never change (S4.9)"
        if signature is not None and signature.groups:  # all of them have the other low type
            return self._explain_other_low_type(dtypes.type_name(signature.groups[0].authored))
        slots = [*node.inputs, *node.outputs]
        if any(value is not None and dtypes.element(value.type) in dtypes.MIXABLE for value in slots):
            return f"the schema of {node.op_type} fixes its float types (S4.1)"
        return "it has no float input or output (S4.1)"

    def _explain_other_low_type(self, kept_type: str) -> str:
        return f"it keeps {kept_type}, the type it was authored in; only float32 and {self.low_name} change (S4.9)"

    def _explain_node_rule(self, node: Node, kept_type: str) -> str:
        rule = self.solution.node_rules.find_rule(node)
        if not rule.place.line:
            return f"{rule.place} has no {self.low_name} kernel for {node.op_type}: it stays {kept_type} (S13.3)"
        effect = "keep_dtype keeps its authored type" if rule.keep else "customize_dtypes sets its types"
        return f"{effect}, {kept_type} ({rule.place}; S4.2)"

    def _explain_refusal(self, node: Node, kept_type: str) -> str:
        """Return the reason for a node whose operator does not take the low type."""
        classification, opset = self.solution.classifications[node.id], self.solution.graph.opsets.get(node.domain, 0)
        if node.is_call:
            return f"{node.op_type} is a model-local function: its call stays as authored (S4.31)"
        if node.signature is not None and node.signature.schema is None:
            _, operator = onnx_names(node.domain, node.op_type)
            return f"no schema is known for {operator} at opset {opset}: it stays as authored (S4.14)"
        if kept_type not in ("float32", self.low_name):
            return f"{_show_entry(classification)}, but {self._explain_other_low_type(kept_type)}"
        later_opset = next_opset_allowing(node.domain, node.op_type, opset, self.low_type)
        advice = f"; opset {later_opset} would allow it" if later_opset is not None else ""
        refusal = f"{node.op_type} does not allow {self.low_name} at opset {opset}"
        return f"{_show_entry(classification)}, but {refusal}: it stays {kept_type}{advice} (S4.11)"


def _is_lowered_bfloat16(node: Node, kept_type: str) -> bool:
    """Return whether a node was authored in bfloat16 and is float16 (Rule S3.8)."""
    primary = node.signature.primary_group if node.signature is not None else None
    return primary is not None and primary.authored == dtypes.BFLOAT16 and kept_type == "float16"


def _show_entry(classification: Classification) -> str:
    """Return the list of a node, and the entry that put its op type on it: ``gray by library onnx (Div)``."""
    entry, list_name = classification.list_match, classification.list_name
    if entry is None:
        return "the mode would lower it" if list_name == "none" else f"on the {list_name} list"
    if entry.source:
        return f"{list_name} by {entry.source} ({entry.op})"
    return f"{list_name} ({entry.note})" if entry.note else list_name
