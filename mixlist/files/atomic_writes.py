"""Write files and folders whole or not at all, and test before a long run that this will work.

A new file or folder is written under a temporary name in the folder of its target, ``.mixlist-????????.tmp``, and gets
its final name in one step (``os.replace``). A killed process leaves the temporary file; every other end removes it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from mixlist.errors import FileError, UsageError

# --- replace a file ---


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
        new.replace(new.target)


def replace_unless_changed(path: str | os.PathLike[str], before: bytes, after: bytes) -> None:
    """Replace a file whose bytes were ``before``; raise FileError if another program has changed it."""
    # A pipe or a device cannot be read a second time.
    if Path(path).is_file() and Path(path).read_bytes() != before:
        hint = "nothing was written; run this command again"
        raise FileError(f"{os.fspath(path)}: another program changed the file meanwhile", hint=hint)
    write_atomically(path, after)


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


def _write_error(path: str | os.PathLike[str], error: OSError | ValueError) -> FileError:
    return FileError(f"{os.fspath(path)}: cannot be written: {getattr(error, 'strerror', None) or error}")


# --- files without their final name ---


class NewFile:
    """A file under a temporary name.

    ``file`` is open for writing, ``path`` is the temporary path, and ``target`` the path that it was made for.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = _temporary_path(target.parent)
        self.file = self.path.open("xb")
        # Before any content is written: perhaps only the owner may read the target.
        if target.exists():
            _copy_permissions(target, self.path)

    def replace(self, path: Path, *, durable: bool = True) -> None:
        """Give the file the name ``path`` in its folder; an existing file is replaced.

        Without ``durable`` the content is not flushed to the disk: after a power failure the file can be empty.
        """
        if durable:
            self.file.flush()
            os.fsync(self.file.fileno())
        self.file.close()  # Windows does not rename an open file
        self.path.replace(path)

    def close(self) -> None:
        """Close the file, and remove it unless it has got its final name."""
        # If the disk is full, writing has raised this error before.
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self.path.unlink()


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[NewFile]:
    """Yield a new file for ``path``. The caller writes it and calls ``replace``; else it is removed.

    A symbolic link is followed. Raises FileError for errors of the system, also inside the ``with``.
    """
    try:
        new = NewFile(Path(os.path.realpath(path)))
        try:
            yield new
        finally:
            new.close()
    # ValueError: a NUL in the path.
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from None


def _temporary_path(folder: Path) -> Path:
    """Return a random path that says what it is. It has no suffix of the target: engines load every .json file."""
    return folder / f".mixlist-{uuid4().hex[:8]}.tmp"


def _copy_permissions(source: Path, path: Path) -> None:
    """Give a file the permissions of ``source``, and its owner if the system allows it. Windows has no owner."""
    if hasattr(os, "chown"):
        status = source.stat()
        # Only root may change the owner of a file.
        with suppress(PermissionError):
            os.chown(path, status.st_uid, status.st_gid)
    shutil.copymode(source, path)


# --- write a new folder ---


def write_new_folder(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write the files, by name, and return their paths. An existing folder must be empty.

    Raises UsageError if the folder holds something, and FileError with the message of the system; then nothing has
    changed.
    """
    refuse_used_folder(folder)
    target = Path(os.path.realpath(folder))
    staging = _temporary_path(target.parent)
    try:
        staging.mkdir()
        for name, content in files.items():
            with (staging / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            target.rmdir()  # Windows does not rename a folder over an empty one
        staging.rename(target)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise _folder_error(folder, error) from None
    return tuple(folder / name for name in files)


def refuse_used_folder(folder: Path) -> None:
    """Raise UsageError if a folder holds something, and FileError if the path is not that of a folder."""
    try:
        is_used = any(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise _folder_error(folder, error) from None
    if is_used:
        raise UsageError(f"{folder} is not empty", hint="name a new folder, or remove this one first")


def _folder_error(folder: Path, error: OSError) -> FileError:
    return FileError(f"{folder}: this folder cannot be written: {error.strerror or error}")
