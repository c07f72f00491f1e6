"""Hold the values of tensors between the segments of a model: in memory up to a bound, the others in files."""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.files.scratch_folder import ScratchFolder, translate_write_errors

if TYPE_CHECKING:
    from mixlist.runtime.session import Array

MEMORY_BYTES = 2**28  # of values that stay in memory


class ValueStore:
    """Values of tensors by key. A value that does not fit into ``memory_bytes`` goes to a temporary file.

    The values of sequences and optionals stay in memory.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._in_memory: dict[Hashable, Array] = {}
        self._in_files: dict[Hashable, Path] = {}
        self._used_bytes = 0
        self._scratch: ScratchFolder | None = None  # made for the first file
        self._file_numbers = count()

    def put(self, key: Hashable, value: Array) -> None:
        """Store the value of a new key. Raises FileError if the file cannot be written."""
        size = getattr(value, "nbytes", 0)  # a sequence is a list, and an empty optional None
        if self._used_bytes + size <= self._memory_bytes or not size:
            self._in_memory[key] = value
            self._used_bytes += size
            return
        if self._scratch is None:
            self._scratch = ScratchFolder()
        path = self._scratch.path / f"value_{next(self._file_numbers)}"
        # pickle writes all types of arrays, also bfloat16 and strings, which ``numpy.save`` does not.
        with translate_write_errors(path), path.open("wb") as file:
            pickle.dump(value, file, protocol=5)
        self._in_files[key] = path

    def __contains__(self, key: Hashable) -> bool:
        return key in self._in_memory or key in self._in_files

    def get(self, key: Hashable) -> Array:
        """Return a value."""
        if key in self._in_memory:
            return self._in_memory[key]
        with self._in_files[key].open("rb") as file:
            value: Array = pickle.load(file)
        return value

    def drop(self, key: Hashable) -> None:
        """Forget a value, and remove its file."""
        value = self._in_memory.pop(key, None)
        self._used_bytes -= getattr(value, "nbytes", 0)
        path = self._in_files.pop(key, None)
        if path is not None:
            path.unlink()

    def close(self) -> None:
        """Forget all values, and remove their files."""
        self._in_memory.clear()
        if self._scratch is not None:
            self._scratch.remove()
