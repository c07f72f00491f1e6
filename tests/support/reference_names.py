"""The list of a node in Ascend names.

Rule S5.3: a node is on the list of the Ascend op type that computes it. Rule S5.4: of several forms black wins over
gray, and gray over white. Rule S5.7: Mul(x, x) and Pow(x, 2) are Square. Rule S5.5: an operator without a
counterpart is gray. Rule S5.9: a library that has only the newer version of an op type has the operator under it.
Forms for other ranks of the first input are not distinguished: a library that is compared here has all forms of an
operator on one list.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from mixlist import Policy
from tests.support.reference_model import Node

NAMES = Path(__file__).parents[2] / "tools" / "data" / "onnx_to_ascend.json"


@cache
def ascend_names() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the Ascend op types of each ONNX operator, by domain and op type."""
    entries = json.loads(NAMES.read_text(encoding="utf-8"))["ops"]
    return {(domain, op): tuple(entry["main"]) for op, entry in entries.items() for domain in entry["domains"]}


def is_square(node: Node) -> bool:
    """Return whether the fusion of the engine makes a Square of a node (Rule S5.7)."""
    if not node.is_standard or len(node.inputs) != 2 or None in node.inputs:
        return False
    if node.op == "Mul":
        return node.proto.input[0] == node.proto.input[1] and node.inputs[0].elem in (1, 10)
    if node.op != "Pow":
        return False
    exponent = node.inputs[1]
    array = exponent.array
    if exponent.producer is not None and exponent.producer.op == "Constant":
        array = onnx.helper.get_node_attr_value(exponent.producer.proto, exponent.producer.proto.attribute[0].name)
        array = onnx.numpy_helper.to_array(array) if isinstance(array, onnx.TensorProto) else np.float32(array)
    return (
        isinstance(array, np.ndarray | np.float32)
        and array.dtype == np.float32
        and array.size == 1
        and (abs(float(array.reshape(())) - 2) <= 1e-6)
    )


def names_of(node: Node) -> tuple[str, ...]:
    """Return the Ascend op types that a node can become."""
    if is_square(node):
        return ("Square",)
    return ascend_names().get(("ai.onnx" if node.is_standard else node.proto.domain, node.op), ())


def names_in(policy: Policy, node: Node) -> tuple[str, ...]:
    """Return the Ascend op types of a node, as the library of a policy has them (Rule S5.9)."""
    library = policy.lists.library.lists
    newer = {"MatMulV2": "MatMulV3", "BatchMatMulV2": "BatchMatMulV3", "Conv2D": "Conv2DV2", "Conv3D": "Conv3DV2"}
    newer |= {"Conv2DTranspose": "Conv3DTransposeV2", "Conv3DTranspose": "Conv3DTransposeV2"}
    return tuple(newer[name] if name not in library and newer.get(name) in library else name for name in names_of(node))


def ascend_list(node: Node, policy: Policy) -> str:
    """Return the list of a node, from the names that the library knows."""
    lists = {policy.lists.list_of(name) for name in names_in(policy, node) if policy.lists.has_entry(name)}
    found = next((name for name in ("black", "gray", "white") if name in lists), "gray")
    return found if found == "black" else by_kernel(found, names_in(policy, node), policy)


def kernels_of(node: Node, policy: Policy) -> frozenset[str]:
    """Return the types in which the chip computes a node; none if the library does not say."""
    kernels = policy.lists.library.kernels if policy.space == "ascend" else {}
    return next((kernels[name] for name in names_in(policy, node) if name in kernels), frozenset())


def by_kernel(found: str, names: tuple[str, ...], policy: Policy) -> str:
    """Return the list that decides like the kernels of the chip (Rule S4.50)."""
    for name in names:
        types = policy.lists.library.kernels.get(name)
        if types and policy.lists.list_of(name) == found:
            if policy.mode.low not in types:
                return "black"
            return "white" if "float32" not in types else found
    return found
