"""Write findings as GitHub Actions annotations: workflow commands that mark a line of a pull request."""

from __future__ import annotations

import os

from mixlist.diagnostics import Diagnostic
from mixlist.show.terminal import escape_commands


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
