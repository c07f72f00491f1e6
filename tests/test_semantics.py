"""docs/semantics.md: its rules are well formed, every number that is cited exists, and a test cites every rule."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^### (S\d+\.\d+) (\S.*)$", re.MULTILINE)
CITED = re.compile(r"\bS\d+\.\d+\b")
SOURCES = ("engine", "framework", "ONNX", "ONNX Runtime", "ruling")
# The files that cite rules: code, tests, golden files, documents.
TEXTS = ("mixlist/**/*.py", "tests/**/*.py", "tests/golden/**/*.txt", "benchmarks/*", "tools/*.py", "docs/*.md", "*.md")


class Rule(NamedTuple):
    """A rule in the document; a ``planned`` rule is decided but not implemented."""

    title: str
    text: str
    planned: bool


@cache
def rules() -> dict[str, Rule]:
    """Return the rules by their number, in the order of the document."""
    text = (ROOT / "docs" / "semantics.md").read_text("utf-8")
    headings = list(HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    rules_by_number: dict[str, Rule] = {}
    for heading, end in zip(headings, ends, strict=True):
        body = text[heading.end() : end]
        assert heading[1] not in rules_by_number, f"the document has {heading[1]} twice"
        rules_by_number[heading[1]] = Rule(heading[2], body, body.lstrip().startswith("Status: planned"))
    return rules_by_number


def citations(*patterns: str) -> dict[str, list[str]]:
    """Return the files that cite each number. This file is not among them."""
    files_by_number: dict[str, list[str]] = {}
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if not path.is_file() or path == Path(__file__):
                continue
            for number in set(CITED.findall(path.read_text("utf-8"))):
                files_by_number.setdefault(number, []).append(str(path.relative_to(ROOT)))
    return files_by_number


def test_the_rules_of_a_chapter_are_in_the_order_of_their_numbers() -> None:
    chapters: dict[int, list[int]] = {}
    for number in rules():
        chapter, position = number[1:].split(".")
        chapters.setdefault(int(chapter), []).append(int(position))
    assert list(chapters) == sorted(chapters)  # the number of a removed chapter is missing
    for chapter, positions in chapters.items():
        assert positions == sorted(positions), f"S{chapter}"  # a removed rule leaves a gap


def test_every_rule_has_an_example_and_a_source() -> None:
    for number, rule in rules().items():
        assert "\nExample:" in rule.text, f"{number} has no example"
        source = re.search(r"^Source: (.+)$", rule.text, re.MULTILINE)
        assert source is not None, f"{number} has no source"
        assert source[1].startswith(SOURCES), f"{number}: {source[1]}"


def test_every_rule_that_is_cited_exists() -> None:
    unknown = {number: files for number, files in citations(*TEXTS).items() if number not in rules()}
    assert not unknown


def test_a_test_cites_every_rule_that_is_implemented() -> None:
    cited = citations("tests/**/*.py", "tests/golden/**/*.txt")
    missing = [f"{number} {rule.title}" for number, rule in rules().items() if not rule.planned and number not in cited]
    assert not missing


def test_no_code_cites_a_planned_rule() -> None:
    planned = {number for number, rule in rules().items() if rule.planned}
    assert not planned.intersection(citations("mixlist/**/*.py"))


def test_nothing_refers_to_documents_that_the_repository_does_not_have() -> None:
    outdated = re.compile(
        r"semantics,? sections?|\bthe contract\b|\(contract\b|\bcontract's\b|\bissue \d|\(issue\b", re.IGNORECASE
    )
    outdated_lines = []
    for pattern in TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and path != Path(__file__):
                lines = path.read_text("utf-8").splitlines()
                outdated_lines += [
                    f"{path.relative_to(ROOT)}:{n}" for n, line in enumerate(lines, 1) if outdated.search(line)
                ]
    assert not outdated_lines
