"""Escape characters of names that would not be shown as they are."""

from __future__ import annotations


def escape_unprintable(text: str) -> str:
    """Return the text with control characters, direction marks and lone surrogates as escapes, such as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
