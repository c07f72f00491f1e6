"""``--type-hints``: the types of tensors that custom operators make."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

CUSTOM = """
<ir_version: 8, opset_import: ["" : 17, "my.ops" : 1]>
g (float[2, 2] x) => (float[2, 2] y)
{
    [custom] a = my.ops.Thing (x)
    [follower] b = Relu (a)
    y = my.ops.Thing (b)
}
"""


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    path = tmp_path / "custom.onnx"
    onnx.save(onnx.parser.parse_model(CUSTOM), path)
    return path


def test_a_hint_tells_the_type(run, custom: Path, tmp_path: Path) -> None:
    def follower(*options: object) -> dict[str, str]:
        told = json.loads(run("resolve", custom, "--format", "json", *options).out)
        return next(node for node in told["nodes"] if node["name"] == "follower")["outputs"]

    assert follower() == {"b": "unknown"}
    hints = tmp_path / "hints.json"
    hints.write_text('{"a": "float32"}')
    assert follower("--type-hints", hints) == {"b": "float32"}


@pytest.mark.parametrize(
    ("text", "told"),
    [("[]", "not a JSON object"), ('{"a": 1}', "not a JSON object"), ('{"a": "floaty"}', "floaty"), ("{", "<stdin>:1")],
)
def test_wrong_hints(run, custom: Path, text: str, told: str) -> None:
    ran = run("resolve", custom, "--type-hints", "-", stdin=text)
    assert ran.status == 2
    assert told in ran.err


def test_standard_input_is_read_once(run, custom: Path, tmp_path: Path) -> None:
    for command in (("resolve", custom), ("apply", custom, "-o", tmp_path / "o.onnx")):
        ran = run(*command, "--type-hints", "-", "--mixlist", "-", stdin="{}")
        assert ran.status == 2
        assert "given twice" in ran.err
