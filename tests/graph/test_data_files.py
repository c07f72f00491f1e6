"""Test that data files are named after their content, never overwritten, and removed when no model refers to them."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest

import mixlist
from mixlist.graph import data_files
from mixlist.rewriter import RewriteResult
from tests.support.external_models import has_weights_of, write_external
from tests.support.systems import posix_only


def apply(source: Path, out: Path, **options: Any) -> RewriteResult:
    result = mixlist.rewrite(source, mixlist.resolve(source, mixlist.load_policy()))
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


def test_retrained_weights_replace_the_old_pair(tmp_path: Path, sources: list[Path]) -> None:
    """Rule S7.17: The data file of a replaced model is removed."""
    out, fresh = tmp_path / "out" / "o.onnx", tmp_path / "fresh" / "o.onnx"
    fresh.parent.mkdir()
    apply(sources[1], fresh)
    apply(sources[0], out)
    for source in (sources[1], sources[0], sources[1]):
        result = apply(source, out, force=True)
        assert warnings_of(result) == []
    assert {path.name: path.read_bytes() for path in out.parent.iterdir()} == {
        path.name: path.read_bytes() for path in fresh.parent.iterdir()
    }
    assert has_weights_of(out, 1)


def test_the_data_file_is_removed_when_the_weights_move_into_the_model(tmp_path: Path, sources: list[Path]) -> None:
    """Rule S7.17: The data file of a replaced model is removed."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    apply(sources[1], out, force=True, external_data="no")
    assert list(out.parent.iterdir()) == [out]


def test_the_same_command_again_keeps_the_data_file(tmp_path: Path, sources: list[Path]) -> None:
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    inode = data_of(out).stat().st_ino
    assert warnings_of(apply(sources[0], out, force=True)) == []
    assert data_of(out).stat().st_ino == inode
    assert len(list(out.parent.iterdir())) == 2


@pytest.mark.parametrize("name", ["keep.onnx", "o.onnx.bak", "KEEP.ONNX"])
def test_data_that_another_model_names_stays(tmp_path: Path, sources: list[Path], name: str) -> None:
    """Rule S7.17: ... unless another model names it."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    shutil.copy(out, out.with_name(name))
    result = apply(sources[1], out, force=True)
    assert has_weights_of(out.with_name(name), 0) and has_weights_of(out, 1)
    (warning,) = warnings_of(result)
    assert f"{name} refers to the data file" in warning


def test_a_model_that_cannot_be_read_keeps_the_data(tmp_path: Path, sources: list[Path]) -> None:
    """Rule S7.17: ... or could name it."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    old = data_of(out)
    (tmp_path / "out" / "half.onnx").write_bytes(sources[0].read_bytes()[:-7])
    (warning,) = warnings_of(apply(sources[1], out, force=True))
    assert old.is_file() and "half.onnx cannot be read" in warning
    (tmp_path / "out" / "half.onnx").unlink()
    assert warnings_of(apply(sources[1], out, force=True)) == []
    assert not old.exists() and has_weights_of(out, 1)


@posix_only
def test_folders_pipes_and_broken_links_are_skipped(tmp_path: Path, sources: list[Path]) -> None:
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    (tmp_path / "out" / "folder.onnx").mkdir()
    os.mkfifo(tmp_path / "out" / "pipe.onnx")
    (tmp_path / "out" / "broken.onnx").symlink_to("nowhere")
    (tmp_path / "out" / "round.onnx").symlink_to("round.onnx")
    (tmp_path / "out" / "empty.onnx").touch()
    assert warnings_of(apply(sources[1], out, force=True)) == []
    assert has_weights_of(out, 1) and len(list(out.parent.glob("o.onnx-*.data"))) == 1


def test_a_folder_that_cannot_be_listed_keeps_the_data(
    tmp_path: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    old = data_of(out)

    with monkeypatch.context() as patched:
        patched.setattr(data_files, "_list_folder", lambda folder: None)
        (warning,) = warnings_of(apply(sources[1], out, force=True))
    assert old.is_file() and "the folder cannot be listed" in warning
    assert has_weights_of(out, 1)


def test_more_models_than_can_be_searched_keep_the_data(
    tmp_path: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    old = data_of(out)
    shutil.copy(sources[0], tmp_path / "out" / "large.onnx")
    monkeypatch.setattr(data_files, "MAX_SEARCHED_BYTES", 100)
    (warning,) = warnings_of(apply(sources[1], out, force=True))
    assert old.is_file() and "too large to search" in warning


def test_a_link_to_the_data_keeps_it(tmp_path: Path, sources: list[Path]) -> None:
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    old = data_of(out)
    (tmp_path / "out" / "alias").symlink_to(old.name)
    (warning,) = warnings_of(apply(sources[1], out, force=True))
    assert old.is_file() and "alias is a link to the data file" in warning


def test_the_data_of_the_input_stays(tmp_path: Path, sources: list[Path]) -> None:
    """The input has not the suffix of a model, and reads the data file of the output that is replaced."""
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    shutil.copy(out, out.with_name("copy.model"))
    apply(out.with_name("copy.model"), out, force=True, external_data="no")
    assert has_weights_of(out.with_name("copy.model"), 0)
    assert has_weights_of(out, 0)


def test_data_of_another_program_stays_with_a_warning(tmp_path: Path, sources: list[Path]) -> None:
    out = write_external(tmp_path / "out" / "o.onnx", 5)
    (warning,) = warnings_of(apply(sources[0], out, force=True))
    assert (tmp_path / "out" / "o.onnx.weights").is_file()
    assert "o.onnx.weights" in warning and "another program" in warning


def test_a_link_with_the_name_of_a_data_file_stays(tmp_path: Path, sources: list[Path]) -> None:
    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    old = data_of(out)
    shutil.move(old, tmp_path / "blob")
    old.symlink_to("../blob")
    (warning,) = warnings_of(apply(sources[1], out, force=True))
    assert old.is_symlink() and (tmp_path / "blob").is_file() and old.name in warning


def test_data_in_a_subfolder_stays(tmp_path: Path, sources: list[Path]) -> None:
    out = write_external(tmp_path / "out" / "o.onnx", 5)
    (tmp_path / "out" / "below").mkdir()
    model = onnx.load(out, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "./below/o.data"
    out.write_bytes(model.SerializeToString())
    shutil.move(tmp_path / "out" / "o.onnx.weights", tmp_path / "out" / "below" / "o.data")
    (warning,) = warnings_of(apply(sources[0], out, force=True))
    assert "o.data" in warning and (tmp_path / "out" / "below" / "o.data").is_file()


def test_a_folder_without_locks_keeps_the_data(
    tmp_path: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mixlist.files import folder_lock

    out = tmp_path / "out" / "o.onnx"
    apply(sources[0], out)
    old = data_of(out)
    monkeypatch.setattr(folder_lock, "_wait_for_lock", lambda folder: None)
    (warning,) = warnings_of(apply(sources[1], out, force=True))
    assert old.is_file() and "cannot be locked" in warning


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
    apply(sources[0], out)
    assert has_weights_of(out, 0)
    assert data_of(out).name == data.name.replace(".data", "-2.data")
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
