"""The pictures of the concepts: tools/make_pictures.py draws them again, and each page shows one with a description."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
CONCEPTS = ROOT / "docs" / "concepts"


def test_the_script_draws_the_pictures_of_the_repository(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_pictures.py"), str(tmp_path)], check=True)
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text("utf-8") for path in CONCEPTS.glob("*.svg")}


def test_every_concept_shows_a_picture_with_a_description() -> None:
    pages = sorted(CONCEPTS.glob("*.md"))
    assert pages
    for page in pages:
        pictures = re.findall(r"!\[([^]]{40,})\]\((\S+\.svg)\)", page.read_text("utf-8"))
        assert pictures, page.name
        for _, name in pictures:
            picture = ElementTree.parse(CONCEPTS / name).getroot()
            assert picture.find("{http://www.w3.org/2000/svg}title") is not None
            assert "prefers-color-scheme: dark" in "".join(picture.itertext())
