"""Operator information libraries: three lists from one file, a directory of files, or one file per op.

An op type is white if its ``precision_reduce.flag`` is ``"true"``, black if ``"false"`` and gray
without ``precision_reduce``; the flag is read without case and without blanks around it. A directory
stands for all ``.json`` files directly in it, loaded as one library, as the engine does; an op type
that two files put on different lists is an error. Names are exact. (Rules S1.1 to S1.4.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mixlist.diagnostics import Diagnostic, FilePlace
from mixlist.errors import FileError, ListError, raise_for_errors
from mixlist.files.jsonc import Document, is_directory, quoted, read, shown_path
from mixlist.lists.library import LIST_OF_FLAG, Library, ListName
from mixlist.lists.schema_check import check_structure
from mixlist.lists.suggestions import closest

Entry = dict[str, object]  # of an op type
Entries = dict[str, Entry]

_FLAG = ("precision_reduce", "flag")


def load_ops_info(path: str | os.PathLike[str], *, strict: bool = False) -> tuple[Library, list[Diagnostic]]:
    """Return the library in a file, or in all ``.json`` files directly in a directory, and the warnings about it.

    ``strict`` makes comments and trailing commas errors. Raises FileError if a file cannot be read
    or a directory holds no JSON, ListError (with every finding) if a file is not valid.
    """
    library, findings = inspect(path, strict=strict)
    return library, raise_for_errors(findings)


def inspect(path: str | os.PathLike[str], *, strict: bool = False) -> tuple[Library, list[Diagnostic]]:
    """Return the library as far as it can be read, and every finding; raise FileError only."""
    documents: list[Document] = []
    findings: list[Diagnostic] = []
    for file in files(path):
        try:
            documents.append(read(file, strict=strict))
        except ListError as error:
            findings += error.diagnostics
    library, more = from_documents(shown_path(path), documents)
    return library, [*findings, *more]


def files(path: str | os.PathLike[str]) -> Sequence[str | os.PathLike[str]]:
    """Return the files of a library, by name; raise FileError for a directory without JSON."""
    if not is_directory(path):
        return [path]
    try:
        found = [entry for entry in Path(path).iterdir() if entry.suffix == ".json" and not entry.is_dir()]
    except OSError as error:
        raise FileError(f"{shown_path(path)}: cannot be read: {error.strerror}") from None
    if not found:
        hint = "a library is one .json file or a directory with .json files directly in it"
        raise FileError(f"{shown_path(path)}: the directory holds no .json file", hint=hint)
    return sorted(found)


def from_documents(name: str, documents: Iterable[Document]) -> tuple[Library, list[Diagnostic]]:
    """Return the library in files that were read, and every finding about them."""
    lists: dict[str, ListName] = {}
    homes: dict[str, Document] = {}
    findings: list[Diagnostic] = []
    for document in documents:
        findings += document.findings
        findings += check_structure(document, "ops-info")
        for op, found in _lists(document, findings).items():
            if lists.setdefault(op, found) != found:
                findings.append(_conflict(op, homes[op], lists[op], document, found))
            homes.setdefault(op, document)

    def locate(op: str) -> FilePlace | None:
        return _place(homes[op], op) if op in homes else None

    return Library(name, lists, locate=locate), findings


def entries_of(document: Document) -> Entries:
    """Return the entries of a file by op type, without those that are no objects."""
    value = document.value
    return {op: entry for op, entry in value.items() if isinstance(entry, dict)} if isinstance(value, dict) else {}


def _lists(document: Document, findings: list[Diagnostic]) -> dict[str, ListName]:
    """Return the list of each op type of one file (Rule S1.1), except where the schema rejects the entry."""
    if document.value == {}:
        findings.append(document.finding("ML207", "warning", "the library names no op type"))
    lists: dict[str, ListName] = {}
    for op, entry in entries_of(document).items():
        reduce = entry.get("precision_reduce", entry)
        if reduce is entry:
            lists[op] = "gray"
            findings += _misspelt(document, op, entry)
        elif isinstance(reduce, dict):
            flag = reduce.get("flag")
            color = LIST_OF_FLAG.get(flag) if isinstance(flag, str) else None
            color = color or _unusual(document, op, reduce, findings)
            if color:
                lists[op] = color
    return lists


def _unusual(document: Document, op: str, reduce: Entry, findings: list[Diagnostic]) -> ListName | None:
    """Return the list for a flag that is not plainly "true" or "false" (Rule S1.2); None if the schema rejects it."""
    if "flag" not in reduce:
        message = f"precision_reduce of {quoted(op)} has no flag: the op type is gray"
        hint = 'write {"flag": "true"} or {"flag": "false"}, or remove precision_reduce'
        findings.append(document.finding("ML205", "warning", message, (op, "precision_reduce"), key=True, hint=hint))
        return "gray"
    flag = reduce["flag"]
    if isinstance(flag, bool):
        text = "true" if flag else "false"
        message = f"the flag of {quoted(op)} is the boolean {text}; the engine expects a string"
        findings.append(document.finding("ML204", "warning", message, (op, *_FLAG), hint=f'write "{text}" in quotes'))
        return LIST_OF_FLAG[text]
    return LIST_OF_FLAG.get(flag.strip(" \t\n\r\f\v").lower()) if isinstance(flag, str) else None


def _misspelt(document: Document, op: str, entry: Entry) -> Iterator[Diagnostic]:
    """Yield a warning for each key of a gray op type that looks like precision_reduce: entries may hold any key."""
    for key in entry:
        if key[:2].lower() == "pr" and closest(key, ["precision_reduce"]):
            message = f"{quoted(op)} has the key {quoted(key)}, which nothing reads: the op type is gray"
            hint = 'did you mean "precision_reduce"?'
            yield document.finding("ML209", "warning", message, (op, key), key=True, hint=hint)


def _place(document: Document, op: str) -> FilePlace:
    """Return the position of an op type's flag; the position of its name if it has none."""
    try:
        return FilePlace(document.path, *document.position((op, *_FLAG)))
    except KeyError:
        return FilePlace(document.path, *document.position((op,), key=True))


def _conflict(op: str, first: Document, before: ListName, second: Document, found: ListName) -> Diagnostic:
    place, other = _place(second, op), _place(first, op)
    message = f"{quoted(op)} is {found} here but {before} at {other}"
    hint = "a directory is one library: remove or correct one of the two"
    return place.finding("ML206", "error", message, hint)
