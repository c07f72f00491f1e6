"""Name and create the data files of saved models (Rules S7.16 and S7.17).

A data file holds the weights of one model: ``<model name>-<checksum>.data``. A new data file never overwrites another
file. Because the name has a checksum of the content, runs that save into one folder at the same time cannot mix up
their weights, and the same input gives the same names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from mixlist.diagnostics import Diagnostic
from mixlist.files.atomic_writes import NewFile
from mixlist.model.traversal import tensors_in_model
from mixlist.model.weights import leaves_folder

if TYPE_CHECKING:
    from onnx import ModelProto

# A larger model file is not read for the names of its data files: it holds its weights itself.
_MAX_SEARCHED_BYTES = 64 * 2**20
# From this size on, a second thread computes the checksum of a piece.
_MIN_THREAD_BYTES = 2**18
# The model's name is cut here, so that the name of the data file has at most 255 bytes, as file systems require.
_MAX_NAME_BYTES = 200
# Not allowed in file names on Windows, or in a location (``..``).
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\/:*?"<>|]|\.{2,}')


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
        data = path.read_bytes() if path.stat().st_size <= _MAX_SEARCHED_BYTES else b""
    except OSError:
        return set()
    model = _parse(data) if b"location" in data else None  # most models have no external data: do not parse them
    if model is None:
        return set()
    entries = (entry for tensor in tensors_in_model(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def warn_of_old_data_files(
    model: Path, current: str | None, old_locations: Iterable[str], inputs: Iterable[Path]
) -> list[Diagnostic]:
    """Return the warning that names the data files of a replaced model, which stay (Rule S7.17); [] if there are none.

    ``model``: the path of the new model. ``current``: the name of its data file, None without one. ``old_locations``:
    the data files of the old model. ``inputs``: the files from which the new model was computed: they are no news.
    """
    kept = {path.resolve() for path in inputs} | ({(model.parent / current).resolve()} if current else set())
    paths = [model.parent / location for location in sorted(set(old_locations)) if not leaves_folder(location)]
    names = [str(path) for path in paths if path.is_file() and path.resolve() not in kept]
    if not names:
        return []
    message = f"{', '.join(names)} had weights of the replaced model, and stays"
    return [Diagnostic("ML509", "warning", message, hint="remove it if no other model needs it")]


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
