"""Show the difference between two texts in the form that ``patch`` reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from mixlist.show.terminal import escape_commands


def unified_diff(path: str, before: str, after: str) -> Iterator[str]:
    """Yield the lines of a unified diff of a file, with their line ends."""
    old_lines, new_lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for line in difflib.unified_diff(old_lines, new_lines, path, path):
        text = line.rstrip("\r\n")
        # Tabs and line ends stay, so that the result can be applied.
        escaped = "\t".join(map(escape_commands, text.split("\t")))
        yield escaped + (line[len(text) :] or "\n\\ No newline at end of file\n")
