"""``--type-hints``: the types of the outputs of custom operators."""

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


def test_a_hint_gives_a_tensor_its_type(run, custom: Path, tmp_path: Path) -> None:
    def output_types_of_follower(*options: object) -> dict[str, str]:
        result = json.loads(run("resolve", custom, "--format", "json", *options).out)
        return next(node for node in result["nodes"] if node["name"] == "follower")["outputs"]

    assert output_types_of_follower() == {"b": "unknown"}
    hints = tmp_path / "hints.json"
    hints.write_text('{"a": "float32"}')
    assert output_types_of_follower("--type-hints", hints) == {"b": "float32"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "not a JSON object"), ('{"a": 1}', "not a JSON object"), ('{"a": "floaty"}', "floaty"), ("{", "<stdin>:1")],
)
def test_wrong_hints_are_refused(run, custom: Path, text: str, message: str) -> None:
    completed = run("resolve", custom, "--type-hints", "-", stdin=text)
    assert completed.status == 2
    assert message in completed.err


def test_standard_input_is_read_once(run, custom: Path, tmp_path: Path) -> None:
    for command in (("resolve", custom), ("apply", custom, "-o", tmp_path / "o.onnx")):
        completed = run(*command, "--type-hints", "-", "--mixlist", "-", stdin="{}")
        assert completed.status == 2
        assert "given twice" in completed.err
