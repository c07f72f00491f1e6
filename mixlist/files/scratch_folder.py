"""Folders for temporary files, in the system's folder for temporary files.

Each folder holds a file that its process locks. If the lock of a folder is free, its process was killed: the next
process that makes such a folder removes the old one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from mixlist.errors import FileError
from mixlist.files.atomic_writes import ATTEMPTS, open_locked, remove_if_free

_PREFIX, _LOCK_FILE = "mixlist-", ".lock"
_NAME = re.compile(r"mixlist-[a-z0-9_]{8}")  # as tempfile.mkdtemp makes it


class ScratchFolder:
    """A folder for temporary files.

    The folder is removed at the end of a ``with``, or when this object is garbage-collected, or when the process ends.
    """

    def __init__(self) -> None:
        _remove_abandoned_folders_once(temporary_folder())
        self.path, lock_file = _make_locked_folder()
        self._lock_file = lock_file
        # The arguments must not refer to ``self``: the object would then never be collected.
        self._finalizer = weakref.finalize(self, _remove_folder, self.path, lock_file)

    def remove(self) -> None:
        """Remove the folder unless ``keep`` was called.

        On Windows, files that are open stay: the next process that makes such a folder removes them.
        """
        self._finalizer()

    def keep(self) -> None:
        """Leave the folder to the user: only the lock file is removed."""
        # detach() returns None if the folder was removed already.
        if self._finalizer.detach():
            self._lock_file.close()
            (self.path / _LOCK_FILE).unlink(missing_ok=True)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def temporary_folder() -> str:
    """Return the system's folder for temporary files; raise FileError if no folder can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        # Python tries several folders, and does not say why each of them failed.
        hint = "their disks are full or read-only: set TMPDIR to another folder"
        raise FileError(f"no folder takes temporary files: {error.strerror}", hint=hint) from None


def write_scratch(path: Path, data: bytes) -> None:
    """Write a file in a scratch folder. Raises FileError if the system refuses, as with a full disk."""
    with translate_write_errors(path):
        path.write_bytes(data)


@contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the ``with`` into a FileError that names ``path``, a file in a scratch folder."""
    try:
        yield
    except OSError as error:
        # Another file name: the error is about a file that is read inside the ``with``.
        if error.filename not in (None, os.fspath(path)):
            raise
        reason = error.strerror or error
        hint = "make space there, or set TMPDIR to another folder for temporary files"
        raise FileError(f"{path}: the temporary file cannot be written: {reason}", hint=hint) from None


def remove_abandoned_folders(parent: str) -> None:
    """Remove the scratch folders in ``parent`` that killed processes of this user left there."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False) and _is_own_folder(entry):
                path = Path(entry.path)
                if remove_if_free(os.fspath(path / _LOCK_FILE)):
                    shutil.rmtree(path, ignore_errors=True)
                # rmdir() removes only an empty folder: its process was killed before it made the lock file.
                with suppress(OSError):
                    path.rmdir()


_remove_abandoned_folders_once = cache(remove_abandoned_folders)  # once per process and parent folder


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    """Return True if a folder belongs to this user. On Windows, each user has a folder for temporary files."""
    return not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()


def _make_locked_folder() -> tuple[Path, IO[bytes]]:
    """Make a folder, and return its path and the open file that locks it."""
    try:
        for _ in range(ATTEMPTS):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            # Until the lock file exists, another process can take the empty folder for an abandoned one and remove it.
            with suppress(FileNotFoundError):
                if lock_file := open_locked(folder / _LOCK_FILE, 0o600):
                    return folder, lock_file
    except OSError as error:
        reason = error.strerror or error
        message = f"no folder for temporary files can be made in {tempfile.gettempdir()}: {reason}"
        raise FileError(message, hint="set TMPDIR to another folder for temporary files") from None
    message = f"another process removes each folder for temporary files in {tempfile.gettempdir()}"
    raise FileError(message, hint="set TMPDIR to another folder for temporary files")


def _remove_folder(folder: Path, lock_file: IO[bytes]) -> None:
    """Remove a folder. If a file in it cannot be removed, keep the lock file: a later process then finds the folder."""
    # Windows does not remove an open file. From here on another process can remove the folder too, which does no harm.
    lock_file.close()
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK_FILE:
                # Windows does not remove a file that a session has mapped into memory.
                with suppress(OSError):
                    path.unlink()
        if [path.name for path in folder.iterdir()] == [_LOCK_FILE]:
            shutil.rmtree(folder)
