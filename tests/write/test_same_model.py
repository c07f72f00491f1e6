"""rewrite accepts only the model for which the plan was made."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import mixlist
from mixlist.errors import ModelError

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {{ y = {op} (x) }}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT.format(op="Exp")), path)
    return path


def test_an_unchanged_file_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = mixlist.resolve(path, mixlist.load_policy())
    monkeypatch.setattr("mixlist.model.load._load_path", pytest.fail)
    first, second = mixlist.rewrite(path, plan), mixlist.rewrite(str(path), plan)
    assert first.model == second.model
    assert first.model is not second.model


def test_a_changed_file_is_refused(path: Path) -> None:
    plan = mixlist.resolve(path, mixlist.load_policy())
    onnx.save(onnx.parser.parse_model(TEXT.format(op="Tanh")), path)
    with pytest.raises(ModelError, match="another model"):
        mixlist.rewrite(path, plan)


def test_a_missing_file_is_reported(path: Path) -> None:
    plan = mixlist.resolve(path, mixlist.load_policy())
    path.unlink()
    with pytest.raises(mixlist.errors.FileError, match="cannot read the model"):
        mixlist.rewrite(path, plan)


def test_a_copy_of_the_model_is_accepted(path: Path, tmp_path: Path) -> None:
    plan = mixlist.resolve(path, mixlist.load_policy())
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(path.read_bytes())
    assert mixlist.rewrite(copy, plan).model == mixlist.rewrite(path, plan).model


def test_a_model_with_other_weights_is_refused() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) '
        "<float[1] w = {{{}}}> {{ y = Mul (x, w) }}"
    )
    plan = mixlist.resolve(onnx.parser.parse_model(text.format(2)), mixlist.load_policy())
    assert mixlist.rewrite(onnx.parser.parse_model(text.format(2)), plan).model == plan.solution.loaded.proto
    with pytest.raises(ModelError, match="another model"):
        mixlist.rewrite(onnx.parser.parse_model(text.format(3)), plan)


def test_a_model_with_other_inputs_of_a_node_is_refused() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x, float[1] w) => (float[1] y) {{ y = Mul (x, {}) }}'
    plan = mixlist.resolve(onnx.parser.parse_model(text.format("x")), mixlist.load_policy())
    with pytest.raises(ModelError, match="another model"):
        mixlist.rewrite(onnx.parser.parse_model(text.format("w")), plan)
