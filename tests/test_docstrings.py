"""The docstrings of the package: none is a title without a main verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TITLE = re.compile(r"(What|Who|Whose|Whether|How|Which|Where|That|Why)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def find_titles(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring that begins with a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) is not None and TITLE.match(text):
            yield node.body[0].lineno, text.partition("\n")[0]


def test_a_title_is_reported_with_its_line() -> None:
    source = '"""What it is."""\nclass C:\n    """A class."""\n    def f(self):\n        """Whether it is so."""\n'
    assert list(find_titles(source)) == [(1, "What it is."), (5, "Whether it is so.")]
    assert not list(find_titles('"""Whatever is given, return it."""\ndef f():\n    """Return what is given."""\n'))


def test_no_docstring_is_a_title() -> None:
    files = sorted(ROOT.glob("mixlist/**/*.py"))
    assert files
    titles = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files
        for line, text in find_titles(path.read_text("utf-8"))
    ]
    assert not titles, "\n".join(["begin these docstrings with an imperative or a noun phrase:", *titles])
