"""Name the execution providers of ONNX Runtime, and read their kernels.

The kernels come from one of two sources (``target.load_target`` chooses):

- The installed ONNX Runtime (``get_all_opkernel_def``), if all its providers are built into it. The answer is then true
  for the installed build.
- The file data/PROVIDER.json, which tools/make_kernels.py writes from one release. It is used for CUDA on machines
  without CUDA, and for every build that loads providers as libraries. ONNX Runtime 1.31.1 crashes with a segmentation
  fault when it lists its kernels and one of the provider libraries does not load. Most users of onnxruntime-gpu do not
  have the libraries of TensorRT, and would see this fault.

ONNX Runtime chooses a kernel by its version range: a kernel fits a node if its range starts at the version in which the
operator last changed, or if its range has an end and contains that version.

Rule S13.2: The attributes of a node decide, too. The CPU provider registers float16 and bfloat16 kernels of
ScatterElements and ScatterND that refuse a ``reduction`` when they run. ONNX Runtime lists no such attributes, so
``_REDUCTIONS`` has them. A test of `make campaign` runs the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mixlist.installed_runtime import has_onnxruntime, require_onnxruntime
from mixlist.option_fields import option

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


TargetName = Literal["cpu", "cuda", "tensorrt", "webgpu", "dml"]


@dataclass(frozen=True, kw_only=True)
class ProviderOption:
    """The option ``provider`` of all commands that run models: a key of ``PROVIDERS``."""

    provider: Literal["cpu", "cuda"] = option(
        "cpu", "The execution provider that runs the models.", choices=tuple(PROVIDERS)
    )


def available_providers() -> tuple[str, ...]:
    """Return the short names of the providers in the installed ONNX Runtime: ``cpu``, and ``cuda`` if it has CUDA.

    Raises UsageError if ONNX Runtime is not installed.
    """
    require_onnxruntime()
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return tuple(short_name for short_name, name in PROVIDERS.items() if name in available)


# --- the kernels of a provider ---


DATA = Path(__file__).parent / "data"
# The float types that the tables hold, as ONNX Runtime names them: "float" is float32, "double" is float64.
FLOAT_NAMES = ("float16", "bfloat16", "float", "double")
# The providers in the CPU wheels of ONNX Runtime, which load no library at run time.
_BUILT_IN_PROVIDERS = frozenset({"CPUExecutionProvider", "AzureExecutionProvider", "CoreMLExecutionProvider"})
# Stands for every type parameter of an operator, in tables whose source does not tell them apart.
ANY_PARAMETER = "*"
# The reductions that the kernels of the CPU provider run, where they refuse the others (ONNX Runtime 1.32.0).
_REDUCTIONS = {
    "ScatterElements": {"float16": frozenset({"none", "min", "max"}), "bfloat16": frozenset({"none"})},
    "ScatterND": {"float16": frozenset({"none"}), "bfloat16": frozenset({"none"})},
}
# ONNX Runtime's value for the end of a version range without an end.
_NO_END = 2**31 - 1


@dataclass(frozen=True)
class Kernel:
    """One kernel of an operator.

    ``start`` and ``end`` are the first and the last operator version of the kernel; ``end`` is None for a range without
    an end. ``types`` holds, for each type parameter, those of ``FLOAT_NAMES`` that the kernel accepts there.
    ``attributes`` holds the texts that an attribute may have; an attribute that is absent may have any.
    """

    start: int
    end: int | None
    types: Mapping[str, frozenset[str]]
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def fits(self, since_version: int) -> bool:
        """Return True if the kernel fits an operator that last changed in version ``since_version``.

        A range without an end fits only if it starts at this version, as ONNX Runtime decides.
        """
        return self.start == since_version or (self.end is not None and self.start <= since_version <= self.end)

    def accepts(self, dtype: str, parameters: set[str]) -> bool:
        """Return True if the kernel accepts ``dtype`` for all of ``parameters``.

        The types of ANY_PARAMETER hold for all parameters. Otherwise a kernel does not restrict a parameter that is
        absent from ``types``. At least one parameter in ``types`` must accept ``dtype``.
        """
        restricted = [self.types[parameter] for parameter in parameters if parameter in self.types]
        return any(dtype in types for types in self.types.values()) and all(dtype in types for types in restricted)


# One kernel in a data file: its start, its end, and its types as ``{"T": "float16 float"}``. A fourth element has the
# texts that its attributes may have, as ``{"reduction": "none max"}``.
KernelRow = tuple[int, int | None, dict[str, str]] | tuple[int, int | None, dict[str, str], dict[str, str]]
# The kernels in a data file by domain and op type.
KernelRows = dict[str, dict[str, list[KernelRow]]]


# The kernels by domain and op type. An empty tuple: the operator has kernels, but none for a float type.
Registry = Mapping[tuple[str, str], tuple[Kernel, ...]]


def can_list_kernels(provider: str) -> bool:
    """Return True if the installed ONNX Runtime has the provider and can list its kernels without a crash."""
    if not has_onnxruntime():
        return False
    import onnxruntime

    # One provider that is loaded as a library makes the list unsafe, also for the other providers of that build.
    available = onnxruntime.get_available_providers()
    return PROVIDERS[provider] in available and _BUILT_IN_PROVIDERS.issuperset(available)


def read_registered_kernels(provider: str) -> Registry:
    """Return the kernels of ``provider`` in the installed ONNX Runtime.

    This can crash the process: see the module's docstring.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    registry: dict[tuple[str, str], tuple[Kernel, ...]] = {}
    for kernel_def in state.get_all_opkernel_def():
        if kernel_def.provider == PROVIDERS[provider]:
            start, end = kernel_def.version_range
            types = {parameter: _float_types(names) for parameter, names in kernel_def.type_constraints.items()}
            kernel = Kernel(start, None if end == _NO_END else end, types)
            key = (kernel_def.domain, kernel_def.op_name)
            registry.setdefault(key, ())
            reductions = _REDUCTIONS.get(kernel_def.op_name, {}) if (provider, key[0]) == ("cpu", "") else {}
            for part in _split_by_reduction(kernel, reductions):
                # Keep no kernel without a float type, and one of several that differ only in other types.
                if any(part.types.values()) and part not in registry[key]:
                    registry[key] = (*registry[key], part)
    return registry


def _split_by_reduction(kernel: Kernel, reductions: Mapping[str, frozenset[str]]) -> Iterator[Kernel]:
    """Yield a kernel for each type whose reductions are limited, and one for the other types."""
    limited = frozenset(reductions)
    yield replace(kernel, types={parameter: types - limited for parameter, types in kernel.types.items()})
    for dtype, allowed in reductions.items():
        types = {parameter: types & {dtype} for parameter, types in kernel.types.items()}
        yield replace(kernel, types=types, attributes={"reduction": allowed})


def _float_types(names: Iterable[str]) -> frozenset[str]:
    """Return the float types in names such as ``tensor(float)``, also of sequences and optionals of tensors."""
    return frozenset(FLOAT_NAMES).intersection(name.rpartition("(")[2].rstrip(")") for name in names)


def parse_registry(rows: KernelRows) -> Registry:
    """Return the registry of the rows of a data file."""
    return {
        (domain, op_type): tuple(
            Kernel(start, end, _split_texts(types), *map(_split_texts, attributes))
            for start, end, types, *attributes in kernels
        )
        for domain, operators in rows.items()
        for op_type, kernels in operators.items()
    }


def _split_texts(texts: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the words of each text."""
    return {name: frozenset(text.split()) for name, text in texts.items()}
