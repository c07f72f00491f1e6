"""The documentation site: it builds without a warning, and its references are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mixlist
from mixlist.cli.command_index import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
SCHEMAS = DOCS.parent / "schemas"
NOT_RESULTS = {"modify-mixlist", "ops-info"}  # schemas of list files


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the site as ``make docs`` does: a broken link or a missing page is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "--builder", "html"]
    completed = subprocess.run(
        [*command, "--doctree-dir", str(folder / "doctrees"), str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    yield folder / "html"


def test_the_reference_has_every_command_and_public_name(site: Path) -> None:
    commands = (site / "reference/commands.html").read_text("utf-8")
    assert {name for name in COMMANDS if f'id="mixlist-{name}"' not in commands} == set()
    python = (site / "reference/python.html").read_text("utf-8")
    documented = set(re.findall(r'id="mixlist\.(\w+)"', python))
    assert documented == set(mixlist.__all__) - {"__version__"}


def test_the_reference_has_every_json_result() -> None:
    text = (DOCS / "reference" / "json.md").read_text("utf-8")
    documented = re.findall(r"\{json-result\} (\S+)", text)
    assert documented == sorted({path.stem for path in SCHEMAS.glob("*.json")} - NOT_RESULTS)
