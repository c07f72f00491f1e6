"""Atomic writes to paths that are not regular files."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.files.atomic_writes import write_atomically
from tests.support.systems import posix_only


@posix_only
def test_the_bytes_are_written_into_a_pipe(tmp_path: Path) -> None:
    """The same code serves devices: root must not replace /dev/null with a file."""
    pipe, contents = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: contents.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"text")
    reader.join(10)
    assert contents == [b"text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_writing_to_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write_atomically(tmp_path, b"text")
