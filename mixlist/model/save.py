"""Save a model: the file appears whole or not at all, and never overwrites the input (Rule S7.14).

External data is read from its old file in pieces, converted if a conversion is pending, and written to the new file.

A data file holds the weights of one model (Rules S7.16 and S7.17): ``<model name>-<checksum>.data``. A new data file
never overwrites another file, and the data file of an older model at the same path stays. Because the name has a
checksum of the content, runs that save into one folder at the same time cannot mix up their weights, and the same input
gives the same names.
"""

from __future__ import annotations

import filecmp
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import NewFile, new_file, write_atomically
from mixlist.files.scratch_folder import translate_write_errors, write_scratch
from mixlist.model import dtypes, weights
from mixlist.model.load import LoadedModel
from mixlist.model.protos import copy_message, tensors_in_model
from mixlist.option_spelling import spell
from mixlist.progress import ProgressCounter

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

# The weights that a model can hold itself. A protobuf message has less than 2 GiB; 1 MiB is left for the nodes.
INLINE_LIMIT = 2**31 - 2**20
MIN_EXTERNAL_BYTES = 1024  # a smaller tensor stays in the model
# Large tensors start at a memory page, so that a runtime can map them.
_PAGE_BYTES = 4096
_MIN_ALIGNED_BYTES = 2**20  # a smaller tensor does not start at a page
# A larger model file is not read for the names of its data files: it holds its weights itself.
_MAX_SEARCHED_BYTES = 64 * 2**20
# From this size on, a second thread computes the checksum of a piece.
_MIN_THREAD_BYTES = 2**18
# The model's name is cut here, so that the name of the data file has at most 255 bytes, as file systems require.
_MAX_NAME_BYTES = 200
# Not allowed in file names on Windows, or in a location (``..``).
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\/:*?"<>|]|\.{2,}')

ReadTensor = Callable[["TensorProto"], Iterator[bytes]]  # yields the bytes of a tensor in its declared type


class SaveOptions(NamedTuple):
    """The options of saving a model.

    ``force``: whether an existing file is replaced.
    ``external_data``: ``yes`` writes a data file, ``no`` writes none, ``auto`` writes one if a weight of the
    model is external already, or if the model would exceed protobuf's limit.
    ``progress``: counts the bytes of the data file as they are written.
    ``private``: the folder belongs to this process and is removed soon, so that names need no checksum.
    """

    force: bool = False
    external_data: str = "auto"
    progress: ProgressCounter | None = None
    private: bool = False


def check_output_path(path: Path, loaded: LoadedModel, force: bool) -> None:
    """Raise UsageError or FileError for a path where a model must not be written.

    Such a path is a directory, a path in a folder that does not exist, a file of the input, or, unless ``force``, any
    file that exists.
    """
    if path.is_dir():
        raise FileError(f"{path} is a directory", hint="name a file to write")
    if not path.parent.is_dir():
        raise FileError(f"the folder {path.parent} does not exist", hint="create it first")
    if not path.exists():
        return
    for source in files_of_model(loaded):
        if source.exists() and path.samefile(source):
            raise UsageError(f"the output {path} is the input itself ({source})", hint="write to another file")
    if not force:
        raise UsageError(f"{path} exists", hint=f"use {spell('force', True)} to replace it")


def files_of_model(loaded: LoadedModel) -> list[Path]:
    """Return the file of a model and its data files, in order of first use."""
    paths = [] if loaded.path is None else [loaded.path]
    if loaded.folder is not None and loaded.may_be_external:
        external = filter(weights.is_external, tensors_in_model(loaded.proto))
        locations = [weights.external_entries(tensor).get("location") for tensor in external]
        paths += [
            loaded.folder / location for location in locations if location and not weights.leaves_folder(location)
        ]
    return list(dict.fromkeys(paths))


def content_digest(loaded: LoadedModel) -> str:
    """Return the SHA-256 of a model and of its data files, as hexadecimal digits."""
    digest = hashlib.sha256(loaded.proto.SerializeToString(deterministic=True))
    for path in files_of_model(loaded):
        if path != loaded.path and path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def save_model(
    proto: ModelProto, path: Path, loaded: LoadedModel, read_tensor: ReadTensor, options: SaveOptions
) -> tuple[tuple[Path, ...], list[Diagnostic]]:
    """Write ``proto`` to ``path``; return the paths of the model file and of its data file, if any, and the warnings.

    ``loaded``: the input from which ``proto`` was computed; its files are never overwritten. ``read_tensor`` yields the
    bytes of an external tensor in the type that the model declares. ``proto`` is unchanged afterwards. Raises FileError
    and UsageError. After an error, no new file stays.
    """
    writer = _ModelWriter(proto, path, loaded, read_tensor, options)
    return writer.write(), writer.warnings


