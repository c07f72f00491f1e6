"""Match the node rules of a policy with the nodes of a model, and give those nodes their types (Rule S4.2).

docs/semantics.md has the rules: which rule decides (S6.3), names (S6.4, S6.5), names of no node (S6.6), types that the
schema refuses (S6.7), nodes with nothing to vary (S6.8, S6.9), and matrix operators (S6.10).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from functools import cached_property

from mixlist.decide.classification import Classification, explain_unknown_types, find_unknown_inputs
from mixlist.diagnostics import MAX_SIMILAR, Diagnostic
from mixlist.errors import ListError, list_error, raise_for_errors
from mixlist.lists.policy import NodeRule, Policy
from mixlist.lists.suggestions import did_you_mean, sure_correction
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Scope, linked_scopes, once_per_graph
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeRef, accepted_names, display_name, scope_path
from mixlist.model.operator_names import ascend_forms, ascend_names, find_list, fused_op, newest_forms, onnx_names
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators
from mixlist.option_spelling import spell

_MAX_COMPARED_NAMES = 500

_CUBE = operators(Trait.CUBE)  # Rule S6.10


class NodeRules:
    """The node rules of a policy, and the nodes that they name in a model."""

    def __init__(self, policy: Policy, graph: Graph) -> None:
        self._policy, self.graph = policy, graph
        # Under `origin` every node keeps its type, so keep_dtype has no meaning there (Rule S3.5, ML403).
        is_origin = policy.mode.action == "origin"
        self._rules = [rule for rule in policy.rules if not (is_origin and rule.keep)]
        self._patterns = {rule: _compile(rule.pattern) for rule in self._rules if rule.by == "name"}
        self._rule_of_node: dict[int, NodeRule] = {}  # by node id
        self._classifications: dict[int, Classification] | None = None  # by node id
        # A rule is matched if it names a node, and usable if such a node has a type to choose.
        self._matched_rules: set[NodeRule] = set()
        self._usable_rules: set[NodeRule] = set()
        self._warnings: dict[NodeRule, Diagnostic] = {}  # of keep_dtype lines without effect (Rule S6.9)

    def match(self) -> dict[int, Classification]:
        """Return the classifications of the nodes that a rule names, by node id.

        The first rule that names a node decides. Raises ListError if a rule names two nodes of one scope by one name,
        or if a rule of customize_dtypes names a node that has no type to choose (Cast, control flow, integer
        operators).
        """
        if self._classifications is None:
            self._classifications = self._match_once()
        return self._classifications

    def _match_once(self) -> dict[int, Classification]:
        """Compute what ``match`` returns."""
        classifications: dict[int, Classification] = {}
        for rule, node in self._find_matches():
            self._matched_rules.add(rule)
            # An earlier rule decides this node. The later rule has no effect on it, but names a node that may vary.
            if node.id in self._rule_of_node:
                self._usable_rules.add(rule)
                continue
            if not can_vary(node):
                if rule.by == "name" and not _is_pattern(rule.pattern):
                    self._report_fixed_node(rule, node)
                continue
            self._usable_rules.add(rule)
            self._rule_of_node[node.id] = rule
            classifications[node.id] = Classification(self._list_of(node), "rule", "node-rule")
        return classifications

    def find_rule(self, node: Node) -> NodeRule:
        """Return the rule that decides a node that ``match`` returned."""
        return self._rule_of_node[node.id]

    def find_assignment(self, node: Node) -> Assignment:
        """Return the node's types under its rule; raise ListError if the schema does not allow them."""
        rule = self.find_rule(node)
        signature = node.signature
        assert signature is not None
        if rule.keep:
            return signature.authored_assignment()
        widened = self._find_widened_inputs(rule, node)
        requested_types = list(_find_requested_types(rule, node)) if widened is None else [dtypes.FLOAT]
        assignment = signature.assign(tuple(requested_types))
        # A list may leave a node as authored if the schema refuses, but a rule asks for this node: so it is an error.
        if assignment.refused:
            index = assignment.refused[0]
            parameter, opset = signature.groups[index].parameter, self.graph.opsets.get(node.domain)
            refused_type = f"{dtypes.type_name(requested_types[index])} on type parameter {parameter}"
            raise _refused_rule(
                rule,
                f"{_show_node(node)} cannot be {refused_type}: "
                f"the schema of opset {opset} or ONNX's type inference does not allow it",
                "leave that entry blank, or raise the model's opset",
            )
        return assignment if widened is None else assignment._replace(inputs=widened)

    def _find_widened_inputs(self, rule: NodeRule, node: Node) -> tuple[dtypes.Type | None, ...] | None:
        """Return the types of the inputs if a matrix operator reads the low type and writes float32; otherwise None.

        Rule S6.10: the matrix unit of an Ascend chip multiplies in float16 and adds in float32.
        """
        signature = node.signature
        is_matrix = self._policy.space == "ascend" and not node.domain and node.op_type in _CUBE
        if not is_matrix or signature is None or len(signature.groups) != 1 or rule.outputs != ("float32",):
            return None
        if signature.groups[0].authored not in dtypes.MIXABLE:
            return None
        names = rule.inputs
        if rule.by == "type":  # a node without the optional bias matches too
            names = names[: len(node.inputs)]
        if len(names) > len(node.inputs):
            return None
        asked = [dtypes.element(dtypes.parse_name(name)) if name else dtypes.FLOAT for name in names]
        factors = {elem for elem in asked[:2] if elem != dtypes.FLOAT}
        # Both factors have one low type, and the bias may have it too.
        if len(asked) < 2 or dtypes.FLOAT in asked[:2] or len(factors) != 1 or not factors <= LOW_TYPES:
            return None
        if not set(asked[2:]) <= factors | {dtypes.FLOAT}:
            return None
        asked += [dtypes.FLOAT] * (len(node.inputs) - len(asked))
        return tuple(None if value is None else elem for value, elem in zip(node.inputs, asked, strict=True))

    def find_warnings(self) -> list[Diagnostic]:
        """Return a warning per rule without effect; raise ListError, with every finding, for a type that no node has.

        Call it after ``match``.
        """
        return raise_for_errors(self._find_unused_rules())

    def _find_unused_rules(self) -> Iterator[Diagnostic]:
        """Yield a finding per rule without effect: an error for a type that no node has, otherwise a warning."""
        yield from self._warnings.values()
        yield from self._find_short_rules()
        suggested = 0  # the number of rules whose names were compared with those of the model
        for rule in self._rules:
            if rule in self._usable_rules:
                continue
            if rule.by == "type" and rule.keep and rule in self._matched_rules:
                yield _warn_no_effect(rule, f"no {rule.pattern} has a float type that may vary")
            elif rule.by == "type":
                yield self._explain_unused_type(rule)
            elif rule not in self._matched_rules:
                message = f"no node is called {rule.pattern!r}: the rule does nothing"
                suggested += 1
                hint = self._suggest_name(rule) if suggested <= MAX_SIMILAR else None
                hint = hint or "'mixlist resolve MODEL --format csv' lists all nodes"
                yield rule.place.finding("ML305", "warning", message, hint)

    def _find_short_rules(self) -> Iterator[Diagnostic]:
        """Yield a warning for each rule with fewer input types than its node has floats that may vary (Rule S6.10)."""
        if self._policy.space != "ascend":
            return
        reported = set()
        for node in self.graph.nodes:
            rule = self._rule_of_node.get(node.id)
            if rule is None or rule in reported or not rule.inputs or node.signature is None:
                continue
            last = max((slot for group in node.signature.groups for slot in group.inputs), default=-1)
            if len(rule.inputs) <= last:
                reported.add(rule)
                count = f"{len(rule.inputs)} {'type' if len(rule.inputs) == 1 else 'types'}"
                message = f"the rule has {count} for the inputs of {_show_node(node)}, which has {len(node.inputs)}"
                hint = "atc wants one for each input: write all of them, or nothing between two commas for any type"
                yield rule.place.finding("ML311", "warning", message, hint)

    def _suggest_name(self, rule: NodeRule) -> str | None:
        """Return a hint with what the name of a rule probably means; None if no name of the model is similar."""
        if rule.keep and rule.pattern in self._op_types:
            return f"to keep all nodes of this op type, write OpType::{rule.pattern}"
        if _is_pattern(rule.pattern):
            return None
        # Of the two names of a node, keep the form that the user wrote: "./fc" or "fc".
        is_scoped = rule.pattern.startswith("./")
        names = {name for scope in _list_scopes(self.graph) for name in scope.by_name}
        names = {name for name in names if name.startswith("./") == is_scoped}
        # A misspelled "optype::Conv" reads as the name of a node.
        names |= {f"OpType::{op}" for op in self._op_types} if rule.keep else set()
        name = sure_correction(rule.pattern, sorted(names))
        if name is not None:
            return f"did you mean {name}?"
        # This comparison takes a second for some thousand names, so large models do without it.
        return did_you_mean(rule.pattern, sorted(names)) if len(names) <= _MAX_COMPARED_NAMES else None

    def _explain_unused_type(self, rule: NodeRule) -> Diagnostic:
        if rule in self._matched_rules:
            message = f"op type {rule.pattern!r} has no float type that a rule can choose"
            return rule.place.finding("ML307", "error", message, "remove the line")
        question = did_you_mean(rule.pattern, self._op_types)
        # One keep_dtype file can serve many models.
        is_other = rule.keep and sure_correction(rule.pattern, self._op_types) is None
        effect = ": the rule does nothing" if is_other else ""
        return rule.place.finding(
            "ML307",
            "warning" if is_other else "error",
            f"op type {rule.pattern!r} is not in the model{effect}",
            question or "remove the line or correct the name",
        )

    @cached_property
    def _op_types(self) -> set[str]:
        return {node.op_type for node in self.graph.nodes}

    def _report_fixed_node(self, rule: NodeRule, node: Node) -> None:
        """Note a warning for a line of keep_dtype that names a node with nothing to vary; else raise ListError."""
        message = f"{_show_node(node)} has no float type that a rule can choose: {_explain_fixed_types(node)}"
        if not rule.keep:
            raise _refused_rule(rule, message, _suggest_remedy(node))
        self._warnings.setdefault(rule, _warn_no_effect(rule, message))

    def _find_matches(self) -> Iterator[tuple[NodeRule, Node]]:
        """Yield each rule with each node that it names, by rule, then by scope."""
        if not self._rules:
            return
        for rule in self._rules:
            for scope in _list_scopes(self.graph):
                if rule.by == "type":
                    yield from ((rule, node) for node in scope.nodes if self._is_of_type(node, rule))
                elif _is_pattern(rule.pattern):
                    yield from ((rule, node) for node in scope.find_matching(self._patterns[rule]))
                else:
                    nodes = scope.by_name.get(rule.pattern, [])
                    if len(nodes) > 1:
                        shown = ", ".join(f"{n.op_type} with output {n.proto.output[0]!r}" for n in nodes)
                        scope_name = scope.path or "the main graph"
                        message = f"{len(nodes)} nodes of {scope_name} are called {rule.pattern!r}: {shown}"
                        hint = "give them different names in the model"
                        raise list_error(rule.place.finding("ML309", "error", message, hint))
                    yield from ((rule, node) for node in nodes)

    def _is_of_type(self, node: Node, rule: NodeRule) -> bool:
        """Return whether a rule names the node's op type in ONNX or in the policy's name space."""
        if rule.pattern in onnx_names(node.domain, node.op_type):
            return True
        if self._policy.space != "ascend":
            return False
        # The engine marks the nodes of keep_dtype before its fusion, and applies customize_dtypes after it (S5.7).
        if rule.keep:
            return rule.pattern in ascend_names(node.domain, node.op_type)
        return rule.pattern in newest_forms(self._policy.lists, ascend_forms(node))

    def _list_of(self, node: Node) -> str:
        """Return the list of the node, which the reports show although the rule decides."""
        if self._policy.mode.action != "lists":
            return "none"
        fused = fused_op(node) if self._policy.space == "ascend" else None
        return find_list(self._policy.lists, self._policy.space, node.domain, node.op_type, fused=fused).list


