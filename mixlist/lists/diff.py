"""Compare two policies: their lists, as a modify_mixlist, and the other settings that differ.

``diff`` returns the modify_mixlist that turns one set of lists into another. Several legal combinations of actions move
an op type to the same list (Rule S2.2). The combination that is written here also removes the op type from its old
list, so that ``apply`` and ``validate`` warn if it is used with a library that has the op type on another list:

- black to white: white-list to-add and black-list to-remove;
- white to black: black-list to-add and white-list to-remove;
- black or white to gray: to-remove of the old list;
- gray to black or white: to-add of the new list.

Op types whose list does not change are left out.

``find_setting_changes`` returns the settings that no modify_mixlist can express.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixlist.errors import UsageError
from mixlist.lists.detect_kind import ACTION_KEYS, LIST_KEYS
from mixlist.lists.library import Lists, Move
from mixlist.lists.policy import LOWERING_ACTIONS, NodeRule, Policy
from mixlist.option_spelling import spell
from mixlist.result_tables import Row, notebook_rows

# --- lists ---


class ListDiff(dict[str, dict[str, list[str]]]):
    """A modify_mixlist object that turns the lists of ``base`` into those of ``other``, ready for ``json.dump``.

    ``base`` and ``other``: the names of the two libraries. ``base_title`` and ``other_title``: these names with the
    numbers of op types that a modify_mixlist moves. ``moves``: the move of each op type between the two, sorted by
    name.

    Example::

        edits = mixlist.diff(mixlist.load_policy(ops_info="ascend910"), mixlist.load_policy(ops_info="ascend910b"))
        print(edits.base, edits.other, edits["white-list"])
    """

    def __init__(self, base: Lists, other: Lists) -> None:
        super().__init__(diff_lists(base, other))
        self.base, self.other = base.library.name, other.library.name
        self.base_title, self.other_title = base.title, other.title
        lists = [(op, base.list_of(op), other.list_of(op)) for op in sorted(_ops(base) | _ops(other))]
        self.moves = tuple(Move(op, before, after, None) for op, before, after in lists if before != after)

    def to_rows(self) -> list[Row]:
        """Return a flat row for each op type that moves, for pandas or polars: ``op``, ``before`` and ``after``."""
        return [{"op": move.op, "before": move.before, "after": move.after} for move in self.moves]

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        rows = [(move.op, move.before, move.after) for move in self.moves]
        title = f"from {self.base} to {self.other}: {len(rows)} op types"
        return notebook_rows(title, ("op type", "from", "to"), rows)


def diff(base: Policy, other: Policy) -> ListDiff:
    """Return the modify_mixlist object that turns the lists of ``base`` into those of ``other``.

    ``diff_lists`` describes its form. The object has a method ``to_rows`` too. Raises UsageError if the two libraries
    have names of different name spaces.
    """
    if base.space != other.space:
        base_name, other_name = base.lists.library.name, other.lists.library.name
        raise UsageError(
            f"{base_name} has {base.space} names, but {other_name} has {other.space} names:"
            " no modify_mixlist turns one into the other",
            hint=f"compare libraries of one name space; {spell('op_names')} sets the name space of files",
        )
    return ListDiff(base.lists, other.lists)


def diff_lists(base: Lists, other: Lists) -> dict[str, dict[str, list[str]]]:
    """Return a modify_mixlist object. Applied to a library with the lists of ``base``, it gives those of ``other``.

    Names are sorted. Empty arrays and lists without arrays are left out: equal lists give ``{}``.
    """
    edits: dict[str, dict[str, list[str]]] = {name: {key: [] for key in ACTION_KEYS} for name in LIST_KEYS}
    for op in sorted(_ops(base) | _ops(other)):
        before, after = base.list_of(op), other.list_of(op)
        needs_entry = _needs_own_entry(op, base, other)
        if before == after and not needs_entry:
            continue
        # An op type that moves to gray needs only the removal below. In all other cases to-add names the new list. An
        # op type that only needs an entry of its own (before == after) is added to its list again, also if it is gray.
        if after != "gray" or before == after:
            edits[f"{after}-list"]["to-add"].append(op)
        # A gray op type is on no list, so nothing is removed.
        if before not in ("gray", after):
            edits[f"{before}-list"]["to-remove"].append(op)
    nonempty = {name: {key: ops for key, ops in arrays.items() if ops} for name, arrays in edits.items()}
    return {name: arrays for name, arrays in nonempty.items() if arrays}


def _ops(lists: Lists) -> set[str]:
    return set(lists.library.lists) | lists.named_ops


def _needs_own_entry(op: str, base: Lists, other: Lists) -> bool:
    """Return True if ``domain::Op``, which base does not name, needs an entry of its own to keep its list.

    Without an entry, ``domain::Op`` is on the list of ``Op``, and the edits can move ``Op`` to another list than the
    one that ``domain::Op`` has in ``other``.
    """
    # base: Attention white. other: Attention black, com.microsoft::Attention white. Both lists of
    # com.microsoft::Attention are white, but without an entry the edit of Attention would make it black.
    bare_op = op.rpartition("::")[2]
    return bare_op != op and op not in _ops(base) and other.list_of(op) != other.list_of(bare_op)


# --- other settings ---


@dataclass(frozen=True)
class SettingChange:
    """A setting that two policies have with different values. ``base`` and ``other``: the values as text.

    Example::

        base, other = mixlist.load_policy(), mixlist.load_policy(gray_policy="promote")
        print(mixlist.diff(base, other, "digits.onnx").settings)
    """

    setting: str
    base: str
    other: str

    def __str__(self) -> str:
        return f"{self.setting} ({self.base} -> {self.other})"


def find_setting_changes(base: Policy, other: Policy) -> tuple[SettingChange, ...]:
    """Return the settings that differ and have an effect under the mode of one of the two policies."""
    policies = base, other
    texts = [("precision mode", *(policy.mode.name for policy in policies))]
    # Two names of one mode decide the same (Rule S3.1).
    if (base.mode.action, base.mode.low) == (other.mode.action, other.mode.low):
        texts.clear()
    if any(policy.mode.action == "lists" for policy in policies):
        texts.append(("name space", *(policy.space for policy in policies)))
        texts.append(("gray policy", *(policy.gray_policy for policy in policies)))
        # Only the gray policy ``between`` reads the clear list.
        clear = [sorted(p.lists.library.clear_ops) if p.gray_policy == "between" else [] for p in policies]
        if clear[0] != clear[1]:
            texts.append(("clear list", *(f"{policy.lists.library.name}'s" for policy in policies)))
    texts.append(("constants", *(policy.constants for policy in policies)))
    if any(policy.mode.action in LOWERING_ACTIONS for policy in policies):
        texts.append(("protections", *(",".join(sorted(policy.protect)) or "none" for policy in policies)))
    changes = [SettingChange(*text) for text in texts if text[1] != text[2]]
    rules = [tuple(map(_rule_meaning, policy.rules)) for policy in policies]
    if rules[0] != rules[1]:
        changes.append(SettingChange("node rules", _describe_rules(rules[0], rules[1]), _describe_rules(*rules[::-1])))
    return tuple(changes)


RuleMeaning = tuple[object, ...]


def _rule_meaning(rule: NodeRule) -> RuleMeaning:
    """Return a rule without its place in a file."""
    return rule.by, rule.pattern, rule.keep, rule.inputs, rule.outputs


def _describe_rules(rules: tuple[RuleMeaning, ...], other_rules: tuple[RuleMeaning, ...]) -> str:
    """Return the number of rules, and how many of them the other policy lacks."""
    lacking = len(set(rules) - set(other_rules))
    if set(rules) == set(other_rules):
        return f"{len(rules)} in another order"
    return f"{len(rules)}, {lacking} of them only here" if rules else "none"
