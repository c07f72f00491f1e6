"""Look up the kernels of ONNX Runtime's providers by operator version and type.

A build without providers that load as libraries is asked itself (``get_all_opkernel_def``), so the answer is true for
the build at hand. Any other is not asked, because ONNX Runtime 1.31.1 dies of a segmentation fault there when one of
its providers does not load: onnxruntime-gpu without TensorRT's libraries, which is how most people have it. For these,
and for CUDA on machines without it, data/kernels_PROVIDER.json holds the registry of one release;
tools/make_kernels.py writes it, and ``kernel_release`` says which release.

A kernel fits a node by the runtime's rule: it starts at the version in which the operator last changed, or it
is a closed range around that version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from mixlist.graph.traversal import linked_scopes
from mixlist.ops.schema import find_schema
from mixlist.resolver import Decision, Plan
from mixlist.targets.providers import PROVIDERS

DATA = Path(__file__).parent / "data"
FLOATS = ("float16", "bfloat16", "float", "double")
_BUILT_IN = frozenset({"CPUExecutionProvider", "AzureExecutionProvider", "CoreMLExecutionProvider"})
_OPEN = 2**31 - 1  # the end of a version range that has none


@dataclass(frozen=True)
class Kernel:
    """One kernel: the first and last operator version it is for (None: no last) and, for each of its type parameters,
    which of FLOATS it takes there."""

    start: int
    end: int | None
    types: Mapping[str, frozenset[str]]

    def fits(self, since: int) -> bool:
        """Return True if the kernel is for an operator that last changed in version ``since``."""
        return self.start == since or (self.end is not None and self.start <= since <= self.end)

    def takes(self, dtype: str, wanted: set[str]) -> bool:
        """Return True if the kernel takes ``dtype`` in a parameter, and in all ``wanted`` parameters that it names."""
        known = [self.types[parameter] for parameter in wanted if parameter in self.types]
        return any(dtype in types for types in self.types.values()) and all(dtype in types for types in known)


class KernelData(TypedDict):
    """A data file: the release, and by domain and op type the kernels, [start, end, {parameter: "float16 float"}]."""

    source: str
    kernels: dict[str, dict[str, list[tuple[int, int | None, dict[str, str]]]]]


Registry = Mapping[tuple[str, str], tuple[Kernel, ...]]  # by domain and op type; () has kernels, none of a float type


def find_nodes_without_low_kernel(plan: Plan, provider: str) -> tuple[Decision, ...]:
    """The low nodes of the plan for which ``provider`` has no kernel in their low type."""
    low = plan.policy.mode.low
    found = []
    scopes = ((s.graph, scope) for s in plan.solution.solutions for scope in linked_scopes(s.graph.root))
    nodes = ((graph.opsets, node) for graph, scope in scopes for node in scope.nodes)
    for decision, (opsets, node) in zip(plan.nodes, nodes, strict=True):
        if decision.precision != low:
            continue
        outputs = tuple(at for at, v in enumerate(node.outputs) if v is not None and decision.outputs[v.name] == low)
        if not has_low_kernel(provider, node.domain, node.op_type, opsets.get(node.domain, 1), low, outputs):
            found.append(decision)
    return tuple(found)


def has_low_kernel(provider: str, domain: str, op_type: str, opset: int, low: str, outputs: tuple[int, ...]) -> bool:
    """Return True if ``provider`` (``cpu``, ``cuda``) has a kernel of the operator for the low type.

    ``low`` is one of FLOATS, ``outputs`` the indices of the outputs that have it; where there are none (ArgMax,
    Equal), any type parameter of the kernel may. True also for an operator that has no kernel of any type but a
    function body: the runtime expands it into other operators.
    """
    schema = find_schema(domain, op_type, opset)
    found = _kernels(provider).get((domain, op_type))
    if schema is None or found is None:
        native = schema.onnx_schema if schema is not None else None
        return native is not None and bool(native.has_function or native.has_context_dependent_function)
    slots = schema.formal_slots(schema.outputs, max(outputs, default=-1) + 1)
    wanted = {slots[index].parameter for index in outputs if index < len(slots)}
    return any(kernel.fits(schema.since_version) and kernel.takes(low, wanted) for kernel in found)


def has_any_kernel(provider: str, domain: str, op_type: str) -> bool:
    """Return True if ``provider`` has any kernel of the operator; without one it expands or refuses the operator."""
    return (domain, op_type) in _kernels(provider)


def kernel_release(provider: str) -> str:
    """The release that the kernels are of, as ``onnxruntime 1.31.1``; "" where the installed one was asked."""
    return "" if _can_be_asked(provider) else _data(provider)["source"]


@cache
def _kernels(provider: str) -> Registry:
    return read_registered_kernels(provider) if _can_be_asked(provider) else parse_registry(_data(provider))


def _can_be_asked(provider: str) -> bool:
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return PROVIDERS[provider] in available and _BUILT_IN.issuperset(available)


def read_registered_kernels(provider: str) -> Registry:
    """Ask the installed ONNX Runtime for the kernels of ``provider``. The question may end the process: see above."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], tuple[Kernel, ...]] = {}
    for each in state.get_all_opkernel_def():
        if each.provider == PROVIDERS[provider]:
            start, end = each.version_range
            types = {parameter: _floats(names) for parameter, names in each.type_constraints.items()}
            kernel = Kernel(start, None if end == _OPEN else end, types)
            kernels = found.setdefault((each.domain, each.op_name), ())
            if any(types.values()) and kernel not in kernels:
                found[each.domain, each.op_name] = (*kernels, kernel)
    return found


def _floats(names: Iterable[str]) -> frozenset[str]:
    """The float types of ``tensor(float)``, and of the sequences and optionals of such tensors."""
    return frozenset(FLOATS).intersection(name.rpartition("(")[2].rstrip(")") for name in names)


@cache
def _data(provider: str) -> KernelData:
    data: KernelData = json.loads((DATA / f"kernels_{provider}.json").read_text("utf-8"))
    return data


def parse_registry(data: KernelData) -> Registry:
    """Return the registry that a data file holds."""
    return {
        (domain, op_type): tuple(
            Kernel(start, end, {parameter: frozenset(names.split()) for parameter, names in types.items()})
            for start, end, types in kernels
        )
        for domain, operators in data["kernels"].items()
        for op_type, kernels in operators.items()
    }
