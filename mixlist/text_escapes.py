"""Escape characters of names that would not be shown as they are, or that a shell would change."""

from __future__ import annotations

import os


def escape_unprintable(text: str) -> str:
    """Return the text with control characters, direction marks and lone surrogates as escapes, such as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def quote_argument(text: str) -> str:
    """Return the text as one argument of a command line: in quotes if a shell would change it, such as ``'?=16'``."""
    # Imported here: subprocess is slow to import, and few commands print a command line.
    if os.name == "nt":
        from subprocess import list2cmdline

        return list2cmdline([text])
    from shlex import quote

    return quote(text)
