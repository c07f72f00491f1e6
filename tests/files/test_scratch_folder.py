"""Folders for temporary files, also those of killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mixlist.errors import FileError
from mixlist.files import atomic_writes, scratch_folder
from mixlist.files.scratch_folder import ScratchFolder, remove_abandoned_folders
from tests.support.systems import posix_only


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the system's folder for temporary files one of this test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    scratch_folder._remove_abandoned_folders_once.cache_clear()
    yield folder
    scratch_folder._remove_abandoned_folders_once.cache_clear()


def test_a_folder_is_removed_with_its_object(parent: Path) -> None:
    scratch = ScratchFolder()
    (scratch.path / "weights").write_bytes(b"text")
    remove_abandoned_folders(str(parent))
    assert (scratch.path / "weights").exists()
    del scratch
    assert list(parent.iterdir()) == []
    with ScratchFolder() as path:
        assert path.parent == parent
    assert list(parent.iterdir()) == []


def test_a_folder_that_is_kept_is_not_removed(parent: Path) -> None:
    scratch = ScratchFolder()
    (scratch.path / "model.onnx").write_bytes(b"text")
    scratch.keep()
    scratch.remove()
    remove_abandoned_folders(str(parent))
    assert [path.name for path in scratch.path.iterdir()] == ["model.onnx"]


def test_without_locks_the_age_decides(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows an open file cannot be removed, and a closed one is abandoned if it is old."""
    monkeypatch.setattr(atomic_writes, "_fcntl", None)
    monkeypatch.delattr(os, "getuid", raising=False)
    with ScratchFolder() as path:
        (path / "weights").write_bytes(b"text")
        remove_abandoned_folders(str(parent))
        assert (path / "weights").exists()
    assert list(parent.iterdir()) == []
    abandoned = parent / "mixlist-abcdefgh"
    abandoned.mkdir()
    (abandoned / ".lock").write_bytes(b"")
    os.utime(abandoned / ".lock", (time.time() - 3600,) * 2)
    remove_abandoned_folders(str(parent))
    assert list(parent.iterdir()) == []


def test_an_empty_folder_is_abandoned(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was killed before it made the lock file. A living process then makes another folder."""
    (parent / "mixlist-abcdefgh").mkdir()
    real_open = scratch_folder.open_locked
    calls = 0

    def open_after_removal(path: Path, mode: int) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            remove_abandoned_folders(str(parent))
        return real_open(path, mode)

    monkeypatch.setattr(scratch_folder, "open_locked", open_after_removal)
    with ScratchFolder() as path:
        assert list(parent.iterdir()) == [path]
    assert calls == 2


def test_folders_of_other_programs_are_not_removed(parent: Path, tmp_path: Path) -> None:
    for name in ("mixlist-abcdefgh", "mixlist-notes", "abcdefgh"):
        (parent / name).mkdir()
        (parent / name / "file").write_bytes(b"text")
    (parent / "mixlist-notes" / ".lock").write_bytes(b"")
    target = tmp_path / "target"
    target.mkdir()
    (target / ".lock").write_bytes(b"")
    (parent / "mixlist-abcdefgi").symlink_to(target)
    remove_abandoned_folders(str(parent))
    assert (target / ".lock").exists()
    assert sorted(path.name for path in parent.iterdir()) == [
        "abcdefgh",
        "mixlist-abcdefgh",
        "mixlist-abcdefgi",
        "mixlist-notes",
    ]


def test_a_folder_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(FileError, match="no folder for temporary files can be made in /proc"):
        ScratchFolder()


@posix_only
@pytest.mark.parametrize("whole_group", [False, True])
def test_the_folder_of_a_killed_check_is_removed(tmp_path: Path, parent: Path, whole_group: bool) -> None:
    """The worker of the check removes the folder; if both were killed, the next command does."""
    model, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    weight = numpy_helper.from_array(np.ones((512, 512), np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 512]) for name in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    np.savez(data, x=np.ones((1, 512), np.float32))
    command = [sys.executable, "-m", "mixlist", "check", str(model), "--format", "json"]
    environment = os.environ | {"TMPDIR": str(parent)}
    data_options = [f"--data={data}"] * 2000
    with subprocess.Popen([*command, *data_options], env=environment, start_new_session=True) as check:
        while not any(path.stat().st_size >= 2**20 for path in parent.glob("mixlist-*/weights_1")):
            assert check.poll() is None
            time.sleep(0.01)
        (os.killpg if whole_group else os.kill)(check.pid, signal.SIGKILL)
    if whole_group:
        time.sleep(1)
        assert list(parent.glob("mixlist-*"))
        subprocess.run([*command, f"--data={data}"], env=environment, check=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while list(parent.glob("mixlist*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(parent.glob("mixlist*")) == []  # ONNX Runtime leaves a file there, too


def test_a_system_without_a_temporary_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    with pytest.raises(FileError, match=r"no folder takes temporary files: .*'/tmp'"):
        ScratchFolder()
