"""A pseudo terminal of a chosen width: what a program writes to it, and what stays of that without colors."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import TextIO

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def written_to_terminal(width: int, write: Callable[[TextIO], object]) -> str:
    """Return what ``write`` writes to a pseudo terminal, without colors and movements of the cursor."""
    import fcntl  # not on Windows
    import pty
    import struct
    import termios

    reading_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    pieces: list[bytes] = []

    def read() -> None:
        # Linux raises an error at the end, where other systems return no bytes.
        try:
            while piece := os.read(reading_end, 65536):
                pieces.append(piece)
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(terminal, "w", encoding="utf-8") as stream:
            assert stream.isatty()
            write(stream)
    finally:
        reader.join()
        os.close(reading_end)
    return _ANSI.sub("", b"".join(pieces).decode()).replace("\r\n", "\n")
