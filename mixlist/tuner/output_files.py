"""Write the files of a result from its edits, and read them back as a user's command would (Rule S9.9)."""

from __future__ import annotations

from dataclasses import replace

from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.lists.diff import diff_lists
from mixlist.lists.fmt import format_text
from mixlist.lists.library import Lists
from mixlist.lists.modify_mixlist import apply_edits, read_edits
from mixlist.lists.node_rules import format_customize_line, read_customize_dtypes
from mixlist.lists.policy import Policy
from mixlist.tuner.candidates import EditSet, NodeEdit, policy_of


def mixlist_text(base: Policy, edits: EditSet) -> str:
    """Return the modify_mixlist that turns the library's own lists into those under the edits, in the strict form."""
    import json

    actions = diff_lists(Lists(base.lists.library), policy_of(base, edits).lists)
    return format_text(json.dumps(actions), "modify_mixlist", "modify-mixlist")


def rules_text(base: Policy, edits: EditSet) -> str:
    """Return the customize_dtypes file: the edits of nodes, then the base's own rules; "" where there are neither."""
    rules = [edit.rule for edit in sorted(edit for edit in edits if isinstance(edit, NodeEdit))]
    rules += [rule for rule in base.rules if not rule.keep]
    return "".join(f"{format_customize_line(rule)}\n" for rule in rules)


def read_back(base: Policy, modify: str, rules: str) -> Policy:
    """Return the base's policy with these two files in place of its own."""
    with ScratchFolder() as home:
        path = home / "modify_mixlist.json"
        write_scratch(path, modify.encode())
        lists, _ = apply_edits(base.lists.library, read_edits(path, strict=True)[0])
        if not rules:
            return replace(base, lists=lists)
        path = home / "customize_dtypes.txt"
        write_scratch(path, rules.encode())
        found, _ = read_customize_dtypes(path)
    return replace(base, lists=lists, rules=(*found, *(rule for rule in base.rules if rule.keep)))