@dataclass
class _ModelWriter:
    """Writes one model. The fields are the arguments of ``save_model``, and the warnings of ``write``."""

    proto: ModelProto
    path: Path
    loaded: LoadedModel
    read_tensor: ReadTensor
    options: SaveOptions
    warnings: list[Diagnostic] = field(default_factory=list)

    def write(self) -> tuple[Path, ...]:
        """Write the model and, if it gets one, its data file; return their paths."""
        check_output_path(self.path, self.loaded, self.options.force)
        moved_tensors = list(_tensors_to_move(self.proto, self.options.external_data))
        if self.options.external_data == "no":
            with _restore_after(moved_tensors):
                for tensor in moved_tensors:
                    set_inline(tensor, b"".join(self.read_tensor(tensor)))
                self._replace_model(self._serialize_or_fail(), None)
            return (self.path,)
        if not moved_tensors:
            data = _serialize(self.proto)
            if data is not None:
                self._replace_model(data, None)
                return (self.path,)
            # The weights alone are below the limit, but the whole message is not.
            moved_tensors = list(_tensors_to_move(self.proto, "yes"))
        if self.path.exists() and not self.path.is_file():
            hint = f"name a regular file, or use {spell('external_data', 'no')}"
            raise FileError(f"{self.path} is a pipe or a device, and the model needs a data file", hint=hint)
        with _restore_after(moved_tensors):
            save_data = self._save_private if self.options.private else self._save_shared
            return self.path, save_data(moved_tensors)

    def _save_shared(self, tensors: list[TensorProto]) -> Path:
        """Write the data file and the model to a folder that other processes may use; return the data file's path."""
        path = self.path
        # Readers look for the data file in the folder of the path that they open, so it must go to the folder of
        # ``path``, even if ``path`` is a symbolic link to another folder. new_file() follows a link at the path that it
        # gets: there is none at a random name. The final name needs the checksum of the content.
        with new_file(path.with_name(f"{secrets.token_hex(8)}.data")) as new:
            with _ChecksumWriter(new.file) as writer:
                spans = self._write_tensors(writer, tensors)
            # The new weights must be on the disk before the old model is replaced.
            location = _place_data_file(new, path.name, writer.checksum(), durable=path.exists())
            for tensor, (start, length) in zip(tensors, spans, strict=True):
                set_external(tensor, location, start, length)
            self._replace_model(self._serialize_or_fail(), location)
        return path.parent / location

    def _save_private(self, tensors: list[TensorProto]) -> Path:
        """Write the data file and the model to a private folder; return the path of the data file."""
        data_path = self.path.with_name(f"{self.path.name}.data")
        with translate_write_errors(data_path), data_path.open("xb") as file:
            spans = self._write_tensors(file, tensors)
        for tensor, (start, length) in zip(tensors, spans, strict=True):
            set_external(tensor, data_path.name, start, length)
        self._replace_model(self._serialize_or_fail(), data_path.name)
        return data_path

    def _write_tensors(self, file: IO[bytes] | _ChecksumWriter, tensors: list[TensorProto]) -> list[tuple[int, int]]:
        """Write the bytes of the tensors to a data file; return the offset and the length of each."""
        spans = []
        progress = self.options.progress
        if progress is not None:
            progress.total = sum(_weight_bytes(tensor) for tensor in tensors)
        for tensor in tensors:
            size = _weight_bytes(tensor)
            if size >= _MIN_ALIGNED_BYTES:
                file.write(bytes(-file.tell() % _PAGE_BYTES))  # zeros up to the next page
            start = file.tell()
            pieces = self.read_tensor(tensor)
            for piece in weights.prefetch(pieces) if size > weights.PIECE_BYTES else pieces:
                file.write(piece)
                if progress is not None:
                    progress.add(len(piece))
            spans.append((start, file.tell() - start))
        return spans

    def _replace_model(self, data: bytes, location: str | None) -> None:
        """Write a model file; warn of the data files of the model that it replaces, which stay (Rule S7.17).

        ``location``: the data file of the new model, None without one.
        """
        if self.options.private:
            write_scratch(self.path, data)
            return
        old_locations = referenced_data_files(self.path)
        write_atomically(self.path, data)
        if old_locations:  # most models have no data files, and files_of_model() walks the whole input
            self.warnings += _warn_of_old_data_files(self.path, location, old_locations, files_of_model(self.loaded))

    def _serialize_or_fail(self) -> bytes:
        """Return the bytes of the model file; raise FileError if they exceed protobuf's limit."""
        data = _serialize(self.proto)
        if data is None:
            raise FileError(
                f"{self.path} would be larger than the 2 GiB that protobuf allows",
                hint=f"use {spell('external_data', 'yes')}",
            )
        return data


