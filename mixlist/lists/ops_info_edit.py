"""Edit the flags of an operator information library in place (Rules S1.5 and S1.6).

Every other byte of each file stays: indentation, order, line ends, byte-order mark, unknown entries, comments. Before a
file is replaced, its new text is read again and compared with the expected value. ``library_writes.py`` writes the
files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mixlist.errors import FileError, ListError, UsageError, raise_for_errors
from mixlist.files.folder_lock import lock_folders
from mixlist.files.jsonc import (
    Document,
    ObjectLayout,
    Replacement,
    apply_replacements,
    insert_member,
    layout_of,
    parse,
    remove_member,
)
from mixlist.files.list_text import byte_order_marks, decode, quoted, read_bytes, shown_path
from mixlist.lists.library_writes import FLAGS, EditedFile, replace_files
from mixlist.lists.op_catalog import is_known
from mixlist.lists.ops_info import Entries, Entry, entries_of, library_files, library_from_documents
from mixlist.lists.suggestions import did_you_mean

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class _LibraryFile:
    """A file of a library before an edit."""

    path: Path
    data: bytes
    document: Document


@dataclass(frozen=True)
class _EditTarget:
    """The library to edit: its path (a file or a directory), its files, and how they may be changed."""

    path: Path
    files: Sequence[Path]
    backup: Path
    make_writable: bool


def set_flags(
    library_path: _Path, changes: Mapping[str, str], backup_dir: _Path, make_writable: bool = False
) -> list[Path]:
    """Set the precision flags of op types in a library; return the files that changed.

    ``changes`` maps op types to ``true`` (white), ``false`` (black) or ``none`` (gray: removes ``precision_reduce``).
    An op type that is in several files changes in each of them. A file that has these flags already stays untouched.
    ``backup_dir`` is made if it does not exist. It must not be inside the library's own directory, and nothing in it is
    overwritten. ``make_writable`` edits a read-only library and restores its permissions.

    Edits of one library wait for each other.

    Raises UsageError for an unknown op type or flag, and for a backup directory inside the library's. Raises ListError
    if the library is not valid. Raises FileError if a file cannot be read or written, if the library is read-only, or
    if another program changed a file during the edit; then every file is as it was.
    """
    if os.fspath(library_path) == "-":
        raise UsageError("the library is edited in place: '-' (standard input) cannot be edited", hint="give its path")
    for op, flag in changes.items():
        if flag not in FLAGS:
            raise UsageError(f"{quoted(op)}: {flag!r} is not a flag", hint=f"allowed flags: {', '.join(FLAGS)}")
    paths = [Path(path) for path in library_files(library_path)]
    # For a path that does not exist, this error is better than that of the lock of its folder.
    read_bytes(paths[0])
    library = _EditTarget(Path(library_path), paths, Path(backup_dir), make_writable)
    _refuse_backup_inside(library.path, paths, library.backup)
    # A file of the folder can be a link: the folder of its target changes, too.
    with lock_folders({paths[0].parent, *(path.resolve().parent for path in paths)}):
        return _set_flags(library, changes)


def _set_flags(library: _EditTarget, changes: Mapping[str, str]) -> list[Path]:
    """Set flags in the files of a locked library; return the files that changed."""
    files = _read_files(library.files)
    loaded_library, findings = library_from_documents(shown_path(library.path), [file.document for file in files])
    raise_for_errors(findings)
    _refuse_unknown(changes, loaded_library.lists, loaded_library.name)
    return _write_flags(files, changes, library)


def _read_files(paths: Iterable[Path]) -> list[_LibraryFile]:
    files = ((path, read_bytes(path)) for path in paths)
    return [_LibraryFile(path, data, parse(decode(data, shown_path(path)), shown_path(path))) for path, data in files]


def _write_flags(files: Iterable[_LibraryFile], changes: Mapping[str, str], library: _EditTarget) -> list[Path]:
    # ``document.text`` has no byte-order marks: put them back.
    edited_files = [
        EditedFile(file.path, file.data, byte_order_marks(file.data) + text.encode())
        for file in files
        if (text := _edit_text(file.document, changes)) != file.document.text
    ]
    replace_files(edited_files, library.backup, library.make_writable)
    return [file.path for file in edited_files]


def _refuse_backup_inside(library_path: Path, paths: Iterable[Path], backup: Path) -> None:
    """Refuse a backup directory that is, or is inside, a directory from which the library is loaded."""
    try:
        resolved = backup.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the path, links in a circle
        raise FileError(f"{shown_path(backup)}: not a directory: {error}") from None
    # If a file is a link, an engine can load the folder of the link or that of its target: both are refused.
    library_folders = {library_path.resolve()} if library_path.is_dir() else set()
    library_folders |= {folder for path in paths for folder in (path.parent.resolve(), path.resolve().parent)}
    for folder in library_folders:
        if resolved.is_relative_to(folder):
            raise UsageError(
                f"{shown_path(backup)}: the backup directory is inside the library's own directory {folder}",
                hint="the engine loads every .json file of that directory; name a directory outside of it",
            )


def _refuse_unknown(changes: Iterable[str], known_ops: Mapping[str, object], name: str) -> None:
    unknown = [op for op in changes if op not in known_ops]
    if not unknown:
        return
    op = unknown[0]
    # A name that exists is not misspelled: the library only lacks it.
    exists = is_known(op, "onnx") or is_known(op, "ascend")
    question = None if exists else did_you_mean(op, known_ops)
    # An entry of the engine's library has more keys than the flag, so mixlist cannot make one (Rule S1.5).
    addition = f"to add it, write {quoted(op)}: {{}} into the library, then set its flag"
    hint = f"{question} {addition}" if question else addition
    raise UsageError(f"library {name} has no op type {', '.join(map(quoted, unknown[:5]))}", hint=hint)


def _edit_text(document: Document, changes: Mapping[str, str]) -> str:
    """Return the text of a file after the changes to the op types in it.

    The new text is read again: if its value is not the expected one, a ListError is raised and nothing is written.
    """
    entries = entries_of(document)
    expected = {op: _edited_entry(entries[op], flag) for op, flag in changes.items() if op in entries}
    replacements = [part for op in expected for part in _replacements(document, entries, op, changes[op])]
    if not replacements:
        return document.text
    text = apply_replacements(document.text, replacements)
    try:
        after = entries_of(parse(text, document.path))
    except ListError:
        after = {}
    # Lists of items and not dicts: the order of the op types must stay, too.
    if list(after.items()) != list({**entries, **expected}.items()):
        message = f"{document.path}: mixlist cannot edit the file without another change"
        raise ListError(message, hint="edit the file by hand")
    return text


def _edited_entry(entry: Entry, flag: str) -> Entry:
    """Return the value that an entry must have after the edit."""
    if flag == "none":
        return {key: value for key, value in entry.items() if key != "precision_reduce"}
    precision_reduce = entry.get("precision_reduce")
    if not isinstance(precision_reduce, dict):
        precision_reduce = {}
    return (
        entry
        if _has_flag(precision_reduce, flag)
        else {**entry, "precision_reduce": {**precision_reduce, "flag": flag}}
    )


def _has_flag(precision_reduce: Entry, flag: str) -> bool:
    """Return True if ``precision_reduce`` has the flag already, as a string that the engine reads alike (Rule S1.2)."""
    # strip() removes more than the blanks of Rule S1.2, but a flag with other blanks is an error of the library.
    current = precision_reduce.get("flag")
    return isinstance(current, str) and current.strip().lower() == flag


def _replacements(document: Document, entries: Entries, op: str, flag: str) -> list[Replacement]:
    """Return the replacements in the text that set the flag of one op type."""
    entry_offset = document.offset((op,))
    precision_reduce = entries[op].get("precision_reduce")
    # gray: remove precision_reduce
    if flag == "none":
        return [] if precision_reduce is None else remove_member(document, entry_offset, "precision_reduce")
    value = f'"{flag}"'
    # no precision_reduce yet: insert one that looks like the others of the file
    if not isinstance(precision_reduce, dict):
        inner = _flag_layout(document, entries, op)
        reduce_text = f'{{{inner.opening}"flag"{inner.colon}{value}{inner.closing}}}'
        outer = _entry_layout(document, entries)
        return [insert_member(document, entry_offset, "precision_reduce", reduce_text, outer)]
    if _has_flag(precision_reduce, flag):
        return []
    # a precision_reduce without a flag, or with another one
    reduce_offset = document.offset((op, "precision_reduce"))
    if "flag" not in precision_reduce:
        return [insert_member(document, reduce_offset, "flag", value, _flag_layout(document, entries, op))]
    member = document.members(reduce_offset)["flag"]
    return [Replacement(member.value, member.end, value)]


def _flag_layout(document: Document, entries: Entries, op: str) -> ObjectLayout:
    """Return the layout for a new ``precision_reduce``.

    The layout is copied from the first of these objects that exists and has members:

    1. a ``precision_reduce`` of the file;
    2. an object in the entry of the op type;
    3. an object in another entry.

    Without such an object, the layout is that of the entries with one more level of indentation.
    """
    flags = ((name, "precision_reduce") for name in entries)
    all_members = ((name, key) for name in (op, *entries) for key in entries[name])
    for name, key in chain(flags, all_members):
        if isinstance(value := entries[name].get(key), dict) and value:
            return layout_of(document, document.offset((name, key))) or ObjectLayout()
    return _entry_layout(document, entries).nested()


def _entry_layout(document: Document, entries: Entries) -> ObjectLayout:
    """Return the layout of the first entry with members; without one, a layout that is derived from the whole file."""
    name = next((name for name, entry in entries.items() if entry), None)
    if name is not None:
        return layout_of(document, document.offset((name,))) or ObjectLayout()
    return (layout_of(document, document.root) or ObjectLayout()).nested()
