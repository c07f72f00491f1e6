"""The files of a result: written from a choice, and read back as a user's command would read them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from mixlist.lists.diff import diff
from mixlist.lists.edits import apply_edits, read_edits
from mixlist.lists.fmt import format_text
from mixlist.lists.library import Lists
from mixlist.lists.node_rules import customize_line, read_customize_dtypes
from mixlist.lists.policy import Policy
from mixlist.tuner.candidates import Choice, NodeEdit, policy_of


def mixlist_text(base: Policy, choice: Choice) -> str:
    """The modify_mixlist that turns the library's own lists into those of the choice, in the strict form."""
    import json

    chosen = policy_of(base, choice).lists
    edits = diff(Lists(base.lists.library), chosen)
    return format_text(json.dumps(edits), "modify_mixlist", "modify-mixlist")


def rules_text(base: Policy, choice: Choice) -> str:
    """The customize_dtypes file: the chosen nodes, then the base's own rules; "" where there are neither."""
    chosen = sorted(e for e in choice if isinstance(e, NodeEdit))
    own = [rule for rule in base.rules if not rule.keep]
    return "".join(f"{customize_line(rule)}\n" for rule in [*(e.rule for e in chosen), *own])


def read_back(base: Policy, modify: str, rules: str) -> Policy:
    """The base's policy with these two files in place of its own."""
    with tempfile.TemporaryDirectory(prefix="mixlist-") as home:
        path = Path(home, "modify_mixlist.json")
        path.write_text(modify, "utf-8")
        lists, _ = apply_edits(base.lists.library, read_edits(path, strict=True)[0])
        if not rules:
            return replace(base, lists=lists)
        path = Path(home, "customize_dtypes.txt")
        path.write_text(rules, "utf-8")
        found, _ = read_customize_dtypes(path)
    return replace(base, lists=lists, rules=(*found, *(rule for rule in base.rules if rule.keep)))
