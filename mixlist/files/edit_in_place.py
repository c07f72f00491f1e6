"""Replace a file that a command edits in place."""

from __future__ import annotations

import os
from pathlib import Path

from mixlist.errors import FileError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.folder_lock import lock_folders
from mixlist.files.list_text import read_bytes, shown_path


def replace_unless_changed(path: str | os.PathLike[str], before: bytes, after: bytes) -> None:
    """Replace a file whose bytes were ``before``; raise FileError if another program has changed it (Rule S1.6)."""
    # A pipe or a device cannot be read a second time.
    if not Path(path).is_file():
        write_atomically(path, after)
        return
    with lock_folders([Path(path).resolve().parent]):
        if read_bytes(path) != before:
            hint = "nothing was written; run this command again"
            raise FileError(f"{shown_path(path)}: another program changed the file meanwhile", hint=hint)
        write_atomically(path, after)
