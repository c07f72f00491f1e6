"""Find op types that the name space of a library does not have: in the library itself, and in node rules.

The user can have operators of other origin, so these findings are warnings. A name with a domain that ONNX does not
have, such as ``my.domain::Op``, is never reported. ``lists/modify_mixlist.py`` reports unknown op types of a
modify_mixlist file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.files.list_text import quoted
from mixlist.lists.library import Library, NameSpace
from mixlist.lists.op_catalog import SPACE_TITLES, ascend_ops, canonical_domain, is_known, onnx_domains, onnx_ops
from mixlist.lists.policy import NodeRule, Policy
from mixlist.lists.suggestions import did_you_mean
from mixlist.model.names import ascend_names, onnx_ops_of


def find_unknown_library_ops(library: Library, space: NameSpace, model_ops: Collection[str] = ()) -> list[Diagnostic]:
    """Return a warning for each op type of a library that its name space does not have.

    ``model_ops``: the op types of a model, without their domains. They exist, whatever the name space has.
    """

    def describe(op: str) -> Diagnostic:
        message = f"{SPACE_TITLES[space]} has no op type {quoted(op)}"
        place = library.place(op) or FilePlace(library.name, 1, 1)
        return place.finding("ML210", "warning", message, _hint(op, space))

    unknown = [op for op in library.lists if op not in model_ops and _is_unknown(op, space)]
    return findings_for(unknown, describe)


def find_unknown_rule_types(policy: Policy) -> list[Diagnostic]:
    """Return a warning for each node rule for an op type that neither ONNX nor the library of the policy has.

    Use it without a model: with one, the nodes of the model decide (Rule S6.6).
    """

    def describe(rule: NodeRule) -> Diagnostic:
        message = f"{SPACE_TITLES[policy.space]} has no op type {quoted(rule.pattern)}"
        return rule.place.finding("ML307", "warning", message, _hint(rule.pattern, policy.space))

    # A rule can have the ONNX name of an operator in both name spaces.
    unknown = [
        rule
        for rule in policy.rules
        if rule.by == "type"
        and not is_known(rule.pattern, "onnx")
        and rule.pattern not in policy.lists.library.lists
        and _is_unknown(rule.pattern, policy.space)
    ]
    return findings_for(unknown, describe)


def _is_unknown(op: str, space: NameSpace) -> bool:
    domain, separator, _ = op.rpartition("::")
    if separator and canonical_domain(domain) not in onnx_domains():
        return False
    return not is_known(op, space)


def _hint(op: str, space: NameSpace) -> str:
    """Return what to write instead: the name of the operator in this name space, or a similar name."""
    domain, _, bare_op = op.rpartition("::")
    counterparts: Sequence[str] = ascend_names("", op) if space == "ascend" else onnx_ops_of(op)
    if counterparts:
        return f"there it is {' or '.join(counterparts)}"
    known_ops = (
        ascend_ops() if space == "ascend" else onnx_domains()[canonical_domain(domain)] if domain else onnx_ops()
    )
    similar = did_you_mean(bare_op, known_ops)
    return similar or "check the name and its case; if an operator of your own has this name, ignore this warning"
