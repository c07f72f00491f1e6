"""Write several files as one new folder, which appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from mixlist.errors import FileError, UsageError


def write_new_folder(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write the files, by name, and return their paths. An existing folder must be empty.

    Raises UsageError if the folder holds something, and FileError with the message of the system; then nothing has
    changed.
    """
    refuse_used_folder(folder)
    target = Path(os.path.realpath(folder))
    staging = None
    try:
        staging = target.parent / f".mixlist-{uuid4().hex[:8]}.tmp"
        staging.mkdir()
        for name, content in files.items():
            with (staging / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            target.rmdir()  # Windows does not rename a folder over an empty one
        staging.rename(target)
    except OSError as error:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        raise FileError(f"{folder}: this folder cannot be written: {error.strerror or error}") from None
    return tuple(folder / name for name in files)


def refuse_used_folder(folder: Path) -> None:
    """Raise UsageError if a folder holds something, and FileError if the path is not that of a folder."""
    try:
        is_used = any(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"{folder}: this folder cannot be written: {error.strerror or error}") from None
    if is_used:
        raise UsageError(
            f"{folder} is not empty",
            hint="name a new folder, or remove this one first",
        )
