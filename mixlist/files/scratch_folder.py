"""Folders for temporary files, ``mixlist-????????`` in the system's folder for temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mixlist.errors import FileError


class ScratchFolder:
    """A folder for temporary files, as ``tempfile.TemporaryDirectory`` makes it.

    The folder is removed at the end of a ``with``, or when this object is garbage-collected, without the warning that
    TemporaryDirectory gives there, or when the process ends. A killed process leaves it.
    """

    def __init__(self) -> None:
        parent = temporary_folder()
        try:
            self.path = Path(tempfile.mkdtemp(prefix="mixlist-", dir=parent))
        except OSError as error:
            message = f"no folder for temporary files can be made in {parent}: {error.strerror or error}"
            raise FileError(message, hint="set TMPDIR to another folder for temporary files") from None
        # The arguments must not refer to ``self``: the object would then never be collected.
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder unless ``keep`` was called. On Windows, files that are open or mapped stay."""
        self._finalizer()

    def keep(self) -> None:
        """Leave the folder to the user."""
        self._finalizer.detach()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def temporary_folder() -> str:
    """Return the system's folder for temporary files; raise FileError if no folder can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        # Python tries several folders, and does not say why each of them failed.
        hint = "their disks are full or read-only: set TMPDIR to another folder"
        raise FileError(f"no folder takes temporary files: {error.strerror}", hint=hint) from None


def write_scratch(path: Path, data: bytes) -> None:
    """Write a file in a scratch folder. Raises FileError if the system refuses, as with a full disk."""
    with translate_write_errors(path):
        path.write_bytes(data)


@contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the ``with`` into a FileError that names ``path``, a file in a scratch folder."""
    try:
        yield
    except OSError as error:
        # Another file name: the error is about a file that is read inside the ``with``.
        if error.filename not in (None, os.fspath(path)):
            raise
        reason = error.strerror or error
        hint = "make space there, or set TMPDIR to another folder for temporary files"
        raise FileError(f"{path}: the temporary file cannot be written: {reason}", hint=hint) from None
