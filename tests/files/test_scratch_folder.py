"""Folders for temporary files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.files.scratch_folder import ScratchFolder


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the system's folder for temporary files one of this test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_folder_is_removed_with_its_object(parent: Path) -> None:
    scratch = ScratchFolder()
    (scratch.path / "weights").write_bytes(b"text")
    assert scratch.path.parent == parent and scratch.path.name.startswith("mixlist-")
    del scratch
    assert list(parent.iterdir()) == []
    with ScratchFolder() as path:
        assert list(parent.iterdir()) == [path]
    assert list(parent.iterdir()) == []


def test_a_folder_is_removed_at_the_end_of_the_process(parent: Path) -> None:
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from mixlist.files.scratch_folder import ScratchFolder\n"
        "folder = ScratchFolder(); (folder.path / 'weights').write_bytes(b'text'); raise KeyboardInterrupt"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(parent)], capture_output=True, text=True)
    assert ended.returncode != 0 and "KeyboardInterrupt" in ended.stderr
    assert list(parent.iterdir()) == []


def test_a_folder_that_is_kept_is_not_removed(parent: Path) -> None:
    scratch = ScratchFolder()
    (scratch.path / "model.onnx").write_bytes(b"text")
    scratch.keep()
    scratch.remove()
    assert [path.name for path in scratch.path.iterdir()] == ["model.onnx"]


def test_a_folder_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(FileError, match="no folder for temporary files can be made in /proc"):
        ScratchFolder()


def test_a_system_without_a_temporary_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    with pytest.raises(FileError, match=r"no folder takes temporary files: .*'/tmp'"):
        ScratchFolder()
