"""Match the node rules of a policy with the nodes of a model, and give those nodes their types.

Rule S4.2: A node that a node rule names gets the types that the rule asks for, before lists, modes, shape arithmetic
and constants out of range.

Rule S6.3: Rules of `customize_dtypes` by name come before those by type, and these come before `keep_dtype`; within
each group the first rule that names the node decides.

Rule S6.4: A node name matches in every scope, `scope/name` narrows it to one scope, `*` and `?` match as in a shell,
and a node without a name is called `OpType_k`.

Rule S6.5: `./NAME` names the node of that name in the main graph only.

Rule S6.6: A name that matches no node warns, and a type that no node has is an error; so is, in `customize_dtypes`, a
type of which no node may vary.

Rule S6.7: A rule is an error if the schema or the inference does not allow its types, if two slots of one type
parameter get different types, or if the node has no such slot.

Rule S6.8: A rule of `customize_dtypes` that names exactly a node with nothing to vary is an error; a pattern or an op
type passes over such a node.

Rule S6.9: A `keep_dtype` line that names a node, or a type of nodes, with nothing to vary warns and has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError
from mixlist.graph.model import Graph, Node, Scope
from mixlist.graph.naming import display_name, scope_path
from mixlist.graph.refs import NodeRef, accepted_names
from mixlist.graph.traversal import linked_scopes
from mixlist.lists.policy import NodeRule, Policy
from mixlist.ops import types
from mixlist.ops.names import ascend_names, find_list, onnx_names
from mixlist.ops.signature import Assignment
from mixlist.resolver.classification import Classification, unknown_inputs


class NodeRules:
    """The node rules of a policy, and the nodes that they name in the graphs of one model."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        origin = policy.mode.action == "origin"  # keep_dtype says nothing more under origin
        self._rules = [r for r in policy.rules if not (origin and r.keep)]
        self._patterns = {r: _compile(r.pattern) for r in self._rules if r.by == "name"}
        self._chosen: dict[tuple[int, int], NodeRule] = {}
        self._facts: dict[int, dict[int, Classification]] = {}
        self._matched: set[NodeRule] = set()
        self._suited: set[NodeRule] = set()
        self._idle: dict[NodeRule, Diagnostic] = {}  # of keep_dtype, for nodes that keep their type in any case

    def match(self, graph: Graph) -> dict[int, Classification]:
        """Return the facts of the nodes that a rule names, by node id; the first rule that names a node decides.

        Raises ListError if two nodes of one scope share a name, or if a rule of customize_dtypes names a node that has
        no type to choose (Cast, control flow, integer operators).
        """
        if id(graph) in self._facts:  # the graph of a function is matched once for all its specializations
            return self._facts[id(graph)]
        facts = self._facts[id(graph)] = {}
        for rule, node in self._pairs(graph):
            self._matched.add(rule)
            if (id(graph), node.id) in self._chosen:
                self._suited.add(rule)
                continue
            if not _can_vary(node):
                if rule.by == "name" and not _is_pattern(rule.pattern):
                    self._refuse(rule, graph, node)
                continue
            self._suited.add(rule)
            self._chosen[id(graph), node.id] = rule
            facts[node.id] = Classification(self._list_of(node), "rule", "node-rule")
        return facts

    def rule_of(self, graph: Graph, node: Node) -> NodeRule:
        """Return the rule that decides a node that ``match`` returned."""
        return self._chosen[id(graph), node.id]

    def assignment(self, graph: Graph, node: Node) -> Assignment:
        """Return the node's types under its rule; raise ListError if the schema does not allow them."""
        rule = self.rule_of(graph, node)
        signature = node.signature
        assert signature is not None
        if rule.keep:
            return signature.authored()
        wish = list(_wish(rule, graph, node))
        assignment = signature.assign(tuple(wish))
        if assignment.refused:
            index = assignment.refused[0]
            parameter, opset = signature.groups[index].parameter, graph.opsets.get(node.domain)
            what = f"{types.type_name(wish[index])} on type parameter {parameter}"
            raise ListError(
                f"{rule.place}: {_shown(graph, node)} cannot be {what}: "
                f"the schema of opset {opset} or ONNX's type inference does not allow it",
                hint="leave that entry blank, or raise the model's opset",
            )
        return assignment

    def findings(self) -> Iterator[Diagnostic]:
        """Yield a warning per rule without effect; raise ListError for a type that no node has."""
        yield from self._idle.values()
        for rule in self._rules:
            if rule in self._suited:
                continue
            if rule.by == "type" and rule.keep and rule in self._matched:
                yield _without_effect(rule, f"no {rule.pattern} has a float type that may vary")
            elif rule.by == "type":
                what = "has no float type that a rule can choose" if rule in self._matched else "is not in the model"
                raise ListError(
                    f"{rule.place}: op type {rule.pattern!r} {what}", hint="remove the line or correct the name"
                )
            elif rule not in self._matched:
                message = f"no node is called {rule.pattern!r}: the rule does nothing"
                hint = "see mixlist resolve for the names"
                yield rule.place.finding("ML305", "warning", message, hint)

    def _refuse(self, rule: NodeRule, graph: Graph, node: Node) -> None:
        """Note a warning for a line of keep_dtype that names a node with nothing to vary; else raise ListError."""
        message = f"{_shown(graph, node)} has no float type that a rule can choose: {_why(node)}"
        if not rule.keep:
            raise ListError(f"{rule.place}: {message}", hint=_remedy(node))
        self._idle.setdefault(rule, _without_effect(rule, message))

    def _pairs(self, graph: Graph) -> Iterator[tuple[NodeRule, Node]]:
        """Yield each rule with each node that it names, by rule, then by scope."""
        if not self._rules:
            return
        if graph not in _SCOPES:
            _SCOPES[graph] = [_ScopeNodes(graph, scope) for scope in linked_scopes(graph.root)]
        for rule in self._rules:
            for scope in _SCOPES[graph]:
                if rule.by == "type":
                    yield from ((rule, node) for node in scope.nodes if self._is_of_type(node, rule.pattern))
                elif _is_pattern(rule.pattern):
                    yield from ((rule, node) for node in scope.matching(self._patterns[rule]))
                else:
                    nodes = scope.by_name.get(rule.pattern, [])
                    if len(nodes) > 1:
                        shown = ", ".join(f"{n.op_type} with output {n.proto.output[0]!r}" for n in nodes)
                        where = scope.path or "the main graph"
                        raise ListError(
                            f"{rule.place}: {len(nodes)} nodes of {where} are called {rule.pattern!r}: {shown}",
                            hint="name them apart in the model",
                        )
                    yield from ((rule, node) for node in nodes)

    def _is_of_type(self, node: Node, name: str) -> bool:
        if name in onnx_names(node.domain, node.op_type):
            return True
        return self._policy.space == "ascend" and name in ascend_names(node.domain, node.op_type)

    def _list_of(self, node: Node) -> str:
        if self._policy.mode.action != "lists":
            return "none"
        return find_list(self._policy.lists, self._policy.space, node.domain, node.op_type).list


