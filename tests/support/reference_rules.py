"""Find the node rule that decides a node, and the types that it gives.

Rule S6.2: a line of customize_dtypes gives types to slots. Rule S6.3: the first rule that names a node decides. Rule
S6.4: a name matches in every scope, ``scope/name`` narrows it, and ``*`` and ``?`` match as in a shell. Rule S6.5:
``./NAME`` means the main graph. Rules S6.8 and S6.9: a rule by type, and a line of keep_dtype, skip a node without
slots that may change.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from mixlist import Policy
from tests.support.package import NodeRule
from tests.support.reference_model import ELEM_TYPES, Node
from tests.support.reference_signature import Group


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


def ruled_types(groups: list[Group], rule: NodeRule) -> dict[str, int | None]:
    """Return the type of each type parameter that a customize_dtypes rule gives (Rule S6.2)."""
    types_by_parameter: dict[str, int | None] = {}
    for group in groups:
        for slots, types in ((group.inputs, rule.inputs), (group.outputs, rule.outputs)):
            for i in slots:
                if i < len(types) and types[i] is not None:
                    types_by_parameter[group.param] = ELEM_TYPES[str(types[i])]
    return types_by_parameter
