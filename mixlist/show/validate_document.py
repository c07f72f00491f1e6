"""Make the lines that ``validate`` prints besides findings: corrections, the kinds of files, and counts by code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from mixlist.diagnostics import Diagnostic, count_codes
from mixlist.lists.corrections import Correction
from mixlist.lists.finding_selection import code_texts
from mixlist.lists.validate_file import FileReport
from mixlist.show.document import Document, Section, Table, columns_of
from mixlist.show.number_text import pluralize

_SHOWN_MEMBERS = 3  # files of a library whose names are shown


def kind_lines(reports: Iterable[FileReport], skipped: Iterable[str], nothing: str) -> list[str]:
    """Return a line for each file: its kind and the number of its findings; then the files that are no list files.

    ``nothing``: the words for a file without findings.
    """
    lines = []
    for report in reports:
        kind = "unknown kind" if report.kind == "auto" else report.kind
        if report.members:
            names = [os.path.basename(member) for member in report.members[:_SHOWN_MEMBERS]]  # noqa: PTH119
            more = len(report.members) - len(names)
            kind += f" ({', '.join(names)}{f' and {more} more' if more else ''})"
        lines.append(f"{report.path}: {kind}, {_count_findings(report.findings) or nothing}")
    return [*lines, *(f"{path}: no list file, skipped" for path in skipped)]


def _count_findings(findings: Sequence[Diagnostic]) -> str:
    """Return a text such as ``1 error, 2 warnings``; "" without findings."""
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    parts = [pluralize(count, word) for count, word in ((errors, "error"), (warnings, "warning")) if count]
    return ", ".join(parts)


def correction_lines(corrections: Iterable[Correction]) -> list[str]:
    """Return a line for each correction, with the place of the first finding that it corrects."""
    return [f"{c.finding.place}: corrected {c.finding.code}: {c.message}" for c in corrections]


def statistics_document(findings: Iterable[Diagnostic]) -> Document:
    """Return the number of findings of each code, the most frequent first."""
    rows = [
        (str(count), code, severity, code_texts().get(code, (code, ""))[0])
        for (code, severity), count in count_codes(findings)
    ]
    table = Table(columns_of("findings", "code", "severity", "meaning"), rows)
    return Document("validate", (Section("statistics", "", (table,)),))
