"""Operator information libraries: read the list of each op type, and edit the flags in place (Rules S1.1 to S1.6).

A library is one file, or a directory of files. The engine loads all ``.json`` files directly in a directory as one
library, in the order of ``library_files``; some libraries have one file per op type, newer ones a file called
``legacy`` and one file per package. An op type is white if its ``precision_reduce.flag`` is ``"true"``,
black if the flag is ``"false"``, and gray if it has no ``precision_reduce``. For the flag, upper and lower case and
blanks around it make no difference. Names must be exact. If two files have one op type, the later file decides.

An edit leaves every other byte of each file as it is: indentation, order, line ends, byte-order mark, unknown entries,
comments. Before a file is replaced, its new text is read again and compared with the expected value. All files of a
library are replaced or none, unless the process is killed. While the folder of the library is locked, the steps are:

1. Copy the originals into the backup folder, which is outside of the library because the engine would load the copies.
2. Write all new files under temporary names. A full disk shows here, when nothing has changed yet.
3. Let each new file replace its original.

If the process is killed during step 3, the backup restores the library.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.errors import FileError, ListError, UsageError, raise_for_errors
from mixlist.files.atomic_writes import NewFile, new_file, write_atomically
from mixlist.files.jsonc import (
    Document,
    ObjectLayout,
    Replacement,
    apply_replacements,
    insert_member,
    layout_of,
    parse,
    read,
    remove_member,
)
from mixlist.files.list_text import byte_order_marks, decode, is_directory, quoted, read_bytes, shown_path
from mixlist.lists.library import LIST_OF_FLAG, Library, ListName
from mixlist.lists.op_catalog import is_known
from mixlist.lists.schema_check import check_structure
from mixlist.lists.suggestions import closest_names, did_you_mean

# --- read ---

Entry = dict[str, object]  # the members of one op type
Entries = dict[str, Entry]  # by op type

_FLAG_STEPS = ("precision_reduce", "flag")


def load_ops_info(path: str | os.PathLike[str], *, strict: bool = False) -> tuple[Library, list[Diagnostic]]:
    """Return the library in a file, or in all ``.json`` files directly in a directory, and the warnings about it.

    ``strict`` makes comments and trailing commas errors. Raises FileError if a file cannot be read or a directory has
    no ``.json`` file, and ListError, with every finding, if a file is not valid.
    """
    library, findings = inspect_library(path, strict=strict)
    return library, raise_for_errors(findings)


def inspect_library(
    path: str | os.PathLike[str], *, strict: bool = False, files: Sequence[str | os.PathLike[str]] = ()
) -> tuple[Library, list[Diagnostic]]:
    """Return a library of the op types that can be read, and every finding, errors too. Raises only FileError.

    ``files``: the files of the library, if they are not all ``.json`` files of the directory.
    """
    documents: list[Document] = []
    findings: list[Diagnostic] = []
    # A file that is not JSON gives findings only, and the others are read: users see all errors of a library at once.
    for file in _in_engine_order(map(Path, files)) or library_files(path):
        try:
            documents.append(read(file, strict=strict))
        except ListError as error:
            findings += error.diagnostics
    library, library_findings = library_from_documents(shown_path(path), documents)
    return library, [*findings, *library_findings]


def library_files(path: str | os.PathLike[str]) -> Sequence[str | os.PathLike[str]]:
    """Return the files of a library in the order of the engine; raise FileError for a directory without any.

    Rule S1.3: files with ``legacy`` in their name come first, then short names before long ones.
    """
    if not is_directory(path):
        return [path]
    try:
        json_files = [
            entry
            for entry in Path(path).iterdir()
            if entry.suffix == ".json" and entry.name[0] != "." and not entry.is_dir()
        ]
    except OSError as error:
        raise FileError(f"{shown_path(path)}: cannot be read: {error.strerror}") from None
    if not json_files:
        hint = "a library is one .json file or a directory with .json files directly in it"
        raise FileError(f"{shown_path(path)}: the directory holds no .json file", hint=hint)
    return _in_engine_order(json_files)


def _in_engine_order(files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=lambda file: (*_engine_order(file.name), file.name))


def _engine_order(file_name: str) -> tuple[bool, int]:
    """Return the sort key of a file of a library (Rule S1.3). The engine leaves the order of equal keys open."""
    return "legacy" not in file_name, len(file_name)


def library_from_documents(name: str, documents: Iterable[Document]) -> tuple[Library, list[Diagnostic]]:
    """Return the library in files that were read, and every finding about them. ``name`` is for messages."""
    lists: dict[str, ListName] = {}
    kernels: dict[str, frozenset[str]] = {}
    reasons: dict[str, str] = {}
    deciding_documents: dict[str, Document] = {}  # the last document that has the op type
    findings: list[Diagnostic] = []
    conflicts: list[_Conflict] = []
    for document in documents:
        findings += document.findings
        findings += check_structure(document, "ops-info")
        entries = entries_of(document)
        for op, list_name in _read_lists(document, findings).items():
            # An op type in two files is worth a warning only if the two lists differ (Rule S1.3).
            if lists.get(op, list_name) != list_name:
                conflicts.append(_Conflict(op, deciding_documents[op], lists[op], document, list_name))
            lists[op] = list_name
            deciding_documents[op] = document
            kernels[op] = _read_kernels(entries[op])
            reason = entries[op].get("reason")  # the built-in libraries have one, and so may copies of them
            reasons[op] = reason if isinstance(reason, str) else ""

    def locate(op: str) -> FilePlace | None:
        return _place_of(deciding_documents[op], op) if op in deciding_documents else None

    findings += findings_for(conflicts, _conflict_finding)
    kernels = {op: types for op, types in kernels.items() if types}
    reasons = {op: reason for op, reason in reasons.items() if reason}
    return Library(name, lists, locate=locate, kernels=kernels, reasons=reasons), findings


def entries_of(document: Document) -> Entries:
    """Return the entries of a file by op type, without those that are not objects."""
    value = document.value
    return {op: entry for op, entry in value.items() if isinstance(entry, dict)} if isinstance(value, dict) else {}


def _read_lists(document: Document, findings: list[Diagnostic]) -> dict[str, ListName]:
    """Return the list of each op type of one file (Rule S1.1), and append the warnings to ``findings``.

    Entries that the schema rejects are left out: ``check_structure`` reports them.
    """
    if document.value == {}:
        hint = "check that this is the right file"
        findings.append(document.finding("ML207", "warning", "the library holds no op type", hint=hint))
    lists: dict[str, ListName] = {}
    for op, entry in entries_of(document).items():
        # The entry itself stands for a missing key. None cannot: it is the value null, which the schema rejects.
        precision_reduce = entry.get("precision_reduce", entry)
        if precision_reduce is entry:
            lists[op] = "gray"
            findings += _find_misspelled_keys(document, op, entry)
        elif isinstance(precision_reduce, dict):
            # A flag that is not plainly "true" or "false" is read by Rule S1.2, or the schema has rejected it.
            flag = precision_reduce.get("flag")
            list_name = LIST_OF_FLAG.get(flag) if isinstance(flag, str) else None
            list_name = list_name or _read_unusual_flag(document, op, precision_reduce, findings)
            if list_name:
                lists[op] = list_name
    return lists


# The names of float types in an installed library.
_KERNEL_TYPES = {
    "float16": "float16",
    "float": "float32",
    "float32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
_TENSOR_KEY = re.compile(r"(input|output)(\d+)")


def _read_kernels(entry: Entry) -> frozenset[str]:
    """Return the float types in which a chip computes an operator, as the first tensor with floats has them (S4.50).

    ``{"input0": {"dtype": "float16,float", ...}}`` has one type for each kernel. The result is empty without them.
    """
    tensors = []
    for key, tensor in entry.items():
        match = _TENSOR_KEY.fullmatch(key)
        if match and isinstance(tensor, dict) and isinstance(tensor.get("dtype"), str):
            tensors.append((match[1], int(match[2]), tensor["dtype"]))
    for _, _, names in sorted(tensors):  # the inputs come first
        types = {_KERNEL_TYPES.get(name.strip().lower()) for name in names.split(",")} - {None}
        if types:
            return frozenset(map(str, types))
    return frozenset()


def _read_unusual_flag(
    document: Document, op: str, precision_reduce: Entry, findings: list[Diagnostic]
) -> ListName | None:
    """Return the list for a flag that is not plainly "true" or "false" (Rule S1.2); None if there is an error."""
    if "flag" not in precision_reduce:
        message = f"precision_reduce of {quoted(op)} has no flag: the op type is gray"
        hint = 'write {"flag": "true"} or {"flag": "false"}, or remove precision_reduce'
        findings.append(document.finding("ML205", "warning", message, (op, "precision_reduce"), key=True, hint=hint))
        return "gray"
    flag = precision_reduce["flag"]
    return LIST_OF_FLAG.get(flag.strip(" \t\n\r\f\v").lower()) if isinstance(flag, str) else None


def _find_misspelled_keys(document: Document, op: str, entry: Entry) -> Iterator[Diagnostic]:
    """Yield a warning for each key of a gray op type that looks like ``precision_reduce``.

    The schema cannot find these, because an entry may hold any key.
    """
    for key in entry:
        # Compare the first letters before the search for similar names, which is slow: entries have many keys.
        if key[:2].lower() == "pr" and closest_names(key, ["precision_reduce"]):
            message = f"{quoted(op)} has the unknown key {quoted(key)} and no precision_reduce: the op type is gray"
            hint = 'did you mean "precision_reduce"?'
            yield document.finding("ML209", "warning", message, (op, key), key=True, hint=hint)


def _place_of(document: Document, op: str) -> FilePlace:
    """Return the place of an op type's flag, or the place of its name if it has no flag."""
    try:
        return FilePlace(document.path, *document.line_column((op, *_FLAG_STEPS)))
    except KeyError:
        return FilePlace(document.path, *document.line_column((op,), key=True))


