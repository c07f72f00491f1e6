"""Findings about a file or a model: values that a report shows. ``errors.py`` raises errors for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

Severity = Literal["error", "warning"]
# The number of findings of one kind that are reported one by one. A damaged file can have a million of them.
MAX_SIMILAR = 100

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about a file or a model.

    ``code`` is the stable name of the kind of finding, such as ``ML103``; docs/codes explains each code. ``path``,
    ``line`` and ``column`` give the place of the finding, and are None where it is not known; lines and columns count
    from 1. ``hint`` says what to do. The finding of a check about a node's output is another class,
    ``checker.result.NodeFinding``.

    Example::

        Path("modify.json").write_text('{"white-list": {"to-add": ["Matmul"]}}')
        for finding in mixlist.validate("modify.json", ops_info="onnx").findings:
            print(finding.code, finding.line, finding.message, finding.hint)
    """

    code: str
    severity: Severity
    message: str
    path: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None

    @property
    def place(self) -> str:
        """Return ``path:line:column`` without the parts that are None; an empty string if all are None."""
        parts = [str(part) for part in (self.path, self.line, self.column) if part is not None]
        return ":".join(parts)

    @property
    def without_severity(self) -> str:
        """Return the finding as one line that does not name its severity, for a list that holds only warnings."""
        return self._line(self.code)

    def __str__(self) -> str:
        return self._line(f"{self.severity} {self.code}")

    def _line(self, label: str) -> str:
        place = f"{self.place}: " if self.place else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{label}: {self.message}{hint}"


class FilePlace(NamedTuple):
    """A place in a file. ``line`` and ``column`` count from 1; line 0 is that of no file, such as of an option."""

    path: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path

    def finding(self, code: str, severity: Severity, message: str, hint: str | None = None) -> Diagnostic:
        """Return a finding about this place."""
        return Diagnostic(code, severity, message, self.path, self.line or None, self.column or None, hint)


def warning(code: str, message: str, *, path: str | None = None, hint: str | None = None) -> Diagnostic:
    """Return a warning without a line and column, such as one about the data of a run."""
    return Diagnostic(code, "warning", message, path, hint=hint)


def warnings_as_text(warnings: Iterable[Diagnostic]) -> list[str]:
    """Return the warnings as JSON results have them: one line each, with the code and the hint."""
    return [item.without_severity for item in warnings]


def first_of_each_kind(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the first ``MAX_SIMILAR`` findings of each code and file, then one that counts the rest of each.

    This is for text and pages: a file can have thousands of findings, which JSON has in full.
    """
    kinds: Counter[tuple[str | None, str, Severity]] = Counter()
    shown = []
    for finding in findings:
        kind = finding.path, finding.code, finding.severity
        kinds[kind] += 1
        if kinds[kind] <= MAX_SIMILAR:
            shown.append(finding)
    for (path, code, severity), count in kinds.items():
        if count > MAX_SIMILAR:
            message = f"{count - MAX_SIMILAR} more findings of this kind"
            shown.append(Diagnostic(code, severity, message, path, hint="the result as JSON has all"))
    return shown


def findings_for(items: Sequence[Item], describe: Callable[[Item], Diagnostic]) -> list[Diagnostic]:
    """Return one finding for each of the first ``MAX_SIMILAR`` items, and one more that counts the other items."""
    findings = [describe(item) for item in items[:MAX_SIMILAR]]
    if len(items) > MAX_SIMILAR:
        count = len(items) - MAX_SIMILAR
        # A copy of the last finding keeps the code and the severity. Its place is where the findings that are shown
        # end.
        findings.append(replace(findings[-1], message=f"{count} more findings of this kind", hint=None))
    return findings
