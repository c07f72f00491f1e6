"""Write files and folders whole or not at all, and test before a long run that this will work.

A new file is made in the folder of its target, written, and given its final name in one step. Where the system allows
it (``O_TMPFILE`` on Linux), the file has no name until then, so that a killed process leaves nothing behind. Elsewhere
the file has a hidden random name, and its process holds a lock on it. If the lock of such a file is free, its process
was killed: the next process that writes into the folder removes the abandoned file.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO
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


# --- write a new folder ---


def write_new_folder(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write the files, by name, and return their paths. An existing folder must be empty.

    Raises UsageError if the folder holds something, and FileError with the message of the system; then nothing has
    changed.
    """
    refuse_used_folder(folder)
    target = Path(os.path.realpath(folder))
    staging = None
    try:
        staging = target.parent / f".mixlist-{uuid4().hex[:8]}.tmp"
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
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        raise FileError(f"{folder}: this folder cannot be written: {error.strerror or error}") from None
    return tuple(folder / name for name in files)


def refuse_used_folder(folder: Path) -> None:
    """Raise UsageError if a folder holds something, and FileError if the path is not that of a folder."""
    try:
        is_used = any(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"{folder}: this folder cannot be written: {error.strerror or error}") from None
    if is_used:
        raise UsageError(
            f"{folder} is not empty",
            hint="name a new folder, or remove this one first",
        )


# --- files without their final name ---

# Not .json: an engine loads every .json file of a library's folder.
_PREFIX, _SUFFIX = ".mixlist-", ".tmp"
_HIDDEN_NAME = re.compile(r"\.mixlist-[a-z0-9_]{8}\.tmp")
ATTEMPTS = 100  # random names that are tried
# Windows does not lock files here. So a file that was written less than this time ago is not removed there: its process
# may still run, and may have closed the file to rename it.
_RECENT_SECONDS = 60.0


def import_fcntl() -> ModuleType | None:
    """Return the module fcntl, which locks files; None on Windows, which has no such module."""
    try:
        import fcntl
    except ImportError:
        return None
    return fcntl


_fcntl = import_fcntl()


class NewFile:
    """A file without its final name: ``replace`` or ``link`` gives it one.

    ``file`` is open for writing and reading. ``target`` is the final path. ``path`` is the hidden path, or None if the
    file has no name.
    """

    def __init__(self, target: Path) -> None:
        folder = target.parent
        # Possibly only the owner may read the target. So only the owner may read the new file until ``replace`` copies
        # the permissions of the target.
        mode = 0o600 if target.exists() else 0o666
        self.target = target
        self.path: Path | None = None
        if _prepare_for_unnamed_files(os.fspath(folder)):
            self.file: IO[bytes] = os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, mode), "w+b")
        else:
            self.file, self.path = _open_hidden(folder, mode)
        # A file without a name is locked too: ``replace`` gives it a hidden name for a moment, and then another process
        # must not remove it as abandoned.
        try_lock(self.file)

    def replace(self) -> None:
        """Give the file the name of the target; an existing target is replaced, and its permissions and owner stay."""
        # The content reaches the disk before the name: after a power failure the name never leads to an empty file.
        self._sync()
        if self.target.exists():
            _copy_permissions(self.target, self.file.fileno())
        if self.path is None:
            # A link cannot replace a file, but a rename can: the file gets a hidden name first.
            self.path = _make_hidden_path(self.target.parent)
            _link_unnamed(self.file.fileno(), self.path)
        # Windows does not rename an open file.
        if _fcntl is None:
            self.file.close()
        self.path.replace(self.target)
        self.path = None

    def link(self, name: str, *, durable: bool = True) -> bool:
        """Give the file ``name`` in its folder. If the name exists already, change nothing and return False.

        Without ``durable`` the content is not flushed to the disk: after a power failure the file can be empty.
        """
        if durable:
            self._sync()
        else:
            self.file.flush()
        path = self.target.with_name(name)
        try:
            if self.path is None:
                _link_unnamed(self.file.fileno(), path)
            else:
                # A link fails if the name exists. A rename would replace that file. ``close`` removes the hidden name.
                os.link(self.path, path)
        except FileExistsError:
            return False
        except OSError:
            # The file system has no hard links: reserve the name with an empty file, then replace that file.
            try:
                path.open("xb").close()
            except FileExistsError:
                return False
            self.target = path
            try:
                self.replace()
            except OSError:
                path.unlink()
                raise
        return True

    def has_content_of(self, path: Path) -> bool:
        """Return True if the file at ``path`` holds the same bytes as this one."""
        self.file.flush()
        if os.fstat(self.file.fileno()).st_size != path.stat().st_size:
            return False
        self.file.seek(0)
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                if chunk != self.file.read(2**20):
                    return False
        return True

    def close(self) -> None:
        """Close the file, and remove it unless it has got its final name."""
        # If the disk is full, writing has raised this error before.
        with suppress(OSError):
            self.file.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def _sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[NewFile]:
    """Yield a new file for ``path``. The caller writes it and calls ``replace`` or ``link``; else it is removed.

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
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{os.fspath(path)}: cannot be written: {reason}") from None


def try_lock(file: IO[bytes] | int) -> bool:
    """Lock an open file without waiting; return False if another process holds the lock.

    The lock ends with the process. Where locks are not supported (some file systems, Windows), nothing is locked and
    the result is True.
    """
    if _fcntl is not None:
        try:
            _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The file system has no locks.
        except OSError:
            return True
    return True


def remove_abandoned_files(folder: str) -> None:
    """Remove the hidden files that killed processes of mixlist left in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _HIDDEN_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                remove_if_free(entry.path)


