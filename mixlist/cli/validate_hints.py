"""Give findings hints that suit ``mixlist validate``, which does not have every option of the other commands."""

from __future__ import annotations

import re
from dataclasses import replace

from mixlist.cli.command_index import load_command
from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError, MixlistError
from mixlist.lists.validate_file import FileReport

# An option of a command that the hint names needs no explanation: "mixlist apply --inline-functions".
_OPTION = re.compile(r"(?<![\w-])(?<!mixlist apply )--[a-z][a-z-]+")
# The codes of a file of another kind than the expected one. Other commands would take the file by another option.
_OTHER_KIND_HINTS = {
    "ML013": "validate checks list files; --model names a model for the check of their names",
    "ML109": "leave --kind out, or give --kind ops-info",
    "ML208": "leave --kind out, or give --kind modify-mixlist",
}
_LIBRARY_HINTS = {
    "ML013": "--ops-info names a built-in library, a file or a directory; --model names a model",
    "ML208": "give this file as PATH; --ops-info names the library to check it against",
}


def report_for_validate(report: FileReport) -> FileReport:
    """Return the report with hints that name only options of ``validate``, or say which commands have the option."""
    return replace(report, findings=tuple(_finding_for_validate(finding, False) for finding in report.findings))


def error_for_validate(error: MixlistError, *, is_library: bool = False) -> MixlistError:
    """Return a ListError with such hints; any other error unchanged. ``is_library``: --ops-info names the file."""
    if not isinstance(error, ListError):
        return error
    findings = tuple(_finding_for_validate(finding, is_library) for finding in error.diagnostics)
    return ListError(error.message, hint=error.hint, diagnostics=findings)


def _finding_for_validate(finding: Diagnostic, is_library: bool) -> Diagnostic:
    hints = _LIBRARY_HINTS if is_library else _OTHER_KIND_HINTS
    return replace(finding, hint=hints.get(finding.code) or _named_options_hint(finding.hint))


def _named_options_hint(hint: str | None) -> str | None:
    """Return a hint that says of options that ``validate`` lacks which commands have them."""
    if hint is None:
        return None
    own_options = {name for parameter in load_command("validate").params for name in parameter.opts}
    missing = [name for name in _OPTION.findall(hint) if name not in own_options]
    return f"{hint} ({' and '.join(missing)}: an option of resolve and apply)" if missing else hint
