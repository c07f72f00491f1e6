"""Writing a file whole, and what is no file."""

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
def test_a_pipe_takes_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    """A device is no other case: root must not replace /dev/null by a file."""
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"text")
    reader.join(10)
    assert found == [b"text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_folder_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write_atomically(tmp_path, b"text")
