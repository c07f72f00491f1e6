#!/usr/bin/env python3
"""Write mixlist/targets/data/kernels_PROVIDER.json: the kernels of the installed ONNX Runtime's providers.

Usage: python tools/make_kernels.py [FOLDER]. With onnxruntime-gpu it writes those of cpu and cuda, else those of cpu.
ONNX Runtime dies of the question where a provider of its build does not load, so onnxruntime-gpu needs the libraries
of CUDA, cuDNN and TensorRT where it finds them, and a device. Only what mixlist asks for is kept: versions, and which
float types each type parameter takes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mixlist.targets.kernels import DATA, FLOATS, Kernel, read_registered_kernels
from mixlist.targets.providers import available_providers


def row(kernel: Kernel) -> list[Any]:
    """One kernel as the file has it."""
    types = {p: " ".join(t for t in FLOATS if t in takes) for p, takes in sorted(kernel.types.items())}
    return [kernel.start, kernel.end, types]


def merged(kernels: tuple[Kernel, ...]) -> list[Kernel]:
    """Kernels that differ only in what their one type parameter takes, as one."""
    alike: dict[tuple[int, int | None, str], frozenset[str]] = {}
    found = []
    for kernel in kernels:
        if len(kernel.types) != 1:
            found.append(kernel)
            continue
        ((parameter, takes),) = kernel.types.items()
        key = (kernel.start, kernel.end, parameter)
        alike[key] = alike.get(key, frozenset()) | takes
    return found + [Kernel(start, end, {parameter: takes}) for (start, end, parameter), takes in alike.items()]


def make(provider: str) -> dict[str, Any]:
    """The file's content."""
    import onnxruntime

    onnxruntime.preload_dlls()
    kernels: dict[str, dict[str, Any]] = {}
    for (domain, op_type), found in sorted(read_registered_kernels(provider).items()):
        kernels.setdefault(domain, {})[op_type] = sorted(map(row, merged(found)), key=json.dumps)
    built = f" (CUDA {onnxruntime.cuda_version})" if onnxruntime.cuda_version else ""
    return {"source": f"{onnxruntime.package_name} {onnxruntime.__version__}{built}", "kernels": kernels}


def text(data: dict[str, Any]) -> str:
    """The content as JSON, a line an operator."""
    domains = []
    for domain, operators in data["kernels"].items():
        lines = ",\n".join(f"{json.dumps(op)}: {json.dumps(rows)}" for op, rows in operators.items())
        domains.append(f"{json.dumps(domain)}: {{\n{lines}\n}}")
    return f'{{"source": {json.dumps(data["source"])},\n"kernels": {{{",".join(domains)}}}}}\n'


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    folder.mkdir(parents=True, exist_ok=True)
    for provider in available_providers():
        (folder / f"kernels_{provider}.json").write_text(text(make(provider)), encoding="utf-8")


if __name__ == "__main__":
    main()
