"""From findings to the exception that stops a command."""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError


def stop_on_errors(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The findings, if all are warnings; else ListError for the first error, carrying every finding."""
    findings = list(findings)
    errors = [f for f in findings if f.severity == "error"]
    if not errors:
        return findings
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = f"{first.place}: " if first.place else ""
    raise ListError(f"{where}{first.message}{more}", hint=first.hint, diagnostics=tuple(findings))
