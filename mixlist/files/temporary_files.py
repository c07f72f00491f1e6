"""Create a file in the folder of its target, write it, and give it its final name in one step.

Where the system allows it (Linux), the file has no name until then, so a process that is killed leaves nothing.
Elsewhere it has a hidden random name, and its process holds a lock on it. A file with such a name whose lock is free is
a leftover: the next process that writes into the folder removes it.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO

from mixlist.errors import FileError

_PREFIX, _SUFFIX = ".mixlist-", ".tmp"  # not .json: an engine loads every .json file of a library's folder
_TEMPORARY = re.compile(r"\.mixlist-[a-z0-9_]{8}\.tmp")
ATTEMPTS = 100  # names that are tried
_RECENT = 60.0  # seconds; without locks, a file this young may be one that is just being renamed


def import_fcntl() -> ModuleType | None:
    """Return the module of file locks; None on Windows, which has another one, and refuses to remove an open file."""
    try:
        import fcntl
    except ImportError:
        return None
    return fcntl


_fcntl = import_fcntl()


class NewFile:
    """A file that is not placed yet; ``file`` is open for writing and reading, ``target`` is its final path."""

    def __init__(self, target: Path) -> None:
        folder = target.parent
        # A file that replaces one with narrow permissions is not readable by others meanwhile.
        mode = 0o600 if target.exists() else 0o666
        self.target = target
        self.path: Path | None = None  # the hidden name, if there is one
        if _prepare_folder(os.fspath(folder)):
            self.file: IO[bytes] = os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, mode), "w+b")
        else:
            self.file, self.path = _open_hidden(folder, mode)
        lock(self.file)

    def replace(self) -> None:
        """Put the file in the place of the target, whose permissions and owner it takes over if there is one."""
        self._sync()
        if self.target.exists():
            _copy_owner(self.target, self.file.fileno())
        if self.path is None:
            self.path = _hidden_name(self.target.parent)
            _link_open(self.file.fileno(), self.path)
        if _fcntl is None:
            self.file.close()  # Windows renames no open file
        self.path.replace(self.target)
        self.path = None

    def link(self, name: str, *, durable: bool = True) -> bool:
        """Give the file this name in its folder; return False, and change nothing, where the name is used already.

        Without ``durable`` the content is not flushed to the disk: after a power failure the file can be empty.
        """
        if durable:
            self._sync()
        else:
            self.file.flush()
        place = self.target.with_name(name)
        try:
            if self.path is None:
                _link_open(self.file.fileno(), place)
            else:
                os.link(self.path, place)  # fails where a file exists, unlike a rename
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: claim the name, then replace the empty file
            try:
                place.open("xb").close()
            except FileExistsError:
                return False
            self.target = place
            try:
                self.replace()
            except OSError:
                place.unlink()
                raise
        return True

    def has_content_of(self, other: Path) -> bool:
        """Return whether another file holds the same bytes as this one, which is not placed yet."""
        self.file.flush()
        if os.fstat(self.file.fileno()).st_size != other.stat().st_size:
            return False
        self.file.seek(0)
        with other.open("rb") as file:
            while piece := file.read(2**20):
                if piece != self.file.read(2**20):
                    return False
        return True

    def close(self) -> None:
        """Close the file, and remove it unless it was placed."""
        with suppress(OSError):  # of a full disk, which the writer has seen already
            self.file.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def _sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[NewFile]:
    """Yield a new file for ``path``, which the caller writes and places; a file that was not placed is removed.

    A symbolic link is followed. Errors of the system become FileError.
    """
    try:
        new = NewFile(Path(os.path.realpath(path)))
        try:
            yield new
        finally:
            new.close()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{os.fspath(path)}: cannot be written: {reason}") from None


def lock(file: IO[bytes] | int) -> bool:
    """Lock an open file for this process without waiting; return False if another one holds the lock.

    The lock ends with the process. Where a file system has no locks, and on Windows, nothing is locked.
    """
    if _fcntl is not None:
        try:
            _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


def remove_leftovers(folder: str) -> None:
    """Remove the files that processes of mixlist left in a folder when they were killed."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                remove_if_free(entry.path)


def remove_if_free(path: str) -> bool:
    """Remove a file unless a process holds a lock on it; return whether it was removed."""
    try:
        if _fcntl is None:
            if time.time() - os.stat(path).st_mtime < _RECENT:  # noqa: PTH116
                return False
            os.unlink(path)  # noqa: PTH108 - Windows refuses this for a file that is open
            return True
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)  # raises where it is held, or without locks
            os.unlink(path)  # noqa: PTH108
        finally:
            os.close(handle)
    except OSError:
        return False
    return True


@cache
def _prepare_folder(folder: str) -> bool:
    """Remove leftovers; return whether the folder takes files without a name that get one later. Once per process."""
    remove_leftovers(folder)
    if not hasattr(os, "O_TMPFILE"):
        return False
    name = _hidden_name(Path(folder))
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return False
    try:
        _link_open(handle, name)  # needs /proc, and a file system with hard links
    except OSError:
        return False
    finally:
        os.close(handle)
        with suppress(OSError):
            name.unlink()
    return True


def _link_open(handle: int, path: Path) -> None:
    """Give an open file without a name a name; raise FileExistsError where it is used already."""
    # With a folder given, even one that an absolute path ignores, Python follows the link in /proc to the open file.
    os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)


def _hidden_name(folder: Path) -> Path:
    """Return a name that was free a moment ago."""
    return Path(tempfile.mktemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder))


def _open_hidden(folder: Path, mode: int) -> tuple[IO[bytes], Path]:
    """Create a file with a hidden name."""
    for _ in range(ATTEMPTS):
        path = _hidden_name(folder)
        with suppress(FileExistsError):
            if file := open_locked(path, mode):
                return file, path
    raise FileError(f"{folder}: no new file can be made there", hint="choose another folder")


def open_locked(path: Path, mode: int) -> IO[bytes] | None:
    """Create a file and lock it; return None where another process removed it as a leftover before it was locked."""
    file = open(path, "x+b", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
    with suppress(FileNotFoundError):
        if lock(file) and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            return file
    file.close()
    return None


def _copy_owner(source: Path, handle: int) -> None:
    """Give an open file the permissions of another, and its owner where that is allowed; Windows has neither."""
    status = source.stat()
    if hasattr(os, "fchown"):
        with suppress(PermissionError):  # only root may give files away
            os.fchown(handle, status.st_uid, status.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(handle, status.st_mode & 0o7777)
