"""Keep the state of a training that may be killed in one ``.npz`` file, replaced whole.

Everything but arrays is JSON in it, where ``{"array": NAME, "dtype": TYPE}`` refers to an array of the file. The file
also holds a digest of its content: a state that was changed is refused, so no part of it needs a check of its own.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import ml_dtypes
import numpy as np

from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.regular_files import open_regular
from mixlist.runtime.feeds import digest

if TYPE_CHECKING:
    from mixlist.runtime.session import Array
    from mixlist.training.loop import Training, TrainingState

FORMAT = "mixlist.train-state/4"
SAVE_INTERVAL = 2.0  # seconds between two states
_JSON, _DIGEST, _ARRAY, _DTYPE = "state.json", "sha256", "array", "dtype"


class FinishedTraining(TypedDict):
    """The fields of a Curve, and the feed of the first bad step."""

    curve: dict[str, Any]
    first_bad: dict[str, Array] | None


class SavedState(TypedDict):
    """The trainings of a command that are done, and the one that runs, by name; the sampler's counts."""

    done: dict[str, FinishedTraining]
    running: dict[str, TrainingState]
    counts: list[int] | None


class StateFile:
    """The state file of a command. Without a path nothing is kept. Raises what ``read`` does."""

    def __init__(self, path: str | os.PathLike[str] | None, key: Mapping[str, str]) -> None:
        self.path, self.key = path, key
        saved = read(path, key) if path is not None else None
        self.state = saved or SavedState(done={}, running={}, counts=None)
        self._last = time.monotonic()

    def resume(self, name: str, training: Training) -> None:
        """Bring a training to where it was."""
        if name in self.state["running"]:
            training.restore(self.state["running"][name])

    def keep(self, name: str, training: Training) -> None:
        """Write the state, now and then."""
        if self.path is not None and time.monotonic() - self._last >= SAVE_INTERVAL:
            self.state["running"] = {name: training.state()}
            self._write(training)

    def finish(self, name: str, training: Training) -> None:
        """Note that a training is done."""
        self.state["done"][name] = {"curve": asdict(training.history), "first_bad": training.first_bad}
        self.state["running"] = {}
        self._write(training)

    def _write(self, training: Training) -> None:
        if training.sampler is not None:
            self.state["counts"] = list(training.sampler.counts)
        if self.path is not None:
            save(self.path, self.key, self.state)
        self._last = time.monotonic()


def save(path: str | os.PathLike[str], key: Mapping[str, str], state: Mapping[str, object]) -> None:
    """Write a state: nested dicts of arrays, numbers, texts and lists. ``key`` says to which training it belongs."""
    arrays: dict[str, Array] = {}

    def refer(array: Array) -> dict[str, str]:
        name, array = str(len(arrays)), np.asarray(array)
        # numpy has no bfloat16, so a .npz file cannot name it: the bits are written.
        arrays[name] = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
        return {_ARRAY: name, _DTYPE: array.dtype.name}

    text = json.dumps({"format": FORMAT, "key": dict(key), "state": state}, default=refer)
    arrays[_JSON] = np.frombuffer(text.encode(), np.uint8)
    arrays[_DIGEST] = np.array(digest([arrays]))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def read(path: str | os.PathLike[str], key: Mapping[str, str]) -> SavedState | None:
    """Return the state in a file; None where there is no file yet.

    Raises FileError for a file that is no state, UsageError for the state of another training.
    """
    if not Path(path).exists():
        return None
    name = os.fspath(path)
    arrays: dict[str, Array] = {}

    def resolve(value: dict[str, Any]) -> dict[str, Any] | Array:
        reference = value.get(_ARRAY)  # a tensor may have this name too, but never a text as its value
        if not isinstance(reference, str):
            return value
        array = arrays[reference]
        return array.view(ml_dtypes.bfloat16) if value[_DTYPE] == "bfloat16" else array

    try:
        with open_regular(Path(path)) as file, np.load(file, allow_pickle=False) as content:
            arrays.update(content)
        if str(arrays.pop(_DIGEST)) != digest([arrays]):
            raise ValueError("its content does not fit its digest")
        saved = json.loads(arrays[_JSON].tobytes(), object_hook=resolve)
        saved_key = saved["key"] if saved["format"] == FORMAT else None
        state: SavedState = saved["state"]
    except FileError:
        raise
    except Exception as problem:  # zipfile and numpy have errors of their own for files that were cut off
        raise FileError(f"{name}: no state of a training ({problem})", hint="name another file") from None
    if not isinstance(saved_key, dict):
        raise FileError(f"{name}: no state of a training", hint="name another file")
    differing = sorted(part for part in key if saved_key.get(part) != key[part])
    if differing:
        raise UsageError(
            f"{name} is the state of another training: {', '.join(differing)} differs",
            hint="give the same step graph, data, lists and options, or another --state",
        )
    return state
