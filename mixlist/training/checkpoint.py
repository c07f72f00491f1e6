"""A training that was killed goes on: its state in one ``.npz`` file, replaced whole.

Arrays stand in it by their path in the state (``now/parameters``), everything else as JSON.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixlist.errors import FileError, UsageError
from mixlist.files import write_whole

FORMAT = "mixlist.train-state/1"
_REST = "state.json"


def save(path: str | os.PathLike[str], key: Mapping[str, str], state: Mapping[str, Any]) -> None:
    """Write a state: nested dicts of arrays, numbers, texts and lists. ``key`` says whose it is."""
    import numpy as np

    arrays: dict[str, Any] = {}
    rest = _split(state, "", arrays)
    text = json.dumps({"format": FORMAT, "key": dict(key), "state": rest})
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_REST: np.frombuffer(text.encode(), np.uint8)}, **arrays)
    write_whole(path, buffer.getvalue())


def read(path: str | os.PathLike[str], key: Mapping[str, str]) -> dict[str, Any] | None:
    """The state in a file; None where there is no file yet.

    Raises FileError for a file that is no state, UsageError for the state of another training.
    """
    import numpy as np

    if not Path(path).exists():
        return None
    shown = os.fspath(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        told = json.loads(found.pop(_REST).tobytes().decode())
        theirs = told["key"] if told["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, EOFError) as problem:
        raise FileError(f"{shown}: no state of a training ({problem})", hint="name another file") from None
    except Exception as problem:  # zipfile and numpy have errors of their own for files that were cut off
        raise FileError(f"{shown}: no state of a training ({problem})", hint="name another file") from None
    if not isinstance(theirs, dict):
        raise FileError(f"{shown}: no state of a training", hint="name another file")
    other = sorted(name for name in key if theirs.get(name) != key[name])
    if other:
        raise UsageError(
            f"{shown} is the state of another training: {', '.join(other)} differs",
            hint="give the same step graph, data, lists and options, or another --resume",
        )
    joined: dict[str, Any] = _join(told["state"], "", found)
    return joined


def _split(value: Any, path: str, arrays: dict[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {name: _split(each, f"{path}/{name}", arrays) for name, each in value.items()}
    if hasattr(value, "dtype"):
        arrays[path.lstrip("/")] = value
        return None
    return value


def _join(value: Any, path: str, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _join(each, f"{path}/{name}", arrays) for name, each in value.items()}
    return arrays.get(path.lstrip("/"), value) if value is None else value
