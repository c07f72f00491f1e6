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
mixlist.check("m.onnx", policy=policy, data=data, provider="cpu")
mixlist.tune("m.onnx", policy, batches())
mixlist.tune("m.onnx", policy=policy, data=batches())
mixlist.bench("m.onnx", policy, batches=data, rounds=10)
mixlist.train(run, policy=policy, runs=1)
assert_type(mixlist.diff(policy, policy, model="m.onnx", data=data), mixlist.DiffReport)
mixlist.diff(policy, other=policy)
mixlist.convert("m.onnx", policy=policy)
assert_type(mixlist.convert("m.onnx", "data").model, onnx.ModelProto)
assert_type(mixlist.repair("m.onnx", data).repaired_model, onnx.ModelProto)
plan = mixlist.resolve("m.onnx", policy)
assert_type(mixlist.rewrite("m.onnx", plan).model, onnx.ModelProto)
mixlist.check("m.onnx", policy, 3)  # wrong
mixlist.check("m.onnx", policy, data, provder="cpu")  # wrong
"""


def test_a_program_passes_and_wrong_data_do_not(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", str(program)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[1])
    lines = [line for line in completed.stdout.splitlines() if ": error:" in line]
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
    assert len(lines) == len(wrong), completed.stdout + completed.stderr
    assert f"program.py:{wrong[0]}: error: Argument 3" in lines[0] and 'has incompatible type "int"' in lines[0]
    assert f"program.py:{wrong[1]}: error: Unexpected keyword argument" in lines[1]
