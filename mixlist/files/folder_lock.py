"""Lock a folder against other runs of mixlist, without a file that a killed run would leave.

The system takes the lock from a process that ends, however it ends. On POSIX the folder itself is locked; where the
system cannot do that (Windows, some network file systems), a hidden file in the folder is locked instead.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mixlist.errors import FileError
from mixlist.files.temporary_files import import_fcntl

WAIT = 120.0  # seconds; an edit or a save holds the lock for much less than one
LOCK_FILE = ".mixlist-lock"  # where a folder cannot be locked itself
_PAUSE = 0.01  # seconds between two tries
_HELD_ERRNOS = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # of a lock that another process holds, by system

fcntl = import_fcntl()


class _HeldError(OSError):
    """Another process holds the lock."""


@contextmanager
def lock_folders(folders: Iterable[Path]) -> Iterator[bool]:
    """Hold the locks of folders; wait while other processes hold them. Yield False where a file system has no locks.

    Raises FileError if another process holds a lock for longer than ``WAIT`` seconds.
    """
    with ExitStack() as held:
        is_locked = True
        for folder in sorted({folder.resolve() for folder in folders}):  # one order for all: two runs cannot block
            is_locked = held.enter_context(_locked(folder)) and is_locked
        yield is_locked


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    descriptor = _wait_for(folder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _unlock(descriptor, folder)


def _unlock(descriptor: int, folder: Path) -> None:
    if fcntl is None:
        os.close(descriptor)  # Windows removes no open file
    with suppress(OSError):
        # Removed while it is locked: a process that waits for it sees that the name is free, and makes a new file.
        if fcntl is None or _is_lock_file(descriptor, folder):
            (folder / LOCK_FILE).unlink()
    if fcntl is not None:
        os.close(descriptor)


def _wait_for(folder: Path) -> int | None:
    """Return the open folder, or the open file in it, whose lock this process holds now; None without locks."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            descriptor = _lock_folder(folder)
            return _lock_file_in(folder) if descriptor is None else descriptor
        except _HeldError:
            pass
        except OSError as error:
            raise FileError(f"{folder}: the folder cannot be locked: {error.strerror}") from None
        if time.monotonic() > deadline:
            raise FileError(
                f"{folder}: another process holds the lock of the folder for more than {WAIT:.0f} seconds",
                hint="wait for the other run of mixlist, or end it; then run this command again",
            )
        time.sleep(_PAUSE)


def _lock_folder(folder: Path) -> int | None:
    """Lock the folder itself and return it open; None where the system cannot. Raises _HeldError."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written and not be read
        return None
    try:
        if _lock(descriptor):
            return descriptor
    except _HeldError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock_file_in(folder: Path) -> int | None:
    """Lock the hidden file and return it open; None without locks. Raises _HeldError, also if the file is gone."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        if fcntl is None:  # Windows still removes the file
            raise _HeldError from None
        raise
    try:
        has_locks = _lock(descriptor)
        if not _is_lock_file(descriptor, folder):
            raise _HeldError
    except _HeldError:
        os.close(descriptor)
        raise
    if has_locks:
        return descriptor
    _unlock(descriptor, folder)
    return None


def _lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False where there are no locks. Raises _HeldError."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError as error:
        if error.errno in _HELD_ERRNOS:
            raise _HeldError from None
        return False
    return True


def _is_lock_file(descriptor: int, folder: Path) -> bool:
    """Return whether an open file is the one that has the lock file's name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), (folder / LOCK_FILE).stat())
    except OSError:
        return False
