"""Check one list file of any kind, or a library directory, and return every finding about it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError
from mixlist.files.jsonc import Document, parse
from mixlist.files.list_text import is_directory, read_text, shown_path
from mixlist.lists import modify_mixlist, node_rules, ops_info
from mixlist.lists.detect_kind import FileKind, detect_json_kind, detect_text_kind
from mixlist.lists.library import Library, NameSpace
from mixlist.result_tables import Row, flat_row, notebook_rows


@dataclass(frozen=True, slots=True, repr=False)
class FileReport:
    """The findings about one path. ``kind`` is ``auto`` if the kind of the file is unknown.

    The findings about a directory have the paths of its files. ``by_file`` separates them. For a directory that is not
    one library, ``kind`` is ``folder``, ``parts`` has a report for each list file in it, and ``skipped`` has the paths
    of the JSON and text files that are no list files. ``members`` has the files of a library in such a directory.
    ``skips_model`` is True if a model was given, and errors of the file prevented the check against it.

    Example::

        report = mixlist.validate("digits_mixlist.json")
        print(report.kind, [finding.code for finding in report.findings])
    """

    path: str
    kind: str
    findings: tuple[Diagnostic, ...]
    parts: tuple[FileReport, ...] = ()
    skipped: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    skips_model: bool = False

    def __repr__(self) -> str:
        return f"<FileReport of {self.path!r}: {self.kind}; findings {len(self.findings)}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        rows = [(finding.place, finding.code, finding.severity, finding.message) for finding in self.findings]
        title = f"{self.path}: {self.kind}, findings: {len(rows)}"
        return notebook_rows(title, ("place", "code", "severity", "message"), rows)

    def to_rows(self) -> list[Row]:
        """Return a flat row for each finding, for pandas or polars, with the fields of Diagnostic."""
        return [flat_row(finding) for finding in self.findings]

    def by_file(self) -> list[FileReport]:
        """Return one report for each file that has findings; without findings, only this report.

        For a folder, return the reports of its parts in this form.
        """
        if self.kind == "folder":
            return [report for part in self.parts for report in part.by_file()]
        findings_by_file: dict[str, list[Diagnostic]] = {}
        for finding in self.findings:
            findings_by_file.setdefault(finding.path or self.path, []).append(finding)
        return [FileReport(path, self.kind, tuple(group)) for path, group in findings_by_file.items()] or [self]


def validate_file(
    path: str | os.PathLike[str],
    kind: Literal["auto"] | FileKind = "auto",
    *,
    strict: bool = False,
    library: Library | None = None,
    space: NameSpace | None = None,
) -> FileReport:
    """Return every finding about a list file (``-``: standard input) or a library directory.

    The kind ``auto`` detects the kind by the content. ``strict`` makes comments and trailing commas errors. With a
    ``library``, a modify_mixlist is also checked against it: unknown op types, removals without effect. With its name
    ``space``, names of the other space are no unknown op types. Raises FileError if the path cannot be read; every
    other error is a finding.
    """
    name = shown_path(path)
    # A directory is always a library. For another kind, ``read_text`` below raises an error for the directory.
    if kind in ("auto", "ops-info") and is_directory(path):
        return FileReport(name, "ops-info", tuple(ops_info.inspect_library(path, strict=strict)[1]))
    try:
        # Decide the kind: a text is a node rule file or JSON, and JSON is one of two kinds.
        text = read_text(path)
        # Empty standard input is read as JSON, which is an error: the program before the pipe may have failed.
        if kind == "auto" and (text or name != "<stdin>"):
            kind = detect_text_kind(text, name) or "auto"
        if kind in ("keep-dtype", "customize-dtypes"):
            findings = node_rules.check_rule_text(text, name, kind)
        else:
            document = parse(text, name, strict=strict)
            kind = detect_json_kind(document) if kind == "auto" else kind
            if kind == "ops-info":
                findings = ops_info.library_from_documents(name, [document])[1]
            else:
                findings = _check_modify_mixlist(document, library, space)
    except ListError as error:  # the text is not UTF-8, not JSON, or of no known kind
        findings = list(error.diagnostics)
    findings.sort(key=lambda finding: (finding.line or 0, finding.column or 0))
    return FileReport(name, kind, tuple(findings))


def _check_modify_mixlist(document: Document, library: Library | None, space: NameSpace | None) -> list[Diagnostic]:
    edits, findings = modify_mixlist.parse_edits(document)
    if library is None:
        return [*findings, *modify_mixlist.find_lone_gray_additions(edits)]
    # Illegal combinations are errors in ``findings`` already. Of the lists that they give, only the warnings are used.
    return [*findings, *modify_mixlist.apply_edits(library, edits, space)[1]]
