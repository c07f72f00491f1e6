"""Choose the findings to report: by their codes (``--select``, ``--ignore``), and without those of a baseline file.

A baseline file holds findings that are known, so that later reports show only new ones. A finding is known by its file,
its code and its message without places, so that edits elsewhere in the file do not make it new. If a file has the same
finding several times, the baseline counts how often. Paths are relative to the folder of the baseline, so that the file
can be shared. A finding of ``UNREADABLE_CODES`` is never known: a file that cannot be read may hold anything.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.errors import UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.jsonc import read
from mixlist.files.list_text import is_directory, shown_path
from mixlist.files.package_data import data_folder
from mixlist.lists import presets
from mixlist.lists.ops_info import library_files
from mixlist.lists.policy import ListPath
from mixlist.lists.validate_file import FileReport
from mixlist.option_spelling import spell

# --- codes ---

# A file with one of these findings cannot be read. Without this finding it would pass unread.
UNREADABLE_CODES = frozenset(f"ML{number:03}" for number in (1, 2, 3, 4, 8, 9, 10, 13, 16))

# A section of a page in docs/codes: its code, its title and its first paragraph.
_SECTION = re.compile(r"^## (ML\d+): (.+)\n+((?:.+\n)*?)(?=\n|\Z)", re.MULTILINE)


@cache
def code_texts() -> Mapping[str, tuple[str, str]]:
    """Return the title and the first paragraph of each section of docs/codes (in the package), by code."""
    pages = (data_folder("docs") / "codes").glob("ml*.md")
    sections = (section for page in pages for section in _SECTION.findall(page.read_text(encoding="utf-8")))
    return {code: (title, " ".join(body.split()) or title) for code, title, body in sections}


@dataclass(frozen=True, slots=True)
class CodeSelection:
    """The codes of the findings that a user wants to see.

    ``selected`` and ``ignored`` hold beginnings of codes. Without ``selected``, all codes are selected. If a code has a
    selected and an ignored beginning, the longer one decides, and the ignored one if they are equal.
    """

    selected: Sequence[str] = ()
    ignored: Sequence[str] = ()

    def includes(self, code: str) -> bool:
        """Return whether the user wants to see a finding of this code; always True for ``UNREADABLE_CODES``."""
        select_length = _longest_beginning(code, self.selected or ("",))
        return code in UNREADABLE_CODES or select_length > _longest_beginning(code, self.ignored)


def read_selection(select: str | Iterable[str], ignore: str | Iterable[str]) -> CodeSelection:
    """Return the selection for texts such as ``ML1`` or ``ML105,ML2``.

    Raises UsageError for a text with which no code begins.
    """
    return CodeSelection(_split_codes("select", select), _split_codes("ignore", ignore))


def _longest_beginning(code: str, beginnings: Sequence[str]) -> int:
    """Return the length of the longest of the beginnings that the code has; -1 if it has none."""
    return max((len(beginning) for beginning in beginnings if code.startswith(beginning)), default=-1)


def _split_codes(option: str, texts: str | Iterable[str]) -> tuple[str, ...]:
    texts = [texts] if isinstance(texts, str) else texts
    beginnings = [part.strip().upper() for text in texts for part in text.split(",") if part.strip()]
    for beginning in beginnings:
        if not any(code.startswith(beginning) for code in code_texts()):
            raise UsageError(
                f"{spell(option, beginning)}: no code of a finding begins so",
                hint="write a code, such as ML105, or its beginning, such as ML1; docs/codes explains every code",
            )
    return tuple(beginnings)


# --- baseline files ---

FORMAT = "mixlist.baseline/1"
# Codes, or their beginnings, of findings that occur only if the list is checked against a library or a model.
_CODES_WITH_LIBRARY = ("ML106", "ML107", "ML108", "ML210", "ML307", "ML4")
_CODES_WITH_MODEL = ("ML305", "ML306", "ML308", "ML309", "ML406", "ML407", "ML409", "ML410", "ML411", "ML5")
_PLACE = re.compile(r"(?<=[ :(])\d+:\d+|(?<=line )\d+")  # 3:9 and "line 3" in a message


class KnownFinding(NamedTuple):
    """A finding as a baseline holds it. ``path`` is relative to the folder of the baseline, with forward slashes."""

    path: str
    code: str
    message: str


@dataclass(frozen=True)
class Baseline:
    """The known findings of a baseline file, with how often each occurs, and the places of the entries in the file."""

    path: str
    counts: Mapping[KnownFinding, int]
    places: Mapping[KnownFinding, FilePlace]


def read_baseline(path: str) -> Baseline:
    """Read a baseline file.

    Raises FileError if the file cannot be read, ListError if it is not JSON, and UsageError if it is not a baseline.
    """
    document = read(path)
    value = document.value
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("findings"), list):
        raise UsageError(
            f"{document.path}: this is not a baseline of mixlist",
            hint=f"{spell('write_baseline')} writes a baseline",
        )
    counts: dict[KnownFinding, int] = {}
    places: dict[KnownFinding, FilePlace] = {}
    for entry, (line, column) in zip(value["findings"], document.item_line_columns(("findings",)), strict=True):
        place = FilePlace(document.path, line, column)
        finding, count = _read_entry(entry, place)
        counts[finding] = counts.get(finding, 0) + count
        places.setdefault(finding, place)
    return Baseline(path, counts, places)


def _read_entry(entry: object, place: FilePlace) -> tuple[KnownFinding, int]:
    if isinstance(entry, dict):
        texts, count = [entry.get(key) for key in KnownFinding._fields], entry.get("count", 1)
        if all(isinstance(text, str) for text in texts) and type(count) is int and count > 0:
            return KnownFinding(*map(str, texts)), count
    raise UsageError(
        f"{place}: this is not an entry of a baseline",
        hint='an entry is {"path": "...", "code": "ML105", "message": "..."}, and may have a "count"',
    )


@dataclass(frozen=True)
class BaselineRun:
    """The reports of one run of ``validate``, for comparison with a baseline in ``folder``.

    ``libraries`` are those of the check, whose paths are in messages. Only entries whose file
    was checked and whose code can occur in this run are compared: the code is selected, and needs no library or model
    that the run does not have. An entry of a file that does not exist any more is compared too.
    """

    reports: Sequence[FileReport]
    folder: Path
    selection: CodeSelection
    libraries: Sequence[ListPath] = ()
    has_model: bool = False

    def known_findings(self) -> Counter[KnownFinding]:
        """Return the findings of the reports as a baseline holds them, with how often each occurs."""
        return Counter(
            self._known_finding(finding, report)
            for report in self.reports
            for finding in report.findings
            if finding.code not in UNREADABLE_CODES
        )

    def without_known(self, baseline: Baseline) -> tuple[list[FileReport], int]:
        """Return the reports without the findings of the baseline, and the number of these findings.

        If a finding occurs more often than the baseline says, the last ones are new. Entries that no longer occur are
        the findings of one more report, about the baseline (ML014).
        """
        remaining = Counter(baseline.counts)
        reports, known_count = [], 0
        for report in self.reports:
            new_findings = []
            for finding in report.findings:
                key = self._known_finding(finding, report)
                if finding.code not in UNREADABLE_CODES and remaining[key] > 0:
                    remaining[key] -= 1
                    known_count += 1
                else:
                    new_findings.append(finding)
            reports.append(replace(report, findings=tuple(new_findings)))
        outdated = [finding for finding, count in remaining.items() if count > 0 and self._is_compared(finding)]
        if outdated and self.selection.includes("ML014"):
            findings = findings_for(outdated, lambda finding: _outdated_entry(baseline, finding, remaining[finding]))
            reports.append(FileReport(shown_path(baseline.path), "baseline", tuple(findings)))
        return reports, known_count

    def merged_with(self, baseline: Baseline | None) -> Counter[KnownFinding]:
        """Return the findings for a new baseline: those of the reports, and the entries that are not compared."""
        other_entries = baseline.counts if baseline is not None else {}
        unjudged = {finding: count for finding, count in other_entries.items() if not self._is_compared(finding)}
        return self.known_findings() + Counter(unjudged)

    def _is_compared(self, known: KnownFinding) -> bool:
        needs_missing_input = (not self.libraries and known.code.startswith(_CODES_WITH_LIBRARY)) or (
            not self.has_model and known.code.startswith(_CODES_WITH_MODEL)
        )
        if needs_missing_input or not self.selection.includes(known.code) or known.path in self._unreadable_paths:
            return False
        return known.path in self._checked_paths or not os.path.exists(self.folder / known.path)  # noqa: PTH110

    @cached_property
    def _checked_paths(self) -> set[str]:
        paths: set[str] = set()
        for report in self.reports:
            files: Sequence[ListPath] = report.members or [report.path]
            if not report.members and is_directory(report.path):
                files = library_files(report.path)
            paths |= {self._relative(os.fspath(file)) for file in files}
        return paths

    @cached_property
    def _unreadable_paths(self) -> set[str]:
        return {
            self._relative(finding.path or report.path)
            for report in self.reports
            for finding in report.findings
            if finding.code in UNREADABLE_CODES
        }

    def _known_finding(self, finding: Diagnostic, report: FileReport) -> KnownFinding:
        path = finding.path or report.path
        message = finding.message
        # Messages name the library and, in a library of several files, other files of the same folder.
        for library in [shown_path(path) for path in self.libraries if os.fspath(path) not in presets.names()]:
            for word in ("library", "under"):
                message = message.replace(f"{word} {library}", f"{word} {self._relative(library)}")
        if folder := os.path.dirname(path):  # noqa: PTH120
            message = message.replace(folder + os.sep, "")
        return KnownFinding(self._relative(path), finding.code, _PLACE.sub("_", message))

    def _relative(self, path: str) -> str:
        if path == "<stdin>":
            return path
        try:
            return Path(os.path.relpath(path, self.folder)).as_posix()
        except ValueError:  # another drive of Windows
            return Path(path).as_posix()


def write_baseline(path: str, findings: Mapping[KnownFinding, int]) -> None:
    """Write a baseline file, with one entry per line, sorted, so that two versions are easy to compare."""
    entries = [
        json.dumps(finding._asdict() | ({"count": count} if count > 1 else {}), ensure_ascii=False)
        for finding, count in sorted(findings.items())
    ]
    body = "[\n  " + ",\n  ".join(entries) + "\n ]" if entries else "[]"
    write_atomically(path, f'{{\n "format": "{FORMAT}",\n "findings": {body}\n}}\n'.encode())


def _outdated_entry(baseline: Baseline, finding: KnownFinding, surplus: int) -> Diagnostic:
    count = baseline.counts[finding]
    state = "no longer occurs" if surplus == count else f"occurs {count - surplus} times, not {count} times,"
    message = f"{finding.code} {state} in {finding.path}: {finding.message}"
    hint = f"remove the entry, or let {spell('write_baseline', shown_path(baseline.path))} do so"
    return baseline.places[finding].finding("ML014", "warning", message, hint)
