"""Find the list that an ONNX operator is on, among lists of ONNX or of Ascend names (Rules S5.2 to S5.5).

ONNX names: the op type matches in any domain; ``domain::Op`` narrows and wins over the bare name
(``ai.onnx::Op`` is the standard domain). Ascend names: the op becomes the Ascend op types that the
compiler's ONNX parser makes of it, and the one that computes decides, not the Transpose or Reshape
around it (the map holds only those). The rank of the first input chooses between the 2D and the 3D
forms. Of the forms that remain, those that the library knows count, and if they stand on different
lists, black beats gray beats white. An op without counterpart is gray.

Rule S5.7: the Ascend engine matches names after its own graph fusion (a ReduceSum may be a ReduceSumD
by then); mixlist works on the ONNX graph as it is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mixlist.lists.library import ListName, Lists, NameSpace
from mixlist.lists.op_catalog import ascend_ops, onnx_domains

_CAUTION: tuple[ListName, ...] = ("black", "gray", "white")  # an earlier list wins over a later one


@dataclass(frozen=True, slots=True)
class ListMatch:
    """The list of one operator.

    ``op`` is the list's own name that decided (``Conv2D`` for an ONNX Conv in an Ascend library),
    ``source`` where it was put on that list ("" if no list names it), ``note`` a remark worth telling the user.
    """

    list: ListName
    op: str
    source: str
    note: str | None = None


def find_list(
    lists: Lists, space: NameSpace, domain: str, op_type: str, rank: Callable[[], int | None] = lambda: None
) -> ListMatch:
    """The list of the ONNX operator ``domain::op_type`` ("" is the standard domain).

    ``rank`` gives the number of dimensions of the operator's first input, None if unknown; it is
    called only where it matters. Not cached: ask once per (domain, op_type, rank).
    """
    domain = "" if domain == "ai.onnx" else domain
    if space == "ascend":
        return _in_ascend(lists, domain, op_type, rank)
    return _in_onnx(lists, domain, op_type)


def ascend_names(domain: str, op_type: str) -> tuple[str, ...]:
    """The Ascend op types that compute an ONNX operator; empty if it has no counterpart."""
    return _map().get(domain, {}).get(op_type, ())


def onnx_names(domain: str, op_type: str) -> tuple[str, str]:
    """Return the names by which lists of ONNX names can mean an operator: the bare one, and ``domain::Op``."""
    return op_type, f"{domain or 'ai.onnx'}::{op_type}"


def operator_name(domain: str, op_type: str) -> str:
    """Return the name that messages show: the op type, with its domain if that is not the standard one."""
    return f"{domain}::{op_type}" if domain else op_type


def onnx_ops_of(ascend_op: str) -> list[str]:
    """Return the ONNX op types of the standard domain that an Ascend op type computes, sorted."""
    return sorted(op for op, main in _map()[""].items() if ascend_op in main and op in onnx_domains()[""])


@cache
def ambiguous_names() -> frozenset[str]:
    """Names that are op types in both spaces while the ONNX operator becomes another Ascend op."""
    return frozenset(
        op for op, main in _map()[""].items() if op in ascend_ops() and op not in main and op in onnx_domains()[""]
    )


@cache
def _map() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    path = Path(__file__).parent / "data" / "onnx_to_ascend.json"
    data = json.loads(path.read_text("utf-8"))
    return {domain: {op: tuple(main) for op, main in ops.items()} for domain, ops in data["domains"].items()}


def _in_onnx(lists: Lists, domain: str, op_type: str) -> ListMatch:
    for name in reversed(onnx_names(domain, op_type)):
        if lists.has_entry(name):
            return ListMatch(lists.list_of(name), name, lists.source(name))
    return ListMatch("gray", op_type, "", f"no list names {operator_name(domain, op_type)}: it is gray")


def _in_ascend(lists: Lists, domain: str, op_type: str, rank: Callable[[], int | None]) -> ListMatch:
    shown = operator_name(domain, op_type)
    forms = ascend_names(domain, op_type)
    if not forms:
        return ListMatch("gray", op_type, "", f"{shown} has no Ascend counterpart: it is gray")
    fitting = _of_rank(forms, rank)
    known = [form for form in fitting if lists.has_entry(form)]
    if not known:
        become = " or ".join(fitting)
        return ListMatch(
            "gray", fitting[0], "", f"{shown} is {become} on Ascend, which the library does not name: gray"
        )
    on = {form: lists.list_of(form) for form in known}
    winner = min(known, key=lambda form: _CAUTION.index(on[form]))
    note = None
    if len(set(on.values())) > 1:
        differ = ", ".join(f"{form} is {on[form]}" for form in known)
        note = f"{shown} can become several Ascend ops that are on different lists ({differ}): {winner} decides"
    return ListMatch(on[winner], winner, lists.source(winner), note)


def _of_rank(forms: tuple[str, ...], rank: Callable[[], int | None]) -> tuple[str, ...]:
    """The forms for the input's rank: the 3D ones take 5 dimensions, the others 4, or 3 with an axis added."""
    solid = tuple(form for form in forms if "3D" in form)
    flat = tuple(form for form in forms if "3D" not in form)
    dims = rank() if solid and flat else None
    if dims is None:
        return forms
    return solid if dims >= 5 else flat
