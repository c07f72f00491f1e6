"""A finding about a file or a model: a value, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

Severity = Literal["error", "warning"]
MAX_ALIKE = 100  # findings of one kind that are reported one by one

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding.

    ``code`` is stable (``ML103``) and documented in docs/codes.md; ``line`` and ``column``
    count from 1 and are None where a finding has no place; ``hint`` says what to do.
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
        """``path:line:column`` as far as it is known, else the empty string."""
        parts = [str(p) for p in (self.path, self.line, self.column) if p is not None]
        return ":".join(parts)

    @property
    def without_severity(self) -> str:
        """The finding as one line for a list of warnings, which is printed with its severity in front."""
        return self._line(self.code)

    def __str__(self) -> str:
        return self._line(f"{self.severity} {self.code}")

    def _line(self, label: str) -> str:
        where = f"{self.place}: " if self.place else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{label}: {self.message}{hint}"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A place in a file: its path, line and column. Lines and columns count from 1."""

    path: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    def finding(self, code: str, severity: Severity, message: str, hint: str | None = None) -> Diagnostic:
        """Return a finding at this place."""
        return Diagnostic(code, severity, message, self.path, self.line, self.column, hint)


def findings_for(items: Sequence[T], describe: Callable[[T], Diagnostic]) -> list[Diagnostic]:
    """Return a finding for each of the first hundred items, and one that counts the others."""
    findings = [describe(item) for item in items[:MAX_ALIKE]]
    if len(items) > MAX_ALIKE:
        findings.append(replace(findings[-1], message=f"{len(items) - MAX_ALIKE} more like this", hint=None))
    return findings