class _ScopeNodes:
    """The nodes of one scope, also by every name that a rule may have for them: those of ``typed_names``.

    There may be as many rules for single nodes as there are nodes, so that a rule must not look at all of them.
    """

    def __init__(self, graph: Graph, scope: Scope) -> None:
        self.path, self.nodes = scope_path(graph, scope), scope.nodes
        self.by_name: dict[str, list[Node]] = {}
        for node in scope.nodes:
            for name in accepted_names(NodeRef(self.path, display_name(node))):
                self.by_name.setdefault(name, []).append(node)

    def matching(self, pattern: re.Pattern[str]) -> list[Node]:
        """Return the nodes of which a name matches, in order."""
        nodes = {node for name, named in self.by_name.items() if pattern.fullmatch(name) for node in named}
        return [node for node in self.nodes if node in nodes]


_SCOPES: WeakKeyDictionary[Graph, list[_ScopeNodes]] = WeakKeyDictionary()  # computed once for all policies of a model


def _compile(pattern: str) -> re.Pattern[str]:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.compile("".join(parts), re.DOTALL)


def _is_pattern(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def _can_vary(node: Node) -> bool:
    return node.signature is not None and not node.signature.has_fixed_output and bool(node.signature.groups)


def _why(node: Node) -> str:
    if node.bodies or node.function is not None:
        return "control flow and function calls carry no precision themselves"
    if node.signature is not None and node.signature.has_fixed_output:
        return f"an attribute fixes the output type of {node.op_type}"
    if unknown := unknown_inputs(node):
        return f"nothing tells the type of {', '.join(repr(value.name) for value in unknown)}"
    return f"this {node.op_type} computes no float32, float16 or bfloat16 that may vary"


def _remedy(node: Node) -> str:
    if unknown_inputs(node):
        return "give the type with --type-hints, or remove the rule"
    return "remove the rule"


def _without_effect(rule: NodeRule, message: str) -> Diagnostic:
    return rule.place.finding("ML306", "warning", f"{message}: the rule does nothing", "remove the line")


def _shown(graph: Graph, node: Node) -> str:
    return f"node {NodeRef(scope_path(graph, node.scope), display_name(node))} ({node.op_type})"


def _wish(rule: NodeRule, graph: Graph, node: Node) -> Iterator[int]:
    """Yield the element type per group of slots that a customize_dtypes line asks for."""
    signature = node.signature
    assert signature is not None
    asked: dict[tuple[str, int], int] = {}
    for side, texts, slots in (("input", rule.inputs, node.inputs), ("output", rule.outputs, node.outputs)):
        for index, text in enumerate(texts):
            if text is None:
                continue
            if index >= len(slots) or slots[index] is None:
                raise ListError(f"{rule.place}: {_shown(graph, node)} has no {side} {index}")
            asked[side, index] = types.ELEMENT_BY_NAME[text]
    for group in signature.groups:
        slots_of = [("input", i) for i in group.inputs] + [("output", o) for o in group.outputs]
        wanted = {asked.pop(s) for s in slots_of if s in asked}
        if len(wanted) > 1:
            both = " and ".join(sorted(types.type_name(w) for w in wanted))
            raise ListError(
                f"{rule.place}: {_shown(graph, node)}: the slots of type parameter {group.parameter} must agree, "
                f"but the rule asks for {both}"
            )
        yield wanted.pop() if wanted else group.authored
    for (side, index), elem in asked.items():
        value_type = (signature.inputs if side == "input" else signature.outputs)[index]
        if types.element(value_type) != elem:
            told = f"{types.type_name(value_type)} by its schema, not {types.type_name(elem)}"
            raise ListError(f"{rule.place}: {side} {index} of {_shown(graph, node)} is {told}")
