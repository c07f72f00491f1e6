"""Keep the model and the input that killed a process, so that a user can report the crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.runtime.model_files import write_model

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed

_SAVEZ_PARAMETERS = frozenset({"file", "allow_pickle"})


def save_feed(target_folder: Path, feed: Feed) -> Path | None:
    """Write a feed as ``feed.npz`` into a folder; return its path, or None if it has sequences or writing fails."""
    import numpy as np

    # A npz file holds arrays only: no sequences, and no empty optionals. np.savez takes the names of its own parameters
    # for these parameters, not for arrays.
    if not all(isinstance(value, np.ndarray) for value in feed.values()) or not _SAVEZ_PARAMETERS.isdisjoint(feed):
        return None
    path = target_folder / "feed.npz"
    # numpy stores arrays of Python strings only with pickle, which ``--data`` refuses: use numpy's string dtype.
    arrays = {name: array.astype(str) if array.dtype == object else array for name, array in feed.items()}
    try:
        np.savez(path, **arrays)  # type: ignore[arg-type] # no array has the name of a parameter
    except (OSError, ValueError):  # a full disk
        return None
    return path


def copy_weights_to_model(model: Path, weights_folder: Path) -> None:
    """Copy the external data of a model file from ``weights_folder`` into the folder of the file.

    The model file is written again, because it must refer to the copy. The weights folder can be a temporary one of a
    check: without the copy, the kept model would lose its weights when that folder is removed.
    """
    from onnx import load

    proto = load(model, load_external_data=False)
    model.unlink()  # ``write_model`` does not overwrite a file
    write_model(proto, model.parent, weights_folder)
