"""Every command names the node, the slots and the types of a clash (Rule S4.52)."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Run
from tests.support.builders import model

CONV = "g (bfloat16[1,1,4,4] x, bfloat16[1,1,1,1] w) => (bfloat16[1,1,4,4] y) { [c] y = Conv(x, w) }"
CLASH = "g (float[4] x) => (float[4] y) <float16[4] k = {1,2,3,4}> { [a] y = Add(x, k) }"


@pytest.mark.parametrize("command", ["apply", "check", "convert", "tune", "repair", "resolve", "view", "bench"])
def test_every_command_refuses_a_clash(command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(CONV, check=False), "conv.onnx")
    onnx.save(model(CLASH, check=False), "clash.onnx")
    outputs = [] if command in ("check", "resolve", "bench") else ["-o", "out"]
    data = [] if command in ("apply", "resolve", "view") else ["--random", "1"]
    refused = run(command, "conv.onnx", *outputs, *data)
    assert refused.status == 2
    assert "node 'c' (Conv) reads bfloat16 'x' at input 0, which opset 17 does not admit\n" in refused.err
    assert "--opset 22" in refused.err
    assert not Path("out").exists()
    clash = run(command, "clash.onnx", *outputs, *data)
    assert clash.status == (0 if command == "repair" else 2)
    message = "node 'a' (Add) reads float32 'x' at input 0 and float16 'k' at input 1, which must have one type"
    assert message in (clash.out if command == "repair" else clash.err)
    assert Path("out").exists() == (command == "repair")
    assert run("apply", "conv.onnx", "-o", "converted.onnx", "--opset", "22").status == 0
