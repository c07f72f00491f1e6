"""Read the text of a list file or a configuration, or of standard input, within the limits for list files.

A file that is too large or not UTF-8 is refused before it is parsed. The parsers of the files share how a message names
a place in a text, and how it quotes a part of it.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from typing import NoReturn, TextIO

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, ListError

_LINE_END = re.compile(r"\r\n|\r|\n")
# The start of an ONNX model: the IR version (field 1), then another field of ModelProto (2 to 8). No text file starts
# so, because 0x08 is the control character of the backspace key.
_MODEL_START = re.compile(rb"\x08[\x01-\x1f][\x12\x1a\x22\x28\x32\x3a\x42]")
# A real library has 1.4 MB, and a device file has no end. Parsing takes up to 130 bytes for each byte of a file.
MAX_BYTES = 12 << 20


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return ``path`` for a message: ``<stdin>`` for ``-``, and always text that can be printed as UTF-8."""
    name = os.fspath(path)
    return "<stdin>" if name == "-" else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Return True if the path is a directory; False for standard input and for text that no path can have."""
    return os.fspath(path) != "-" and os.path.isdir(path)  # noqa: PTH112  # Path.is_dir raises for odd paths


class ListText(str):
    """The text of a list that is in no file, such as ``report.modify_mixlist``, in place of a path."""

    __slots__ = ()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file (``-``: standard input), without its byte-order mark.

    Raises FileError if the file cannot be read, and ListError if it is an ONNX model or not UTF-8.
    """
    return decode(read_bytes(path), shown_path(path))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file (``-``: standard input).

    Raises FileError if the file cannot be read or is too large, and ListError if it is an ONNX model.
    """
    shown = shown_path(path)
    # Path("") would be the current directory.
    if not shown:
        raise FileError("the path is empty")
    try:
        # One byte more than the limit shows that a file is too large, and a device without an end is not read on.
        if os.fspath(path) == "-":
            data = _read_standard_input(sys.stdin)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileError(f"{shown}: no such file") from None
    # ValueError: the path holds a NUL. AttributeError: the process has no standard input.
    except (OSError, ValueError, AttributeError) as error:
        # Tested here and not by the type of the error: Windows raises PermissionError for a directory.
        if is_directory(path):
            raise FileError(f"{shown}: this is a directory, but a file is needed") from None
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{shown}: cannot be read: {reason}") from None
    if shown.lower().endswith(".onnx") or _MODEL_START.match(data):  # before the size: a model is often larger
        message = "the file is an ONNX model, not a list file"
        raise_last([Diagnostic("ML013", "error", message, shown, 1, 1, "give the path of a text file here")])
    if len(data) > MAX_BYTES:
        raise too_much_error(shown, f"{MAX_BYTES >> 20} MiB")
    return data


@lru_cache(maxsize=1)
def _read_standard_input(stream: TextIO) -> bytes:
    """Return the bytes of standard input. ``validate`` reads a list twice: alone, and as a part of a policy."""
    return stream.buffer.read(MAX_BYTES + 1)


def byte_order_marks(data: bytes) -> bytes:
    """Return the byte-order marks at the beginning of a file, which ``decode`` leaves out."""
    end = 0
    # Files that were joined can begin with several marks.
    while data.startswith(codecs.BOM_UTF8, end):
        end += len(codecs.BOM_UTF8)
    return data[:end]


def decode(data: bytes, path: str) -> str:
    """Return UTF-8 bytes as text, without byte-order marks. ``path`` is for messages.

    Raises ListError at the first byte that is not UTF-8.
    """
    body = data[len(byte_order_marks(data)) :]
    # UTF-16 and UTF-32 texts start with a byte-order mark. Without the mark, the first character, which is ASCII in a
    # list file, has a NUL among its first two bytes. Two NULs are a damaged file, which its parser reports.
    first = body[:2]
    if first in (b"\xff\xfe", b"\xfe\xff") or (len(first) > 1 and 0 in first and first != b"\0\0"):
        message = "the file is UTF-16 or UTF-32 text, not UTF-8"
        raise_last([Diagnostic("ML002", "error", message, path, 1, 1, "save the file as UTF-8")])
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        # The column counts characters, so the text before the wrong byte is decoded.
        valid = body[: error.start].decode("utf-8")
        line, column = Lines(valid).line_column(len(valid))
        # The offset counts bytes of the file, with its byte-order marks.
        offset = error.start + len(data) - len(body)
        message = f"byte 0x{body[error.start]:02x} at byte offset {offset} is not UTF-8"
        raise_last([Diagnostic("ML002", "error", message, path, line, column, "save the file as UTF-8")])


class Lines:
    """The starts of the lines of a text. A line ends with LF, CRLF or CR."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def line_column(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of the character at ``offset``; both count from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def quoted(text: str, limit: int = 60) -> str:
    """Return ``text`` for a message: in double quotes, printable, on one line, and cut after ``limit`` characters."""
    short = text if len(text) <= limit else text[:limit] + "..."
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short) + '"'


def too_much_error(path: str, bound: str, kind: str = "list file") -> FileError:
    """Return the error for a file that holds more than ``bound``, such as "100,000 comments"."""
    return FileError(f"{path}: more than {bound}: too much for a {kind}", hint="check that this is the right file")


def raise_last(findings: list[Diagnostic]) -> NoReturn:
    """Raise a ListError with the message of the last finding. The error holds all findings."""
    last = findings[-1]
    raise ListError(f"{last.place}: {last.message}", hint=last.hint, diagnostics=tuple(findings))