class _Conflict(NamedTuple):
    """An op type that two files of a library put on different lists; ``later`` is the file that the engine takes."""

    op: str
    earlier: Document
    earlier_list: ListName
    later: Document
    later_list: ListName


def _conflict_finding(conflict: _Conflict) -> Diagnostic:
    op, earlier, earlier_list, later, later_list = conflict
    message = f"{quoted(op)} is {later_list} here but {earlier_list} at {_place_of(earlier, op)}"
    if _engine_order(Path(earlier.path).name) == _engine_order(Path(later.path).name):
        hint = f"the engine reads these two files in no fixed order: correct one of the two; {later_list} is used here"
    else:
        hint = f"the engine takes {later_list}, because it reads this file last"
    return _place_of(later, op).finding("ML206", "warning", message, hint)


# --- edit the text ---

_Path = str | os.PathLike[str]
FLAGS = ("true", "false", "none")


@dataclass(frozen=True)
class EditedFile:
    """A file of a library with its bytes before and after an edit."""

    path: Path
    before: bytes
    after: bytes


def set_flags(library_path: _Path, changes: Mapping[str, str], backup_dir: _Path) -> list[Path]:
    """Set the precision flags of op types in a library; return the files that changed.

    ``changes`` maps op types to ``true`` (white), ``false`` (black) or ``none`` (gray: removes ``precision_reduce``).
    An op type that is in several files changes in each of them. A file that has these flags already stays untouched.
    ``backup_dir`` is made if it does not exist. It must not be inside the library's own directory, and nothing in it is
    overwritten. Edits of one library wait for each other.

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
    read_bytes(paths[0])  # the errors of a path that no file can have are better than those below
    _refuse_backup_inside(Path(library_path), paths, Path(backup_dir))
    with _lock_folder(paths[0].parent):
        edited_files = _edit_files(shown_path(library_path), paths, changes)
        replace_files(edited_files, Path(backup_dir))
    return [file.path for file in edited_files]


def _edit_files(name: str, paths: Iterable[Path], changes: Mapping[str, str]) -> list[EditedFile]:
    """Return the files of a library that the changes edit. Nothing is written. ``name`` is for messages."""
    contents = {path: read_bytes(path) for path in paths}
    documents = [parse(decode(data, shown_path(path)), shown_path(path)) for path, data in contents.items()]
    library, findings = library_from_documents(name, documents)
    raise_for_errors(findings)
    _refuse_unknown(changes, library.lists, name)
    edited_files = []
    for (path, before), document in zip(contents.items(), documents, strict=True):
        text = _edit_text(document, changes)
        if text != document.text:
            # ``document.text`` has no byte-order marks: put them back.
            edited_files.append(EditedFile(path, before, byte_order_marks(before) + text.encode()))
    return edited_files


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


# --- write the files ---


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let other edits in this folder wait until the end of the ``with``.

    Without the lock, two edits of a library of several files could leave files of both. Windows and some network file
    systems cannot lock a folder: there only ``_refuse_changed`` finds another edit.
    """
    try:
        import fcntl  # not on Windows

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # this also ends the lock


