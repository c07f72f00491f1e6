"""Name, place and remove the data files of saved models: a new one overwrites nothing, an old one goes when unused.

The name of a data file holds the name of its model and a checksum of its content, so runs that save into one folder at
the same time cannot mix their weights up, and the same input gives the same bytes (Rules S7.16 and S7.17).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from posixpath import normpath
from typing import IO, TYPE_CHECKING, Self

from mixlist.diagnostics import Diagnostic
from mixlist.files.temporary_files import NewFile
from mixlist.graph.traversal import tensors_in_model
from mixlist.graph.weights import leaves_folder

if TYPE_CHECKING:
    from onnx import ModelProto

MAX_SEARCHED_BYTES = 2 * 2**30  # bytes of models that are searched for a name
_LARGE = 2**18  # bytes from which another thread computes the checksum
_STEM_BYTES = 200  # of the model's name, so that the data file's name fits into 255 bytes
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\/:*?"<>|]|\.{2,}')  # on Windows, or in a location
_MARK = r"-[0-9a-f]{16}(-[0-9]+)?\.data"  # the end of every name
_DATA_FILE = re.compile(f".*{_MARK}", re.DOTALL)


class ChecksumWriter:
    """Write to a file and compute the checksum of its content; another thread computes that of large pieces."""

    def __init__(self, file: IO[bytes]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._file = file
        self._sha256 = hashlib.sha256()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self._file.tell()

    def write(self, piece: bytes) -> None:
        """Write some bytes."""
        if len(piece) < _LARGE:
            self._sha256.update(piece)
            self._file.write(piece)
            return
        update = self._threads.submit(self._sha256.update, piece)
        self._file.write(piece)
        update.result()

    def checksum(self) -> str:
        """Return the SHA-256 of the bytes that were written."""
        return self._sha256.hexdigest()


def place_data_file(new: NewFile, model: str, checksum: str) -> str:
    """Name a new data file after ``model``, the name of its model, and after its content; return the name.

    A file of that name with the same bytes is used as it is. One with other bytes stays, and the name gets a number.
    The content is not flushed to the disk here.
    """
    for number in count(1):
        suffix = "" if number == 1 else f"-{number}"
        name = f"{_stem(model)}-{checksum[:16]}{suffix}.data"
        used = new.target.with_name(name)
        if new.link(name, durable=False) or (used.is_file() and new.has_content_of(used)):
            return name
    raise AssertionError("numbers do not end")


def _stem(model: str) -> str:
    """Return the name of a model as every system and every reader of locations accepts it."""
    text = _FORBIDDEN.sub("_", model.encode("utf-8", "replace").decode())
    return text.encode()[:_STEM_BYTES].decode("utf-8", "ignore")


def referenced_data_files(path: Path) -> set[str]:
    """Return the data files that the model at a path names; an empty set for a large file, or one without a model."""
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_SEARCHED_BYTES // 32 else b""
    except OSError:
        return set()
    model = _parsed(data) if b"location" in data else None  # most models have their weights inside
    if model is None:
        return set()
    entries = (entry for tensor in tensors_in_model(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def remove_unused_data_files(
    model: Path, current: str | None, named_before: Iterable[str], inputs: Iterable[Path], is_locked: bool
) -> list[Diagnostic]:
    """Remove the data files of the model that was replaced; return a warning for each that has to stay.

    ``current`` is the data file of the new model, ``named_before`` are those of the old one, ``inputs`` the files from
    which the new model was computed. A file is removed only if mixlist made it, no other model of the folder names it,
    all of these models could be read, and the folder is locked.
    """
    folder = model.parent
    own = re.compile(re.escape(_stem(model.name)) + _MARK)
    entries = _entries(folder)
    candidates = {normpath(name) for name in named_before if not leaves_folder(name)}
    candidates |= {entry.name for entry in entries or () if own.fullmatch(entry.name)}
    used = {_identity(path) for path in inputs}
    old = [
        name
        for name in sorted(candidates)
        if name != current and (folder / name).is_file() and _identity(folder / name) not in used
    ]
    if not old:
        return []
    uses = _Uses(folder, entries, model.name, old)
    kept = []
    for name in old:
        if not own.fullmatch(name) or (folder / name).is_symlink():
            reason = None if uses.of(name) else "another program made it"
        else:
            reason = (uses.of(name) or uses.unclear) if is_locked else "the folder cannot be locked"
            reason = reason or _remove(folder / name)
        if reason is not None:
            kept.append(_kept(folder / name, reason))
    return kept


class _Uses:
    """The models of a folder, searched for the names of data files; links to these files count too."""

    def __init__(
        self, folder: Path, entries: Iterable[os.DirEntry[str]] | None, replaced: str, names: Iterable[str]
    ) -> None:
        # The reason why some file could name anything.
        self.unclear = "the folder cannot be listed" if entries is None else None
        self._uses: dict[str, str] = {}  # the reason to keep a data file, by its name
        self._texts = {name: os.fsencode(name) for name in names}
        places = {os.path.realpath(folder / name): name for name in self._texts}
        total = 0
        for entry in entries or ():
            if entry.is_symlink() and (name := places.get(os.path.realpath(entry.path))) not in (None, entry.name):
                self._uses[name] = f"{entry.name} is a link to it"
            if entry.name == replaced or not _may_be_model(entry.name):
                continue
            size = _size(entry)
            total += size
            if total > MAX_SEARCHED_BYTES:
                self.unclear = f"the models of the folder are too large to search ({entry.name})"
                return
            if size:  # neither a folder nor a pipe
                self._search(entry)

    def _search(self, entry: os.DirEntry[str]) -> None:
        try:
            data = Path(entry.path).read_bytes()
        except OSError:
            data = b""
        if _parsed(data) is None:
            self.unclear = f"{entry.name} cannot be read, and could name it"
        for name, text in self._texts.items():
            if text in data:
                self._uses[name] = f"{entry.name} names it"

    def of(self, name: str) -> str | None:
        """Return the reason to keep a data file: a model that names it, or a link to it; None if there is none."""
        return self._uses.get(name)


def _entries(folder: Path) -> list[os.DirEntry[str]] | None:
    """Return the entries of a folder, by name; None if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return None


def _may_be_model(name: str) -> bool:
    """Return whether a file is a model by its name, also one that was renamed to a copy, such as ``m.onnx.bak``."""
    return ".onnx" in name.lower() and not name.startswith(".mixlist-") and not _DATA_FILE.fullmatch(name)


def _size(entry: os.DirEntry[str]) -> int:
    """Return the number of bytes of a file, also behind a link; 0 for an entry that is no file."""
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except OSError:
        return 0


def _parsed(data: bytes) -> ModelProto | None:
    """Return the model that the bytes of a file hold; None if they hold none."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return None
    return model if model.graph.node or model.graph.output else None


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, which all links to it share; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _remove(path: Path) -> str | None:
    """Remove a file; return the reason if the system refuses."""
    try:
        path.unlink()
    except OSError as error:
        return f"it cannot be removed: {error.strerror}"
    return None


def _kept(path: Path, reason: str) -> Diagnostic:
    message = f"the data file {path} of the model that was replaced stays: {reason}"
    return Diagnostic("ML509", "warning", message, hint="remove it if nothing needs it")
