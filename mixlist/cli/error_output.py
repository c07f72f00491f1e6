"""Describe an error to the user, and choose the exit status of the command."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

import click

from mixlist.errors import ListError, MixlistError, UsageError, UserCodeError
from mixlist.show.terminal import escape_commands, paint, write_findings
from mixlist.version import __version__

_DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def report_error(error: Exception) -> int:
    """Write the error to stderr, without a traceback, and return the exit status."""
    if isinstance(error, UserCodeError):
        # Training adds a note that says in which run the error arose.
        sys.stderr.write("\n".join((error.text.rstrip("\n"), *getattr(error, "__notes__", ()), "")))
        return UsageError.exit_status
    if os.environ.get("MIXLIST_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, click.Abort):
        _write_error("interrupted")
        return 130
    if isinstance(error, click.ClickException):
        # click writes the usage and the message. The message repeats text of the user, which can hold control
        # characters.
        message = io.StringIO()
        error.show(message)
        sys.stderr.writelines(f"{escape_commands(line)}\n" for line in message.getvalue().splitlines())
        return 2
    if isinstance(error, ListError) and error.diagnostics:
        # The message of the error repeats the first finding, so only the findings are written.
        write_findings(error.diagnostics)
        return error.exit_status
    if isinstance(error, MixlistError):
        _write_error(error.message, error.hint)
        return error.exit_status
    if isinstance(error, OSError):
        # An error of a file has the name of the file. Without a name, a full disk is reported for standard output.
        name = error.filename or ("standard output" if error.errno in _DISK_FULL else "")
        _write_error(f"{name}: {error.strerror or error}" if name else str(error.strerror or error))
        return 2
    if isinstance(error, MemoryError):
        _write_error("not enough memory for this input")
        return 2
    _report_bug(error)
    return 3


def _write_error(message: str, hint: str | None = None) -> None:
    sys.stderr.write(f"mixlist: {paint('error', 'red', sys.stderr)}: {_one_line(message)}\n")
    if hint:
        sys.stderr.write(f"  hint: {_one_line(hint)}\n")


def _one_line(text: str) -> str:
    return escape_commands(" ".join(text.split("\n")))  # messages of ONNX and ONNX Runtime have several lines


def _report_bug(error: Exception) -> None:
    # The last frame is the place that raised the error. Only its file name is shown, without the user's folders.
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""  # noqa: PTH119
    _write_error(
        f"this is a bug in mixlist {__version__}: {type(error).__name__}: {error}{where}",
        "please report it with this message, the command and, if you may share them, the files;"
        " MIXLIST_DEBUG=1 shows the traceback",
    )
