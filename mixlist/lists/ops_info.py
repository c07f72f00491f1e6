"""Read operator information libraries: the list of each op type (Rules S1.1 to S1.4).

A library is one file, or a directory of files. The engine loads all ``.json`` files directly in a directory as one
library; some libraries have one file per op type. An op type is white if its ``precision_reduce.flag`` is ``"true"``,
black if the flag is ``"false"``, and gray if it has no ``precision_reduce``. For the flag, upper and lower case and
blanks around it make no difference. Names must be exact. It is an error if two files put one op type on different
lists.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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
    for file in files or library_files(path):
        try:
            documents.append(read(file, strict=strict))
        except ListError as error:
            findings += error.diagnostics
    library, library_findings = library_from_documents(shown_path(path), documents)
    return library, [*findings, *library_findings]


def library_files(path: str | os.PathLike[str]) -> Sequence[str | os.PathLike[str]]:
    """Return the files of a library, sorted by name; raise FileError for a directory without ``.json`` files."""
    if not is_directory(path):
        return [path]
    try:
        json_files = [entry for entry in Path(path).iterdir() if entry.suffix == ".json" and not entry.is_dir()]
    except OSError as error:
        raise FileError(f"{shown_path(path)}: cannot be read: {error.strerror}") from None
    if not json_files:
        hint = "a library is one .json file or a directory with .json files directly in it"
        raise FileError(f"{shown_path(path)}: the directory holds no .json file", hint=hint)
    return sorted(json_files)


def library_from_documents(name: str, documents: Iterable[Document]) -> tuple[Library, list[Diagnostic]]:
    """Return the library in files that were read, and every finding about them. ``name`` is for messages."""
    lists: dict[str, ListName] = {}
    first_documents: dict[str, Document] = {}  # the first document that has the op type
    findings: list[Diagnostic] = []
    conflicts: list[tuple[str, Document, ListName]] = []
    for document in documents:
        findings += document.findings
        findings += check_structure(document, "ops-info")
        for op, list_name in _read_lists(document, findings).items():
            # An op type in two files is an error only if the two lists differ (Rule S1.3).
            if lists.setdefault(op, list_name) != list_name:
                conflicts.append((op, document, list_name))
            first_documents.setdefault(op, document)

    def locate(op: str) -> FilePlace | None:
        return _place_of(first_documents[op], op) if op in first_documents else None

    findings += findings_for(
        conflicts, lambda conflict: _conflict_finding(first_documents[conflict[0]], lists[conflict[0]], *conflict)
    )
    return Library(name, lists, locate=locate), findings


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
        precision_reduce = entry.get("precision_reduce", entry)
        # The key is missing. get(key) alone would return None for the value null too, which the schema rejects.
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


def _read_unusual_flag(
    document: Document, op: str, precision_reduce: Entry, findings: list[Diagnostic]
) -> ListName | None:
    """Return the list for a flag that is not plainly "true" or "false" (Rule S1.2); None if the schema rejects it."""
    if "flag" not in precision_reduce:
        message = f"precision_reduce of {quoted(op)} has no flag: the op type is gray"
        hint = 'write {"flag": "true"} or {"flag": "false"}, or remove precision_reduce'
        findings.append(document.finding("ML205", "warning", message, (op, "precision_reduce"), key=True, hint=hint))
        return "gray"
    flag = precision_reduce["flag"]
    if isinstance(flag, bool):
        text = "true" if flag else "false"
        message = f"the flag of {quoted(op)} is the boolean {text}, but the Ascend engine expects a string"
        hint = f'write "{text}", with the quotes'
        findings.append(document.finding("ML204", "warning", message, (op, *_FLAG_STEPS), hint=hint))
        return LIST_OF_FLAG[text]
    return LIST_OF_FLAG.get(flag.strip(" \t\n\r\f\v").lower()) if isinstance(flag, str) else None


def _find_misspelled_keys(document: Document, op: str, entry: Entry) -> Iterator[Diagnostic]:
    """Yield a warning for each key of a gray op type that looks like ``precision_reduce``.

    The schema cannot find these, because an entry may hold any key.
    """
    for key in entry:
        # The first letters come first, because the search for similar names is slow and entries have many keys.
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


def _conflict_finding(
    first_document: Document, first_list: ListName, op: str, document: Document, list_name: ListName
) -> Diagnostic:
    message = f"{quoted(op)} is {list_name} here but {first_list} at {_place_of(first_document, op)}"
    hint = "the files of a directory are one library: correct one of the two, or name the file of one library"
    return _place_of(document, op).finding("ML206", "error", message, hint)
