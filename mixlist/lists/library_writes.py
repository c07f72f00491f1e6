"""Write the files of an edited library: all of them or none, unless the process is killed (Rules S1.5 and S1.6).

The steps, while the folder of the library is locked:

1. Copy the originals into the backup folder, which is outside of the library because the engine would load the copies.
2. Write all new files under temporary names. A full disk shows here, when nothing has changed yet.
3. Let each new file replace its original.

If the process is killed during step 3, the backup restores the library.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mixlist.errors import FileError
from mixlist.files.atomic_writes import NewFile, new_file, write_atomically
from mixlist.files.folder_lock import lock_folders
from mixlist.files.list_text import shown_path

FLAGS = ("true", "false", "none")


@dataclass(frozen=True)
class EditedFile:
    """A file of a library with its bytes before and after an edit."""

    path: Path
    before: bytes
    after: bytes


def replace_files(edited_files: list[EditedFile], backup: Path, make_writable: bool) -> None:
    """Copy the originals into the folder ``backup``, then replace all files or none.

    ``make_writable`` makes the folders writable while this function runs. Raises FileError; then no file has changed.
    """
    if not edited_files:
        return
    # A link stays, and its target is replaced: the permissions of the target and of its folder count.
    targets = [file.path.resolve() for file in edited_files]
    if not make_writable:
        _refuse_read_only(targets)
    folders = {target.parent for target in targets}
    # From outside to inside: the backup is complete before the library is touched, and the folders are writable before
    # new files are made in them.
    with _back_up(edited_files, backup) as copies, _temporarily_writable(folders), ExitStack() as staged:
        # Stage: an error here leaves the library as it is.
        new_files = [staged.enter_context(new_file(file.path)) for file in edited_files]
        for file, new in zip(edited_files, new_files, strict=True):
            _stage(file, new)
        # As late as possible, because the lock does not stop programs other than mixlist.
        for file in edited_files:
            _refuse_changed(file)
        # The library changes now: from here on, an error must not remove the copies.
        copies.clear()
        _replace_all(edited_files, new_files)


def _stage(file: EditedFile, new: NewFile) -> None:
    """Write a new file to the disk. Raises FileError, for example if the disk is full."""
    try:
        new.file.write(file.after)
        new.file.flush()
        os.fsync(new.file.fileno())
    except OSError as error:
        raise _write_error(file, error) from None


def _replace_all(edited_files: list[EditedFile], new_files: list[NewFile]) -> None:
    """Let each new file replace its original. If one fails, write the old bytes of the others back."""
    replaced: list[EditedFile] = []
    for file, new in zip(edited_files, new_files, strict=True):
        try:
            new.replace()
        except OSError as error:
            for earlier in replaced:
                write_atomically(earlier.path, earlier.before)
            raise _write_error(file, error) from None
        replaced.append(file)


def _write_error(file: EditedFile, error: OSError) -> FileError:
    return FileError(f"{shown_path(file.path)}: cannot be written: {error.strerror or error}")


def _refuse_changed(file: EditedFile) -> None:
    if file.path.read_bytes() != file.before:
        raise FileError(
            f"{shown_path(file.path)}: another program changed the file during the edit",
            hint="no file was edited; run this command again",
        )


def _refuse_read_only(targets: Iterable[Path]) -> None:
    # Replacing a file needs a writable folder. A read-only file is refused too: its permissions forbid a change.
    for path in chain.from_iterable((target, target.parent) for target in targets):
        if not _is_writable(path):
            kind = "directory" if path.is_dir() else "library"
            raise FileError(
                f"{shown_path(path)}: the {kind} is read-only",
                hint="with --make-writable it is edited, and then gets its permissions back",
            )


def _is_writable(path: Path) -> bool:
    """Return True if the permissions of a file or folder allow this user to write it.

    The system lets root write everything. Therefore root is treated as the owner: a file that its owner must not write
    counts as read-only for root too.
    """
    status = path.stat()
    # Windows has the bit S_IWUSR, but no user ids.
    if not hasattr(os, "geteuid") or os.geteuid() in (0, status.st_uid):
        return bool(status.st_mode & stat.S_IWUSR)
    return os.access(path, os.W_OK)


@contextmanager
def _back_up(edited_files: Iterable[EditedFile], backup: Path) -> Iterator[list[Path]]:
    """Copy the originals into the backup folder; yield the paths of the new copies.

    If the ``with`` block raises an error, the copies that are still in the list are removed. The backup folder is
    locked meanwhile: another edit could find a copy, rely on it, and then lose it.
    """
    try:
        backup.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _backup_error(backup, error) from None
    copies: list[Path] = []
    with lock_folders([backup]):
        try:
            for file in edited_files:
                if (copy := _copy_original(file, backup)) is not None:
                    copies.append(copy)
            yield copies
        # Ctrl-C ends the edit too, and must leave no copies of an edit that did not happen.
        except BaseException:
            for path in copies:
                with suppress(OSError):
                    path.unlink()
            raise


def _copy_original(file: EditedFile, backup: Path) -> Path | None:
    """Copy a file into the backup folder under a free name, such as ``math.json`` or ``math.json.1``; return its path.

    Returns None if the folder has a copy with the same bytes already.
    """
    try:
        with new_file(backup / file.path.name) as copy:
            copy.file.write(file.before)
            for number in range(10_000):
                name = file.path.name if number == 0 else f"{file.path.name}.{number}"
                # link() does not overwrite. A copy with the same bytes is a backup already: repeated edits do not fill
                # the folder.
                if copy.link(name):
                    return backup / name
                if copy.has_content_of(backup / name):
                    return None
    except (OSError, ValueError, FileError) as error:
        raise _backup_error(backup, error) from None
    raise FileError(
        f"{shown_path(backup)}: the directory holds ten thousand backups of {file.path.name}",
        hint="name another directory with --backup",
    )


def _backup_error(backup: Path, error: Exception) -> FileError:
    reason = getattr(error, "strerror", None) or str(error)
    return FileError(f"{shown_path(backup)}: the original cannot be saved: {reason}")


@contextmanager
def _temporarily_writable(folders: Iterable[Path]) -> Iterator[None]:
    """Let the owner write in the folders during a ``with`` block, then restore their permissions.

    Replacing a file needs write permission only for its folder.
    """
    modes = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in folders if not _is_writable(folder)}
    try:
        for folder, mode in modes.items():
            try:
                folder.chmod(mode | stat.S_IWUSR)
            except OSError as error:
                raise FileError(f"{shown_path(folder)}: cannot be made writable: {error.strerror}") from None
        yield
    finally:
        for folder, mode in modes.items():
            with suppress(OSError):
                folder.chmod(mode)
