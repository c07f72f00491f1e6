"""Run the command line inside the test process, and capture its streams."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mixlist.cli import main


@dataclass(frozen=True)
class CompletedCommand:
    """The exit status of a command and the text that it printed."""

    status: int
    out: str
    err: str


Run = Callable[..., CompletedCommand]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs ``mixlist ARGS`` and returns status, stdout and stderr; stdin is text or bytes."""

    def call(*args: object, stdin: str | bytes = b"") -> CompletedCommand:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return CompletedCommand(status, captured.out, captured.err)

    return call


MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] w = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}>
{
    [first] a = MatMul (x, w)
    [second] b = Relu (a)
    [third] y = Softmax (b)
}
"""


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """Write a model with a white, a gray and a black node into a folder of its own; return its path."""
    import onnx

    path = tmp_path / "models" / "small.onnx"
    path.parent.mkdir()
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path
