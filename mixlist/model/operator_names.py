"""Name ONNX operators in lists, in messages and in the Ascend libraries, and find the list that an operator is on.

Rules S5.2 to S5.5: In a library of ONNX names, an entry ``Op`` matches the op type in every domain. An entry
``domain::Op`` matches in this domain only and wins over ``Op``. ``ai.onnx::Op`` is the operator of the standard domain.

The ONNX parser of the Ascend compiler converts an ONNX operator to one of several Ascend op types, its *forms*. The map
``data/onnx_to_ascend.json`` holds only the forms that compute, not the Transpose or Reshape around them. In a library
of Ascend names, an entry matches the forms of an ONNX operator. If the operator has 2D and 3D forms, the rank of its
first input chooses between them. Of these forms, only those that the library names count. If they are on different
lists, black wins over gray, and gray over white. An operator without a form is gray.

Rule S5.9: A library that has only a newer version of a form has the operator under this name.

Rule S5.7: The Ascend engine matches the names of lists after its own graph fusion, which makes a Square of some
multiplications and powers. ``fused_op`` finds these nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mixlist.lists.library import ListName, Lists, NameSpace
from mixlist.lists.op_catalog import ascend_ops, canonical_domain, onnx_domains
from mixlist.model import dtypes
from mixlist.model.weights import embedded_array, is_external, stored_element_count

if TYPE_CHECKING:
    from mixlist.model.graph import Node
    from mixlist.model.protos import ConstantProto


def ascend_names(domain: str, op_type: str) -> tuple[str, ...]:
    """Return the Ascend op types that compute an ONNX operator; empty if it has no counterpart."""
    return _ascend_forms().get(domain, {}).get(op_type, ())


def onnx_names(domain: str, op_type: str) -> tuple[str, str]:
    """Return the two names by which a list of ONNX names can mean an operator: ``Op`` and ``domain::Op``."""
    return op_type, f"{domain or 'ai.onnx'}::{op_type}"


def operator_name(domain: str, op_type: str) -> str:
    """Return the name of an operator in messages: the op type, with its domain if that is not the standard one."""
    return f"{domain}::{op_type}" if domain else op_type


def onnx_ops_of(ascend_op: str) -> list[str]:
    """Return the ONNX op types of the standard domain that an Ascend op type computes, sorted."""
    return sorted(op for op, forms in _ascend_forms()[""].items() if ascend_op in forms and op in onnx_domains()[""])


def counterparts(op: str, space: NameSpace) -> Sequence[str]:
    """Return the names in a name space of the operators that an op type of the other name space means."""
    return ascend_names("", op) if space == "ascend" else onnx_ops_of(op)


# The floats that the pass MulSquareFusionPass of the engine takes: no bfloat16.
_MUL_SQUARE_TYPES = frozenset({dtypes.FLOAT, dtypes.FLOAT16})


def fused_op(node: Node) -> str | None:
    """Return the Ascend op type that the fusion of the engine makes of one node; None if it keeps the node's own.

    Rule S5.7: ``Mul(x, x)`` and ``Pow(x, 2)`` become ``Square``.
    """
    if node.domain or len(node.inputs) != 2:
        return None
    base, second = node.inputs
    if node.op_type == "Mul":
        is_square = base is second and dtypes.element(node.input_types[0]) in _MUL_SQUARE_TYPES
    elif node.op_type == "Pow":
        exponent = None if second is None else second.constant_proto
        is_square = exponent is not None and _is_two(exponent)
    else:
        is_square = False
    return "Square" if is_square else None


def _is_two(constant: ConstantProto) -> bool:
    """Return whether a constant is one float32 that the pass Pow2SquareFusionPass of the engine takes for 2."""
    from onnx import AttributeProto, TensorProto

    if isinstance(constant, AttributeProto):
        values = [constant.f] if constant.type == AttributeProto.FLOAT else list(constant.floats)
    elif not isinstance(constant, TensorProto) or constant.data_type != TensorProto.FLOAT or is_external(constant):
        return False
    else:
        values = embedded_array(constant).ravel().tolist() if stored_element_count(constant) == 1 else []
    return len(values) == 1 and abs(values[0] - 2) <= 1e-6


def ascend_forms(node: Node) -> tuple[str, ...]:
    """Return the Ascend op types that compute a node in the graph that the lists meet; empty without a counterpart."""
    fused = fused_op(node)
    return (fused,) if fused is not None else ascend_names(node.domain, node.op_type)


@cache
def ambiguous_names() -> frozenset[str]:
    """Return the names that ONNX and Ascend both have, but for different operators.

    Example: ``MatMul`` is an Ascend op type, but an ONNX MatMul becomes ``BatchMatMulV2``.
    """
    forms_by_op = _ascend_forms()[""]
    return frozenset(
        op for op, forms in forms_by_op.items() if op in ascend_ops() and op not in forms and op in onnx_domains()[""]
    )


@cache
def _ascend_forms() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return the Ascend op types by domain and ONNX op type."""
    path = Path(__file__).parent / "data" / "onnx_to_ascend.json"
    content = json.loads(path.read_text("utf-8"))
    return {domain: {op: tuple(forms) for op, forms in ops.items()} for domain, ops in content["domains"].items()}


# --- the list of an operator ---


_PRECEDENCE: tuple[ListName, ...] = ("black", "gray", "white")  # an earlier list wins over a later one


