"""The summary of skips, and the list of tests that ``.ci/run`` runs when the extras are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.conftest import pytest_terminal_summary
from tests.support.extras import REASONS
REASONS["no_such_package"] = "needs a package"
"""
MODULE = """
from tests.support.extras import import_extra
import_extra("no_such_package")
"""
TESTS = """
import pytest
from tests.support.extras import import_extra

@pytest.mark.parametrize("text", ["a [b]::c"])
def test_of_an_extra(text):
    import_extra("no_such_package")

@pytest.mark.skip(reason="another reason")
def test_of_a_campaign():
    pass

def test_that_runs():
    pass
"""


def run_pytest(folder: Path, *arguments: str, **variables: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert completed.returncode in (0, 5), completed.stdout + completed.stderr  # 5: no test ran
    return completed.stdout


def test_skips_are_counted_by_reason_and_those_of_extras_can_run_alone(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_cases.py").write_text(TESTS)
    for name in ("test_first.py", "test_second.py"):
        (tmp_path / name).write_text(MODULE)
    ids = ["test_cases.py::test_of_an_extra[a [b]::c]", "test_first.py", "test_second.py"]
    output = run_pytest(tmp_path, MIXLIST_SKIPPED="skipped")
    assert re.findall(r"^ +\d+  .+$", output, re.MULTILINE) == ["    3  needs a package", "    1  another reason"]
    assert "SKIPPED" not in output and "1 passed, 4 skipped" in output
    assert (tmp_path / "skipped").read_text("utf-8").splitlines() == ids
    assert "3 skipped in" in run_pytest(tmp_path, "-n0", "@skipped", MIXLIST_SKIPPED="still-skipped")
    assert (tmp_path / "still-skipped").read_text("utf-8").splitlines() == ids
