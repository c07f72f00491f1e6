"""Saving a model: whole or not at all, never over its input."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from mixlist.errors import FileError, UsageError
from mixlist.graph.io import Loaded


def check_target(path: Path, loaded: Loaded, force: bool) -> None:
    """Refuse a target that is the input itself, that exists (without ``force``), or that has no folder."""
    if path.is_dir():
        raise FileError(f"{path} is a directory", hint="name a file to write")
    if not path.parent.is_dir():
        raise FileError(f"the folder {path.parent} does not exist", hint="make it first")
    if path.exists():
        if loaded.path is not None and os.path.samefile(path, loaded.path):
            raise UsageError(f"the output {path} is the input itself", hint="write to another file")
        if not force:
            raise UsageError(f"{path} exists", hint="use --force to replace it")


def save(proto: Any, path: Path, loaded: Loaded, *, force: bool, external_data: str) -> None:
    """Write beside the target, then rename."""
    check_target(path, loaded, force)
    data = proto.SerializeToString(deterministic=True)
    write_whole(path, data)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as problem:
        raise FileError(f"cannot write {path}: {problem.strerror}", hint="choose a folder that can be written") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as problem:
        Path(name).unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise FileError(f"cannot write {path}: {problem.strerror}") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
