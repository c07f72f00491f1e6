"""Lock a folder against other processes of mixlist.

The operating system releases the lock when the process ends, also if it is killed. On POSIX the folder itself is
locked, so that no file is left behind. Where the system cannot lock folders (Windows, some network file systems), a
hidden file in the folder is locked instead.
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
LOCK_FILE = ".mixlist-lock"  # used where a folder cannot be locked itself
_PAUSE = 0.01  # seconds between two attempts
# The errors of a lock that another process holds: flock gives EAGAIN, on some systems EACCES; msvcrt the last two.
_HELD_ERRNOS = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)

fcntl = import_fcntl()


class _HeldError(OSError):
    """Another process holds the lock."""


@contextmanager
def lock_folders(folders: Iterable[Path]) -> Iterator[bool]:
    """Lock folders for a ``with`` block, and wait while other processes hold a lock of one of them.

    Yields False if a file system has no locks: then the block runs without this lock. Raises FileError if a folder
    cannot be locked, or if another process holds a lock for longer than ``WAIT`` seconds.
    """
    with ExitStack() as locks:
        are_locked = True
        # All processes lock in the same order. In different orders, two processes could wait for each other.
        for folder in sorted({folder.resolve() for folder in folders}):
            are_locked = locks.enter_context(_lock_one_folder(folder)) and are_locked
        yield are_locked


@contextmanager
def _lock_one_folder(folder: Path) -> Iterator[bool]:
    descriptor = _wait_for_lock(folder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _unlock(descriptor, folder)


def _unlock(descriptor: int, folder: Path) -> None:
    """Release a lock, and remove the hidden file if the lock is on that file."""
    # Windows removes no open file, so the file is closed first there.
    if fcntl is None:
        os.close(descriptor)
    # On POSIX the file is removed while it is still locked: a process that waits for the lock gets it then, sees that
    # the file has lost its name (_is_lock_file), and makes a new file.
    with suppress(OSError):
        if fcntl is None or _is_lock_file(descriptor, folder):
            (folder / LOCK_FILE).unlink()
    if fcntl is not None:
        os.close(descriptor)


def _wait_for_lock(folder: Path) -> int | None:
    """Lock a folder, or the hidden file in it; return the descriptor of the open folder or file.

    Returns None if the file system has no locks.
    """
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
    """Lock the folder itself and return its descriptor; None if the system cannot. Raises _HeldError."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder with write permission and without read permission
        return None
    try:
        if _try_lock(descriptor):
            return descriptor
    except _HeldError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock_file_in(folder: Path) -> int | None:
    """Lock the hidden file and return its descriptor; None if there are no locks.

    Raises _HeldError if another process holds the lock, or removed the file meanwhile.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        if fcntl is None:  # another process on Windows is just removing the file
            raise _HeldError from None
        raise
    try:
        has_locks = _try_lock(descriptor)
        if not _is_lock_file(descriptor, folder):
            raise _HeldError
    except _HeldError:
        os.close(descriptor)
        raise
    if has_locks:
        return descriptor
    _unlock(descriptor, folder)
    return None


def _try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False if there are no locks. Raises _HeldError."""
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
    """Return True if an open file is the one that has the name ``LOCK_FILE`` in the folder now."""
    try:
        return os.path.samestat(os.fstat(descriptor), (folder / LOCK_FILE).stat())
    except OSError:
        return False
