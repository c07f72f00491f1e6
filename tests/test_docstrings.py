"""The docstrings of the package: each says what its code does; none is a title without a main verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TITLE = re.compile(r"(What|Who|Whose|Whether|How|Which|Where|That|Why)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def titles(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring that begins with a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) is not None and TITLE.match(text):
            yield node.body[0].lineno, text.partition("\n")[0]


def test_a_title_is_found_with_its_line() -> None:
    source = '"""What it is."""\nclass C:\n    """A class."""\n    def f(self):\n        """Whether it is so."""\n'
    assert list(titles(source)) == [(1, "What it is."), (5, "Whether it is so.")]
    assert not list(titles('"""Whatever is given, return it."""\ndef f():\n    """Return what is given."""\n'))


def test_no_docstring_is_a_title() -> None:
    files = sorted(ROOT.glob("mixlist/**/*.py"))
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}" for path in files for line, text in titles(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(["begin with an imperative or a noun phrase:", *found])
