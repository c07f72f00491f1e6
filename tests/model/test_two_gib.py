"""Test real models at protobuf's limit of 2 GiB. They need 10 GB of memory, so they run only with MIXLIST_LARGE.

MIXLIST_LARGE=1 python -m pytest tests/model/test_two_gib.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        "MIXLIST_LARGE" not in os.environ, reason="needs 10 GB of memory and of disk: set MIXLIST_LARGE"
    ),
    pytest.mark.timeout(900),
]
LIMIT = 2**31
ROWS = 4096
BUILD = """
import sys
import numpy as np, onnx
from onnx import helper
path, rows, columns, both = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "both"
nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="low")]
outputs = [helper.make_tensor_value_info("y", 1, [1, columns])]
if both:
    nodes.append(helper.make_node("ReduceMax", ["w"], ["z"], name="high", keepdims=0))
    outputs.append(helper.make_tensor_value_info("z", 1, []))
weight = onnx.TensorProto(name="w", data_type=1, dims=[rows, columns])
weight.raw_data = np.tile(np.arange(columns, dtype=np.float32) % 251, (rows, 1)).tobytes()
graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [1, rows])], outputs, [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
open(path, "wb").write(model.SerializeToString())
"""


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in another process, so that its memory is freed at the end."""
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)


def write_model(path: Path, kind: str) -> int:
    """Write a model whose size is less than 64 KiB below the limit; return the number of columns of its only weight.

    With the kind ``both``, a low and a high node read the weight.
    """
    columns = (LIMIT - 4096) // (4 * ROWS)
    process = python("-c", BUILD, path, ROWS, columns, kind)
    assert process.returncode == 0, process.stderr
    assert LIMIT - 2**16 < path.stat().st_size < LIMIT
    return columns


def test_a_model_just_below_the_limit_has_no_data_file(tmp_path: Path) -> None:
    columns, out = write_model(tmp_path / "m.onnx", "low"), tmp_path / "o.onnx"
    process = python("-m", "mixlist", "apply", tmp_path / "m.onnx", "-o", out)
    assert process.returncode == 0, process.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "o.onnx"]
    assert 0 < out.stat().st_size - 2 * ROWS * columns < 4096


def test_a_result_over_the_limit_gets_a_data_file(tmp_path: Path) -> None:
    columns, out = write_model(tmp_path / "m.onnx", "both"), tmp_path / "o.onnx"
    refused = python("-m", "mixlist", "apply", tmp_path / "m.onnx", "-o", out, "--external-data", "no")
    assert refused.returncode == 2 and "2 GiB" in refused.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    process = python("-m", "mixlist", "apply", tmp_path / "m.onnx", "-o", out)
    assert process.returncode == 0, process.stderr
    (data,) = tmp_path.glob("*-*.data")
    assert data.stat().st_size == 6 * ROWS * columns and out.stat().st_size < 4096
    load_code = "import sys, onnxruntime as o; o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
    load_process = python("-c", load_code, out)
    assert load_process.returncode == 0, load_process.stderr
