"""Edit an operator information library in place: only the given flags change.

The rest of each file stays byte for byte: indentation, order, line ends, byte-order mark, unknown
entries, comments. The originals are saved first, in a directory that the engine does not load. The
new text is read again and compared before a file is replaced, in one step each.
"""

from __future__ import annotations

import os
import stat
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mixlist.errors import FileError, ListError, UsageError
from mixlist.files import json_edit
from mixlist.files.jsonc import Document, decode, parse, quoted, read_bytes, shown_path
from mixlist.files.whole_writes import write_whole
from mixlist.lists.findings import stop_on_errors
from mixlist.lists.ops_info import Entries, Entry, entries_of, files, from_documents
from mixlist.lists.suggestions import did_you_mean

FLAGS = ("true", "false", "none")
_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class _Edited:
    """A file before and after."""

    path: Path
    before: bytes
    after: bytes


def set_flags(
    library_path: _Path, changes: Mapping[str, str], backup_dir: _Path, make_writable: bool = False
) -> list[Path]:
    """Set the precision flag of op types and return the files that changed.

    ``changes`` maps op types to ``true`` (white), ``false`` (black) or ``none`` (gray: removes
    ``precision_reduce``); an op that several files of a library hold changes in each. Files that
    say so already stay untouched. ``backup_dir`` is made if need be; it must not be inside the
    library's own directory, and nothing in it is overwritten. ``make_writable`` edits a read-only
    library and restores its permissions.

    Raises UsageError for an unknown op type or flag, and a backup directory inside the
    library's; FileError if something cannot be read or written, a read-only library among it (then
    every file is as it was); ListError if the library is not valid.
    """
    if os.fspath(library_path) == "-":
        raise UsageError("the library is edited in place: '-' (standard input) cannot be", hint="give its path")
    for op, flag in changes.items():
        if flag not in FLAGS:
            raise UsageError(f"{quoted(op)}: {flag!r} is no flag", hint=f"it takes {', '.join(FLAGS)}")
    paths = [Path(path) for path in files(library_path)]
    originals = [read_bytes(path) for path in paths]
    _refuse_inside(Path(library_path), paths, Path(backup_dir))
    named = zip(map(shown_path, paths), originals, strict=True)
    documents = [parse(decode(data, name), name) for name, data in named]
    library, findings = from_documents(shown_path(library_path), documents)
    stop_on_errors(findings)
    _refuse_unknown(changes, library.lists, library.name)
    edited = [
        _Edited(path, data, (BOM_UTF8 if data.startswith(BOM_UTF8) else b"") + text.encode())
        for path, data, document in zip(paths, originals, documents, strict=True)
        if (text := _edit(document, changes)) != document.text
    ]
    _write(edited, Path(backup_dir), make_writable)
    return [file.path for file in edited]


def _refuse_inside(library: Path, paths: Iterable[Path], backup: Path) -> None:
    """Refuse a backup directory that is, or is inside, a directory from which the library loads."""
    try:
        place = backup.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the path, links in a circle
        raise FileError(f"{shown_path(backup)}: is no directory: {error}") from None
    own = {library.resolve()} if library.is_dir() else set()
    own |= {folder for path in paths for folder in (path.parent.resolve(), path.resolve().parent)}
    for folder in own:
        if place.is_relative_to(folder):
            raise UsageError(
                f"{shown_path(backup)}: the backup directory is inside the library's own directory {folder}",
                hint="the engine loads every .json file that it finds there; name a directory outside",
            )


def _refuse_unknown(changes: Iterable[str], known: Mapping[str, object], name: str) -> None:
    unknown = [op for op in changes if op not in known]
    if not unknown:
        return
    hint = did_you_mean(unknown[0], known) or "names are exact; set changes only op types that it has"
    raise UsageError(f"library {name} knows no op type {', '.join(map(quoted, unknown[:5]))}", hint=hint)


def _edit(document: Document, changes: Mapping[str, str]) -> str:
    """Return the text after the changes to the op types that the file holds, which is read again to be sure."""
    entries = entries_of(document)
    expected = {op: _changed(entries[op], flag) for op, flag in changes.items() if op in entries}
    cuts = [cut for op in expected for cut in _cuts(document, entries, op, changes[op])]
    if not cuts:
        return document.text
    text = json_edit.apply(document.text, cuts)
    try:
        after = entries_of(parse(text, document.path))
    except ListError:
        after = {}
    if list(after.items()) != list({**entries, **expected}.items()):
        raise ListError(f"{document.path}: the edit would not come out right", hint="edit the file by hand")
    return text


