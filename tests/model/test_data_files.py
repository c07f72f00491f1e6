"""Test that data files are named after their content, are never overwritten, and stay."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest

import mixlist
from mixlist.errors import FileError
from mixlist.write import RewriteResult
from tests.support.builders import policy
from tests.support.external_models import has_weights_of, write_external
from tests.support.systems import posix_only

LISTS = policy(white=["MatMul"], black=["Softmax"])


def apply(source: Path, out: Path, **options: Any) -> RewriteResult:
    result = mixlist.rewrite(source, mixlist.resolve(source, LISTS))
    result.save(out, **options)
    return result


def warnings_of(result: RewriteResult) -> list[str]:
    return [warning.message for warning in result.warnings if warning.code == "ML509"]


def data_of(path: Path) -> Path:
    """Return the data file to which a model refers."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    (location,) = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return path.parent / location


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Return two models of the same structure with different weights, in a folder that holds nothing else."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    return [write_external(tmp_path / "in" / f"m{seed}.onnx", seed) for seed in (0, 1)]


def test_the_name_has_the_output_and_the_checksum_of_the_content(tmp_path: Path, sources: list[Path]) -> None:
    """Rule S7.16: A data file is named after its model and its content."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    data = data_of(out)
    checksum = hashlib.sha256(data.read_bytes()).hexdigest()[:16]
    assert data.name == f"o.onnx-{checksum}.data"
    assert sorted(path.name for path in out.parent.iterdir()) == ["o.onnx", data.name]


def test_two_outputs_in_one_folder_share_no_data_file(tmp_path: Path, sources: list[Path]) -> None:
    """Rule S7.16: A data file is named after its model and its content."""
    outputs = [tmp_path / "out" / name for name in ("a.onnx", "b.onnx")]
    for out in outputs:
        apply(sources[0], out)
    assert data_of(outputs[0]) != data_of(outputs[1])


def test_the_data_file_of_a_replaced_model_stays_with_a_warning(tmp_path: Path, sources: list[Path]) -> None:
    """Rule S7.17: a copy of the old model keeps its weights."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    shutil.copy(out, out.with_name("keep.onnx"))
    old = data_of(out)
    assert warnings_of(apply(sources[1], out, force=True)) == [f"{old} had weights of the replaced model, and stays"]
    assert has_weights_of(out.with_name("keep.onnx"), 0) and has_weights_of(out, 1)
    (message,) = warnings_of(apply(sources[1], out, force=True, external_data="no"))
    assert message.startswith(str(out.with_name("o.onnx-"))) and has_weights_of(out, 1)
    assert len(list(out.parent.iterdir())) == 4


def test_the_same_command_again_keeps_the_data_file(tmp_path: Path, sources: list[Path]) -> None:
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    inode = data_of(out).stat().st_ino
    assert warnings_of(apply(sources[0], out, force=True)) == []
    assert data_of(out).stat().st_ino == inode
    assert len(list(out.parent.iterdir())) == 2


def test_the_data_of_the_input_stays(tmp_path: Path, sources: list[Path]) -> None:
    """The input has not the suffix of a model, and reads the data file of the output that is replaced."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    shutil.copy(out, out.with_name("copy.model"))
    assert warnings_of(apply(out.with_name("copy.model"), out, force=True, external_data="no")) == []
    assert has_weights_of(out.with_name("copy.model"), 0)
    assert has_weights_of(out, 0)


@pytest.mark.parametrize("kind", ["file", "folder", pytest.param("pipe", marks=posix_only)])
def test_a_used_name_is_never_overwritten(tmp_path: Path, sources: list[Path], kind: str) -> None:
    """Rule S7.16: A data file is named after its model and its content."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    data = data_of(out)
    for path in (out, data):
        path.unlink()
    if kind == "file":
        data.write_bytes(b"mine")
    elif kind == "folder":
        data.mkdir()
    else:
        os.mkfifo(data)
    with pytest.raises(FileError, match="its content is not that of its name"):
        apply(sources[0], out)
    assert list(out.parent.iterdir()) == [data]
    assert kind != "file" or data.read_bytes() == b"mine"


@posix_only
@pytest.mark.parametrize("name", ["a:b.onnx", "x\\y.onnx", "..onnx", "äöü.onnx", "a\udc80.onnx", "é" * 120 + ".onnx"])
def test_any_output_name_gives_a_readable_location(tmp_path: Path, sources: list[Path], name: str) -> None:
    out = tmp_path / "out" / name
    apply(sources[0], out)
    data = data_of(out)
    assert data.is_file() and not set(data.name) & set('\\/:*?"<>|')
    (tmp_path / "again").mkdir()
    apply(out, tmp_path / "again" / name)
    assert (tmp_path / "again" / name).read_bytes() == out.read_bytes()


def test_an_output_behind_a_link_has_its_data_beside_the_link(tmp_path: Path, sources: list[Path]) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "real.onnx").write_bytes(b"old")
    out = tmp_path / "out" / "o.onnx"
    out.symlink_to("../blobs/real.onnx")
    apply(sources[0], out, force=True)
    assert out.is_symlink() and has_weights_of(out, 0)
