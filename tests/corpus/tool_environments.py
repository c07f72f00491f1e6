"""Environments of their own for the tools that convert models.

Each tool but ONNX Runtime has one in the folder of the corpus. It is made once, and holds the versions from which the
exceptions of the export were derived.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECONDS = 300  # for one conversion
# AutoCast needs few of the packages that nvidia-modelopt requires, so that its requirements are named here.
REQUIREMENTS = {
    "onnxconverter": [["onnxconverter-common==1.16.0", "onnx>=1.21"]],
    "modelopt": [
        ["--no-deps", "nvidia-modelopt==0.47.0"],
        ["onnx==1.21.*", "onnxruntime", "onnx-graphsurgeon>=0.6.1", "onnxslim>=0.1.76", "polygraphy>=0.53.4"],
        ["onnxconverter-common==1.16.0", "onnxscript", "torch==2.13.*", "cppimport", "lief", "ninja", "nvidia-ml-py"],
        ["omegaconf", "pulp", "pydantic", "PyYAML", "regex", "rich", "safetensors", "scipy", "tqdm"],
    ],
}


def make_environment(tool: str, folder: Path) -> str:
    """Return the Python of a tool's environment in ``folder``; make the environment unless it is complete."""
    if tool not in REQUIREMENTS:
        return sys.executable
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=SECONDS)
        for requirements in REQUIREMENTS[tool]:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True, timeout=1800)
        (folder / "complete").touch()
    return str(python)
