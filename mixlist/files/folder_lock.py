"""Lock a folder against other processes of mixlist, and replace a file there that a command edits in place.

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
from mixlist.files.atomic_writes import import_fcntl, write_atomically
from mixlist.files.list_text import read_bytes, shown_path

# An edit or a save holds the lock for much less than one second.
WAIT_SECONDS = 120.0
# Used where a folder cannot be locked itself.
LOCK_FILE = ".mixlist-lock"
_PAUSE_SECONDS = 0.01  # between two attempts
# The errors of a lock that another process holds: EAGAIN or EACCES from flock, EACCES or EDEADLK from msvcrt.
_HELD_ERRNOS = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)

fcntl = import_fcntl()


class _HeldError(OSError):
    """Another process holds the lock."""


@contextmanager
def lock_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Lock folders for a ``with`` block, and wait while other processes hold a lock of one of them.

    A folder of a file system without locks is not locked. Raises FileError if a folder cannot be locked, or if another
    process holds a lock for longer than ``WAIT_SECONDS``.
    """
    with ExitStack() as locks:
        # Two spellings of one folder must become one lock: a second lock would wait for the first one of this process.
        # All processes lock in the same order. In different orders, two processes could wait for each other.
        for folder in sorted({folder.resolve() for folder in folders}):
            locks.enter_context(_hold_lock(folder))
        yield


def replace_unless_changed(path: str | os.PathLike[str], before: bytes, after: bytes) -> None:
    """Replace a file whose bytes were ``before``; raise FileError if another program has changed it (Rule S1.6)."""
    # A pipe or a device cannot be read a second time.
    if not Path(path).is_file():
        write_atomically(path, after)
        return
    with lock_folders([Path(path).resolve().parent]):
        if read_bytes(path) != before:
            hint = "nothing was written; run this command again"
            raise FileError(f"{shown_path(path)}: another program changed the file meanwhile", hint=hint)
        write_atomically(path, after)


@contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    descriptor = _wait_for_lock(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            _unlock(descriptor, folder)


def _unlock(descriptor: int, folder: Path) -> None:
    """Release a lock, and remove the hidden file if the lock is on that file."""
    # Windows does not remove an open file, so the file is closed first there.
    if fcntl is None:
        os.close(descriptor)
    # On POSIX the file is removed while it is still locked. A process that waits for the lock gets it next,
    # finds that its file has lost the name (_has_lock_name), and makes a new file.
    with suppress(OSError):
        if fcntl is None or _has_lock_name(descriptor, folder):
            (folder / LOCK_FILE).unlink()
    if fcntl is not None:
        os.close(descriptor)


def _wait_for_lock(folder: Path) -> int | None:
    """Lock a folder, or the hidden file in it; return the descriptor of the open folder or file.

    Returns None if the file system does not support locks.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            # The folder itself comes first, because its lock leaves no file behind.
            descriptor = _try_lock_folder(folder)
            return _try_lock_hidden_file(folder) if descriptor is None else descriptor
        except _HeldError:
            pass
        except OSError as error:
            raise FileError(f"{folder}: the folder cannot be locked: {error.strerror}") from None
        if time.monotonic() > deadline:
            raise FileError(
                f"{folder}: another process holds the lock of the folder for more than {WAIT_SECONDS:.0f} seconds",
                hint="wait for the other run of mixlist, or end it; then run this command again",
            )
        time.sleep(_PAUSE_SECONDS)


def _try_lock_folder(folder: Path) -> int | None:
    """Lock the folder itself without waiting, and return its descriptor; None if the system cannot lock folders.

    Raises _HeldError if another process holds the lock.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        # The folder has write permission without read permission: a file in it can still be locked.
        return None
    try:
        if _try_lock_descriptor(descriptor):
            return descriptor
    except _HeldError:
        os.close(descriptor)
        raise
    # The file system refuses locks of folders, as some network file systems do.
    os.close(descriptor)
    return None


def _try_lock_hidden_file(folder: Path) -> int | None:
    """Lock the hidden file without waiting, and return its descriptor; None if there is no support for locks.

    Raises _HeldError if another process holds the lock, or removed the file meanwhile.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        # On Windows another process is just removing the file.
        if fcntl is None:
            raise _HeldError from None
        raise
    try:
        is_locked = _try_lock_descriptor(descriptor)
        # Between opening and locking, the earlier owner of the lock can have removed the file. A lock on a file without
        # the name protects nothing: the next process would make a new file and lock that one.
        if not _has_lock_name(descriptor, folder):
            raise _HeldError
    except _HeldError:
        os.close(descriptor)
        raise
    if is_locked:
        return descriptor
    # There are no locks at all here: remove the file that was made only for the lock.
    _unlock(descriptor, folder)
    return None


def _try_lock_descriptor(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed, without waiting; return False if locks are not supported.

    Raises _HeldError if another process holds the lock.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            # Windows locks ranges of bytes. The range may lie beyond the end of the file, which is empty.
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError as error:
        if error.errno in _HELD_ERRNOS:
            raise _HeldError from None
        return False
    return True


def _has_lock_name(descriptor: int, folder: Path) -> bool:
    """Return True if an open file is the one that has the name ``LOCK_FILE`` in the folder now."""
    try:
        return os.path.samestat(os.fstat(descriptor), (folder / LOCK_FILE).stat())
    except OSError:
        return False