def remove_if_free(path: str) -> bool:
    """Remove a file unless a process holds a lock on it; return True if it was removed.

    Windows does not remove an open file. There a file must also be older than ``_RECENT_SECONDS``.
    """
    try:
        if _fcntl is None:
            if time.time() - os.stat(path).st_mtime < _RECENT_SECONDS:  # noqa: PTH116
                return False
            os.unlink(path)  # noqa: PTH108
            return True
        # A user can put a link or a named pipe there. O_NOFOLLOW does not follow the link, and O_NONBLOCK does not wait
        # for a process that writes into the pipe.
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            # Raises if a process holds the lock, and where locks are not supported: then the file stays.
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            os.unlink(path)  # noqa: PTH108
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


@cache
def _prepare_for_unnamed_files(folder: str) -> bool:
    """Remove abandoned files, and return True if a file in the folder can be made without a name and get one later.

    Both are done once per process and folder.
    """
    remove_abandoned_files(folder)
    if not hasattr(os, "O_TMPFILE"):
        return False
    path = _make_hidden_path(Path(folder))
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return False
    try:
        # A test with a real link: it needs /proc, and a file system with hard links.
        _link_unnamed(descriptor, path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()
    return True


def _link_unnamed(descriptor: int, path: Path) -> None:
    """Give an open file without a name the name ``path``; raise FileExistsError if that exists already."""
    # Python calls linkat, which follows the link in /proc, only if src_dir_fd is given. linkat itself ignores
    # src_dir_fd here, because the path is absolute.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)


def _make_hidden_path(folder: Path) -> Path:
    """Return a random hidden path in the folder. Another process can still create a file there."""
    # mktemp() only chooses a name. All callers create the file or the link exclusively, so that a file of another
    # process is never overwritten.
    return Path(tempfile.mktemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder))


def _open_hidden(folder: Path, mode: int) -> tuple[IO[bytes], Path]:
    """Create and lock a file with a hidden name; return the open file and its path."""
    for _ in range(ATTEMPTS):
        path = _make_hidden_path(folder)
        with suppress(FileExistsError):
            if file := open_locked(path, mode):
                return file, path
    raise FileError(f"{folder}: no new file can be made there", hint="choose another folder")


def open_locked(path: Path, mode: int) -> IO[bytes] | None:
    """Create a file and lock it; return None if another process removed it as abandoned before it was locked."""
    file = open(path, "x+b", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
    with suppress(FileNotFoundError):
        # Between open() and the lock, another process can take the file for abandoned and remove it. Its name is then
        # free, or belongs to another file.
        if try_lock(file) and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            return file
    file.close()
    return None


def _copy_permissions(source: Path, descriptor: int) -> None:
    """Give an open file the permissions of ``source``, and its owner if the system allows it. Windows has neither."""
    status = source.stat()
    if hasattr(os, "fchown"):
        # Only root may change the owner of a file.
        with suppress(PermissionError):
            os.fchown(descriptor, status.st_uid, status.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, status.st_mode & 0o7777)
