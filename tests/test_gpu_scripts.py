"""The scripts of benchmarks/ for a GPU fit the API of today, as far as a machine without one shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.cuda import cuda_error

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MODEL = """<ir_version: 8, opset_import: ["" : 15]>
g (float[1, 1, 2, 2] x, float[1, 1, 1, 1] w) => (float[1, 1, 2, 2] y) { [c] a = Conv(x, w) [n] y = Neg(a) }"""


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one model, whose bfloat16 form has a warning: opset 15 has no bfloat16 Conv."""
    import onnx

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "small.onnx")
    batches = [{"x": np.ones((1, 1, 2, 2), np.float32), "w": np.ones((1, 1, 1, 1), np.float32)}]
    monkeypatch.setattr("tests.corpus.feeds.feeds", lambda name: batches)
    return tmp_path


@pytest.mark.parametrize("script", ["gpu_check.py", "gpu_bench.py"])
@pytest.mark.skipif(not cuda_error(), reason="this machine has CUDA")
def test_one_sentence_without_a_gpu(script: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "does not have the provider cuda" in done.stderr


def test_a_result_of_the_check_is_json_and_text(corpus: Path) -> None:
    import gpu_check

    result = json.loads(json.dumps(gpu_check.run_task("small", "cpu", str(corpus), "onnx", "mixed_bfloat16")))
    assert any("ML411" in text for text in result["native"]["warnings"])
    assert "verdicts agree" in gpu_check.format_result(result)


def test_a_result_of_the_bench_is_json_and_a_row(corpus: Path) -> None:
    import gpu_bench

    result = json.loads(json.dumps(gpu_bench.run_task(str(corpus / "small.onnx"), "0", "onnx", "cpu", "10")))
    assert gpu_bench.format_result(result).startswith("| small | onnx |")
    assert "failed" not in gpu_bench.format_result(result)
