"""Warn about names of a mixlist that have no effect or another meaning in the library's name space or in a model.

Only the op types that the mixlist names are checked, because a library names hundreds that a model lacks.
lists/edits.py warns about names that the library does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mixlist.diagnostics import Diagnostic
from mixlist.lists.library import Lists
from mixlist.lists.op_catalog import is_known
from mixlist.lists.policy import Policy
from mixlist.lists.suggestions import closest
from mixlist.ops.names import ambiguous_names, ascend_names, onnx_names, onnx_ops_of
from mixlist.ops.traits import Trait, operators

_CONTROL_FLOW = operators(Trait.CONTROL_FLOW)


def find_name_warnings(
    policy: Policy, model_ops: Mapping[tuple[str, str], int] | None = None, function_names: Collection[str] = ()
) -> list[Diagnostic]:
    """Warnings about the op types that the policy's mixlist names, sorted by their place in the file.

    ``model_ops`` counts the model's nodes, subgraphs and functions included, by (domain, op type),
    with "" for the standard domain; without it nothing is said about a model. ``function_names``
    are the names of its model-local functions.
    """
    lists = policy.lists
    here = _names_in(policy, model_ops) if model_ops is not None else None
    found: list[Diagnostic] = []
    for op in sorted(lists.named_ops):
        other = _other_space(lists, op) if policy.space == "ascend" else _ascend_name(lists, op)
        found += [_at(lists, op, *told) for told in (*other, *_without_effect(op, function_names))]
        if here is not None and not other and op not in here and _bare(op) not in function_names:
            hint = _told_as(closest(op, here), "the model has") or "it changes nothing there"
            found.append(_at(lists, op, "ML406", f"no node of the model is of op type {op}", hint))
    return sorted(found, key=lambda d: (d.line or 0, d.column or 0))


def _names_in(policy: Policy, model_ops: Mapping[tuple[str, str], int]) -> set[str]:
    """Every name by which the policy's lists can mean an operator of the model."""
    if policy.space == "ascend":
        return {form for domain, op in model_ops for form in ascend_names("" if domain == "ai.onnx" else domain, op)}
    return {name for domain, op in model_ops for name in onnx_names(domain, op)}


def _other_space(lists: Lists, op: str) -> list[tuple[str, str, str]]:
    """A name over an Ascend library that means an ONNX operator there: alone, or besides an Ascend one."""
    forms = ascend_names("", _bare(op))
    become = " or ".join(forms)
    if op in ambiguous_names():
        message = f"{op} is an Ascend op type too, but the ONNX operator {op} becomes {become}: no ONNX {op} is moved"
        return [("ML405", message, f"to mean the ONNX operator, name {become}")]
    if op in lists.library.lists or not is_known(op, "onnx") or op in ascend_names("", op):
        return []
    message = f"{op} is an ONNX name, but the library {lists.library.name} is written in Ascend names"
    return [("ML404", message, f"there it is {become}" if forms else "it has no Ascend counterpart")]


def _ascend_name(lists: Lists, op: str) -> list[tuple[str, str, str]]:
    """A name over an ONNX library that only Ascend has."""
    if op in lists.library.lists or is_known(op, "onnx") or not is_known(op, "ascend"):
        return []
    message = f"{op} is an Ascend name, but the library {lists.library.name} is written in ONNX names"
    return [("ML404", message, _told_as(onnx_ops_of(op), "there it is") or "no ONNX operator becomes it")]


def _without_effect(op: str, function_names: Collection[str]) -> Iterator[tuple[str, str, str]]:
    if _bare(op) in _CONTROL_FLOW:
        message = f"{op} runs subgraphs and has no precision itself: naming it in a list changes nothing"
        yield "ML408", message, "name the op types inside"
    if _bare(op) in function_names:
        message = f"{op} is a model-local function: lists reach inside it, and its name moves nothing"
        yield "ML407", message, "name the op types inside"


def _bare(op: str) -> str:
    return op.rpartition("::")[2]


def _told_as(names: Collection[str], lead: str) -> str | None:
    return f"{lead} {' or '.join(names)}" if names else None


def _at(lists: Lists, op: str, code: str, message: str, hint: str) -> Diagnostic:
    place = lists.entry_places.get(op)
    return place.finding(code, "warning", message, hint) if place else Diagnostic(code, "warning", message, hint=hint)
