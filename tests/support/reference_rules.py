"""Find the node rule that decides a node.

Rule S6.3: the first rule that names a node decides. Rule S6.4: a name matches in every scope, ``scope/name`` narrows
it, and ``*`` and ``?`` match as in a shell. Rule S6.5: ``./NAME`` means the main graph. Rules S6.8 and S6.9: a rule by
type, and a line of keep_dtype, pass over a node with nothing to vary.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from mixlist.lists.policy import NodeRule, Policy
from tests.support.reference_model import Node


def rule_for(node: Node, policy: Policy) -> NodeRule | None:
    """Return the rule that decides a node; None if there is none, or if keep_dtype is not used (Rule S3.5)."""
    for rule in policy.rules:
        if rule.keep and policy.mode.action == "origin":
            continue
        if matches(rule, node):
            return rule
    return None


def matches(rule: NodeRule, node: Node) -> bool:
    """Return whether a rule names a node."""
    if rule.by == "type":
        return node.op == rule.pattern
    path = node.scope.path
    if rule.pattern.startswith("./"):
        return not path and fnmatchcase(node.name, rule.pattern[2:])
    full = f"{path}/{node.name}" if path else node.name
    return fnmatchcase(node.name, rule.pattern) or fnmatchcase(full, rule.pattern)
