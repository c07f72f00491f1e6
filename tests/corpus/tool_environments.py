"""Environments of their own for the tools that convert or show models.

Each tool but ONNX Runtime has one in the folder of the corpus. It is made once, and holds the versions from which the
exceptions of the export, and the identities of nodes, were derived.
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
_MIXLIST = ["--editable", f"{Path(__file__).parents[2]}[cpu]"]  # for tools that import mixlist, or scripts that call it
OTHER_TOOLS = {
    "onnxsim": [["onnxsim==0.8.1", "onnx>=1.21"]],
    "transformers": [["torch==2.13.*", "transformers==4.57.6", "onnxscript"]],
    "networks": [
        ["torch==2.13.*", "transformers==4.57.6", "diffusers==0.39.0", "onnxruntime-genai==0.11.*", "onnxscript"]
    ],
    "olive": [["olive-ai==0.13.0", "requests"], _MIXLIST],
    "training": [
        ["torch==2.13.*", "transformers", "accelerate", "lightning", "scipy"],
        _MIXLIST,
    ],
    # timm needs torchvision, whose build must be that of PyTorch, and which the other libraries import if it is there.
    "timm": [["torch==2.14.*", "torchvision==0.29.*", "timm", "scipy"], _MIXLIST],
    "optimum": [["optimum-onnx", "torch==2.13.*", "mlflow", "tensorboard"], _MIXLIST],
}
# AutoCast ends with an error for these models, whatever the lists and settings are.
NOT_CONVERTED_BY_MODELOPT = {
    "ddddocr_common_old": "it needs TensorRT for operators of ONNX Runtime",
    "light_densenet121": "its own conversion to opset 13 makes the model invalid",
    "light_resnet50": "its own conversion to opset 13 makes the model invalid",
    "silero_vad_v6": "it raises KeyError or IndexError for bodies of control flow",
    "slanet_1m": "it raises KeyError for bodies of control flow",
}


def make_environment(tool: str, folder: Path) -> str:
    """Return the Python of a tool's environment in ``folder``; make the environment unless it is complete."""
    requirements_of_tool = (REQUIREMENTS | OTHER_TOOLS).get(tool)
    if requirements_of_tool is None:
        return sys.executable
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=SECONDS)
        for requirements in requirements_of_tool:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True, timeout=1800)
        (folder / "complete").touch()
    return str(python)


def last_error_line(command: list[str], folder: Path) -> str:
    """Run a tool's command in a folder; return the last line of the error, or "" if the tool succeeds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return f"it did not end in {SECONDS} s"
    error = done.stderr.strip() or f"it ended with status {done.returncode}"  # a killed process says nothing
    return error.splitlines()[-1] if done.returncode else ""
