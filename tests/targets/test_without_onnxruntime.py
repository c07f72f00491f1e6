"""Without ONNX Runtime, which is an extra: what needs it says so, and everything else works."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import mixlist.cli
from mixlist.model import dtypes
from mixlist.write import tensor_conversion
from tests.support.package import data_folder

DIGITS = data_folder("demo_data") / "digits.onnx"
LIST = data_folder("demo_data") / "digits_mixlist.json"
DATA = ("--random", "1", "--dim", "batch=2")


@pytest.fixture(autouse=True)
def no_onnxruntime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # type: ignore[arg-type] # an import raises ImportError
    monkeypatch.chdir(tmp_path)


def run(*arguments: str | Path) -> int:
    return mixlist.cli.main([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", DIGITS, *DATA),
        ("tune", DIGITS, "-o", "list.json", *DATA),
        ("bench", DIGITS, *DATA),
        ("diff", "onnx", "onnx", "--model", DIGITS, *DATA),
        ("check", DIGITS, *DATA, "--jobs", "2"),
        ("demo",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_runs_models_names_the_extras(
    arguments: tuple[str | Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    message = capsys.readouterr().err
    assert "ONNX Runtime is not installed" in message
    assert "pip install onnxruntime, or onnxruntime-gpu" in message
    assert not list(Path().iterdir())


def test_repair_names_the_extras(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("apply", DIGITS, "-o", "half.onnx", "--precision-mode-v2", "fp16") == 0
    assert run("repair", "half.onnx", "-o", "repaired.onnx", *DATA) == 2
    assert "pip install onnxruntime, or onnxruntime-gpu" in capsys.readouterr().err
    assert not Path("repaired.onnx").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", LIST, "--model", DIGITS),
        ("resolve", DIGITS, "--mixlist", LIST, "--target", "cpu"),
        ("bench", DIGITS, "--estimate", "--dim", "batch=2"),
        ("export", DIGITS, "--for", "ort"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_other_commands_work(arguments: tuple[str | Path, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0, capsys.readouterr().err


def test_numpy_rounds_large_constants_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(-70000, 70000, 0.37, np.float32)
    without_runtime = tensor_conversion._round_to(values, dtypes.FLOAT16, np.dtype(np.float16), is_large=True)
    monkeypatch.undo()
    with_runtime = tensor_conversion._round_to(values, dtypes.FLOAT16, np.dtype(np.float16), is_large=True)
    assert without_runtime.tobytes() == with_runtime.tobytes()
