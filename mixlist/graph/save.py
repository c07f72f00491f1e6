"""Saving a model: whole or not at all, never over its input.

External data is streamed from its old file to the new one in pieces, converted on the way where the rewrite
asked for it. An older model that lies at the same path keeps its data until the new one is in its place.
``data_files.py`` names, places and removes data files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.folder_lock import lock_folders
from mixlist.files.scratch_folder import report_write_errors
from mixlist.files.temporary_files import new_file
from mixlist.graph import data_files, weights
from mixlist.graph.load import LoadedModel
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.traversal import tensors_in_model
from mixlist.progress import ProgressCounter

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

INLINE_LIMIT = 2**31 - 2**20  # bytes of a protobuf message, with room for what is not counted
MIN_EXTERNAL_BYTES = 1024  # tensors below this stay in the model
_PAGE = 4096  # large tensors start on a page, so that a runtime can map them

Convert = Callable[["TensorProto"], Iterator[bytes]]


@dataclass(frozen=True)
class SaveOptions:
    """Choose how a model is saved.

    ``external_data``: ``auto`` (as in the input, or where the model outgrows protobuf), ``yes`` or ``no``. ``private``:
    no other process uses the folder, and it is removed soon. ``warnings`` collects the findings of saving.
    """

    force: bool = False
    external_data: str = "auto"
    progress: ProgressCounter | None = None
    private: bool = False
    warnings: list[Diagnostic] = dataclasses.field(default_factory=list)


def check_target(path: Path, loaded: LoadedModel, force: bool) -> None:
    """Refuse a target that is the input or a data file of it, that exists (without ``force``), or has no folder."""
    if path.is_dir():
        raise FileError(f"{path} is a directory", hint="name a file to write")
    if not path.parent.is_dir():
        raise FileError(f"the folder {path.parent} does not exist", hint="make it first")
    if not path.exists():
        return
    for source in files_of_model(loaded):
        if source.exists() and path.samefile(source):
            raise UsageError(f"the output {path} is the input itself ({source})", hint="write to another file")
    if not force:
        raise UsageError(f"{path} exists", hint="use --force to replace it")


def files_of_model(loaded: LoadedModel) -> list[Path]:
    """The model's file and its data files."""
    found = [] if loaded.path is None else [loaded.path]
    if loaded.folder is not None:
        outside = filter(weights.is_external, tensors_in_model(loaded.proto))
        locations = [weights.external_entries(tensor).get("location") for tensor in outside]
        found += [
            loaded.folder / location for location in locations if location and not weights.leaves_folder(location)
        ]
    return list(dict.fromkeys(found))


def content_digest(loaded: LoadedModel) -> str:
    """A SHA-256 of the model and the files of its weights."""
    found = hashlib.sha256(loaded.proto.SerializeToString(deterministic=True))
    for path in files_of_model(loaded):
        if path != loaded.path and path.is_file():
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def save_model(
    proto: ModelProto, path: Path, loaded: LoadedModel, convert: Convert, options: SaveOptions
) -> tuple[Path, ...]:
    """Write ``proto`` to ``path``; ``convert`` yields an external tensor's bytes as the model declares them.

    Returns the files written: the model's and, where there is one, its data file.

    ``proto`` is left as it is. Raises FileError and UsageError; on any failure nothing stays behind.
    """
    check_target(path, loaded, options.force)
    held = list(_stored(proto, options.external_data))
    if options.external_data == "no":
        with _restored(held):
            for tensor in held:
                set_inline(tensor, b"".join(convert(tensor)))
            _save_inline(_bytes_of(proto, path), path, loaded, options)
        return (path,)
    if not held:
        data = _serialized(proto)
        if data is not None:
            _save_inline(data, path, loaded, options)
            return (path,)
        held = list(_stored(proto, "yes"))  # its weights alone would have fitted
    with _restored(held):
        save_data = _save_private if options.private else _save_external
        return path, save_data(proto, held, path, loaded, convert, options)


def _stored(proto: ModelProto, wish: str) -> Iterator[TensorProto]:
    """The tensors that go to the data file; for ``no`` those that come out of one."""
    # Each pass makes its tensors anew: to keep them all would set off Python's cycle collector again and again.
    inline_size, some_external = 0, True
    if wish == "auto":
        some_external = False
        for tensor in tensors_in_model(proto):
            inline_size += len(tensor.raw_data)
            some_external = some_external or weights.is_external(tensor)
    everything = wish == "yes" or inline_size > INLINE_LIMIT
    if not everything and not some_external:
        return  # the usual case: one pass is enough
    for tensor in tensors_in_model(proto):
        if weights.is_external(tensor) or (everything and _size(tensor) >= MIN_EXTERNAL_BYTES):
            yield tensor


