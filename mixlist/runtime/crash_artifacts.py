"""Keep the model and the input that a process died of, so that a user can report them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.runtime.model_files import write_model

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed


def keep_feed(home: Path, feed: Feed) -> Path | None:
    """Write a feed as ``.npz``; return None where that form cannot hold it (sequences)."""
    import numpy as np

    if not all(isinstance(value, np.ndarray) for value in feed.values()):
        return None
    path = home / "feed.npz"
    arrays = {name: array.astype(str) if array.dtype == object else array for name, array in feed.items()}
    try:
        np.savez(path, allow_pickle=False, **arrays)
    except (OSError, ValueError, TypeError):  # a full disk; a name that savez uses itself
        return None
    return path


def bring_in(path: Path, folder: Path) -> None:
    """Put the weights that lie in ``folder`` next to the model, which is to outlive them."""
    from onnx import load

    proto = load(path, load_external_data=False)
    path.unlink()  # ``save`` writes over nothing
    write_model(proto, path.parent, folder)
