"""A pseudo terminal of a chosen width: what a program writes to it, and what stays of that without colors."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import TextIO

_END = b"\0"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def written_to_terminal(width: int, write: Callable[[TextIO], object]) -> str:
    """Return what ``write`` writes to a pseudo terminal, without colors and movements of the cursor."""
    import fcntl  # not on Windows
    import pty
    import struct
    import termios

    reading_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    shown = bytearray()

    def read() -> None:
        while not shown.endswith(_END):
            shown.extend(os.read(reading_end, 65536))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        # The terminal stays open until all is read: a system may drop what is unread when the last writer closes.
        with os.fdopen(terminal, "w", encoding="utf-8") as stream:
            assert stream.isatty()
            try:
                write(stream)
            finally:
                stream.write(_END.decode())
                stream.flush()
                reader.join()
    finally:
        os.close(reading_end)
    return _ANSI.sub("", shown.removesuffix(_END).decode()).replace("\r\n", "\n")
