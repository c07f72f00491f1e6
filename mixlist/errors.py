"""The errors that stop a command: every error that a user can cause is a MixlistError."""

from __future__ import annotations

from mixlist.diagnostics import Diagnostic


class MixlistError(Exception):
    """A user's mistake or an unusable input, told in one message.

    ``message`` says what was found and where; ``hint`` says what to do about it.
    ``exit_status`` is the status the command line ends with (docs/stability.md).
    """

    exit_status = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(MixlistError):
    """Options that contradict each other or make no sense together."""


class FileError(MixlistError):
    """A file that cannot be read or written."""


class ListError(MixlistError):
    """A list file that is not valid; ``diagnostics`` holds every finding."""

    def __init__(self, message: str, *, hint: str | None = None, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


class ModelError(MixlistError):
    """A model that cannot be read or handled."""
