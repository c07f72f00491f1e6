"""Every code that mixlist can print has a section in docs/codes, and every section has a code that mixlist uses."""

from __future__ import annotations

import re
from pathlib import Path

import mixlist
from mixlist.files.package_data import data_folder
from mixlist.show.validate_document import sarif

SECTION = re.compile(r"^## (ML\d{3}): \S.*\n\n(\S(?:(?!^## )[\s\S])*)", re.MULTILINE)
OUTPUTS = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# These warnings need no correction, or come with it.
WITHOUT_CORRECTION = {"ML509", "ML618"}
# A process must die, or a GPU is needed: no command of a document shows that.
WITHOUT_EXAMPLE = {"ML606", "ML621"}


def read_sections() -> list[tuple[str, str]]:
    """Return the code and the text of each section, in the order of the pages."""
    pages = sorted((data_folder("docs") / "codes").glob("ml*.md"))
    return [section for page in pages for section in SECTION.findall(page.read_text("utf-8"))]


def test_codes_and_their_documentation_agree() -> None:
    package = Path(mixlist.__file__).parent
    used = {code for path in package.rglob("*.py") for code in re.findall(r"\"(ML\d{3})\"", path.read_text("utf-8"))}
    documented = [code for code, _ in read_sections()]
    assert documented == sorted(set(documented)), "the sections are sorted and unique"
    assert set(documented) == used


def test_every_section_has_an_example_and_its_correction() -> None:
    """The test of the documents runs these commands, so an output that is shown is true."""
    for code, text in read_sections():
        if code in WITHOUT_EXAMPLE:
            continue
        outputs = [output for block in OUTPUTS.findall(text) for output in re.split(r"^\$ ", block, flags=re.MULTILINE)]
        assert any(f" {code}: " in output for output in outputs), f"no example of {code} shows it"
        if code not in WITHOUT_CORRECTION:
            assert f" {code}: " not in outputs[-1], f"the last command of {code} shows its correction"


def test_sarif_rules_carry_the_documentation() -> None:
    from mixlist.diagnostics import Diagnostic

    (rule,) = sarif([Diagnostic("ML104", "error", "m")])["runs"][0]["tool"]["driver"]["rules"]
    assert rule["id"] == "ML104"
    assert rule["shortDescription"]["text"] == "combination of actions that is not allowed"
    assert "63 combinations" in rule["fullDescription"]["text"]
