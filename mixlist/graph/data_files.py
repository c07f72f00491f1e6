"""Name, create and remove the data files of saved models (Rules S7.16 and S7.17).

A data file holds the weights of one model: ``<model name>-<checksum>.data``. A new data file never overwrites another
file. Because the name has a checksum of the content, runs that save into one folder at the same time cannot mix up
their weights, and the same input gives the same names.
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

# Before a data file is removed, the models of its folder are searched for references to it. If these models have more
# bytes than this in total, the data file stays.
MAX_SEARCHED_BYTES = 2 * 2**30
# From this size on, a second thread computes the checksum of a piece.
_MIN_THREAD_BYTES = 2**18
# The model's name is cut here, so that the name of the data file has at most 255 bytes, as file systems require.
_MAX_NAME_BYTES = 200
# Not allowed in file names on Windows, or in a location (``..``).
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\/:*?"<>|]|\.{2,}')
_NAME_END = r"-[0-9a-f]{16}(-[0-9]+)?\.data"  # of every data file that mixlist makes
_DATA_FILE_NAME = re.compile(f".*{_NAME_END}", re.DOTALL)


class ChecksumWriter:
    """Write to a file, and compute the SHA-256 of the content meanwhile; for large pieces in a second thread."""

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
        """Return the number of bytes written so far."""
        return self._file.tell()

    def write(self, piece: bytes) -> None:
        """Append the bytes to the file."""
        if len(piece) < _MIN_THREAD_BYTES:
            self._sha256.update(piece)
            self._file.write(piece)
            return
        # Both release Python's global lock. Waiting for the checksum keeps the pieces in order.
        update = self._threads.submit(self._sha256.update, piece)
        self._file.write(piece)
        update.result()

    def checksum(self) -> str:
        """Return the SHA-256 of all bytes written, as hexadecimal digits."""
        return self._sha256.hexdigest()


def place_data_file(new: NewFile, model: str, checksum: str) -> str:
    """Give a new data file its name, and return the name (Rule S7.16). ``model``: the name of the model file.

    If a file with this name and the same bytes exists, that file is used. If its bytes differ, the new name gets a
    number. The caller must flush the content to the disk.
    """
    for number in count(1):
        suffix = "" if number == 1 else f"-{number}"
        # 64 bits of the checksum are enough: if two contents share them, the comparison below sees it.
        name = f"{_safe_name(model)}-{checksum[:16]}{suffix}.data"
        existing = new.target.with_name(name)
        # link() fails if the name exists, so two runs cannot get the same name for different bytes.
        if new.link(name, durable=False) or (existing.is_file() and new.has_content_of(existing)):
            return name
    raise AssertionError("unreachable: count() does not end")


def _safe_name(model: str) -> str:
    """Return the name of a model file as the name of a data file can contain it.

    The result is shortened, and ``_`` replaces the characters that file names or locations must not contain.
    """
    # encode() replaces lone surrogates, which a path can contain. decode() drops a character that the limit cuts.
    text = _FORBIDDEN.sub("_", model.encode("utf-8", "replace").decode())
    return text.encode()[:_MAX_NAME_BYTES].decode("utf-8", "ignore")


def referenced_data_files(path: Path) -> set[str]:
    """Return the locations of external data in a model file; an empty set for a large file, or for no model."""
    try:
        # A file of more than 64 MiB is not read: such a model holds its weights itself.
        data = path.read_bytes() if path.stat().st_size <= MAX_SEARCHED_BYTES // 32 else b""
    except OSError:
        return set()
    model = _parse(data) if b"location" in data else None  # most models have no external data: do not parse them
    if model is None:
        return set()
    entries = (entry for tensor in tensors_in_model(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def remove_unused_data_files(
    model: Path, current: str | None, old_locations: Iterable[str], inputs: Iterable[Path], is_locked: bool
) -> list[Diagnostic]:
    """Remove the data files of a model that was replaced (Rule S7.17); return a warning for each one that stays.

    ``model``: the path of the new model. ``current``: the name of its data file, None without one. ``old_locations``:
    the data files of the old model. ``inputs``: the files from which the new model was computed: they stay without a
    warning.

    A data file is removed only if mixlist made it, no other model of the folder refers to it, all these models could
    be read, and the folder is locked.
    """
    folder = model.parent
    name_pattern = re.compile(re.escape(_safe_name(model.name)) + _NAME_END)
    entries = _list_folder(folder)
    # Files with the name of this model count too, even if the old model does not refer to them: an earlier run may have
    # been killed before it removed them.
    candidates = {normpath(name) for name in old_locations if not leaves_folder(name)}
    candidates |= {entry.name for entry in entries or () if name_pattern.fullmatch(entry.name)}
    input_ids = {_file_id(path) for path in inputs}
    old_files = [
        name
        for name in sorted(candidates)
        if name != current and (folder / name).is_file() and _file_id(folder / name) not in input_ids
    ]
    # The usual case. The other models of the folder need not be read.
    if not old_files:
        return []
    references = _References(folder, entries, model.name, old_files)
    warnings = []
    for name in old_files:
        if not name_pattern.fullmatch(name) or (folder / name).is_symlink():
            # Another program made this file or link. No warning if another model uses it.
            reason = None if references.reason_to_keep(name) else "another program made it"
        elif not is_locked:
            reason = "the folder cannot be locked"
        else:
            # A known reference is the better reason, so it comes before a possible one. Without either, _remove() runs.
            reason = references.reason_to_keep(name) or references.incomplete_reason or _remove(folder / name)
        if reason is not None:
            warnings.append(_kept_warning(folder / name, reason))
    return warnings


class _References:
    """Find the references to data files in a folder: models that contain the name of a file, and links to a file."""

    def __init__(
        self, folder: Path, entries: Iterable[os.DirEntry[str]] | None, new_model: str, names: Iterable[str]
    ) -> None:
        # Why there may be more references than those that were found; None if all were found.
        self.incomplete_reason = "the folder cannot be listed" if entries is None else None
        self._reasons: dict[str, str] = {}  # the reason to keep a data file, by its name
        self._encoded_names = {name: os.fsencode(name) for name in names}
        name_of_path = {os.path.realpath(folder / name): name for name in self._encoded_names}
        total_bytes = 0
        for entry in entries or ():
            # A link to the data file needs it, whatever program made the link.
            if entry.is_symlink():
                name = name_of_path.get(os.path.realpath(entry.path))
                if name is not None and name != entry.name:
                    self._reasons[name] = f"{entry.name} is a link to the data file"
            if entry.name == new_model or not _may_be_model(entry.name):
                continue
            size = _size(entry)
            total_bytes += size
            if total_bytes > MAX_SEARCHED_BYTES:
                self.incomplete_reason = f"the models of the folder are too large to search ({entry.name})"
                return
            if size:  # 0 for a folder or a pipe
                self._search_model(entry)

    def _search_model(self, entry: os.DirEntry[str]) -> None:
        """Search the bytes of a file for the names of data files, so that a name counts wherever it is in the file."""
        try:
            data = Path(entry.path).read_bytes()
        except OSError:
            data = b""
        # An unreadable file, or one that is no model, may still need the data file: keep it rather than break a model.
        if _parse(data) is None:
            self.incomplete_reason = f"{entry.name} cannot be read, and may refer to the data file"
        for name, encoded in self._encoded_names.items():
            if encoded in data:
                self._reasons[name] = f"{entry.name} refers to the data file"

    def reason_to_keep(self, name: str) -> str | None:
        """Return the model or link that refers to a data file, as the end of a message; None without one."""
        return self._reasons.get(name)


def _list_folder(folder: Path) -> list[os.DirEntry[str]] | None:
    """Return the entries of a folder, sorted by name; None if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return None


def _may_be_model(name: str) -> bool:
    """Return True if the name of a file is that of a model, or of a renamed model, such as ``m.onnx.bak``."""
    # A data file has the name of its model in its own name. A temporary file is not a model yet.
    return ".onnx" in name.lower() and not name.startswith(".mixlist-") and not _DATA_FILE_NAME.fullmatch(name)


def _size(entry: os.DirEntry[str]) -> int:
    """Return the number of bytes of a file, following a link; 0 for anything else than a file."""
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except OSError:
        return 0


def _parse(data: bytes) -> ModelProto | None:
    """Parse the bytes of a file; return None if they are no model."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return None
    return model if model.graph.node or model.graph.output else None


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, which all links to the file share; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _remove(path: Path) -> str | None:
    """Remove a file; return the error of the system as the end of a message, None if all went well."""
    try:
        path.unlink()
    except OSError as error:
        return f"it cannot be removed: {error.strerror}"
    return None


def _kept_warning(path: Path, reason: str) -> Diagnostic:
    """Return the warning ML509 for a data file that was not removed."""
    message = f"the data file {path} of the replaced model was not removed: {reason}"
    return Diagnostic("ML509", "warning", message, hint="remove it if nothing needs it")
