"""Read the modify_mixlist file and apply its edits: they move op types between the lists of a library.

The file has the keys ``black-list``, ``white-list`` and ``gray-list``. Each of them holds the keys ``to-add`` and
``to-remove``, and each of these holds an array of op type names. These six pairs of keys are the six actions. Here,
add-black means ``to-add`` in ``black-list``, rm-black means ``to-remove`` in ``black-list``, and so on. The actions
take effect in this order (Rules S2.3 to S2.5):

1. A removal makes an op type gray if the library has it on that list. Otherwise the removal has no effect, and a
   warning says so.
2. add-black makes the op type black. Without add-black, add-white makes it white.
3. add-gray has no effect.

An op type that the library does not hold starts gray. 11 of the 63 combinations of actions on one op type are allowed
(``LEGAL_COMBINATIONS``). Any other combination makes the whole file invalid (Rule S2.2).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.errors import raise_for_errors
from mixlist.files.jsonc import Document, parse, read
from mixlist.files.list_text import ListText, quoted
from mixlist.lists.library import Library, ListName, Lists, Move, NameSpace
from mixlist.lists.op_catalog import SPACE_TITLES, is_known, is_known_elsewhere
from mixlist.lists.schema_check import check_structure, find_misspelled_keys
from mixlist.lists.suggestions import did_you_mean

EditAction = Literal["add-black", "rm-black", "add-white", "rm-white", "add-gray", "rm-gray"]

# At most one addition and one removal. An addition with the removal from its own list contradicts itself, and rm-gray
# alone would say nothing about the new list.
LEGAL_COMBINATIONS: frozenset[frozenset[EditAction]] = frozenset(
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


@dataclass(frozen=True, slots=True)
class Edit:
    """One name in one array of a modify_mixlist file. ``place`` is the place of the name."""

    op: str
    action: EditAction
    place: FilePlace


_EditsByOp = dict[str, dict[EditAction, Edit]]


def read_edits(path: str | os.PathLike[str], *, strict: bool = False) -> tuple[tuple[Edit, ...], list[Diagnostic]]:
    """Return the edits of a modify_mixlist file (``-``: standard input) in file order, and the warnings about it.

    ``path`` can be a ``ListText``.

    ``strict`` makes comments and trailing commas errors. Raises FileError if the file cannot be read, and ListError,
    with every finding, if it is not a valid modify_mixlist.
    """
    document = parse(path, "modify_mixlist", strict=strict) if isinstance(path, ListText) else read(path, strict=strict)
    edits, findings = parse_edits(document)
    return edits, raise_for_errors(findings)


def parse_edits(document: Document) -> tuple[tuple[Edit, ...], list[Diagnostic]]:
    """Return the edits that can be read, and every finding about the file, errors too. Errors are not raised."""
    findings = [*document.findings, *check_structure(document, "modify-mixlist")]
    edits = _edits_in_file_order(document)
    findings += [*_find_duplicates(edits), *_find_inexact_names(edits), *_find_illegal_combinations(edits)]
    return edits, findings


def _edits_in_file_order(document: Document) -> tuple[Edit, ...]:
    """Return the edits of the document. Parts with a wrong type are left out: ``check_structure`` reports them.

    It reports misspelled keys, too; the names in their arrays count, so that one run shows all findings.
    """
    value = document.value if isinstance(document.value, dict) else {}
    edits: list[Edit] = []
    right_keys = find_misspelled_keys(value)
    actions = {_keys(action): action for action in get_args(EditAction)}
    for list_key, arrays in value.items():
        for action_key, names in arrays.items() if isinstance(arrays, dict) else ():
            right_key = right_keys.get((list_key,), list_key)
            action = actions.get((right_key, right_keys.get((list_key, action_key), action_key)))
            if action is None or not isinstance(names, list):
                continue
            positions = document.item_line_columns((list_key, action_key))
            places = [FilePlace(document.path, line, column) for line, column in positions]
            edits += [Edit(op, action, place) for op, place in zip(names, places, strict=True) if isinstance(op, str)]
    return tuple(sorted(edits, key=lambda edit: (edit.place.line, edit.place.column)))


def _keys(action: EditAction) -> tuple[str, str]:
    """Return the two keys of an action in a file: ``black-list`` and ``to-add`` for add-black."""
    verb, _, color = action.partition("-")
    return f"{color}-list", "to-add" if verb == "add" else "to-remove"


def _array_name(action: EditAction) -> str:
    """Return the array of an action as messages name it: ``black-list to-add``."""
    return " ".join(_keys(action))


def name_array(edit: Edit) -> str:
    """Return the array of an edit with its place: ``black-list to-add (2:29)``."""
    return f"{_array_name(edit.action)} ({edit.place.line}:{edit.place.column})"


def are_legal(edits: Iterable[Edit]) -> bool:
    """Return whether these edits of one op type are allowed together (Rule S2.2)."""
    return frozenset(edit.action for edit in edits) in LEGAL_COMBINATIONS


def _group_by_op(edits: Iterable[Edit]) -> _EditsByOp:
    """Return, for each op type in file order, the first edit of each action."""
    edits_by_op: _EditsByOp = {}
    for edit in edits:
        edits_by_op.setdefault(edit.op, {}).setdefault(edit.action, edit)
    return edits_by_op


def _find_duplicates(edits: Iterable[Edit]) -> list[Diagnostic]:
    first_edits: dict[tuple[str, EditAction], Edit] = {}
    # setdefault() returns the first edit of a name and action: every other one repeats it.
    duplicates = [edit for edit in edits if first_edits.setdefault((edit.op, edit.action), edit) is not edit]

    def describe(edit: Edit) -> Diagnostic:
        first = first_edits[edit.op, edit.action].place
        message = f"{quoted(edit.op)} is in {_array_name(edit.action)} twice: here and at {first.line}:{first.column}"
        return edit.place.finding("ML105", "warning", message, "remove one of the two")

    return findings_for(duplicates, describe)


def _find_inexact_names(edits: Iterable[Edit]) -> list[Diagnostic]:
    def describe(edit: Edit) -> Diagnostic:
        is_blank = not edit.op.strip()
        message = f"the name {quoted(edit.op)} is {'blank' if is_blank else 'not exact: it has blanks around it'}"
        return edit.place.finding("ML110", "warning", message, "write the exact name of an op type, without blanks")

    # The empty name has no blanks around it, so it needs a test of its own.
    return findings_for([edit for edit in edits if edit.op != edit.op.strip() or not edit.op], describe)


def _find_illegal_combinations(edits: Iterable[Edit]) -> list[Diagnostic]:
    def describe(edits_of_op: dict[EditAction, Edit]) -> Diagnostic:
        arrays = [name_array(edit) for edit in edits_of_op.values()]
        *earlier, last = edits_of_op.values()
        if earlier:
            message = f"{quoted(last.op)} is in {', '.join(arrays[:-1])} and {arrays[-1]}: not allowed together"
        else:
            message = f"{quoted(last.op)} is in {arrays[0]} and in no other array: not allowed alone"
        return last.place.finding("ML104", "error", message, _say_what_to_keep(edits_of_op))

    illegal = [edits_of_op for edits_of_op in _group_by_op(edits).values() if not are_legal(edits_of_op.values())]
    return findings_for(illegal, describe)


def _say_what_to_keep(edits_of_op: Mapping[EditAction, Edit]) -> str:
    """Return the hint with each largest legal part of the edits of one op type."""
    parts = [actions for actions in LEGAL_COMBINATIONS if actions <= set(edits_of_op)]
    largest = [actions for actions in parts if not any(actions < other for other in parts)]
    if not largest:  # only gray-list to-remove
        return "remove the entry, or add the op type to black-list or white-list"
    texts = sorted(
        " with ".join(name_array(edit) for action, edit in edits_of_op.items() if action in actions)
        for actions in largest
    )
    if len(texts) == 1:
        return f"keep only {texts[0]}"
    return f"keep one of {'the two' if len(texts) == 2 else 'these'}: {' or '.join(texts)}"


def apply_edits(
    library: Library, edits: Sequence[Edit], space: NameSpace | None = None
) -> tuple[Lists, list[Diagnostic]]:
    """Return the lists after the edits, and warnings about edits without effect and unknown op types.

    ``edits`` must be legal, as those of ``read_edits`` are. ``Lists.moves`` holds the op types whose list changes. With
    the name ``space`` of the library, a name of the other space is no unknown op type: ``model/name_warnings.py`` warns
    about it, and knows its counterpart.
    """
    # A legal combination has at most one addition and one removal, so their order in the file does not matter.
    edits_by_op = _group_by_op(edits)
    moves: dict[str, Move] = {}
    for op, edits_of_op in edits_by_op.items():
        before = library.list_of(op)
        after, deciding_edit = _decide_list(before, edits_of_op)
        # Edits that leave the op type on its list are no moves. Where the list changes, an edit has decided it.
        if after != before and deciding_edit:
            moves[op] = Move(op, before, after, deciding_edit.place)
    warnings = [
        *_find_unknown_ops(library, edits_by_op, space),
        *_find_removals_without_effect(library, edits_by_op),
        *find_lone_gray_additions(edits, library),
    ]
    warnings.sort(key=lambda warning: (warning.line or 0, warning.column or 0))
    # Later checks (model/name_warnings.py) report names at the place where the file names them first.
    places = {op: next(iter(edits_of_op.values())).place for op, edits_of_op in edits_by_op.items()}
    return Lists(library, moves, frozenset(edits_by_op), places), warnings


def _decide_list(before: ListName, edits_of_op: Mapping[EditAction, Edit]) -> tuple[ListName, Edit | None]:
    """Return the list to which an op type goes, and the edit that decides it, if any (Rule S2.3)."""
    # Removals act first, but after an addition their result no longer matters.
    if "add-black" in edits_of_op:
        return "black", edits_of_op["add-black"]
    if "add-white" in edits_of_op:
        return "white", edits_of_op["add-white"]
    for edit in edits_of_op.values():
        # A removal from another list than that of the library has no effect (ML106).
        if edit.action == f"rm-{before}":
            return "gray", edit
    return before, None


def _find_unknown_ops(library: Library, edits_by_op: _EditsByOp, space: NameSpace | None) -> list[Diagnostic]:
    def describe(op: str) -> Diagnostic:
        if space is not None and is_known(op, space):
            # The name is right, so a similar name would mislead.
            hint = f"it is an op type of {SPACE_TITLES[space]}, but not of this library, where it starts gray"
        else:
            hint = (
                did_you_mean(op, library.lists) or "check the name and its case; an op type outside the library is gray"
            )
        message = f"library {library.name} has no op type {quoted(op)}"
        return next(iter(edits_by_op[op].values())).place.finding("ML108", "warning", message, hint)

    # domain::Op is known if Op is: it starts on the list of Op.
    known_ops = library.lists
    unknown = [op for op in edits_by_op if op not in known_ops and op.rpartition("::")[2] not in known_ops]
    if space is not None:
        unknown = [op for op in unknown if not is_known_elsewhere(op, space)]
    return findings_for(unknown, describe)


def _find_removals_without_effect(library: Library, edits_by_op: _EditsByOp) -> list[Diagnostic]:
    def describe(edit: Edit) -> Diagnostic:
        color, actual = edit.action.removeprefix("rm-"), library.list_of(edit.op)
        message = f"this removal has no effect: {quoted(edit.op)} is {actual} in library {library.name}, not {color}"
        # With an addition, or if the op type is gray already, the file has the intended result without this removal.
        # Otherwise the user probably wanted to make the op type gray, and named the wrong list.
        is_alone = not any(action.startswith("add-") for action in edits_by_op[edit.op])
        if is_alone and actual != "gray":
            hint = f"to make it gray, name it in {actual}-list to-remove"
        else:
            hint = "remove this entry"
        return edit.place.finding("ML106", "warning", message, hint)

    edits = (edit for edits_of_op in edits_by_op.values() for edit in edits_of_op.values())
    removals = (edit for edit in edits if edit.action.startswith("rm-"))
    return findings_for([edit for edit in removals if edit.action != f"rm-{library.list_of(edit.op)}"], describe)


def find_lone_gray_additions(edits: Iterable[Edit], library: Library | None = None) -> list[Diagnostic]:
    """Return a warning for each op type that only gray-list to-add names: this action has no effect (Rule S2.4).

    Without a library, the warning cannot name the list of the op type.
    """

    def describe(edit: Edit) -> Diagnostic:
        actual = library.list_of(edit.op) if library else None
        if actual == "gray":
            message, hint = f"gray-list to-add has no effect: {quoted(edit.op)} is gray already", "remove this entry"
        else:
            state = actual or "on its list"
            message = f"gray-list to-add alone has no effect: {quoted(edit.op)} stays {state}"
            array = f"{actual}-list to-remove" if actual else "to-remove of the list on which the library has it"
            hint = f"to make it gray, name it in {array}"
        return edit.place.finding("ML107", "warning", message, hint)

    # With a removal, the op type becomes gray by that removal: only an addition without one is reported.
    lone_edits = [
        edits_of_op["add-gray"] for edits_of_op in _group_by_op(edits).values() if set(edits_of_op) == {"add-gray"}
    ]
    return findings_for(lone_edits, describe)
