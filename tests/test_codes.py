"""Every code that mixlist can print has a section in docs/codes.md, and every section has a code that mixlist uses."""

from __future__ import annotations

import re
from pathlib import Path

import mixlist
from mixlist.files.package_data import data_folder
from mixlist.report.sarif import sarif

SECTION = re.compile(r"^## (ML\d{3}): \S.*\n\n\S.*", re.MULTILINE)


def test_codes_and_their_documentation_agree() -> None:
    package = Path(mixlist.__file__).parent
    used = {code for path in package.rglob("*.py") for code in re.findall(r"\"(ML\d{3})\"", path.read_text("utf-8"))}
    documented = SECTION.findall((data_folder("docs") / "codes.md").read_text("utf-8"))
    assert documented == sorted(set(documented)), "the sections are sorted and unique"
    assert set(documented) == used


def test_sarif_rules_carry_the_documentation() -> None:
    from mixlist.diagnostics import Diagnostic

    (rule,) = sarif([Diagnostic("ML104", "error", "m")])["runs"][0]["tool"]["driver"]["rules"]
    assert rule["id"] == "ML104"
    assert rule["shortDescription"]["text"] == "combination of actions that is not allowed"
    assert "63 combinations" in rule["fullDescription"]["text"]
