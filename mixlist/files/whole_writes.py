"""Writing a file whole or not at all: beside its place first, then renamed over it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mixlist.errors import FileError


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file's content in one step; a reader sees the old content or the new.

    A symbolic link is followed, an existing file keeps its permissions and owner; a device or a pipe stays what it is
    and takes the bytes. Raises FileError with what the system said; then nothing has changed.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    try:
        status = target.stat() if target.exists() else None
        if status is not None and not stat.S_ISREG(status.st_mode):
            with target.open("wb") as device:
                device.write(data)
            return
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            if status is not None:
                with suppress(PermissionError):  # only root may give files away
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), status.st_mode & 0o7777)
            os.fsync(file.fileno())
        beside.replace(target)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{os.fspath(path)}: cannot be written: {reason}") from None
    finally:
        with suppress(OSError, ValueError):
            beside.unlink()


@contextmanager
def part_file(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file beside ``path`` for what is too large to hold; gone afterwards unless it was renamed.

    Yields the open file and its path. I/O errors become FileError; Ctrl-C leaves nothing behind either.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:200]}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}", hint="choose a folder that can be written") from None
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            part.chmod(0o666 & ~_umask())
            yield file, part
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}", hint="check the space and rights there") from None
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
