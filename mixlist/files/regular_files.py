"""Open files that must be regular: a named pipe would wait for a writer, and a device may have no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from mixlist.errors import FileError


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises FileError for a named pipe, a device or a socket, and OSError if the file cannot be opened.
    """
    # The first test comes before the file is opened, because opening a named pipe waits for a writer. The second one
    # finds a file that was replaced between the first test and the opening.
    refuse_irregular(path, os.stat(path).st_mode)  # noqa: PTH116
    file = path.open("rb")
    try:
        refuse_irregular(path, os.fstat(file.fileno()).st_mode)
    except FileError:
        file.close()
        raise
    return file


def refuse_irregular(path: Path, mode: int) -> None:
    """Raise FileError unless ``mode``, the ``st_mode`` of the path, is that of a regular file or a directory.

    A directory is accepted here: opening one raises an OSError, whose message says what is wrong.
    """
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise FileError(f"{path} is {kind}, and a regular file is needed", hint="write its content to a file first")