class ListMatch(NamedTuple):
    """The list of one operator, and the entry that decides.

    ``op``: the name in the list that decides, for example ``Conv2D`` for an ONNX Conv in an Ascend library. ``source``:
    the place in a file, or the library, that put ``op`` on the list; "" if no list names it. ``note``: a remark for the
    user, for example about forms on different lists.
    """

    list: ListName
    op: str
    source: str
    note: str | None = None


def find_list(
    lists: Lists,
    space: NameSpace,
    domain: str,
    op_type: str,
    rank: Callable[[], int | None] = lambda: None,
    fused: str | None = None,
) -> ListMatch:
    """Return the list of the ONNX operator ``domain::op_type``; the domain "" is the standard domain.

    ``rank`` returns the number of dimensions of the operator's first input, or None if it is unknown. It is called
    only if an operator has 2D and 3D forms, because finding the rank may need a run of shape inference. Results are not
    cached: call this once for each domain, op type and rank. ``fused``: the op type of ``fused_op``; it replaces
    those of the operator in a library of Ascend names.
    """
    domain = canonical_domain(domain)
    if space == "ascend" and fused is not None:
        match = find_list_of_forms(lists, operator_name(domain, op_type), (fused,), rank)
        return match if match.note else match._replace(note=f"the engine makes {fused} of this {op_type} (S5.7)")
    if space == "ascend":
        return _find_by_ascend_name(lists, domain, op_type, rank)
    return _find_by_onnx_name(lists, domain, op_type)


def _find_by_onnx_name(lists: Lists, domain: str, op_type: str) -> ListMatch:
    for name in reversed(onnx_names(domain, op_type)):  # domain::Op wins over Op
        if lists.has_entry(name):
            return ListMatch(lists.list_of(name), name, lists.source(name))
    return ListMatch("gray", op_type, "", f"no list names {operator_name(domain, op_type)}: it is gray")


def _find_by_ascend_name(lists: Lists, domain: str, op_type: str, rank: Callable[[], int | None]) -> ListMatch:
    shown_name = operator_name(domain, op_type)
    forms = ascend_names(domain, op_type)
    if not forms:
        return ListMatch("gray", op_type, "", f"{shown_name} has no Ascend counterpart: it is gray")
    return find_list_of_forms(lists, shown_name, forms, rank)


def find_list_of_forms(
    lists: Lists, shown_name: str, forms: tuple[str, ...], rank: Callable[[], int | None]
) -> ListMatch:
    """Return the list of an operator that becomes one of the Ascend op types ``forms``. ``rank`` as in ``find_list``.

    ``shown_name`` is the operator's name in remarks. An operator of a training without an ONNX form, such as the
    gradient of a convolution, has Ascend op types only.
    """
    forms = newest_forms(lists, _forms_of_rank(forms, rank))
    # A form without an entry would be gray, and gray would win over a white form that the library names.
    listed_forms = [form for form in forms if lists.has_entry(form)]
    if not listed_forms:
        form_names = " or ".join(forms)
        unnamed = f"{shown_name} is {form_names} on Ascend and has no entry in the library: gray"
        return ListMatch("gray", forms[0], "", unnamed)
    list_by_form = {form: lists.list_of(form) for form in listed_forms}
    winner = min(listed_forms, key=lambda form: _PRECEDENCE.index(list_by_form[form]))
    note = None
    if len(set(list_by_form.values())) > 1:
        differ = ", ".join(f"{form} is {list_by_form[form]}" for form in listed_forms)
        several = f"{shown_name} can become several Ascend ops that are on different lists ({differ})"
        note = f"{several}: {winner} decides (S5.4)"
    return ListMatch(list_by_form[winner], winner, lists.source(winner), note)


# By op type, the newer one that the engine makes of it on the chips that have it. Passes of hicann/ops-nn, August 2026:
# MatMulToMatmulV3, Conv2dToConv2dV2, Conv3DToConv3DV2, and those of Conv2DTranspose and Conv3DTranspose.
_NEWER_FORMS = {
    "MatMul": "MatMulV3",
    "MatMulV2": "MatMulV3",
    "BatchMatMul": "BatchMatMulV3",
    "BatchMatMulV2": "BatchMatMulV3",
    "Conv2D": "Conv2DV2",
    "Conv3D": "Conv3DV2",
    "Conv2DTranspose": "Conv3DTransposeV2",
    "Conv3DTranspose": "Conv3DTransposeV2",
}


def newest_forms(lists: Lists, forms: tuple[str, ...]) -> tuple[str, ...]:
    """Return the forms, with the newer version of each that the library has only so (Rule S5.9)."""
    library = lists.library.lists
    return tuple(
        _NEWER_FORMS[form] if form not in library and _NEWER_FORMS.get(form) in library else form for form in forms
    )


def _forms_of_rank(forms: tuple[str, ...], rank: Callable[[], int | None]) -> tuple[str, ...]:
    """Return the forms that fit the rank of the first input; all forms if the rank does not matter or is unknown."""
    forms_3d = tuple(form for form in forms if "3D" in form)
    forms_2d = tuple(form for form in forms if "3D" not in form)
    dims = rank() if forms_3d and forms_2d else None
    if dims is None:
        return forms
    # Batch and channel come first: a 3D form takes 5 dimensions and a 2D form 4. The Ascend parser
    # turns an input of 3 dimensions into one of 4.
    return forms_3d if dims >= 5 else forms_2d
