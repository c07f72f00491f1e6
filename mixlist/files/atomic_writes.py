"""Write the bytes of a file whole or not at all, and test before a long run that this will work."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mixlist.errors import FileError
from mixlist.files.temporary_files import new_file


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file's content in one step; a reader sees the old content or the new.

    A symbolic link is followed, an existing file keeps its permissions and owner; a device or a pipe stays what it is
    and takes the bytes. Raises FileError with what the system said; then nothing has changed.
    """
    if _is_device(path):
        try:
            with Path(path).open("wb") as device:
                device.write(data)
        except OSError as error:
            raise _unwritable(path, error) from None
        return
    with new_file(path) as new:
        new.file.write(data)
        new.replace()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise FileError where ``write_atomically`` would fail; a file is created in the folder, and removed."""
    if not _is_device(path):
        with new_file(path):
            return
    if not os.access(path, os.W_OK):
        raise FileError(f"{os.fspath(path)}: cannot be written: Permission denied")


def _is_device(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a device, a pipe or a folder; a new file does not take the place of these."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except (FileNotFoundError, ValueError):  # ValueError: a NUL in the path, which ``new_file`` reports
        return False
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str | os.PathLike[str], error: OSError) -> FileError:
    return FileError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}")
