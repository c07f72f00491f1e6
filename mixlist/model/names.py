"""The names of ONNX operators: in ONNX, in lists, in messages, and in the Ascend libraries (Rules S5.2, S5.3).

The ONNX parser of the Ascend compiler converts an ONNX operator to one of several Ascend op types, its *forms*. The map
``data/onnx_to_ascend.json`` holds only the forms that compute, not the Transpose or Reshape around them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from mixlist.lists.op_catalog import ascend_ops, onnx_domains


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
