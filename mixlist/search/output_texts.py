"""Render the files of a result from its edits, and read them back as the user's next command does (Rule S9.9)."""

from __future__ import annotations

from dataclasses import replace

from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.lists.diff import diff_lists
from mixlist.lists.fmt import format_text
from mixlist.lists.library import Lists
from mixlist.lists.modify_mixlist import apply_edits, read_edits
from mixlist.lists.node_rules import format_customize_line, read_customize_dtypes
from mixlist.lists.policy import Policy
from mixlist.search.candidates import EditSet, NodeEdit, edit_policy


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


def read_tuned_policy(base: Policy, modify_mixlist: str, customize_dtypes: str) -> Policy:
    """Return the base policy with the texts of these two files in place of its own files.

    The texts go through the readers of files, so that a check judges the files that a user gets.
    """
    with ScratchFolder() as folder:
        path = folder / "modify_mixlist.json"
        write_scratch(path, modify_mixlist.encode())
        lists, _ = apply_edits(base.lists.library, read_edits(path, strict=True)[0])
        # The text has all rules but the keep_dtype ones. If it is empty, the base has no others.
        if not customize_dtypes:
            return replace(base, lists=lists)
        path = folder / "customize_dtypes.txt"
        write_scratch(path, customize_dtypes.encode())
        rules, _ = read_customize_dtypes(path)
    return replace(base, lists=lists, rules=(*rules, *(rule for rule in base.rules if rule.keep)))
