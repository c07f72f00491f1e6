"""Edit an operator information library in place: only the given flags change (Rules S1.5 and S1.6).

The rest of each file stays byte for byte: indentation, order, line ends, byte-order mark, unknown entries, comments.
The new text is read again and compared before a file is replaced. ``library_writes.py`` writes the files.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mixlist.errors import FileError, ListError, UsageError, raise_for_errors
from mixlist.files import json_edit
from mixlist.files.folder_lock import lock_folders
from mixlist.files.jsonc import Document, decode, parse, quoted, read_bytes, shown_path
from mixlist.lists.library_writes import FLAGS, EditedFile, InterruptedEdit, interrupted_edit, writable, write_files
from mixlist.lists.ops_info import Entries, Entry, entries_of, files, from_documents
from mixlist.lists.suggestions import did_you_mean

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class _File:
    """A file of a library as it is before an edit."""

    path: Path
    data: bytes
    document: Document


@dataclass(frozen=True)
class _Target:
    """The files of a library that are edited together, and where they are saved first."""

    path: Path  # of the library: a file or a directory
    folder: Path  # that holds the files
    files: Sequence[Path]
    backup: Path
    make_writable: bool


def set_flags(
    library_path: _Path, changes: Mapping[str, str], backup_dir: _Path, make_writable: bool = False
) -> tuple[list[Path], Mapping[str, str]]:
    """Set the precision flag of op types; return the files that changed, and the flags of an edit that was finished.

    ``changes`` maps op types to ``true`` (white), ``false`` (black) or ``none`` (gray: removes ``precision_reduce``).
    An op type that several files hold changes in each. Files that have these flags already stay untouched.
    ``backup_dir`` is made if need be; it must not be inside the library's own directory, and nothing in it is
    overwritten. ``make_writable`` edits a read-only library and restores its permissions.

    Edits of one library wait for each other. An edit that was killed while it replaced the files is finished first.

    Raises UsageError for an unknown op type or flag, and a backup directory inside the library's; FileError if
    something cannot be read or written, a read-only library among it (then every file is as it was), or if another
    program changed a file meanwhile; ListError if the library is not valid.
    """
    if os.fspath(library_path) == "-":
        raise UsageError("the library is edited in place: '-' (standard input) cannot be", hint="give its path")
    for op, flag in changes.items():
        if flag not in FLAGS:
            raise UsageError(f"{quoted(op)}: {flag!r} is no flag", hint=f"it takes {', '.join(FLAGS)}")
    paths = [Path(path) for path in files(library_path)]
    read_bytes(paths[0])  # raises the right error for a path that is no file, before its folder is locked
    target = _Target(Path(library_path), paths[0].parent, paths, Path(backup_dir), make_writable)
    _refuse_inside(target.path, paths, target.backup)
    with lock_folders({target.folder, *(path.resolve().parent for path in paths)}):
        interrupted = interrupted_edit(target.folder)
        finished = _finish(interrupted, target) if interrupted is not None else {}
        return _set(target, changes), finished


def _finish(interrupted: InterruptedEdit, target: _Target) -> Mapping[str, str]:
    """Set the flags of an edit that was killed, as far as the files still hold its op types; return them.

    The files are not judged together: half of them have new flags, and op types can have two flags.
    """
    files = _read([path for path in interrupted.files if path.is_file()])
    known = {op for file in files for op in entries_of(file.document)}
    changes = {op: flag for op, flag in interrupted.changes.items() if op in known}
    with writable({target.folder} if target.make_writable else ()):
        _write(files, changes, target)
        interrupted.forget()
    return changes


def _set(target: _Target, changes: Mapping[str, str]) -> list[Path]:
    """Set flags in files that are locked; return the files that changed."""
    files = _read(target.files)
    library, findings = from_documents(shown_path(target.path), [file.document for file in files])
    raise_for_errors(findings)
    _refuse_unknown(changes, library.lists, library.name)
    return _write(files, changes, target)


def _read(paths: Iterable[Path]) -> list[_File]:
    files = ((path, read_bytes(path)) for path in paths)
    return [_File(path, data, parse(decode(data, shown_path(path)), shown_path(path))) for path, data in files]


def _write(files: Iterable[_File], changes: Mapping[str, str], target: _Target) -> list[Path]:
    edited = [
        EditedFile(file.path, file.data, (BOM_UTF8 if file.data.startswith(BOM_UTF8) else b"") + text.encode())
        for file in files
        if (text := _edit(file.document, changes)) != file.document.text
    ]
    write_files(edited, InterruptedEdit(target.folder, changes), target.backup, target.make_writable)
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
