"""Save the state of ``train`` in one ``.npz`` file, so that a training that was killed continues from the file.

The file has one entry per array, a JSON text, and a SHA-256 digest:

- The JSON text holds every value that is not an array. ``{"array": NAME, "dtype": TYPE}`` refers to an array.
- The digest covers the whole content. A changed file is refused, so the code that reads the parts of a state
  does not check them again.

The file is always replaced as a whole: a process that is killed while it writes leaves the earlier state.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import ml_dtypes
import numpy as np

from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.regular_files import open_regular
from mixlist.files.strict_json import JsonObject
from mixlist.runtime.feeds import digest

if TYPE_CHECKING:
    from mixlist.runtime.session import Array
    from mixlist.training.loop import Training, TrainingState

FORMAT = "mixlist.train-state/6"
SAVE_INTERVAL = 2.0  # seconds between two writes of the state
_JSON_ENTRY, _DIGEST_ENTRY = "state.json", "sha256"  # entries of the .npz file
_ARRAY_KEY, _DTYPE_KEY = "array", "dtype"  # keys of a JSON object that refers to an array


class FinishedTraining(TypedDict):
    """The result of a finished training.

    ``curve`` has the fields of its TrainingHistory. ``first_bad`` is the feed of its first exception, or None.
    """

    curve: JsonObject
    first_bad: dict[str, Array] | None


class SavedState(TypedDict):
    """The state of a command: its finished trainings and the running one by name, and the counts of the sampler."""

    done: dict[str, FinishedTraining]
    running: dict[str, TrainingState]
    counts: JsonObject | None  # the fields of UnderflowCounts


class StateFile:
    """The state file of one ``train`` command. Without a path, nothing is read or written.

    ``fingerprint`` identifies the trainings (see ``TrainingJob.fingerprint``). Raises the errors of ``read_state``.
    """

    def __init__(self, path: str | os.PathLike[str] | None, fingerprint: Mapping[str, str]) -> None:
        self.path, self.fingerprint = path, fingerprint
        saved_state = read_state(path, fingerprint) if path is not None else None
        self.state = saved_state or SavedState(done={}, running={}, counts=None)
        self._last_save = time.monotonic()

    def restore(self, name: str, training: Training) -> None:
        """Restore a training from the state of the file; do nothing if the file has no state of this training."""
        if name in self.state["running"]:
            training.restore(self.state["running"][name])

    def save_if_due(self, name: str, training: Training) -> None:
        """Write the state of the running training, if the last write is at least SAVE_INTERVAL seconds old."""
        if self.path is not None and time.monotonic() - self._last_save >= SAVE_INTERVAL:
            self.state["running"] = {name: training.state()}
            self._write(training)

    def save_finished(self, name: str, training: Training) -> None:
        """Write the result of a finished training."""
        # Trainings run one after the other, so no other training is running.
        self.state["done"][name] = {"curve": asdict(training.history), "first_bad": training.first_bad_feed}
        self.state["running"] = {}
        self._write(training)

    def _write(self, training: Training) -> None:
        # The counts of the sampler must be saved together with the step of the training: otherwise a continued training
        # would count some steps twice.
        if training.sampler is not None:
            self.state["counts"] = asdict(training.sampler.counts)
        if self.path is not None:
            write_state(self.path, self.fingerprint, self.state)
        self._last_save = time.monotonic()


def write_state(path: str | os.PathLike[str], fingerprint: Mapping[str, str], state: Mapping[str, object]) -> None:
    """Write a state: nested dicts and lists of arrays, numbers and texts. ``fingerprint`` identifies the trainings."""
    arrays: dict[str, Array] = {}

    def add_array(array: Array) -> dict[str, str]:
        """Put an array that json cannot write into ``arrays``; return the JSON object that refers to the array."""
        name, array = str(len(arrays)), np.asarray(array)
        # numpy has no bfloat16, so a .npz file cannot name the type: the bits are written as uint16.
        arrays[name] = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
        return {_ARRAY_KEY: name, _DTYPE_KEY: array.dtype.name}

    # json calls add_array for each value that it cannot write, so ``arrays`` is complete only after this line.
    text = json.dumps({"format": FORMAT, "key": dict(fingerprint), "state": state}, default=add_array)
    arrays[_JSON_ENTRY] = np.frombuffer(text.encode(), np.uint8)
    arrays[_DIGEST_ENTRY] = np.array(digest([arrays]))
    # In memory first, since np.savez cannot replace a file as a whole.
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type] # no array has the name of a parameter
    write_atomically(path, buffer.getvalue())


def read_state(path: str | os.PathLike[str], fingerprint: Mapping[str, str]) -> SavedState | None:
    """Return the state in a file, or None if the file does not exist yet.

    Raises FileError if the file does not hold a whole state, UsageError if its fingerprint differs.
    """
    if not Path(path).exists():
        return None
    name = os.fspath(path)
    hint = "give the path of another file"
    arrays: dict[str, Array] = {}

    def get_array(value: JsonObject) -> JsonObject | Array:
        """Return the array that a JSON object refers to; return any other object as it is."""
        reference = value.get(_ARRAY_KEY)
        # A tensor of the model may be called "array" too. A dict of tensors by name then has an array or a number under
        # this key, never a text.
        if not isinstance(reference, str):
            return value
        array = arrays[reference]
        return array.view(ml_dtypes.bfloat16) if value[_DTYPE_KEY] == "bfloat16" else array

    try:
        # Without pickle, since unpickling a file from elsewhere could run any code.
        with open_regular(Path(path)) as file, np.load(file, allow_pickle=False) as content:
            arrays.update(content)
        if str(arrays.pop(_DIGEST_ENTRY)) != digest([arrays]):
            raise ValueError("its content does not match its digest")
        document = json.loads(arrays[_JSON_ENTRY].tobytes(), object_hook=get_array)
        # The state of another version of the format is refused below, like a file of another kind.
        saved_fingerprint = document["key"] if document["format"] == FORMAT else None
        state: SavedState = document["state"]
    except FileError:
        raise
    except Exception as error:  # zipfile, numpy and json raise many kinds of errors for a damaged file
        raise FileError(f"{name}: not the state of a training ({error})", hint=hint) from None
    if not isinstance(saved_fingerprint, dict):
        raise FileError(f"{name}: not the state of a training", hint=hint)
    # With other inputs, a training could continue from this state, but its numbers would belong to neither training.
    differing_parts = sorted(part for part in fingerprint if saved_fingerprint.get(part) != fingerprint[part])
    if differing_parts:
        raise UsageError(
            f"{name} is the state of another training: {', '.join(differing_parts)} differs",
            hint="give the same step graph, data, lists and options, or another --state",
        )
    return state
