"""Messages name an option as their reader gives it: a keyword argument in Python, a flag of the running command."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import mixlist
from mixlist.cli.command_index import load_command
from mixlist.cli.options import spell_flag
from mixlist.errors import UsageError
from mixlist.option_spelling import Verbatim, spell, spelled_by

PACKAGE = Path(mixlist.__file__).parent
_FLAG = re.compile(r"(?<![\w-])--[a-z]")


@pytest.mark.parametrize(
    ("command", "name", "value", "keyword", "flag"),
    [
        ("check", "protect", "masks", "protect='masks'", "--protect masks"),
        ("check", "data", None, "data=...", "--data"),
        ("check", "dims", {"batch": 4, "?": 2}, "dims={'batch': 4, '?': 2}", "--dim batch=4 --dim '?=2'"),
        ("check", "ranges", {"x": (0, 5)}, "ranges={'x': (0, 5)}", "--range x=0:5"),
        ("check", "shapes", {"x": (2, 8)}, "shapes={'x': (2, 8)}", "--shape x=2,8"),
        ("check", "scale", Verbatim("1/255"), "scale=1/255", "--scale 1/255"),
        ("check", "random", None, "mixlist.random_batches(...)", "--random"),
        ("apply", "force", True, "force=True", "--force"),
        ("apply", "io", "low", "io='low'", "--io low"),
        ("export", "tool", "atc", "tool='atc'", "--for atc"),
        ("validate", "type_hints", None, "type_hints=...", "--type-hints of resolve and apply"),
        ("diff", "protect", "masks", "protect='masks'", "--base-protect or --other-protect masks"),
    ],
)
def test_an_option_has_the_form_of_its_reader(command: str, name: str, value: object, keyword: str, flag: str) -> None:
    assert spell(name, value) == keyword
    with spelled_by(partial(spell_flag, load_command(command))):
        assert spell(name, value) == flag
    assert spell(name, value) == keyword


def test_a_command_names_flags_and_python_keywords(run, model_path: Path) -> None:
    completed = run("resolve", model_path, "--precision-mode", "fp32")
    assert "--precision-mode fp32: there is no such mode" in completed.err
    with pytest.raises(UsageError, match="precision_mode='fp32': there is no such mode"):
        mixlist.load_policy(precision_mode="fp32")


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module that a user can read: no docstrings, no names of options and no help texts."""
    tree = ast.parse(path.read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    declared = {id(part) for call in calls if getattr(call.func, "id", "") == "option" for part in ast.walk(call)}
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in declared | statements:
            yield node.value


def test_only_the_command_line_and_its_reports_name_flags() -> None:
    """Whole commands, such as ``mixlist apply --opset 13``, and those of other tools may have flags."""
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in ("cli", "show", "exchange"):
            for text in _texts(path):
                assert not _FLAG.search(text) or "mixlist " in text, (path.name, text)
