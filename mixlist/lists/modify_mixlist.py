"""The modify_mixlist file: edits that move op types between a library's lists.

Top keys ``black-list``, ``white-list`` and ``gray-list``, in each ``to-add`` and ``to-remove`` with
arrays of op type names. What the edits do (Rules S2.3 to S2.5):

1. A removal acts only where the op type is on that list in the library: it becomes gray. Elsewhere
   it changes nothing, and warns.
2. Then add-black makes it black, else add-white makes it white.
3. add-gray moves nothing.

Of the 63 ways to combine the six actions on one op type exactly the 11 in ``LEGAL`` are accepted;
any other rejects the whole file (Rule S2.2). An op type that the library does not know starts gray.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.errors import FileError, raise_for_errors
from mixlist.files.jsonc import Document, quoted, read
from mixlist.lists.library import Library, ListName, Lists, Move
from mixlist.lists.schema_check import check_structure
from mixlist.lists.suggestions import did_you_mean

MAX_NAMES = 100_000  # in a file; ONNX and Ascend have some 2,000 op types

EditAction = Literal["add-black", "rm-black", "add-white", "rm-white", "add-gray", "rm-gray"]

LEGAL: frozenset[frozenset[EditAction]] = frozenset(
    frozenset(actions)
    for actions in (
        ("rm-black",),
        ("rm-white",),
        ("add-gray",),
        ("add-gray", "rm-black"),
        ("add-gray", "rm-white"),
        ("add-white",),
        ("add-white", "rm-gray"),
        ("add-white", "rm-black"),
        ("add-black",),
        ("add-black", "rm-gray"),
        ("add-black", "rm-white"),
    )
)
_LEGAL_FORMS = (
    "legal for one op type: an addition alone or with a removal from another list"
    " (gray-list to-add: from black or white), or a removal from black-list or white-list alone"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """One name in one array of a modify_mixlist file; ``place`` is where the name stands."""

    op: str
    action: EditAction
    place: FilePlace


_ByOp = dict[str, dict[EditAction, Edit]]


def read_edits(path: str | os.PathLike[str], *, strict: bool = False) -> tuple[tuple[Edit, ...], list[Diagnostic]]:
    """Return the edits of a modify_mixlist file (``-``: standard input) in file order, and the warnings about it.

    ``strict`` makes comments and trailing commas errors. Raises FileError if the file cannot be
    read, ListError (with every finding) if it is not a valid modify_mixlist.
    """
    edits, findings = inspect(read(path, strict=strict))
    return edits, raise_for_errors(findings)


def inspect(document: Document) -> tuple[tuple[Edit, ...], list[Diagnostic]]:
    """Return the edits as far as they can be read, and every finding about the file."""
    findings = [*document.findings, *check_structure(document, "modify-mixlist")]
    edits = _edits(document)
    findings += [*_named_twice(edits), *_no_names(edits), *_illegal(edits)]
    return edits, findings


def _edits(document: Document) -> tuple[Edit, ...]:
    value = document.value if isinstance(document.value, dict) else {}
    edits: list[Edit] = []
    for action in get_args(EditAction):
        top, inner = _keys(action)
        part = value.get(top)
        names = part.get(inner) if isinstance(part, dict) else None
        if isinstance(names, list):
            if len(names) + len(edits) > MAX_NAMES:
                raise FileError(f"{document.path}: more than {MAX_NAMES:,} names, which no mixlist has")
            places = [FilePlace(document.path, *position) for position in document.places((top, inner))]
            edits += [Edit(op, action, place) for op, place in zip(names, places, strict=True) if isinstance(op, str)]
    return tuple(sorted(edits, key=lambda edit: (edit.place.line, edit.place.column)))


def _keys(action: EditAction) -> tuple[str, str]:
    """Return the two keys of the action in a file, for example ``black-list`` and ``to-add``."""
    verb, _, color = action.partition("-")
    return f"{color}-list", "to-add" if verb == "add" else "to-remove"


def _array(action: EditAction) -> str:
    return " ".join(_keys(action))


def _by_op(edits: Iterable[Edit]) -> _ByOp:
    """Return the first edit of each action, per op type in file order."""
    by_op: _ByOp = {}
    for edit in edits:
        by_op.setdefault(edit.op, {}).setdefault(edit.action, edit)
    return by_op


def _named_twice(edits: Iterable[Edit]) -> list[Diagnostic]:
    first: dict[tuple[str, EditAction], Edit] = {}
    again = [edit for edit in edits if first.setdefault((edit.op, edit.action), edit) is not edit]

    def describe(edit: Edit) -> Diagnostic:
        place = first[edit.op, edit.action].place
        message = f"{quoted(edit.op)} stands twice in {_array(edit.action)}, first at {place.line}:{place.column}"
        return edit.place.finding("ML105", "warning", message, "remove one of the two")

    return findings_for(again, describe)


def _no_names(edits: Iterable[Edit]) -> list[Diagnostic]:
    def describe(edit: Edit) -> Diagnostic:
        message = f"{quoted(edit.op)} is {'a name with blanks around it' if edit.op.strip() else 'no name'}"
        return edit.place.finding("ML110", "warning", message, "names are exact: no op type is called that")

    return findings_for([edit for edit in edits if edit.op != edit.op.strip() or not edit.op], describe)


def _illegal(edits: Iterable[Edit]) -> list[Diagnostic]:
    def describe(actions: dict[EditAction, Edit]) -> Diagnostic:
        *others, last = actions.values()
        shown = [f"{_array(e.action)} ({e.place.line}:{e.place.column})" for e in actions.values()]
        if others:
            message = f"{quoted(last.op)} stands in {', '.join(shown[:-1])} and {shown[-1]}, which must not meet"
        else:
            message = f"{quoted(last.op)} stands in {shown[0]} alone, which the engine rejects"
        return last.place.finding("ML104", "error", message, _LEGAL_FORMS)

    return findings_for([actions for actions in _by_op(edits).values() if frozenset(actions) not in LEGAL], describe)


def apply_edits(library: Library, edits: Sequence[Edit]) -> tuple[Lists, list[Diagnostic]]:
    """Return the lists after the edits, and warnings about edits that do nothing or name unknown op types.

    ``edits`` are legal, as ``read_edits`` returns them. ``Lists.moves`` holds the op types whose
    list changed.
    """
    by_op = _by_op(edits)
    moves: dict[str, Move] = {}
    for op, actions in by_op.items():
        before = library.list_of(op)
        after, decides = _move(before, actions)
        if after != before and decides:
            moves[op] = Move(op, before, after, decides.place)
    warnings = [*_unknown(library, by_op), *_idle_removals(library, by_op), *gray_alone(edits, library)]
    warnings.sort(key=lambda w: (w.line or 0, w.column or 0))
    places = {op: next(iter(actions.values())).place for op, actions in by_op.items()}
    return Lists(library, moves, frozenset(by_op), places), warnings


def _move(before: ListName, actions: Mapping[EditAction, Edit]) -> tuple[ListName, Edit | None]:
    """Return the list to which an op type goes, and the edit that decides it (Rule S2.3)."""
    if "add-black" in actions:
        return "black", actions["add-black"]
    if "add-white" in actions:
        return "white", actions["add-white"]
    for edit in actions.values():
        if edit.action == f"rm-{before}":
            return "gray", edit
    return before, None


def _unknown(library: Library, by_op: _ByOp) -> list[Diagnostic]:
    def describe(op: str) -> Diagnostic:
        hint = did_you_mean(op, library.lists) or "names are exact; an op type that the library lacks starts gray"
        message = f"library {library.name} knows no op type {quoted(op)}"
        return next(iter(by_op[op].values())).place.finding("ML108", "warning", message, hint)

    known = library.lists
    return findings_for([op for op in by_op if op not in known and op.rpartition("::")[2] not in known], describe)


def _idle_removals(library: Library, by_op: _ByOp) -> list[Diagnostic]:
    def describe(edit: Edit) -> Diagnostic:
        color, actual = edit.action.removeprefix("rm-"), library.list_of(edit.op)
        message = f"this removal does nothing: {quoted(edit.op)} is {actual} in library {library.name}, not {color}"
        alone = actual != "gray" and not any(action.startswith("add-") for action in by_op[edit.op])
        hint = f"to make it gray, name it in {actual}-list to-remove" if alone else "remove this entry"
        return edit.place.finding("ML106", "warning", message, hint)

    removals = (edit for actions in by_op.values() for action, edit in actions.items() if action.startswith("rm-"))
    return findings_for([e for e in removals if e.action != f"rm-{library.list_of(e.op)}"], describe)


def gray_alone(edits: Iterable[Edit], library: Library | None = None) -> list[Diagnostic]:
    """Return a warning for each op type that gray-list to-add alone names, which needs no library to be wrong."""

    def describe(edit: Edit) -> Diagnostic:
        actual = library.list_of(edit.op) if library else None
        if actual == "gray":
            message, hint = f"gray-list to-add does nothing: {quoted(edit.op)} is gray already", "remove this entry"
        else:
            message = f"gray-list to-add by itself moves nothing: {quoted(edit.op)} stays {actual or 'where it is'}"
            where = f"{actual}-list to-remove" if actual else "to-remove of the list that it is on"
            hint = f"to make it gray, name it in {where}"
        return edit.place.finding("ML107", "warning", message, hint)

    alone = [actions["add-gray"] for actions in _by_op(edits).values() if set(actions) == {"add-gray"}]
    return findings_for(alone, describe)
