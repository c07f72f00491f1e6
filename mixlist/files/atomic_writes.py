"""Write a file atomically, and test before a long run that this will work."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mixlist.errors import FileError
from mixlist.files.temporary_files import new_file


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the content of a file in one step: a reader sees the old content or the new, and no mixture.

    A symbolic link is followed, and an existing file keeps its permissions and owner. A device or a named pipe is not
    replaced: the bytes are written into it. Raises FileError with the message of the system; then nothing has changed.
    """
    if _must_not_be_replaced(path):
        try:
            with Path(path).open("wb") as device:
                device.write(data)
        except OSError as error:
            raise _write_error(path, error) from None
        return
    with new_file(path) as new:
        new.file.write(data)
        new.replace()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise FileError if ``write_atomically`` would fail. The test creates a file in the folder and removes it.

    A path that is a folder is not tested for that: ``cli/command_files.py`` refuses folders before.
    """
    if not _must_not_be_replaced(path):
        with new_file(path):
            return
    # A device or a pipe is not opened for the test, because opening a pipe waits for a reader.
    if not os.access(path, os.W_OK):
        raise FileError(f"{os.fspath(path)}: cannot be written: Permission denied")


def _must_not_be_replaced(path: str | os.PathLike[str]) -> bool:
    """Return True for a device, a named pipe or a folder, which a new file must not replace."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    # ValueError: a NUL in the path, which ``new_file`` reports.
    except (FileNotFoundError, ValueError):
        return False
    except OSError as error:
        raise _write_error(path, error) from None


def _write_error(path: str | os.PathLike[str], error: OSError) -> FileError:
    return FileError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}")
