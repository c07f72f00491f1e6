"""Errors that stop a command. Every error that a user can cause is a MixlistError, or a UserCodeError of own code."""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.diagnostics import Diagnostic


class MixlistError(Exception):
    """Base class of the errors that a user can cause: wrong usage, or input that mixlist cannot use.

    ``message`` says what happened and where, ``hint`` what to do. ``exit_status`` is the exit status of the command
    line (docs/stability.md).

    Example::

        try:
            mixlist.load_policy(mixlist="missing.json")
        except mixlist.MixlistError as error:
            print(error.message, error.hint, error.exit_status)
    """

    exit_status = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UserCodeError(Exception):
    """An error that the code of a user raised. ``text`` is its traceback, without the frames of mixlist."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class UsageError(MixlistError):
    """An argument, an option or data of the user that cannot be used, or options that contradict each other."""


class FileError(MixlistError):
    """A file or folder that cannot be read or written."""


class ListError(MixlistError):
    """A list file that is not valid. ``diagnostics`` holds every finding about the file, warnings too."""

    def __init__(self, message: str, *, hint: str | None = None, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


class ModelError(MixlistError):
    """A model that cannot be read, that mixlist cannot handle, or that ONNX Runtime refuses."""


def raise_for_errors(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings if all of them are warnings; otherwise raise a ListError.

    The ListError has the message and the place of the first error, and holds every finding.
    """
    findings = list(findings)
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return findings
    raise list_error(errors[0], more_errors=len(errors) - 1, findings=findings)


def list_error(finding: Diagnostic, *, more_errors: int = 0, findings: Iterable[Diagnostic] = ()) -> ListError:
    """Return the error that a finding of severity ``error`` raises.

    ``more_errors`` is the number of other errors in the file. ``findings`` are all findings about it, if there are
    others.
    """
    # This message is for users of the Python API. The command line writes all findings instead (cli/error_output.py).
    place = f"{finding.place}: " if finding.place else ""
    count = f" (and {more_errors} more)" if more_errors else ""
    message = f"{place}{finding.message}{count}"
    return ListError(message, hint=finding.hint, diagnostics=tuple(findings) or (finding,))
