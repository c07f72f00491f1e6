"""Store the batches of an iterator in files, because a check reads all batches several times.

A generator can be read only once, and the same code may yield other values a second time. So each batch goes to a file
of a folder for temporary files as it comes, and the memory holds one batch at a time.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice

from mixlist.errors import UsageError
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.runtime.available_memory import format_gigabytes
from mixlist.runtime.batch_files import BatchSource

SPARE_BYTES = 10**9  # the least space that stays free in the folder for temporary files


def store_batches(batches: Iterable[object], limit: int | None = None) -> list[BatchSource]:
    """Return sources of the first ``limit`` batches of an iterator (None: all), which are read here.

    The files are removed when the sources are. Raises UsageError for a batch that is no dict of arrays by input name,
    and if the batches do not fit the disk.
    """
    folder = ScratchFolder()
    sources: list[BatchSource] = []
    total = 0
    for index, batch in enumerate(islice(batches, limit)):
        # The file is read by this process only, so its pickle is as safe as the values in it.
        content = pickle.dumps(_check_batch(batch, index), pickle.HIGHEST_PROTOCOL)
        total += len(content)
        # An iterator may have no end.
        if shutil.disk_usage(folder.path).free < len(content) + SPARE_BYTES:
            raise UsageError(
                f"the first {index + 1} batches take {format_gigabytes(total)}, and {folder.path.parent} has no more"
                " space for temporary files",
                hint="end the data earlier, for example with --steps N, or set TMPDIR to another folder",
            )
        write_scratch(folder.path / str(index), content)
        sources.append(BatchSource(f"batch {index}", partial(_read_batch, folder, index)))
    return sources


def _read_batch(folder: ScratchFolder, index: int) -> Mapping[str, object]:
    content: Mapping[str, object] = pickle.loads((folder.path / str(index)).read_bytes())
    return content


def _check_batch(batch: object, index: int) -> dict[str, object]:
    """Return the batch with arrays of numpy. Raises UsageError for anything but a dict of arrays by input name."""
    if not isinstance(batch, Mapping) or not all(isinstance(name, str) for name in batch):
        kind = f"an object of the type {type(batch).__name__}" if not isinstance(batch, Mapping) else "a dict"
        keys = "" if not isinstance(batch, Mapping) else " with keys that are no names of inputs"
        hint = "each batch is a dict of arrays by input name: {'x': array}"
        raise UsageError(f"batch {index} of the data is {kind}{keys}", hint=hint)
    return {name: _to_numpy(value, f"batch {index}: input {name!r}") for name, value in batch.items()}


def _to_numpy(value: object, place: str) -> object:
    """Return a value with arrays of numpy instead of those of other packages; others, such as None, stay."""
    import numpy as np

    if isinstance(value, list | tuple):
        return [_to_numpy(part, place) for part in value]
    if not hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(value)
    except Exception as error:  # each package has its own types of errors, for example for a tensor on a GPU
        message = f"{place} is no array of numpy and cannot become one: {error}"
        raise UsageError(message, hint="yield arrays of numpy: tensor.detach().cpu().numpy()") from None
