"""Operator information libraries: read the list of each op type (Rules S1.1 to S1.4).

A library is one file, or a directory of files. The engine loads all ``.json`` files directly in a directory as one
library, in the order of ``library_files``; some libraries have one file per op type, newer ones a file called
``legacy`` and one file per package. An op type is white if its ``precision_reduce.flag`` is ``"true"``,
black if the flag is ``"false"``, and gray if it has no ``precision_reduce``. For the flag, upper and lower case and
blanks around it make no difference. Names must be exact. If two files have one op type, the later file decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.errors import FileError, ListError, raise_for_errors
from mixlist.files.jsonc import Document, read
from mixlist.files.list_text import is_directory, quoted, shown_path
from mixlist.lists.library import LIST_OF_FLAG, Library, ListName
from mixlist.lists.schema_check import check_structure
from mixlist.lists.suggestions import closest_names

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
