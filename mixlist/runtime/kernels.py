"""Which kernels the installed ONNX Runtime really has, by provider, operator version and type.

Asked of the runtime's own registry, so it is true for the build at hand and for no other. A kernel
fits a node by the runtime's rule: it starts at the version in which the operator last changed, or it
is a closed range around that version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from mixlist.errors import UsageError
from mixlist.graph.model import Node
from mixlist.graph.naming import scopes_of
from mixlist.ops.schema import find_schema
from mixlist.resolver.plan import Decision, Plan
from mixlist.runtime.sessions import PROVIDERS

_OPEN = 2**31 - 1  # the end of a version range that has none
_Key = tuple[str, str]


def without_low_kernel(plan: Plan, provider: str) -> tuple[Decision, ...]:
    """The low nodes of the plan for which ``provider`` has no kernel in their low type.

    Raises UsageError if the installed ONNX Runtime has no such provider.
    """
    low = plan.policy.mode.low
    found = []
    for decision, (node, opsets) in zip(plan.nodes, _nodes(plan), strict=True):
        if decision.precision != low:
            continue
        outputs = tuple(at for at, v in enumerate(node.outputs) if v is not None and decision.outputs[v.name] == low)
        if not has_low_kernel(provider, node.domain, node.op_type, opsets.get(node.domain, 1), low, outputs):
            found.append(decision)
    return tuple(found)


def _nodes(plan: Plan) -> Iterator[tuple[Node, dict[str, int]]]:
    """The plan's nodes in the order of its decisions, each with the opsets that hold for it."""
    for solution in plan.solution.solutions:
        for scope in scopes_of(solution.graph):
            for node in scope.nodes:
                yield node, solution.graph.opsets


def has_low_kernel(provider: str, domain: str, op_type: str, opset: int, low: str, outputs: tuple[int, ...]) -> bool:
    """Whether ``provider`` (``cpu``, ``cuda``) has a kernel of the operator for the low type.

    ``low`` is ``float16`` or ``bfloat16``, ``outputs`` the indices of the outputs that have it; where
    there are none (ArgMax, Equal), any type parameter of the kernel may. True also for an operator
    that has no kernel of any type but a function body: the runtime expands it into other operators.

    Raises UsageError if the installed ONNX Runtime has no such provider.
    """
    schema = find_schema(domain, op_type, opset)
    found = _kernels(provider).get((domain, op_type), ())
    if schema is None or not found:
        return schema is not None and _has_body(schema.native)
    slots = schema.parameters(schema.outputs, max(outputs, default=-1) + 1)
    wanted = {slots[index].parameter for index in outputs if index < len(slots)}
    return any(_fits(kernel, schema.since) and _takes(kernel, f"tensor({low})", wanted) for kernel in found)


def _fits(kernel: Any, since: int) -> bool:
    start, end = kernel.version_range
    return bool(start == since or (end < _OPEN and start <= since <= end))


def _takes(kernel: Any, tensor: str, wanted: set[str]) -> bool:
    constraints = kernel.type_constraints
    known = [constraints[parameter] for parameter in wanted if parameter in constraints]
    return any(tensor in types for types in constraints.values()) and all(tensor in types for types in known)


def _has_body(native: Any) -> bool:
    return native is not None and (native.has_function or native.has_context_dependent_function)


@cache
def _kernels(provider: str) -> dict[_Key, list[Any]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[_Key, list[Any]] = defaultdict(list)
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == PROVIDERS[provider]:
            found[kernel.domain, kernel.op_name].append(kernel)
    if not found:
        raise UsageError(
            f"the installed onnxruntime has no {provider} kernels, so which ones are missing cannot be told here",
            hint="run this where onnxruntime-gpu is installed in place of onnxruntime",
        )
    return dict(found)
