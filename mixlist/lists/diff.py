"""The modify_mixlist that turns one set of lists into another.

Of the legal ways to move an op type (Rule S2.2) it takes the one that says where the op
was, so that applied to another library it warns: black to white is white-list to-add with
black-list to-remove, to gray is the removal alone. Op types that do not differ are not named.
"""

from __future__ import annotations

from mixlist.lists.library import Library, ListName, Lists


def diff(base: Lists, target: Lists) -> dict[str, dict[str, list[str]]]:
    """A modify_mixlist object; applied to ``base``'s effective lists it gives ``target``'s.

    "Applied" means to the lists as a library (``as_library``). Names stand sorted; a list or an
    array that would be empty is left out, so equal lists give ``{}``.
    """
    edits: dict[str, dict[str, list[str]]] = {}
    for op in sorted(_ops(base) | _ops(target)):
        before, after = base.of(op), target.of(op)
        pinned = _needs_pin(op, base, target)
        if before == after and not pinned:
            continue
        if after != "gray" or before == after:
            edits.setdefault(f"{after}-list", {}).setdefault("to-add", []).append(op)
        if before not in ("gray", after):
            edits.setdefault(f"{before}-list", {}).setdefault("to-remove", []).append(op)
    return {
        name: {key: edits[name][key] for key in ("to-add", "to-remove") if key in edits[name]}
        for name in ("black-list", "white-list", "gray-list")
        if name in edits
    }


def as_library(lists: Lists, name: str) -> Library:
    """The effective lists as a library of their own."""
    effective: dict[str, ListName] = {op: lists.of(op) for op in sorted(_ops(lists))}
    return Library(name, effective, lists.library.space, clear=lists.library.clear)


def _ops(lists: Lists) -> set[str]:
    return set(lists.library.lists) | lists.named


def _needs_pin(op: str, base: Lists, target: Lists) -> bool:
    """Whether ``domain::Op``, which base does not name, has to be named to keep its list.

    Without an entry of its own it would follow the bare name to the list that this has in the target.
    """
    bare = op.rpartition("::")[2]
    return bare != op and op not in _ops(base) and target.of(op) != target.of(bare)
