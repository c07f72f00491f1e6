"""Running the command line inside the test process, streams captured."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mixlist.cli import main


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls ``mixlist ARGS`` and returns status, stdout and stderr; ``stdin`` is text or bytes."""

    def call(*args: object, stdin: str | bytes = b"") -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

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
    """A model with a white, a gray and a black node, in a folder of its own."""
    import onnx

    path = tmp_path / "models" / "small.onnx"
    path.parent.mkdir()
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path
