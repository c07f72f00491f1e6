"""Folders for files that a process needs while it runs, in the system's folder for temporary files.

Each holds a file that its process locks. A folder whose lock is free was left by a process that was killed: the next
process that makes such a folder removes it.
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
from mixlist.files.temporary_files import ATTEMPTS, open_locked, remove_if_free

_PREFIX, _LOCK = "mixlist-", ".lock"
_NAME = re.compile(r"mixlist-[a-z0-9_]{8}")


class ScratchFolder:
    """A folder that is removed with this object, at the end of a ``with``, or when the process ends."""

    def __init__(self) -> None:
        _remove_once(_temporary_folder())
        self.path, lock = _locked_folder()
        self._lock = lock
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def remove(self) -> None:
        """Remove the folder, unless it was kept. On Windows files that are open stay; a later process removes them."""
        self._end()

    def keep(self) -> None:
        """Leave the folder to the user."""
        if self._end.detach():
            self._lock.close()
            (self.path / _LOCK).unlink(missing_ok=True)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _temporary_folder() -> str:
    """Return the system's folder for temporary files; raise FileError where none takes a file."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:  # Python tries several, and does not say why they take none
        hint = "their disks are full or read-only; TMPDIR names another place"
        raise FileError(f"no folder takes temporary files: {error.strerror}", hint=hint) from None


def write_scratch(path: Path, data: bytes) -> None:
    """Write a file in a scratch folder. Raises FileError, where the folder's disk is full."""
    with report_write_errors(path):
        path.write_bytes(data)


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Raise FileError, which names a file in a scratch folder, where the system refuses to write the file."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, os.fspath(path)):  # of a file that was read meanwhile
            raise
        reason = error.strerror or error
        hint = "check the space there; TMPDIR names another place for temporary files"
        raise FileError(f"{path}: the temporary file cannot be written: {reason}", hint=hint) from None


def remove_left_folders(parent: str) -> None:
    """Remove the scratch folders in ``parent`` of processes that were killed."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False) and _is_own(entry):
                path = Path(entry.path)
                if remove_if_free(os.fspath(path / _LOCK)):
                    shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    path.rmdir()  # one that is empty: its process was killed before it made the lock


_remove_once = cache(remove_left_folders)  # once per process


def _is_own(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder is this user's; Windows has a folder for temporary files for each user."""
    return not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()


def _locked_folder() -> tuple[Path, IO[bytes]]:
    """Make a folder, and return it with the open file that locks it."""
    try:
        for _ in range(ATTEMPTS):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            with suppress(FileNotFoundError):  # another process has taken the empty folder for a leftover
                if lock := open_locked(folder / _LOCK, 0o600):
                    return folder, lock
    except OSError as error:
        reason = error.strerror or error
        message = f"no folder for temporary files can be made in {tempfile.gettempdir()}: {reason}"
        raise FileError(message, hint="TMPDIR names another place for them") from None
    raise FileError(f"no folder for temporary files stays in {tempfile.gettempdir()}", hint="set TMPDIR")


def _remove(folder: Path, lock: IO[bytes]) -> None:
    """Remove a folder; where files of it stay, the lock stays too, by which a later process knows the folder."""
    lock.close()
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                with suppress(OSError):  # Windows removes no file that a session has mapped
                    path.unlink()
        if [path.name for path in folder.iterdir()] == [_LOCK]:
            shutil.rmtree(folder)
