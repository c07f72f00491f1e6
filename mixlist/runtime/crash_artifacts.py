"""What is left of a process that died: how it ended, and the model and the input that are kept."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mixlist.runtime.sessions import write_model

_PATIENCE = 5.0  # seconds for a child to end after its pipes did


def ending(child: subprocess.Popen[bytes]) -> str:
    """How a child ended: the name of the signal, or its exit status."""
    try:
        status = child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"
    return f"exit status {status}" if status < 256 else f"exit status {status:#x}"  # Windows: an NTSTATUS


def keep_feed(home: Path, feed: Mapping[str, Any]) -> Path | None:
    """The feed as ``.npz``, None where it cannot be kept in that form (sequences)."""
    import numpy as np

    if not all(isinstance(value, np.ndarray) for value in feed.values()):
        return None
    path = home / "feed.npz"
    texts = {name: value.astype(str) if value.dtype == object else value for name, value in feed.items()}
    try:
        np.savez(path, allow_pickle=False, **texts)
    except (OSError, ValueError, TypeError):  # a full disk; a name that savez has taken for itself
        return None
    return path


def bring_in(path: Path, folder: Path) -> None:
    """Put the weights that lie in ``folder`` beside the model, which is to outlive them."""
    from onnx import load

    proto = load(path, load_external_data=False)
    path.unlink()  # nothing is written over
    write_model(proto, path.parent, folder)
