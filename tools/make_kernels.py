#!/usr/bin/env python3
"""Write mixlist/targets/data/PROVIDER.json: the kernels of the installed ONNX Runtime's providers.

    python tools/make_kernels.py [FOLDER]

With onnxruntime-gpu it writes the kernels of cpu and cuda, otherwise those of cpu. ONNX Runtime crashes when it lists
its kernels and a provider of its build does not load. So onnxruntime-gpu needs a device, and CUDA, cuDNN and TensorRT
where it finds them. The files have only what mixlist reads: versions, and the float types that each type parameter
takes. tools/make_tensorrt.py writes the table of TensorRT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mixlist.targets.providers import DATA, FLOAT_NAMES, Kernel, available_providers, read_registered_kernels
from mixlist.targets.target import FORMAT

# ONNX Runtime inserts Casts around a float16 node of the CPU provider without a kernel, and does so in no other type:
# InsertCastTransformer of onnxruntime/core/optimizer. Nodes that CUDA does not take go to the CPU provider.
OTHERWISE = {
    "cpu": {"float16": "cast", "bfloat16": "refusal"},
    "cuda": {"float16": "fallback", "bfloat16": "fallback"},
}


def row(kernel: Kernel) -> list[Any]:
    """Return one kernel as a row of the file: first version, last version, float types by type parameter.

    A fourth element has the texts that attributes may have, if the kernel does not take all.
    """
    types = {p: " ".join(t for t in FLOAT_NAMES if t in takes) for p, takes in sorted(kernel.types.items())}
    attributes = {name: " ".join(sorted(texts)) for name, texts in kernel.attributes.items()}
    return [kernel.start, kernel.end, types, *([attributes] if attributes else [])]


def merge_kernels(kernels: tuple[Kernel, ...]) -> list[Kernel]:
    """Merge the kernels that differ only in the types that their one type parameter takes."""
    merged: dict[tuple[int, int | None, str], frozenset[str]] = {}
    separate = []
    for kernel in kernels:
        if len(kernel.types) != 1 or kernel.attributes:
            separate.append(kernel)
            continue
        ((parameter, takes),) = kernel.types.items()
        key = (kernel.start, kernel.end, parameter)
        merged[key] = merged.get(key, frozenset()) | takes
    return separate + [Kernel(start, end, {parameter: takes}) for (start, end, parameter), takes in merged.items()]


def make(provider: str) -> dict[str, Any]:
    """Return the content of a provider's file."""
    import onnxruntime

    onnxruntime.preload_dlls()
    kernels: dict[str, dict[str, Any]] = {}
    for (domain, op_type), registered in sorted(read_registered_kernels(provider).items()):
        kernels.setdefault(domain, {})[op_type] = sorted(map(row, merge_kernels(registered)), key=json.dumps)
    cuda = f" (CUDA {onnxruntime.cuda_version})" if onnxruntime.cuda_version else ""
    return {
        "format": FORMAT,
        "name": provider,
        "source": f"{onnxruntime.package_name} {onnxruntime.__version__}{cuda}",
        "otherwise": OTHERWISE[provider],
        "inlines_functions": True,
        "kernels": kernels,
    }


def text(table: dict[str, Any]) -> str:
    """Return a table as JSON, one operator a line, so that a change is easy to read in a diff."""
    domains = []
    for domain, operators in table["kernels"].items():
        lines = ",\n".join(f"{json.dumps(op)}: {json.dumps(rows)}" for op, rows in operators.items())
        domains.append(f"{json.dumps(domain)}: {{\n{lines}\n}}")
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in table.items() if key != "kernels")
    return f'{{{head}"kernels": {{{",".join(domains)}}}}}\n'


def main() -> None:
    """Write a file for each provider of this build of ONNX Runtime."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    folder.mkdir(parents=True, exist_ok=True)
    for provider in available_providers():
        (folder / f"{provider}.json").write_text(text(make(provider)), encoding="utf-8")


if __name__ == "__main__":
    main()
