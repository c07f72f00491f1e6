"""The README fits on a screen, and the names in it and in the hook file are right.

``tests/docs/test_commands.py`` runs the commands of the README.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from mixlist.cli.command_index import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900


def test_the_readme_names_every_command() -> None:
    table = "".join(re.findall(r"^\| `.+?` \|", README, re.MULTILINE))
    assert set(re.findall(r"`([a-z-]+)`", table)) == set(COMMANDS) - {"ops-info", "demo", "completion"}


def test_every_command_in_the_hooks_exists() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert {hook["id"]: hook["entry"] for hook in hooks} == {
        "mixlist-validate": "mixlist validate",
        "mixlist-fmt": "mixlist fmt",
    }
    for hook in hooks:
        assert {"name", "description", "language", "files"} <= hook.keys()


def test_the_hook_matches_the_names_of_list_files() -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    pattern = re.compile(re.findall(r"id: mixlist-validate\n(?:.*\n)*?  files: (.+)", hooks)[0])
    for name in (
        "lists/modify_mixlist.json",
        "mixlist.json",
        "aic-ascend910b-ops-info.json",
        "a/modify_mixlist_v2.json",
        "keep_dtype.txt",
        "a/customize_dtypes_910b.cfg",
    ):
        assert pattern.search(name), name
    assert not pattern.search("package.json")
    excluded = [re.compile(text) for text in re.findall(r"\n  exclude: (.+)", hooks)]
    assert len(excluded) == 2 and all(text.search("a/schemas/modify-mixlist.json") for text in excluded)


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make ([a-z]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
