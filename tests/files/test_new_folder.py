"""A folder of new files appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixlist.errors import FileError, UsageError
from mixlist.files import atomic_writes
from mixlist.files.atomic_writes import write_new_folder

FILES = {"a.json": b"{}", "b.cfg": b"x\n"}


def test_all_files_are_written_into_a_missing_or_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        assert write_new_folder(tmp_path / name, FILES) == (tmp_path / name / "a.json", tmp_path / name / "b.cfg")
        assert {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} == FILES


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(UsageError, match="is not empty"):
        write_new_folder(tmp_path, FILES)
    with pytest.raises(FileError, match="cannot be written"):
        write_new_folder(tmp_path / "old", FILES)


def test_nothing_stays_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_writes.os, "fsync", fail)
    with pytest.raises(FileError, match="No space left on device"):
        write_new_folder(tmp_path / "new", FILES)
    assert list(tmp_path.iterdir()) == []
