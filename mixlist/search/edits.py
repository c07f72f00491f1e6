"""An edit of a list or of a node, and what a set of edits makes: a policy, and the files of a result.

The modify_mixlist of a result replaces the given one: it holds the moves of both. The files are read back as the user's
next command reads them, so that a check judges what a user gets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from mixlist.diagnostics import FilePlace
from mixlist.errors import raise_for_errors
from mixlist.files.jsonc import parse
from mixlist.lists.diff import diff_lists
from mixlist.lists.fmt import format_text
from mixlist.lists.library import ListName, Lists, Move
from mixlist.lists.modify_mixlist import apply_edits, parse_edits
from mixlist.lists.node_rules import format_customize_line, parse_customize_dtypes
from mixlist.lists.policy import NodeRule, Policy

_TUNE_PLACE = FilePlace("tune", 1, 1)  # stands for the file and position of a rule that the search makes


@dataclass(frozen=True, order=True)
class ListEdit:
    """The move of an op type to the black list. ``op`` is the name in the lists, which may be an Ascend name."""

    op: str
    before: ListName

    @cached_property
    def text(self) -> str:
        """The edit in reports, in state files and as a sort key."""
        return f"{self.op}: {self.before} to black"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, order=True)
class NodeEdit:
    """A rule that keeps one node in float32, or makes it low. ``pattern`` names the node in a customize_dtypes file.

    ``inputs`` and ``outputs``: by slot the type that the rule gives, such as ``float32``, and "" where it gives none.
    """

    pattern: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """The edit in reports, in state files and as a sort key."""
        precision = next(filter(None, (*self.inputs, *self.outputs)), "float32")
        return f"{self.pattern} ({self.op_type}): {precision}"

    def __str__(self) -> str:
        return self.text

    @cached_property
    def rule(self) -> NodeRule:
        """The edit as a rule of a customize_dtypes file."""
        inputs, outputs = (tuple(name or None for name in names) for names in (self.inputs, self.outputs))
        return NodeRule("name", self.pattern, False, _TUNE_PLACE, inputs, outputs)


Edit = ListEdit | NodeEdit
EditSet = frozenset[Edit]
NO_EDITS: EditSet = frozenset()


def edit_policy(base: Policy, edits: EditSet) -> Policy:
    """Return the policy under a set of edits: the base's lists after the edits, and the base's rules.

    The rules of NodeEdits come before the base's own rules, because the first rule that matches a node decides.
    """
    moves = dict(base.lists.moves)
    named = set(base.lists.named_ops)
    rules = []
    # A set has no order of its own, and the order of rules matters: sort, so that equal sets give equal policies.
    for edit in sorted(edits, key=attrgetter("text")):
        if isinstance(edit, ListEdit):
            moves[edit.op] = Move(edit.op, base.lists.list_of(edit.op), "black", None)
            named.add(edit.op)
        else:
            rules.append(edit.rule)
    lists = Lists(base.lists.library, moves, frozenset(named), base.lists.entry_places)
    return replace(base, lists=lists, rules=(*rules, *base.rules))


# --- the files of a result ---


def render_modify_mixlist(base: Policy, edits: EditSet) -> str:
    """Return the text of a modify_mixlist that turns the library's own lists into the lists under the edits.

    The moves of the base's own modify_mixlist are part of the text, so that the new file replaces the old one. The text
    has the strict canonical form.
    """
    import json

    actions = diff_lists(Lists(base.lists.library), edit_policy(base, edits).lists)
    return format_text(json.dumps(actions), "modify_mixlist", "modify-mixlist")


def render_customize_dtypes(base: Policy, edits: EditSet) -> str:
    """Return the text of a customize_dtypes file: the rules of NodeEdits, then the base's own; "" if there are none.

    The keep_dtype rules of the base are left out: they stay in their own file.
    """
    rules = [edit.rule for edit in sorted(edit for edit in edits if isinstance(edit, NodeEdit))]
    rules += [rule for rule in base.rules if not rule.keep]
    return "".join(f"{format_customize_line(rule)}\n" for rule in rules)


def read_tuned_policy(base: Policy, edits: EditSet) -> Policy:
    """Return the base policy with the files of a result in place of its own files.

    The texts are parsed as the files that a user gets are, so that a check judges these files.
    """
    list_edits, findings = parse_edits(parse(render_modify_mixlist(base, edits), "modify_mixlist", strict=True))
    raise_for_errors(findings)
    lists, _ = apply_edits(base.lists.library, list_edits)
    return replace(base, lists=lists, rules=read_tuned_rules(base, edits))


def read_tuned_rules(base: Policy, edits: EditSet) -> tuple[NodeRule, ...]:
    """Return the rules of the customize_dtypes file of a result, then the keep_dtype rules of the base."""
    # The name of the file is in the reasons of the nodes, which a user reads on the page of a search.
    rules, _ = parse_customize_dtypes(render_customize_dtypes(base, edits), "result of the search")
    return (*rules, *(rule for rule in base.rules if rule.keep))
