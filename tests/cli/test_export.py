"""``mixlist export``: the formats, the files of atc, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.parametrize("tool", ["modelopt", "ort", "onnxconverter", "atc"])
def test_standard_output_is_json_with_the_lists(run, model_path: Path, tool: str) -> None:
    completed = run("export", model_path, "--for", tool)
    assert completed.status == 0
    result = json.loads(completed.out)
    assert (result["format"], result["tool"]) == ("mixlist.export/1", tool)
    assert result["exceptions"] == []
    if tool != "atc":
        op_types = result["op_types_to_exclude" if tool == "modelopt" else "op_block_list"]
        assert op_types == ["Softmax"]


def test_the_text_form_is_a_program_that_python_reads(run, model_path: Path) -> None:
    completed = run("export", model_path, "--for", "ort", "--format", "text")
    compile(completed.out, "program", "exec")
    assert "op_block_list=['Softmax']" in completed.out
    assert "\n# 0 exceptions\n" in completed.out


def test_infinity_is_a_string_in_json_and_a_number_in_the_command(run, model_path: Path) -> None:
    assert json.loads(run("export", model_path, "--for", "modelopt").out)["arguments"]["data_max"] == "inf"
    assert "--data_max inf" in run("export", model_path, "--for", "modelopt", "--format", "text").out


def test_atc_files_are_written_into_a_new_folder(run, model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    completed = run("export", model_path, "--for", "atc", "--library", "ascend310p", "-o", folder)
    assert completed.status == 0
    assert (folder / "atc.sh").exists() and f"wrote {folder / 'atc.sh'}" in completed.err
    assert run("validate", *sorted(folder.glob("*.json"))).status == 0
    again = run("export", model_path, "--for", "atc", "-o", folder)
    assert again.status == 2 and "is not empty" in again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--for", "tensorrt"], "no tool is called 'tensorrt'"),
        (["--for", "ort", "-o", "out"], "--output is for --for atc"),
        (["--for", "ort", "--library", "ascend910b"], "ort has no operator library"),
        (["--for", "ort", "--precision-mode-v2", "mixed_bfloat16"], "converts to float16 only"),
        ([], "Missing option '--for'"),
    ],
)
def test_wrong_usage_is_refused(run, model_path: Path, arguments: list[str], message: str) -> None:
    completed = run("export", model_path, *arguments)
    assert completed.status == 2
    assert message in completed.err and completed.out == ""
