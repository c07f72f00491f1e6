"""``--config``: a TOML file of options, and the command line above it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MATMUL_BLACK = '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "black.json").write_text(MATMUL_BLACK)
    return tmp_path


def write_config(folder: Path, text: str) -> Path:
    path = folder / "mixlist.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_configuration(run, folder: Path, model_path: Path) -> None:
    path = write_config(folder, 'mixlist = "lists/black.json"\n[resolve]\nformat = "json"\n')
    completed = run("resolve", model_path, "--config", path)
    assert completed.status == 0
    assert json.loads(completed.out)["counts"] == {"float32": 3}


def test_the_command_line_wins(run, folder: Path, model_path: Path) -> None:
    path = write_config(folder, 'mixlist = "lists/black.json"\n[resolve]\nformat = "json"\n')
    (folder / "none.json").write_text("{}")
    for options in (
        ["--config", path, "--mixlist", folder / "none.json"],
        ["--mixlist", folder / "none.json", "--config", path],
    ):
        completed = run("resolve", model_path, *options)
        assert json.loads(completed.out)["counts"] == {"float16": 3}
    assert run("resolve", model_path, "--config", path, "--format", "csv").out.startswith("scope,")


def test_a_mode_on_the_command_line_replaces_one_of_the_other_name(run, folder: Path, model_path: Path) -> None:
    path = write_config(folder, 'precision-mode = "force_fp16"\n')
    completed = run("resolve", model_path, "--config", path, "--precision-mode-v2", "origin", "--format", "json")
    assert completed.status == 0
    assert json.loads(completed.out)["counts"] == {"float32": 3}
    both = write_config(folder, 'precision-mode = "force_fp16"\nprecision-mode-v2 = "fp16"\n')
    completed = run("resolve", model_path, "--config", both)
    assert completed.status == 2
    assert "given together" in completed.err


def test_flags_lists_and_numbers_are_read(run, folder: Path, model_path: Path) -> None:
    text = '[apply]\nio = "low"\nkeep-io = ["x"]\nopset = 20\n'
    path = write_config(folder, text)
    completed = run("apply", model_path, "--config", path, "-o", folder / "o.onnx")
    assert completed.status == 0
    import onnx

    written = onnx.load(folder / "o.onnx")
    assert written.opset_import[0].version == 20
    assert written.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    path = write_config(folder, text.replace('keep-io = ["x"]', ""))
    assert run("apply", model_path, "--config", path, "--force", "-o", folder / "o.onnx").status == 0
    written = onnx.load(folder / "o.onnx")
    assert written.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    path = write_config(folder, text.replace('["x"]', '"x"'))
    assert run("apply", model_path, "--config", path, "-o", folder / "o2.onnx").status == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = [", "not TOML"),
        ('mixlst = "a"', "mixlist"),
        ("[resolve]\nforma = 1", "format"),
        ("[reslove]\n", "resolve"),
        ('format = "json"', "[resolve]"),
        ('[resolve]\nformat = "yaml"', "yaml"),
        ("gray-policy = 3", "gray-policy takes a string"),
        ('gray-policy = "gray"', "gray"),
        ("mixlist = 3", "mixlist takes a string, not 3"),
        ('mixlist = "a\\u0000b"', "NUL"),
        ('explain = "x"', "[resolve]"),
        ('mixlist = "nothing.json"', "nothing.json"),
    ],
)
def test_invalid_configurations_are_refused(run, folder: Path, model_path: Path, text: str, message: str) -> None:
    path = write_config(folder, text)
    completed = run("resolve", model_path, "--config", path)
    assert completed.status == 2
    assert message in completed.err
    assert completed.out == ""
    assert "mixlist.toml" in completed.err or "nothing.json" in completed.err


def test_a_missing_configuration_is_an_error(run, model_path: Path) -> None:
    completed = run("resolve", model_path, "--config", "nothing.toml")
    assert completed.status == 2
    assert "nothing.toml" in completed.err
