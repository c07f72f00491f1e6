"""Write the files of an edited library, so that no edit is lost and none stays half done (Rules S1.5 and S1.6).

The originals are saved first, in a directory that the engine does not load. Then all new files are written under other
names, and then each replaces its original. Meanwhile a record in the library's directory names the flags: if the
process is killed, the next edit finds the record and sets the flags in the files that still lack them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mixlist.errors import FileError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.folder_lock import lock_folders
from mixlist.files.jsonc import shown_path
from mixlist.files.temporary_files import NewFile, new_file

FLAGS = ("true", "false", "none")
RECORD = ".mixlist-ops-info-set"  # not .json: the engine loads every .json file of the directory
_FORMAT = "mixlist.ops-info-set/1"


@dataclass(frozen=True)
class EditedFile:
    """A file before and after."""

    path: Path
    before: bytes
    after: bytes


@dataclass(frozen=True)
class InterruptedEdit:
    """The flags that an edit sets in files of a directory; its record lies there while the files are replaced."""

    folder: Path
    changes: Mapping[str, str]
    files: tuple[Path, ...] = ()

    def record(self, files: Iterable[Path]) -> None:
        """Write the record."""
        names = [path.name for path in files]
        content = {"format": _FORMAT, "changes": dict(self.changes), "files": names}
        write_atomically(self.folder / RECORD, json.dumps(content).encode())

    def forget(self) -> None:
        """Remove the record."""
        try:
            (self.folder / RECORD).unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(self.folder / RECORD, error.strerror) from None


def interrupted_edit(folder: Path) -> InterruptedEdit | None:
    """Return the edit that was killed in a directory; raise FileError if its record cannot be read.

    A record that names anything but flags and files of the directory is refused, so it can change no other file.
    """
    path = folder / RECORD
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(path, getattr(error, "strerror", None) or "it is no JSON") from None
    changes, names = (content.get(key) for key in ("changes", "files")) if isinstance(content, dict) else (None, None)
    if not isinstance(changes, dict) or not set(map(str, changes.values())) <= set(FLAGS):
        raise _unusable(path, "it names no flags")
    if not isinstance(names, list) or not all(map(_is_library_file, names)):
        raise _unusable(path, "it names other files than those of the library")
    return InterruptedEdit(folder, changes, tuple(folder / name for name in names))


def _is_library_file(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".json") and name == Path(name).name and "\0" not in name


def _unusable(path: Path, reason: str | None) -> FileError:
    return FileError(
        f"{shown_path(path)}: the record of an interrupted edit cannot be used: {reason}",
        hint="compare the library with its backup, then remove this file",
    )


def write_files(edited: list[EditedFile], edit: InterruptedEdit, backup: Path, make_writable: bool) -> None:
    """Save the originals, then replace the files; if one fails, the others get their old bytes back."""
    if not edited:
        return
    targets = [file.path.resolve() for file in edited]
    if not make_writable:
        _refuse_read_only(targets)
    folders = {target.parent for target in targets}
    with _copies(edited, backup) as copies, writable(folders), ExitStack() as staged:
        new_files = [staged.enter_context(new_file(file.path)) for file in edited]
        for file, new in zip(edited, new_files, strict=True):
            _stage(file, new)
        for file in edited:
            _refuse_changed(file)
        if len(edited) > 1:  # a single file is replaced in one step
            edit.record(file.path for file in edited)
        copies.clear()  # the library changes from here on: the copies stay
        _replace_all(edited, new_files, edit)
        edit.forget()


def _stage(file: EditedFile, new: NewFile) -> None:
    """Write a new file to the disk; raise FileError for a full one, while nothing has changed."""
    try:
        new.file.write(file.after)
        new.file.flush()
        os.fsync(new.file.fileno())
    except OSError as error:
        raise _unwritten(file, error) from None


def _replace_all(edited: list[EditedFile], new_files: list[NewFile], edit: InterruptedEdit) -> None:
    """Let each new file replace its original; if one fails, the others get their old bytes back."""
    done: list[EditedFile] = []
    for file, new in zip(edited, new_files, strict=True):
        try:
            new.replace()
        except OSError as error:
            for earlier in done:
                write_atomically(earlier.path, earlier.before)
            edit.forget()
            raise _unwritten(file, error) from None
        done.append(file)


def _unwritten(file: EditedFile, error: OSError) -> FileError:
    return FileError(f"{shown_path(file.path)}: cannot be written: {error.strerror or error}")


def _refuse_changed(file: EditedFile) -> None:
    if file.path.read_bytes() != file.before:
        raise FileError(
            f"{shown_path(file.path)}: another program changed the file meanwhile",
            hint="nothing was edited; run this command again",
        )


def _refuse_read_only(targets: Iterable[Path]) -> None:
    for path in (place for target in targets for place in (target, target.parent)):
        if not _may_write(path):
            what = "directory is" if path.is_dir() else "library is"
            raise FileError(
                f"{shown_path(path)}: the {what} read-only",
                hint="--make-writable edits it all the same and restores its permissions",
            )


def _may_write(path: Path) -> bool:
    """Return True if the file is meant to be written: for root and the owner, its permission bits decide."""
    status = path.stat()
    if not hasattr(os, "geteuid") or os.geteuid() in (0, status.st_uid):  # Windows has the bit and no owner
        return bool(status.st_mode & stat.S_IWUSR)
    return os.access(path, os.W_OK)


@contextmanager
def _copies(edited: Iterable[EditedFile], backup: Path) -> Iterator[list[Path]]:
    """Copy the originals into the backup directory; yield the new copies.

    At an error, those that the list still holds are removed. The directory is locked, because another edit relies on a
    copy that it finds.
    """
    try:
        backup.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unsaved(backup, error) from None
    copies: list[Path] = []
    with lock_folders([backup]):
        try:
            for file in edited:
                if (copy := _save(file, backup)) is not None:
                    copies.append(copy)
            yield copies
        except BaseException:
            for path in copies:
                with suppress(OSError):
                    path.unlink()
            raise


def _save(file: EditedFile, backup: Path) -> Path | None:
    """Copy a file into the backup directory under a name that is free there; return the copy.

    Return None where the same copy is there already.
    """
    try:
        with new_file(backup / file.path.name) as copy:
            copy.file.write(file.before)
            for number in range(10_000):
                name = file.path.name if number == 0 else f"{file.path.name}.{number}"
                if copy.link(name):
                    return backup / name
                if copy.has_content_of(backup / name):
                    return None
    except (OSError, ValueError, FileError) as error:
        raise _unsaved(backup, error) from None
    raise FileError(f"{shown_path(backup)}: ten thousand backups of {file.path.name} are enough")


def _unsaved(backup: Path, error: Exception) -> FileError:
    reason = getattr(error, "strerror", None) or str(error)
    return FileError(f"{shown_path(backup)}: the original cannot be saved: {reason}")


@contextmanager
def writable(folders: Iterable[Path]) -> Iterator[None]:
    """Let the owner write in the directories (replacing a file needs no more), then restore their modes."""
    modes = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in folders if not _may_write(folder)}
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