def _changed(entry: Entry, flag: str) -> Entry:
    """Return the entry that an edit must give."""
    if flag == "none":
        return {key: value for key, value in entry.items() if key != "precision_reduce"}
    reduce = entry.get("precision_reduce")
    if not isinstance(reduce, dict):
        reduce = {}
    return entry if _has_flag(reduce, flag) else {**entry, "precision_reduce": {**reduce, "flag": flag}}


def _has_flag(reduce: Entry, flag: str) -> bool:
    """Return whether ``precision_reduce`` has the flag already, as a string that the engine reads so."""
    current = reduce.get("flag")
    return isinstance(current, str) and current.strip().lower() == flag


def _cuts(document: Document, entries: Entries, op: str, flag: str) -> list[json_edit.Cut]:
    at = document.offset((op,))
    reduce = entries[op].get("precision_reduce")
    if flag == "none":
        return [] if reduce is None else json_edit.remove(document, at, "precision_reduce")
    value = f'"{flag}"'
    if not isinstance(reduce, dict):
        inner = _flag_style(document, entries, op)
        value = f'{{{inner.first}"flag"{inner.colon}{value}{inner.last}}}'
        return [json_edit.insert(document, at, "precision_reduce", value, _entry_style(document, entries))]
    if _has_flag(reduce, flag):
        return []
    inside = document.offset((op, "precision_reduce"))
    if "flag" not in reduce:
        return [json_edit.insert(document, inside, "flag", value, _flag_style(document, entries, op))]
    member = document.members(inside)["flag"]
    return [json_edit.Cut(member.value, member.end, value)]


def _flag_style(document: Document, entries: Entries, op: str) -> json_edit.Style:
    """Return the layout of a ``precision_reduce`` in the file, else of an object in an entry, the op's own first."""
    flags = ((name, "precision_reduce") for name in entries)
    others = ((name, key) for name in (op, *entries) for key in entries[name])
    for name, key in chain(flags, others):
        if isinstance(value := entries[name].get(key), dict) and value:
            return json_edit.style_of(document, document.offset((name, key))) or json_edit.Style()
    return _entry_style(document, entries).deeper()


def _entry_style(document: Document, entries: Entries) -> json_edit.Style:
    """Return the layout of the first entry that has members, else one for the layout of the file."""
    filled = next((name for name, entry in entries.items() if entry), None)
    if filled is not None:
        return json_edit.style_of(document, document.offset((filled,))) or json_edit.Style()
    return (json_edit.style_of(document, document.root) or json_edit.Style()).deeper()


def _write(edited: list[_Edited], backup: Path, make_writable: bool) -> None:
    """Save the originals, then replace the files; if one fails, the others get their old bytes back."""
    targets = [file.path.resolve() for file in edited]
    if not make_writable:
        _refuse_read_only(targets)
    for file in edited:
        _save(file, backup)
    done: list[_Edited] = []
    with _writable({target.parent for target in targets}):
        try:
            for file in edited:
                write_whole(file.path, file.after)
                done.append(file)
        except FileError:
            for file in done:
                write_whole(file.path, file.before)
            raise


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
    if os.geteuid() in (0, status.st_uid):
        return bool(status.st_mode & stat.S_IWUSR)
    return os.access(path, os.W_OK)


def _save(file: _Edited, backup: Path) -> None:
    """Copy a file into the backup directory under a name that is free there."""
    try:
        backup.mkdir(parents=True, exist_ok=True)
        for number in range(10_000):
            name = file.path.name if number == 0 else f"{file.path.name}.{number}"
            try:
                with (backup / name).open("xb") as copy:
                    copy.write(file.before)
                    os.fsync(copy.fileno())
            except FileExistsError:
                continue
            return
    except OSError as error:
        raise FileError(f"{shown_path(backup)}: the original cannot be saved: {error.strerror}") from None
    raise FileError(f"{shown_path(backup)}: ten thousand backups of {file.path.name} are enough")


@contextmanager
def _writable(folders: Iterable[Path]) -> Iterator[None]:
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
