"""Check a list file of any kind, and return every finding about it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError
from mixlist.files.jsonc import Document, is_directory, parse, read_text, shown_path
from mixlist.lists import modify_mixlist, node_rules, ops_info
from mixlist.lists.detect_kind import FileKind, json_kind, text_kind
from mixlist.lists.library import Library


@dataclass(frozen=True, slots=True, repr=False)
class FileReport:
    """The findings about one path; ``kind`` stays ``auto`` if the kind of file is unknown.

    The findings of a directory have the paths of its files; ``by_file`` separates them.
    """

    path: str
    kind: str
    findings: tuple[Diagnostic, ...]

    def __repr__(self) -> str:
        return f"<FileReport of {self.path!r}: {self.kind}; findings {len(self.findings)}>"

    def by_file(self) -> list[FileReport]:
        """One report per file that has findings; this report, if none has or it is about one file."""
        files: dict[str, list[Diagnostic]] = {}
        for finding in self.findings:
            files.setdefault(finding.path or self.path, []).append(finding)
        return [FileReport(path, self.kind, tuple(found)) for path, found in files.items()] or [self]


def validate_file(
    path: str | os.PathLike[str],
    kind: Literal["auto"] | FileKind = "auto",
    *,
    strict: bool = False,
    library: Library | None = None,
) -> FileReport:
    """Every finding about a list file (``-``: standard input; a directory is an ops-info library).

    ``kind`` ``auto`` goes by the content. ``strict`` makes comments and trailing commas errors.
    With a ``library``, a modify_mixlist is also checked against it: names that it does not know,
    removals that do nothing. Raises FileError if the path cannot be read; everything else that is
    wrong is a finding.
    """
    name = shown_path(path)
    if kind in ("auto", "ops-info") and is_directory(path):
        return FileReport(name, "ops-info", tuple(ops_info.inspect(path, strict=strict)[1]))
    try:
        text = read_text(path)
        if kind == "auto":
            kind = text_kind(text, name) or "auto"
        if kind in ("keep-dtype", "customize-dtypes"):
            findings = node_rules.check(text, name, kind)
        else:
            document = parse(text, name, strict=strict)
            kind = json_kind(document) if kind == "auto" else kind
            if kind == "ops-info":
                findings = ops_info.from_documents(name, [document])[1]
            else:
                findings = _mixlist(document, library)
    except ListError as error:
        findings = list(error.diagnostics)
    return FileReport(name, kind, tuple(sorted(findings, key=lambda f: (f.line or 0, f.column or 0))))


def _mixlist(document: Document, library: Library | None) -> list[Diagnostic]:
    edits, findings = modify_mixlist.inspect(document)
    warnings = modify_mixlist.gray_alone(edits) if library is None else modify_mixlist.apply_edits(library, edits)[1]
    return [*findings, *warnings]
