"""``mixlist export``: the formats, the files of atc, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.support.builders import model

LISTS = ("--ops-info", "pytorch")  # MatMul is white, Relu gray, and Softmax black


@pytest.mark.parametrize("tool", ["modelopt", "ort", "onnxconverter", "atc"])
def test_standard_output_is_json_with_the_lists(run, model_path: Path, tool: str) -> None:
    completed = run("export", model_path, *LISTS, "--for", tool, "--format", "json")
    assert completed.status == 0
    result = json.loads(completed.out)
    assert (result["format"], result["tool"]) == ("mixlist.export/1", tool)
    assert result["exceptions"] == []
    if tool != "atc":
        op_types = result["op_types_to_exclude" if tool == "modelopt" else "op_block_list"]
        assert op_types == ["Softmax"]


COMMON_KEYS = {"format", "tool", "measured_with", "model", "precision", "arguments", "exceptions", "notes"}


@pytest.mark.parametrize(
    ("tool", "keys"),
    [
        ("modelopt", {"nodes_to_exclude", "op_types_to_exclude"}),
        ("ort", {"op_block_list", "node_block_list"}),
        ("onnxconverter", {"op_block_list", "node_block_list"}),
        ("atc", {"library", "modify_mixlist", "keep_dtype", "customize_dtypes"}),
    ],
)
def test_each_tool_has_its_own_keys(run, model_path: Path, tool: str, keys: set[str]) -> None:
    assert json.loads(run("export", model_path, "--for", tool, "--format", "json").out).keys() == COMMON_KEYS | keys


def test_an_exception_has_the_node_and_the_reason(run, tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { [low] a = Neg(x) [same] b = Exp(a) y = Neg(b) }"
    onnx.save(model(text), tmp_path / "unnamed.onnx")
    (tmp_path / "keep.cfg").write_text("Neg_0\n")
    (tmp_path / "modify.json").write_text('{"white-list": {"to-add": ["Neg"]}}')
    files = ("--mixlist", tmp_path / "modify.json", "--keep-dtype", tmp_path / "keep.cfg")
    completed = run("export", tmp_path / "unnamed.onnx", "--for", "ort", *files, "--format", "json")
    (exception,) = json.loads(completed.out)["exceptions"]
    assert exception.keys() == {"node", "why", "invalid"}
    assert exception["node"] == "Neg_0" and "has no name" in exception["why"]
    assert (exception["invalid"], completed.status) == (False, 0)


@pytest.mark.parametrize("output_format", ["json", "text"])
def test_an_invalid_result_has_status_1(run, tmp_path: Path, output_format: str) -> None:
    text = """g (float[2] x, bool c) => (float[2] y) { [a] a = Exp(x)
     [i] y = If(c) <then_branch = t () => (float[2] o) { [n] o = Neg(a) },
      else_branch = e () => (float[2] q) { [r] q = Exp(a) }> }"""
    onnx.save(model(text), tmp_path / "m.onnx")
    (tmp_path / "modify.json").write_text('{"white-list": {"to-add": ["Exp"]}, "black-list": {"to-add": ["Neg"]}}')
    lists = ("--mixlist", tmp_path / "modify.json", "--format", output_format)
    completed = run("export", tmp_path / "m.onnx", "--for", "ort", *lists)
    assert completed.status == 1 and "i/then_branch/n" in completed.out
    assert completed.err.endswith("ort makes an invalid model because of 1 node: see the exceptions\n")


def test_the_output_is_a_program_that_python_reads(run, model_path: Path) -> None:
    completed = run("export", model_path, *LISTS, "--for", "ort")
    compile(completed.out, "program", "exec")
    assert "op_block_list=['Softmax']" in completed.out
    assert "\n# 0 exceptions\n" in completed.out


def test_infinity_is_a_string_in_json_and_a_number_in_the_command(run, model_path: Path) -> None:
    assert (
        json.loads(run("export", model_path, "--for", "modelopt", "--format", "json").out)["arguments"]["data_max"]
        == "inf"
    )
    assert "--data_max inf" in run("export", model_path, "--for", "modelopt").out


def test_atc_files_are_written_into_a_new_folder(run, model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    completed = run("export", model_path, *LISTS, "--for", "atc", "--library", "ascend310p", "-o", folder)
    assert completed.status == 0
    assert (folder / "atc.sh").exists() and f"wrote {folder / 'atc.sh'}" in completed.err
    assert run("validate", *sorted(folder.glob("*.json"))).status == 0
    again = run("export", model_path, "--for", "atc", "-o", folder)
    assert again.status == 2 and "is not empty\n  hint: name a new folder, or remove this one first" in again.err


def test_atc_files_have_ascend_names_and_the_nodes_that_op_types_cannot_name(run, tmp_path: Path) -> None:
    text = "g (float[2, 2] x) => (float[2, 2] y) { [m] a = MatMul(x, x) [n] b = MatMul(a, a) [s] y = Softmax(b) }"
    onnx.save(model(text), tmp_path / "m.onnx")
    (tmp_path / "keep.cfg").write_text("n\n")
    (tmp_path / "modify.json").write_text('{"white-list": {"to-add": ["Softmax"]}}')
    files = ("--mixlist", tmp_path / "modify.json", "--keep-dtype", tmp_path / "keep.cfg")
    assert run("export", tmp_path / "m.onnx", "--for", "atc", *files, "-o", tmp_path / "new").status == 0
    edits = json.loads((tmp_path / "new" / "modify_mixlist.json").read_text())
    assert edits["white-list"]["to-add"] == ["SoftmaxV2"]
    assert (tmp_path / "new" / "keep_dtype.cfg").read_text() == "n\n"
    command = (tmp_path / "new" / "atc.sh").read_text()
    for option in ("--framework=5", "--precision_mode_v2=mixed_float16", "modify_mixlist=", "keep_dtype="):
        assert option in command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--for", "tensorrt"], "'tensorrt' is not one of 'modelopt', 'ort', 'onnxconverter', 'atc'"),
        (["--for", "ort", "-o", "out"], "--output: ort reads no files"),
        (["--for", "ort", "--library", "ascend910b"], "ort has no operator library"),
        (["--for", "ort", "--precision-mode-v2", "mixed_bfloat16"], "converts to float16 only"),
        ([], "Missing option '--for'"),
    ],
)
def test_wrong_usage_is_refused(run, model_path: Path, arguments: list[str], message: str) -> None:
    completed = run("export", model_path, *arguments)
    assert completed.status == 2
    assert message in completed.err and completed.out == ""