def _tensors_to_move(proto: ModelProto, external_data: str) -> Iterator[TensorProto]:
    """Yield the tensors that go to the data file; for ``external_data`` "no", those that come out of a data file."""
    # Two passes instead of one list of all tensors: each pass creates Python objects for the tensors and drops them
    # again. Such a list would keep all of them alive, and Python's garbage collector would visit them again and again.
    inline_size, some_external = 0, False
    if external_data == "auto":
        for tensor in tensors_in_model(proto):
            if weights.is_external(tensor):
                some_external = True
            else:
                inline_size += _weight_bytes(tensor)
    move_all = external_data == "yes" or inline_size > INLINE_LIMIT
    # With "yes" and "no", every external tensor moves: to the new data file, or into the model.
    if external_data == "auto" and not move_all and not some_external:
        return  # the usual case: no second pass
    for tensor in tensors_in_model(proto):
        if weights.is_external(tensor) or (move_all and _weight_bytes(tensor) >= MIN_EXTERNAL_BYTES):
            yield tensor


def _weight_bytes(tensor: TensorProto) -> int:
    """Return the bytes that a tensor takes in a data file; 0 for strings, which ONNX does not allow there."""
    if tensor.data_type == dtypes.STRING:
        return 0
    if tensor.HasField("raw_data"):
        return weights.measure_raw_data(tensor, tensor.raw_data)
    return weights.stored_byte_size(tensor)


@contextmanager
def _restore_after(tensors: list[TensorProto]) -> Iterator[None]:
    """Restore the tensors at the end of the ``with`` block, also after an error."""
    copies = [copy_message(tensor) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.CopyFrom(copy)


def set_inline(tensor: TensorProto, data: bytes) -> None:
    """Store the bytes ``data`` of a tensor in the model itself, instead of where they are now."""
    # The fields that can hold the numbers: raw_data, float_data, int32_data and so on, and external_data.
    for name in tensor.DESCRIPTOR.fields_by_name:
        if name.endswith("_data") or name == "data_location":
            tensor.ClearField(name)
    tensor.raw_data = data


def set_external(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Let a tensor refer to its bytes in another file. ``location``: the path, relative to the model's folder."""
    from onnx.external_data_helper import set_external_data

    set_inline(tensor, b"")  # onnx accepts only a tensor with raw_data
    set_external_data(tensor, location, offset, length)
    tensor.ClearField("raw_data")


def _serialize(proto: ModelProto) -> bytes | None:
    """Return the bytes of a model file; None if they exceed the 2 GiB that protobuf allows."""
    try:
        return proto.SerializeToString(deterministic=True)
    except Exception:  # protobuf's own error type differs by implementation
        return None


# --- data files ---


class _ChecksumWriter:
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


def _place_data_file(new: NewFile, model_name: str, checksum: str, *, durable: bool) -> str:
    """Give a new data file its name, and return the name (Rule S7.16). ``model_name``: the name of the model file.

    A file with this name and the same bytes is used. Raises FileError if the bytes differ: the file is damaged, or the
    user's own.
    """
    name = f"{_safe_name(model_name)}-{checksum[:16]}.data"
    path = new.target.with_name(name)
    # Two runs that find no such file write the same bytes, so it makes no difference which of them comes last.
    if not path.exists():
        new.replace(path, durable=durable)
        return name
    new.file.flush()
    if not (path.is_file() and filecmp.cmp(new.path, path, shallow=False)):
        hint = "remove it, or choose another name for the model"
        raise FileError(f"{path} exists, and its content is not that of its name", hint=hint)
    return name


def _safe_name(model_name: str) -> str:
    """Return the name of a model file as the name of a data file can contain it.

    The result is shortened, and ``_`` replaces the characters that file names or locations must not contain.
    """
    # encode() replaces lone surrogates, which a path can contain. decode() drops a character that the limit cuts.
    text = _FORBIDDEN.sub("_", model_name.encode("utf-8", "replace").decode())
    return text.encode()[:_MAX_NAME_BYTES].decode("utf-8", "ignore")


def referenced_data_files(path: Path) -> set[str]:
    """Return the locations of external data in a model file; an empty set for a large file, a device, or no model."""
    try:
        # Reading a pipe would wait for a writer, and a device can have no end.
        data = path.read_bytes() if path.is_file() and path.stat().st_size <= _MAX_SEARCHED_BYTES else b""
    except OSError:
        return set()
    model = _parse(data) if b"location" in data else None  # most models have no external data: do not parse them
    if model is None:
        return set()
    entries = (entry for tensor in tensors_in_model(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def _warn_of_old_data_files(
    model_path: Path, current: str | None, old_locations: Iterable[str], inputs: Iterable[Path]
) -> list[Diagnostic]:
    """Return the warning that names the data files of a replaced model, which stay (Rule S7.17); [] if there are none.

    ``model_path``: the path of the new model. ``current``: the name of its data file, None without one.
    ``old_locations``: the data files of the old model. ``inputs``: the files from which the new model was computed:
    they are no news.
    """
    kept = {path.resolve() for path in inputs} | ({(model_path.parent / current).resolve()} if current else set())
    locations = [location for location in sorted(old_locations) if not weights.leaves_folder(location)]
    paths = [model_path.parent / location for location in locations]
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
