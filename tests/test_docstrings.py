"""The docstrings of the package: none is a title without a main verb, and the examples of all public names run."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from tests.support.extras import import_extra
from tests.support.package import data_folder

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


WITHOUT_BLOCK = {"random_batches"}  # its example is one line of text
DOCUMENTED_NAMES = [name for name in mixlist.__all__ if callable(getattr(mixlist, name)) and name not in WITHOUT_BLOCK]


@pytest.mark.parametrize("name", DOCUMENTED_NAMES)
def test_the_example_of_a_public_function_or_class_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not inspect.getdoc(): a class would inherit the example of its base.
    docstring = inspect.cleandoc(getattr(mixlist, name).__doc__ or "")
    blocks = re.findall(r"^Example::\n\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    assert len(blocks) == 1, f"{name} has {len(blocks)} examples"
    names: dict[str, Any] = {"mixlist": mixlist, "np": np, "Path": Path}
    if "torch" in blocks[0]:
        names["torch"] = import_extra("torch")
    shutil.copytree(data_folder("demo_data"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    exec(textwrap.dedent(blocks[0]), names)
    # An example shows something, writes a file, or makes a result.
    assert capsys.readouterr().out.strip() or set(tmp_path.iterdir()) - before or "report" in names


def test_the_help_of_the_package_begins_with_an_example_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"::\n\n((?:    .*\n|\n)+)", inspect.cleandoc(mixlist.__doc__ or ""))
    shutil.copytree(data_folder("demo_data"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    exec(textwrap.dedent(block), {})
    assert capsys.readouterr().out == "pass\n"
    functions = set(re.findall(r"``(\w+)``", mixlist.__doc__ or ""))
    assert functions <= set(mixlist.__all__) and "check" in functions
