"""A program of a user passes strict type checking: mypy reads the types of the public functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

PROGRAM = """
from collections.abc import Iterator
from typing import assert_type

import numpy as np
import onnx

import mixlist


def run(seed: int) -> float:
    return 0.0


def batches() -> Iterator[dict[str, np.ndarray]]:
    yield {"x": np.zeros(2)}


data: mixlist.Data = ["a.npz", "b.npz"]
policy = mixlist.load_policy()
mixlist.train(run)
mixlist.train(run, runs=1)
mixlist.check("m.onnx", policy, data)
mixlist.check("m.onnx", policy, [{"x": np.zeros(2)}])
mixlist.tune("m.onnx", policy, batches())
assert_type(mixlist.convert("m.onnx", "data").model, onnx.ModelProto)
assert_type(mixlist.repair("m.onnx", data).repaired_model, onnx.ModelProto)
plan = mixlist.resolve("m.onnx", policy)
assert_type(mixlist.rewrite("m.onnx", plan).model, onnx.ModelProto)
mixlist.check("m.onnx", policy, 3)  # wrong
"""


def test_a_program_passes_and_wrong_data_do_not(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", str(program)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[1])
    lines = [line for line in completed.stdout.splitlines() if ": error:" in line]
    assert len(lines) == 1, completed.stdout + completed.stderr
    wrong_line = PROGRAM.splitlines().index('mixlist.check("m.onnx", policy, 3)  # wrong') + 1
    assert f"program.py:{wrong_line}: error: Argument 3" in lines[0]
    assert 'has incompatible type "int"' in lines[0]
