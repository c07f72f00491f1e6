"""The modify_mixlist that turns one set of lists into another.

Of the legal ways to move an op type (Rule S2.2) it takes the one that says where the op
was, so that applied to another library it warns: black to white is white-list to-add with
black-list to-remove, to gray is the removal alone. Op types that do not differ are not named.
"""

from __future__ import annotations

from mixlist.errors import UsageError
from mixlist.lists.detect_kind import EDITS, LISTS
from mixlist.lists.library import Lists
from mixlist.lists.policy import Policy


def diff(base: Policy, target: Policy) -> dict[str, dict[str, list[str]]]:
    """Return the modify_mixlist object that turns the lists of one policy into those of another.

    Its form is that of ``diff_lists``. Raises UsageError for libraries that are written in different name spaces.
    """
    if base.space != target.space:
        first, second = base.lists.library.name, target.lists.library.name
        raise UsageError(
            f"{first} is written in {base.space} names and {second} in {target.space} names: no mixlist joins them",
            hint="compare libraries of one name space; --op-names sets it for files",
        )
    return diff_lists(base.lists, target.lists)


def diff_lists(base: Lists, target: Lists) -> dict[str, dict[str, list[str]]]:
    """Return a modify_mixlist object; applied to a library of ``base``'s effective lists it gives ``target``'s.

    Names are sorted; a list or an array that would be empty is left out, so equal lists give ``{}``.
    """
    edits: dict[str, dict[str, list[str]]] = {name: {key: [] for key in EDITS} for name in LISTS}
    for op in sorted(_ops(base) | _ops(target)):
        before, after = base.list_of(op), target.list_of(op)
        pinned = _needs_pin(op, base, target)
        if before == after and not pinned:
            continue
        if after != "gray" or before == after:
            edits[f"{after}-list"]["to-add"].append(op)
        if before not in ("gray", after):
            edits[f"{before}-list"]["to-remove"].append(op)
    filled = {name: {key: ops for key, ops in arrays.items() if ops} for name, arrays in edits.items()}
    return {name: arrays for name, arrays in filled.items() if arrays}


def _ops(lists: Lists) -> set[str]:
    return set(lists.library.lists) | lists.named_ops


def _needs_pin(op: str, base: Lists, target: Lists) -> bool:
    """Return True if ``domain::Op``, which base does not name, needs an entry of its own to keep its list.

    Without an entry it would follow the bare name to the list that the bare name has in the target.
    """
    bare = op.rpartition("::")[2]
    return bare != op and op not in _ops(base) and target.list_of(op) != target.list_of(bare)
