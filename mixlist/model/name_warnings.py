"""Warn of op types in lists and node rules that have no effect, or another meaning than the user may think (Rule S5.6).

- In a modify_mixlist file, a name can be written in the other name space than the library's, can be absent from the
  model, or can name an operator without a precision of its own. Of the lists, only
  the op types that this file names are compared with a model, because a library names hundreds that a model lacks.
  ``lists/modify_mixlist.py`` reports unknown op types of the file.
- A library and node rules can have an op type that the name space of the library does not have. The user can have
  operators of other origin, so these findings are warnings. A name with a domain that ONNX does not have, such as
  ``my.domain::Op``, is never reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.files.list_text import quoted
from mixlist.lists.library import Library, Lists, NameSpace
from mixlist.lists.op_catalog import SPACE_TITLES, ascend_ops, canonical_domain, is_known, onnx_domains, onnx_ops
from mixlist.lists.policy import NodeRule, Policy
from mixlist.lists.suggestions import closest_names, did_you_mean
from mixlist.model.operator_names import (
    ambiguous_names,
    ascend_names,
    counterparts,
    newest_forms,
    onnx_names,
    onnx_ops_of,
)
from mixlist.model.traits import Trait, operators

_CONTROL_FLOW = operators(Trait.CONTROL_FLOW)

NameWarning = tuple[str, str, str]  # code, message, hint


def find_name_warnings(
    policy: Policy, model_names: Collection[str] | None = None, function_names: Collection[str] = ()
) -> list[Diagnostic]:
    """Return warnings about the op types that the policy's modify_mixlist file names, in the order of the file.

    ``model_names``: every name by which the lists can mean an operator of the model. Without it, absence from a model
    is not checked. ``function_names``: the names of the model's functions.
    """
    lists = policy.lists
    # ONNX names are checked over an Ascend library, and Ascend names over an ONNX library: they are in the wrong space.
    find_name_space_warnings = _onnx_name_warnings if policy.space == "ascend" else _ascend_name_warnings
    diagnostics: list[Diagnostic] = []
    for op in sorted(lists.named_ops):
        name_space_warnings = find_name_space_warnings(lists, op)
        effects = (*_no_effect_warnings(op, function_names), *_no_kernel_warnings(policy, op))
        for warning in (*name_space_warnings, *effects):
            diagnostics.append(_diagnostic(lists, op, *warning))
        # A name of the other space is absent from the model, too: one warning is enough. A function has its own one.
        if model_names is None or name_space_warnings or op in model_names or _bare_name(op) in function_names:
            continue
        hint = _join_names("the model has", closest_names(op, model_names)) or "it changes nothing there"
        diagnostics.append(_diagnostic(lists, op, "ML406", f"no node of the model is of op type {op}", hint))
    return sorted(diagnostics, key=lambda diagnostic: (diagnostic.line or 0, diagnostic.column or 0))


def names_in_lists(policy: Policy, model_ops: Iterable[tuple[str, str, str | None]]) -> set[str]:
    """Return every name by which the policy's lists can mean one of these operators.

    ``model_ops``: the domain, the op type, and the op type that the fusion of the Ascend engine makes of it or None.
    """
    if policy.space == "ascend":
        return {
            form
            for domain, op, fused in model_ops
            for form in newest_forms(policy.lists, (fused,) if fused else ascend_names(canonical_domain(domain), op))
        }
    return {name for domain, op, _ in model_ops for name in onnx_names(domain, op)}


def _onnx_name_warnings(lists: Lists, op: str) -> list[NameWarning]:
    """Return the warning about an ONNX name over a library of Ascend names."""
    forms = ascend_names("", _bare_name(op))
    form_names = " or ".join(forms)
    # Example: MatMul over an Ascend library moves the Ascend op MatMul. An ONNX MatMul becomes BatchMatMulV2.
    if op in ambiguous_names():
        message = (
            f"{op} is an Ascend op type too, but the ONNX operator {op} becomes {form_names}: no ONNX {op} is moved"
        )
        return [("ML405", message, f"to mean the ONNX operator, name {form_names}")]
    # No warning for a name of the library, for a name that ONNX lacks, and for a name that Ascend has for the same
    # operator.
    if op in lists.library.lists or not is_known(op, "onnx") or op in ascend_names("", op):
        return []
    message = f"{op} is an ONNX name, but the library {lists.library.name} is written in Ascend names"
    return [("ML404", message, f"there it is {form_names}" if forms else "it has no Ascend counterpart")]


def _ascend_name_warnings(lists: Lists, op: str) -> list[NameWarning]:
    """Return the warning about a name that only Ascend has, over a library of ONNX names."""
    if op in lists.library.lists or is_known(op, "onnx") or not is_known(op, "ascend"):
        return []
    message = f"{op} is an Ascend name, but the library {lists.library.name} is written in ONNX names"
    return [("ML404", message, _join_names("there it is", onnx_ops_of(op)) or "no ONNX operator becomes it")]


def _no_effect_warnings(op: str, function_names: Collection[str]) -> Iterator[NameWarning]:
    """Yield the warnings about a name that a list cannot move: control flow, or a function of the model."""
    if _bare_name(op) in _CONTROL_FLOW:
        message = f"{op} runs subgraphs and has no precision itself: naming it in a list changes nothing"
        yield "ML408", message, "name the op types inside"
    if _bare_name(op) in function_names:
        message = f"{op} is a model-local function: no list names its calls, and the nodes inside it stay as authored"
        yield "ML407", message, "mixlist apply --inline-functions replaces the calls by these nodes"


def _no_kernel_warnings(policy: Policy, op: str) -> Iterator[NameWarning]:
    """Yield the warning about a black op type for which the chip has no float32 kernel (Rule S4.50)."""
    lists = policy.lists
    if policy.space == "ascend" and lists.list_of(op) == "black" and lists.library.lacks_kernel(op, "float32"):
        message = f"{op} is black, but the chip of {lists.library.name} has no float32 kernel for it"
        yield "ML412", message, "remove the entry: atc ends the build at a float32 node of this op type"


def _bare_name(op: str) -> str:
    """Return an op type without its domain: ``Gelu`` for ``com.microsoft::Gelu``."""
    return op.rpartition("::")[2]


def _join_names(lead: str, names: Collection[str]) -> str | None:
    """Return ``lead`` and the names with "or" between them; None without a name."""
    return f"{lead} {' or '.join(names)}" if names else None


def _diagnostic(lists: Lists, op: str, code: str, message: str, hint: str) -> Diagnostic:
    """Return a warning at the place where the modify_mixlist file names the op type first."""
    place = lists.entry_places.get(op)
    return place.finding(code, "warning", message, hint) if place else Diagnostic(code, "warning", message, hint=hint)


# --- op types that a name space does not have ---


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
    if forms := counterparts(op, space):
        return f"there it is {' or '.join(forms)}"
    known_ops = (
        ascend_ops() if space == "ascend" else onnx_domains()[canonical_domain(domain)] if domain else onnx_ops()
    )
    similar = did_you_mean(bare_op, known_ops)
    return similar or "check the name and its case; if an operator of your own has this name, ignore this warning"