def replace_files(edited_files: list[EditedFile], backup: Path) -> None:
    """Copy the originals into the folder ``backup``, then replace all files or none.

    Raises FileError; then no file has changed.
    """
    if not edited_files:
        return
    for file in edited_files:
        # A rename would replace a read-only file, too, and root may write every file: the permissions count.
        if not file.path.stat().st_mode & stat.S_IWUSR:
            hint = "make it writable first, for example with chmod u+w"
            raise FileError(f"{shown_path(file.path)}: the library is read-only", hint=hint)
    # From outside to inside: the backup is complete before the library is touched.
    with _back_up(edited_files, backup) as copies, ExitStack() as staged:
        # Write all new files: an error here, such as a full disk, leaves the library as it is.
        new_files = [staged.enter_context(new_file(file.path)) for file in edited_files]
        for file, new in zip(edited_files, new_files, strict=True):
            _stage(file, new)
        # As late as possible, because nothing stops other programs.
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
            new.replace(new.target)
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


@contextmanager
def _back_up(edited_files: Iterable[EditedFile], backup: Path) -> Iterator[list[Path]]:
    """Copy the originals into the backup folder; yield the paths of the new copies.

    If the ``with`` block raises an error, the copies that are still in the list are removed.
    """
    copies: list[Path] = []
    try:
        try:
            backup.mkdir(parents=True, exist_ok=True)
            for file in edited_files:
                _copy_original(file, backup, copies)
        except (OSError, ValueError, FileError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise FileError(f"{shown_path(backup)}: the original cannot be saved: {reason}") from None
        yield copies
    # Ctrl-C ends the edit too, and must leave no copies of an edit that did not happen.
    except BaseException:
        for path in copies:
            with suppress(OSError):
                path.unlink()
        raise


def _copy_original(file: EditedFile, backup: Path, copies: list[Path]) -> None:
    """Copy a file into the backup folder under a free name, such as ``math.json`` or ``math.json.1``.

    The path of the copy is appended to ``copies``. A copy with the same bytes is a backup already: repeated edits do
    not fill the folder.
    """
    for number in count():
        path = backup / (file.path.name if number == 0 else f"{file.path.name}.{number}")
        try:
            path.open("xb").close()  # reserves the name: another edit can use the folder at the same time
        except FileExistsError:
            if path.is_file() and path.read_bytes() == file.before:
                return
            continue
        copies.append(path)
        write_atomically(path, file.before)
        return
