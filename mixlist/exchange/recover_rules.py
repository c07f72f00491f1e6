"""Write as few node rules as possible for the nodes that no list gives their types (Rules S6.2 to S6.7).

- A rule for an op type serves all of its nodes. The nodes that need other types have rules by name, which win
  (Rule S6.3).
- A rule with a pattern serves the nodes whose names differ in numbers only: ``/layers.*/attn/Softmax``.

Such a rule may also name nodes that need no rule, as long as it gives them the types that they must have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mixlist.decide.node_rules import NodeRules
from mixlist.diagnostics import FilePlace
from mixlist.errors import ListError
from mixlist.lists.node_rules import is_valid_rule_name
from mixlist.lists.policy import NodeRule, Policy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.naming import node_ref, unique_names
from mixlist.model.operator_names import operator_name
from mixlist.model.signature import Assignment

_PLACE = FilePlace("recover", 1, 1)  # stands for the file and position of a rule before it is written
_MAX_PATTERNS = 200  # trying a pattern reads the names of all nodes

NodeTypes = Mapping[Node, Assignment]
SlotTypes = tuple[str | None, ...]


@dataclass(frozen=True)
class RecoveredRule:
    """A rule, and the nodes that it names and that have types to vary."""

    rule: NodeRule
    nodes: tuple[Node, ...]


class RuleWriter:
    """Writes the rules of one model. ``types``: the types that its nodes must have."""

    def __init__(self, graph: Graph, policy: Policy, types: NodeTypes) -> None:
        self.graph, self.policy, self.types = graph, policy, types
        refs = {node: node_ref(node) for node in graph.nodes}
        names = unique_names(dict.fromkeys(refs.values()))
        # The names by which a rule means one node and no other. Some nodes have no such name.
        self.names = {node: names[ref] for node, ref in refs.items() if is_valid_rule_name(names.get(ref, ""))}

    def can_name(self, node: Node) -> bool:
        """Return whether a rule can give a node the types that it must have."""
        return node in self.names and node in self.types

    def write(self, nodes: Iterable[Node]) -> tuple[RecoveredRule, ...]:
        """Return rules that give each node its types. All nodes must be such that ``can_name`` is true."""
        waiting = dict.fromkeys(nodes)
        by_type = [*self._write_type_rules(waiting)]
        by_pattern = [*self._write_patterns(waiting)]
        by_name = [self._name_one(node) for node in waiting]
        return (*sorted((*by_pattern, *by_name), key=lambda written: written.rule.pattern), *by_type)

    def _write_type_rules(self, waiting: dict[Node, None]) -> Iterator[RecoveredRule]:
        """Yield a rule for each op type that saves rules; take its nodes from ``waiting``, and add exceptions."""
        by_operator: dict[tuple[str, str], list[Node]] = {}
        for node in waiting:
            by_operator.setdefault((node.domain, node.op_type), []).append(node)
        for (domain, op_type), nodes in sorted(by_operator.items()):
            elements, _ = Counter(self.types[node].elements for node in nodes).most_common(1)[0]
            model_node = next(node for node in nodes if self.types[node].elements == elements)
            rule = self._make_rule("type", operator_name(domain, op_type), model_node, every_slot=False)
            outcome = self._apply_rule(rule)
            if outcome is None:
                continue
            exceptions = [node for node, fits in outcome.items() if not fits]
            if 1 + len(exceptions) < len(nodes) and all(map(self.can_name, exceptions)):
                for node in outcome:
                    waiting.pop(node, None)
                waiting.update(dict.fromkeys(exceptions))
                yield RecoveredRule(rule, tuple(node for node, fits in outcome.items() if fits))

    def _write_patterns(self, waiting: dict[Node, None]) -> Iterator[RecoveredRule]:
        """Yield a rule for each pattern that serves several nodes; take these from ``waiting``."""
        for most in (0, 1):  # all numbers of the names may differ, then only the first one
            groups: dict[tuple[str, str, tuple[int, ...]], list[Node]] = {}
            for node in waiting:
                pattern = re.sub(r"\d+", "*", self.names[node], count=most)
                groups.setdefault((pattern, node.op_type, self.types[node].elements), []).append(node)
            largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MAX_PATTERNS]
            for (pattern, _, _), nodes in largest:
                if len(nodes) == 1 or any(node not in waiting for node in nodes):
                    continue
                rule = self._make_rule("name", pattern, nodes[0], every_slot=False)
                outcome = self._apply_rule(rule)
                if outcome is not None and all(outcome.values()) and outcome.keys() >= set(nodes):
                    for node in outcome:
                        waiting.pop(node, None)
                    yield RecoveredRule(rule, tuple(outcome))

    def _name_one(self, node: Node) -> RecoveredRule:
        return RecoveredRule(self._make_rule("name", self.names[node], node, every_slot=True), (node,))

    def _apply_rule(self, rule: NodeRule) -> dict[Node, bool] | None:
        """Return for each node that a rule names whether the rule gives it the types that it must have.

        None: the rule names a node that has other slots, or a node without types that it must have.
        """
        matched = NodeRules(replace(self.policy, rules=(rule,)), self.graph)
        outcome = {}
        try:
            for node_id in matched.match():
                node = self.graph.nodes[node_id]
                if node not in self.types:
                    return None
                outcome[node] = matched.find_assignment(node).elements == self.types[node].elements
        except ListError:
            return None
        return outcome

    def _make_rule(self, by: Literal["name", "type"], pattern: str, node: Node, *, every_slot: bool) -> NodeRule:
        """Return the rule with the types of a node: for every slot, or only for the first ones of each type group."""
        assert node.signature is not None
        inputs: dict[int, str] = {}
        outputs: dict[int, str] = {}
        for group, elem in zip(node.signature.groups, self.types[node].elements, strict=True):
            end = None if every_slot else 1  # the other slots of a group follow the first one
            inputs |= dict.fromkeys(group.inputs[:end], dtypes.type_name(elem))
            outputs |= dict.fromkeys(group.outputs[:end], dtypes.type_name(elem))
        return NodeRule(by, pattern, False, _PLACE, _by_slot(inputs, node.inputs), _by_slot(outputs, node.outputs))


def _by_slot(types: Mapping[int, str], values: Sequence[Value | None]) -> SlotTypes:
    """Return the types as a rule has them: None for a slot without a type; the last type ends the result."""
    present = {slot: name for slot, name in types.items() if slot < len(values) and values[slot] is not None}
    return tuple(present.get(slot) for slot in range(max(present, default=-1) + 1))