class _ScopeNodes:
    """The nodes of one scope, also by every name that a rule may have for them: those of ``accepted_names``.

    A policy may have a rule for each single node. A rule with a plain name is looked up here, so that matching takes
    linear time.
    """

    def __init__(self, scope: Scope) -> None:
        self.path, self.nodes = scope_path(scope), scope.nodes
        self.by_name: dict[str, list[Node]] = {}
        for node in scope.nodes:
            for name in accepted_names(NodeRef(self.path, display_name(node))):
                self.by_name.setdefault(name, []).append(node)

    def find_matching(self, pattern: re.Pattern[str]) -> list[Node]:
        """Return the nodes that have a name which the pattern matches, in topological order."""
        matching = {node for name, named in self.by_name.items() if pattern.fullmatch(name) for node in named}
        return [node for node in self.nodes if node in matching]


@once_per_graph
def _list_scopes(graph: Graph) -> list[_ScopeNodes]:
    """Return the scopes of a model with the names of their nodes."""
    return [_ScopeNodes(scope) for scope in linked_scopes(graph.root)]


def _compile(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern in which `*` and `?` match as in a shell."""
    # Brackets have a meaning for fnmatch, but node names such as `fc[0]` are common: "[[]" is a "[". Its expressions
    # try one place for the text between two "*". With ".*" for each "*", `**/**/**/x` would try them all, for hours.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def _is_pattern(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def can_vary(node: Node) -> bool:
    """Return whether the node has a float type that a rule can choose."""
    return node.signature is not None and not node.signature.has_fixed_output and bool(node.signature.groups)


def _explain_fixed_types(node: Node) -> str:
    """Return why a node has no type that a rule can choose."""
    if node.is_call:
        return "the call of a function keeps its authored types"
    if node.bodies:
        return "control flow has no precision of its own"
    if node.signature is not None and node.signature.has_fixed_output:
        return f"an attribute fixes the output type of {node.op_type}"
    if unknown := find_unknown_inputs(node):
        return explain_unknown_types(unknown)
    return f"this {node.op_type} computes no float32, float16 or bfloat16 that may vary"


def _suggest_remedy(node: Node) -> str:
    if find_unknown_inputs(node):
        return f"give the type with {spell('type_hints')}, or remove the rule"
    return "remove the rule"


def _warn_no_effect(rule: NodeRule, message: str) -> Diagnostic:
    return rule.place.finding("ML306", "warning", f"{message}: the rule does nothing", "remove the line")


def _refused_rule(rule: NodeRule, message: str, hint: str | None = None) -> ListError:
    """Return the error of a rule that a node cannot follow (Rules S6.7 and S6.8)."""
    return list_error(rule.place.finding("ML308", "error", message, hint))


def _show_node(node: Node) -> str:
    return f"node {NodeRef(scope_path(node.scope), display_name(node))} ({node.op_type})"


def _find_requested_types(rule: NodeRule, node: Node) -> Iterator[int]:
    """Yield the element type per group of slots that a customize_dtypes line asks for.

    Slots of one group share a type parameter. A group without an entry in the line keeps its authored type. Raises
    ListError if the line asks for types that the node cannot have (Rule S6.7).
    """
    signature = node.signature
    assert signature is not None
    # Phase 1: the types that the line asks for, by side and slot.
    requested: dict[tuple[str, int], int] = {}
    # An entry of the line is None where the line leaves it blank.
    for side, type_names, slots in (("input", rule.inputs, node.inputs), ("output", rule.outputs, node.outputs)):
        for slot, type_name in enumerate(type_names):
            if type_name is None:
                continue
            if slot >= len(slots) or slots[slot] is None:
                raise _refused_rule(rule, f"{_show_node(node)} has no {side} {slot}")
            requested[side, slot] = dtypes.element(dtypes.parse_name(type_name))
    # Phase 2: one type per group of slots.
    for group in signature.groups:
        group_slots = [("input", i) for i in group.inputs] + [("output", o) for o in group.outputs]
        group_types = {requested.pop(slot) for slot in group_slots if slot in requested}
        if group.authored in dtypes.MIXABLE and (others := group_types - dtypes.MIXABLE):
            other, authored = dtypes.type_name(others.pop()), dtypes.type_name(group.authored)
            asked = f"the rule asks for {other} on type parameter {group.parameter}, which is {authored}"
            raise _refused_rule(
                rule, f"{_show_node(node)}: {asked}", "only float16, float32 and bfloat16 can replace each other"
            )
        if len(group_types) > 1:
            both = " and ".join(sorted(dtypes.type_name(elem) for elem in group_types))
            raise _refused_rule(
                rule,
                f"{_show_node(node)}: the slots of type parameter {group.parameter} must agree, "
                f"but the rule asks for {both}",
            )
        yield group_types.pop() if group_types else group.authored
    # Phase 3: the remaining slots are in no group, so the schema gives their type. The line may only repeat it.
    for (side, slot), elem in requested.items():
        value_type = (signature.inputs if side == "input" else signature.outputs)[slot]
        if dtypes.element(value_type) != elem:
            contradiction = f"{dtypes.type_name(value_type)} by its schema, not {dtypes.type_name(elem)}"
            raise _refused_rule(rule, f"{side} {slot} of {_show_node(node)} is {contradiction}")
