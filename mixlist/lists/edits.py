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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

from mixlist.diagnostics import Diagnostic
from mixlist.files.jsonc import Document, quoted, read
from mixlist.lists.findings import stop_on_errors
from mixlist.lists.library import Library, ListName, Lists, Move, Place
from mixlist.lists.schema_check import check_structure
from mixlist.lists.suggestions import closest as closest
from mixlist.lists.suggestions import did_you_mean

EditAction = Literal["add-black", "rm-black", "add-white", "rm-white", "add-gray", "rm-gray"]

T = TypeVar("T")

MAX_ALIKE = 100  # findings of one kind that are told one by one

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
_LEGAL_TOLD = (
    "legal for one op type: an addition alone or with a removal from another list"
    " (gray-list to-add: from black or white), or a removal from black-list or white-list alone"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """One name in one array of a modify_mixlist file; ``place`` is where the name stands."""

    op: str
    action: EditAction
    place: Place


_ByOp = dict[str, dict[EditAction, Edit]]


def read_edits(path: str | os.PathLike[str], *, strict: bool = False) -> tuple[tuple[Edit, ...], list[Diagnostic]]:
    """The edits of a modify_mixlist file (``-``: standard input) in file order, and the warnings about it.

    ``strict`` makes comments and trailing commas errors. Raises FileError if the file cannot be
    read, ListError (with every finding) if it is not a valid modify_mixlist.
    """
    edits, findings = inspect(read(path, strict=strict))
    return edits, stop_on_errors(findings)


def inspect(document: Document) -> tuple[tuple[Edit, ...], list[Diagnostic]]:
    """The edits as far as they can be read, and every finding about the file."""
    findings = [*document.findings, *check_structure(document, "modify-mixlist")]
    edits = _edits(document)
    findings += [*_named_twice(edits), *_no_names(edits), *_illegal(edits)]
    return edits, findings


def _edits(document: Document) -> tuple[Edit, ...]:
    value = document.value if isinstance(document.value, dict) else {}
    found = []
    for action in get_args(EditAction):
        top, inner = _keys(action)
        part = value.get(top)
        names = part.get(inner) if isinstance(part, dict) else None
        if isinstance(names, list):
            places = document.places((top, inner))
            found += [
                Edit(op, action, Place(document.path, *places[i])) for i, op in enumerate(names) if isinstance(op, str)
            ]
    return tuple(sorted(found, key=lambda edit: (edit.place.line, edit.place.column)))


def _keys(action: EditAction) -> tuple[str, str]:
    """How a file writes the action: ``black-list``, ``to-add``."""
    verb, _, color = action.partition("-")
    return f"{color}-list", "to-add" if verb == "add" else "to-remove"


def _array(action: EditAction) -> str:
    return " ".join(_keys(action))


def _by_op(edits: Iterable[Edit]) -> _ByOp:
    """The first edit of each action, per op type in file order."""
    found: _ByOp = {}
    for edit in edits:
        found.setdefault(edit.op, {}).setdefault(edit.action, edit)
    return found


def _named_twice(edits: Iterable[Edit]) -> list[Diagnostic]:
    first: dict[tuple[str, EditAction], Edit] = {}
    again = [edit for edit in edits if first.setdefault((edit.op, edit.action), edit) is not edit]

    def tell(edit: Edit) -> Diagnostic:
        place = first[edit.op, edit.action].place
        message = f"{quoted(edit.op)} stands twice in {_array(edit.action)}, first at {place.line}:{place.column}"
        return _finding("ML105", "warning", message, edit.place, "remove one of the two")

    return _told(again, tell)


def _no_names(edits: Iterable[Edit]) -> list[Diagnostic]:
    def tell(edit: Edit) -> Diagnostic:
        message = f"{quoted(edit.op)} is {'a name with blanks around it' if edit.op.strip() else 'no name'}"
        return _finding("ML110", "warning", message, edit.place, "names are exact: no op type is called that")

    return _told([edit for edit in edits if edit.op != edit.op.strip() or not edit.op], tell)


def _illegal(edits: Iterable[Edit]) -> list[Diagnostic]:
    def tell(found: tuple[str, dict[EditAction, Edit]]) -> Diagnostic:
        op, actions = found
        told = [f"{_array(action)} ({e.place.line}:{e.place.column})" for action, e in actions.items()]
        if len(told) == 1:
            message = f"{quoted(op)} stands in {told[0]} alone, which the engine rejects"
        else:
            message = f"{quoted(op)} stands in {', '.join(told[:-1])} and {told[-1]}, which must not meet"
        return _finding("ML104", "error", message, list(actions.values())[-1].place, _LEGAL_TOLD)

    return _told([(op, found) for op, found in _by_op(edits).items() if frozenset(found) not in LEGAL], tell)


def apply_edits(library: Library, edits: Iterable[Edit]) -> tuple[Lists, list[Diagnostic]]:
    """The lists after the edits, and warnings about edits that do nothing or name unknown op types.

    ``edits`` are legal, as ``read_edits`` returns them. ``Lists.moves`` holds the op types whose
    list changed.
    """
    by_op = _by_op(edits)
    moves: dict[str, Move] = {}
    for op, actions in by_op.items():
        before = library.start(op)
        after, decides = _move(before, actions)
        if after != before and decides:
            moves[op] = Move(op, before, after, decides.place)
    warnings = [
        *_unknown(library, by_op),
        *_idle_removals(library, by_op),
        *_gray_alone(library, by_op),
    ]
    warnings.sort(key=lambda w: (w.line or 0, w.column or 0))
    places = {op: next(iter(actions.values())).place for op, actions in by_op.items()}
    return Lists(library, moves, frozenset(by_op), places), warnings


def _move(before: ListName, actions: Mapping[EditAction, Edit]) -> tuple[ListName, Edit | None]:
    """Where an op type goes, and the edit that decides it."""
    if "add-black" in actions:
        return "black", actions["add-black"]
    if "add-white" in actions:
        return "white", actions["add-white"]
    for edit in actions.values():
        if edit.action == f"rm-{before}":
            return "gray", edit
    return before, None


def _unknown(library: Library, by_op: _ByOp) -> list[Diagnostic]:
    def tell(op: str) -> Diagnostic:
        hint = did_you_mean(op, library.lists) or "names are exact; an op type that the library lacks starts gray"
        message = f"library {library.name} knows no op type {quoted(op)}"
        return _finding("ML108", "warning", message, next(iter(by_op[op].values())).place, hint)

    return _told([op for op in by_op if op.rpartition("::")[2] not in library.lists and op not in library.lists], tell)


def _idle_removals(library: Library, by_op: _ByOp) -> list[Diagnostic]:
    def tell(edit: Edit) -> Diagnostic:
        color, actual = edit.action.removeprefix("rm-"), library.start(edit.op)
        message = f"this removal does nothing: {quoted(edit.op)} is {actual} in library {library.name}, not {color}"
        alone = actual != "gray" and not any(action.startswith("add-") for action in by_op[edit.op])
        hint = f"to make it gray, name it in {actual}-list to-remove" if alone else "remove this entry"
        return _finding("ML106", "warning", message, edit.place, hint)

    removals = (edit for actions in by_op.values() for action, edit in actions.items() if action.startswith("rm-"))
    return _told([e for e in removals if e.action != f"rm-{library.start(e.op)}"], tell)


def _gray_alone(library: Library | None, by_op: _ByOp) -> list[Diagnostic]:
    def tell(edit: Edit) -> Diagnostic:
        actual = library.start(edit.op) if library else None
        if actual == "gray":
            message, hint = f"gray-list to-add does nothing: {quoted(edit.op)} is gray already", "remove this entry"
        else:
            message = f"gray-list to-add by itself moves nothing: {quoted(edit.op)} stays {actual or 'where it is'}"
            where = f"{actual}-list to-remove" if actual else "to-remove of the list that it is on"
            hint = f"to make it gray, name it in {where}"
        return _finding("ML107", "warning", message, edit.place, hint)

    return _told([actions["add-gray"] for actions in by_op.values() if set(actions) == {"add-gray"}], tell)


def gray_alone(edits: Iterable[Edit]) -> list[Diagnostic]:
    """The warning of ``apply_edits`` that needs no library: gray-list to-add by itself."""
    return _gray_alone(None, _by_op(edits))


def _told(found: Sequence[T], tell: Callable[[T], Diagnostic]) -> list[Diagnostic]:
    """A finding for each of the first hundred and, in one, how many more there are."""
    findings = [tell(item) for item in found[:MAX_ALIKE]]
    if len(found) > MAX_ALIKE:
        message = f"{len(found) - MAX_ALIKE} more like this"
        findings.append(replace(findings[-1], message=message, hint=None))
    return findings


def _finding(code: str, severity: Literal["error", "warning"], message: str, place: Place, hint: str) -> Diagnostic:
    return Diagnostic(code, severity, message, place.path, place.line, place.column, hint)
