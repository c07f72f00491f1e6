"""A finding about a file or a model: a value, never an exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


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

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.severity} {self.code}: {self.message}{hint}"