def _size(tensor: TensorProto) -> int:
    return 0 if tensor.data_type == 8 else weights.stored_byte_size(tensor)  # 8: strings cannot lie outside


@contextmanager
def _restored(held: list[TensorProto]) -> Iterator[None]:
    """Whatever happens, the tensors are afterwards what they were."""
    before = [copy_message(tensor) for tensor in held]
    try:
        yield
    finally:
        for tensor, copy in zip(held, before, strict=True):
            tensor.CopyFrom(copy)


def set_inline(tensor: TensorProto, data: bytes) -> None:
    """Put a tensor's bytes into the model itself."""
    for field in tensor.DESCRIPTOR.fields:
        if field.name.endswith("_data") or field.name == "data_location":
            tensor.ClearField(field.name)
    tensor.raw_data = data


def _save_external(
    proto: ModelProto, held: list[TensorProto], path: Path, loaded: LoadedModel, convert: Convert, options: SaveOptions
) -> Path:
    """Write the data file and the model to a folder that other processes use; return the path of the data file."""
    # A name that does not exist yet: where the model is a link, its data lie in the folder in which it is opened.
    with new_file(path.with_name(f"mixlist-{secrets.token_hex(8)}.data")) as new:
        with data_files.ChecksumWriter(new.file) as writer:
            spans = _write_tensors(writer, held, convert, options.progress)
        # A model is not replaced before the disk holds the new weights. The folder is locked after that, so that other
        # runs do not wait for the disk.
        if path.exists():
            new.file.flush()
            os.fsync(new.file.fileno())
        with lock_folders([path.parent]) as is_locked:
            location = data_files.place_data_file(new, path.name, writer.checksum())
            for tensor, (start, length) in zip(held, spans, strict=True):
                set_external(tensor, location, start, length)
            _replace_model(_bytes_of(proto, path), path, loaded, location, is_locked, options)
    return path.parent / location


def _save_private(
    proto: ModelProto, held: list[TensorProto], path: Path, loaded: LoadedModel, convert: Convert, options: SaveOptions
) -> Path:
    """Write the data file and the model to a folder of this process; return the path of the data file."""
    place = path.with_name(f"{path.name}.data")
    with report_write_errors(place), place.open("xb") as file:
        spans = _write_tensors(file, held, convert, options.progress)
    for tensor, (start, length) in zip(held, spans, strict=True):
        set_external(tensor, place.name, start, length)
    write_atomically(path, _bytes_of(proto, path))
    return place


def _write_tensors(
    file: IO[bytes] | data_files.ChecksumWriter,
    held: list[TensorProto],
    convert: Convert,
    progress: ProgressCounter | None,
) -> list[tuple[int, int]]:
    """Write the bytes of tensors; return where each starts, and its length."""
    spans = []
    if progress is not None:
        progress.total = sum(_size(tensor) for tensor in held)
    for tensor in held:
        if _size(tensor) >= 2**20:
            file.write(bytes(-file.tell() % _PAGE))
        start = file.tell()
        made = convert(tensor)
        for piece in weights.prefetch(made) if _size(tensor) > weights.PIECE_BYTES else made:
            file.write(piece)
            if progress is not None:
                progress.add(len(piece))
        spans.append((start, file.tell() - start))
    return spans


def set_external(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Say of a tensor that its bytes lie in another file."""
    from onnx.external_data_helper import set_external_data

    set_inline(tensor, b"")
    set_external_data(tensor, location, offset, length)
    tensor.ClearField("raw_data")


def _save_inline(data: bytes, path: Path, loaded: LoadedModel, options: SaveOptions) -> None:
    """Write a model that holds all of its weights."""
    if options.private or not path.exists():
        write_atomically(path, data)
        return
    with lock_folders([path.parent]) as is_locked:
        _replace_model(data, path, loaded, None, is_locked, options)


def _replace_model(
    data: bytes, path: Path, loaded: LoadedModel, location: str | None, is_locked: bool, options: SaveOptions
) -> None:
    """Write the model file, then remove the data file of the model that it replaces, if nothing names it any more."""
    named_before = data_files.referenced_data_files(path) if path.exists() else None
    write_atomically(path, data)
    if named_before is not None:
        kept = data_files.remove_unused_data_files(path, location, named_before, files_of_model(loaded), is_locked)
        options.warnings.extend(kept)


def _bytes_of(proto: ModelProto, path: Path) -> bytes:
    data = _serialized(proto)
    if data is None:
        raise FileError(f"{path} would be larger than the 2 GiB that protobuf allows", hint="use --external-data yes")
    return data


def _serialized(proto: ModelProto) -> bytes | None:
    """The model's bytes; None where they are more than the 2 GiB that protobuf allows."""
    try:
        return proto.SerializeToString(deterministic=True)
    except Exception:  # protobuf's own error type differs by implementation
        return None
