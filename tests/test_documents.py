"""The documents: every path of the repository that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"])
# A path in backticks that begins with a folder of the repository; patterns (*) and arguments are left out.
PATH_IN_BACKTICKS = re.compile(r"`((?:mixlist|tests|tools|docs|schemas|sample_lists|benchmarks)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_in_a_document_exists(document: Path) -> None:
    text = document.read_text("utf-8")
    missing = [name for name in PATH_IN_BACKTICKS.findall(text) if not (ROOT / name).exists()]
    missing += [name for name in LINK.findall(text) if not (document.parent / name).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_installs_a_release_that_does_not_exist(document: Path) -> None:
    if "(unreleased)" not in (ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n## ")[2].partition("\n")[0]:
        pytest.skip("there is a release")
    text = document.read_text("utf-8")
    assert not re.findall(r"mixlist@v\d|rev: v\d|mixlist-\d[\w.]*\.whl|mixlist(?:\[\w+\])?==\d", text)


def test_the_architecture_document_lists_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = {path.parent.name for path in ROOT.glob("mixlist/*/__init__.py")}
    assert rooms == {room for room in rooms if f"| `{room}/` |" in text}
