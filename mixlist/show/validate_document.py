"""The report of ``validate`` besides its findings as text: kinds of files, and the other formats.

The other formats are JSON, SARIF 2.1.0 for code-scanning services, annotations of a pull request on GitHub, and the
diff of the corrections in the form that ``patch`` reads.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from mixlist.diagnostics import Diagnostic
from mixlist.lists.corrections import Correction
from mixlist.lists.finding_selection import code_texts
from mixlist.lists.validate_file import FileReport
from mixlist.number_text import pluralize
from mixlist.show.terminal import escape_commands
from mixlist.version import __version__

_SHOWN_MEMBERS = 3  # files of a library whose names are shown


# --- text ---


def kind_lines(reports: Iterable[FileReport], skipped: Iterable[str]) -> list[str]:
    """Return a line for each file: its kind and the number of its findings; then the files that are no list files."""
    lines = []
    for report in reports:
        kind = "unknown kind" if report.kind == "auto" else report.kind
        if report.members:
            names = [os.path.basename(member) for member in report.members[:_SHOWN_MEMBERS]]  # noqa: PTH119
            more = len(report.members) - len(names)
            kind += f" ({', '.join(names)}{f' and {more} more' if more else ''})"
        lines.append(f"{report.path}: {kind}, {_count_findings(report.findings)}")
    return [*lines, *(f"{path}: no list file, skipped" for path in skipped)]


def _count_findings(findings: Sequence[Diagnostic]) -> str:
    """Return a text such as ``1 error, 2 warnings``."""
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    parts = [pluralize(count, word) for count, word in ((errors, "error"), (warnings, "warning")) if count]
    return ", ".join(parts) or "no findings"


def correction_lines(corrections: Iterable[Correction]) -> list[str]:
    """Return a line for each correction, with the place of the first finding that it corrects."""
    return [f"{c.finding.place}: corrected {c.finding.code}: {c.message}" for c in corrections]


def unified_diff(path: str, before: str, after: str) -> Iterator[str]:
    """Yield the lines of a unified diff of a file, with their line ends."""
    old_lines, new_lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for line in difflib.unified_diff(old_lines, new_lines, path, path):
        text = line.rstrip("\r\n")
        # Tabs and line ends stay, so that the result can be applied.
        escaped = "\t".join(map(escape_commands, text.split("\t")))
        yield escaped + (line[len(text) :] or "\n\\ No newline at end of file\n")


# --- JSON ---


def validation_json(
    reports: Iterable[FileReport], skipped: Iterable[str], corrections: Iterable[Correction]
) -> dict[str, object]:
    """Return the ``mixlist.validate/1`` object of schemas/validate.json. A missing line, column or hint is null."""
    keys = ("code", "severity", "message", "line", "column", "hint")
    files = [
        {
            "path": file.path,
            "kind": file.kind,
            "findings": [{key: getattr(f, key) for key in keys} for f in file.findings],
        }
        for report in reports
        for file in report.by_file()
    ]
    corrected = [
        {"code": c.finding.code, "path": c.finding.path, "line": c.finding.line, "count": c.count, "message": c.message}
        for c in corrections
    ]
    return {
        "format": "mixlist.validate/1",
        "files": files,
        "skipped": list(skipped),
        "corrected": corrected,
    }


# --- SARIF ---


def sarif(findings: Sequence[Diagnostic]) -> dict[str, object]:
    """Return the findings as a SARIF log: a rule for each code, a result for each finding.

    Columns count Unicode code points from 1.
    """
    # Only the codes of these findings become rules. A result names its rule by the index in this order.
    codes = sorted({finding.code for finding in findings})
    rules = [_sarif_rule(code, *code_texts().get(code, (code, code))) for code in codes]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "mixlist", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(finding, codes.index(finding.code)) for finding in findings],
            }
        ],
    }


def _sarif_rule(code: str, title: str, text: str) -> dict[str, object]:
    return {"id": code, "shortDescription": {"text": title}, "fullDescription": {"text": text}, "help": {"text": text}}


def _sarif_result(finding: Diagnostic, rule: int) -> dict[str, object]:
    message = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": message},
    }
    if finding.path is not None:
        path = Path(finding.path)
        # A relative path stays relative, so that the service finds the file in the repository.
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
        location: dict[str, object] = {"artifactLocation": {"uri": uri}}
        if finding.line is not None:
            column = {} if finding.column is None else {"startColumn": finding.column}
            location["region"] = {"startLine": finding.line, **column}
        result["locations"] = [{"physicalLocation": location}]
    return result


# --- annotations of GitHub ---


def annotation(finding: Diagnostic) -> str:
    """Return ``::error file=...,line=...,col=...,title=...::message``, with the escapes of GitHub's runner."""
    # GitHub needs forward slashes.
    path = finding.path.replace(os.sep, "/") if finding.path is not None else None
    fields = {"file": path, "line": finding.line, "col": finding.column, "title": f"mixlist {finding.code}"}
    properties = ",".join(
        f"{name}={_escape_property(str(value))}" for name, value in fields.items() if value is not None
    )
    message = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    return f"::{finding.severity} {properties}::{_escape_data(message)}"


def _escape_data(text: str) -> str:
    # The percent sign comes first, because the other escapes contain one.
    return escape_commands(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _escape_property(text: str) -> str:
    # In a property, a colon or a comma would end the value.
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
