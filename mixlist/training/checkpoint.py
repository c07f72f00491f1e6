"""Keep the state of a training that may be killed in one ``.npz`` file, replaced whole.

Arrays stand in it by their path in the state (``training/parameters``), everything else as JSON.
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

import numpy as np

from mixlist.errors import FileError, UsageError
from mixlist.files.whole_writes import write_whole
from mixlist.training.result import Curve

if TYPE_CHECKING:
    from mixlist.runtime.session import Array
    from mixlist.training.gradient_underflow import UnderflowSampler
    from mixlist.training.loop import Training, TrainingState

FORMAT = "mixlist.train-state/2"
SAVE_AFTER = 2.0  # seconds between two states
_REST = "state.json"


class FinishedTraining(TypedDict):
    """The fields of a Curve, and the feed of the first bad step ({}: there was none)."""

    curve: dict[str, Any]
    first_bad: dict[str, Array]


class SavedState(TypedDict):
    """The trainings of a command that are done, by name; the one that runs ("": none); the sampler's counts."""

    done: dict[str, FinishedTraining]
    running: str
    training: TrainingState | None
    counts: list[int] | None


class StateFile:
    """The state file of a command. Without a path nothing is kept. Raises what ``read`` does."""

    def __init__(self, path: str | os.PathLike[str] | None, key: Mapping[str, str]) -> None:
        self.path, self.key = path, key
        saved = read(path, key) if path is not None else None
        self.state = saved or SavedState(done={}, running="", training=None, counts=None)
        self._last = time.monotonic()

    def finished(self, name: str) -> tuple[Curve, dict[str, Array] | None] | None:
        """Return the curve of a training that is done, and the feed of its first bad step."""
        if name not in self.state["done"]:
            return None
        finished = self.state["done"][name]
        return Curve(**finished["curve"]), finished["first_bad"] or None

    def resume(self, name: str, training: Training) -> None:
        """Bring a training to where it was."""
        if self.state["running"] == name and self.state["training"] is not None:
            training.restore(self.state["training"])

    def keep(self, name: str, training: Training, sampler: UnderflowSampler | None) -> None:
        """Write the state, now and then."""
        if self.path is not None and time.monotonic() - self._last >= SAVE_AFTER:
            self.state["running"], self.state["training"] = name, training.state()
            self._write(sampler)

    def finish(self, name: str, training: Training, sampler: UnderflowSampler | None) -> None:
        """Note that a training is done."""
        self.state["done"][name] = {"curve": asdict(training.history), "first_bad": training.first_bad or {}}
        self.state["running"], self.state["training"] = "", None
        self._write(sampler)

    def _write(self, sampler: UnderflowSampler | None) -> None:
        if sampler is not None:
            self.state["counts"] = list(sampler.counts)
        if self.path is not None:
            save(self.path, self.key, self.state)
        self._last = time.monotonic()


def save(path: str | os.PathLike[str], key: Mapping[str, str], state: Mapping[str, object]) -> None:
    """Write a state: nested dicts of arrays, numbers, texts and lists. ``key`` says to which training it belongs."""
    arrays: dict[str, Array] = {}
    rest = _without_arrays(state, "", arrays)
    text = json.dumps({"format": FORMAT, "key": dict(key), "state": rest})
    arrays[_REST] = np.frombuffer(text.encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_whole(path, buffer.getvalue())


def read(path: str | os.PathLike[str], key: Mapping[str, str]) -> SavedState | None:
    """Return the state in a file; None where there is no file yet.

    Raises FileError for a file that is no state, UsageError for the state of another training.
    """
    if not Path(path).exists():
        return None
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
        saved = json.loads(arrays.pop(_REST).tobytes())
        saved_key = saved["key"] if saved["format"] == FORMAT else None
        rest = saved["state"]
    except Exception as problem:  # zipfile and numpy have errors of their own for files that were cut off
        raise FileError(f"{name}: no state of a training ({problem})", hint="name another file") from None
    if not isinstance(saved_key, dict):
        raise FileError(f"{name}: no state of a training", hint="name another file")
    differing = sorted(part for part in key if saved_key.get(part) != key[part])
    if differing:
        raise UsageError(
            f"{name} is the state of another training: {', '.join(differing)} differs",
            hint="give the same step graph, data, lists and options, or another --resume",
        )
    state: SavedState = _with_arrays(rest, "", arrays)
    return state


def _without_arrays(value: object, path: str, arrays: dict[str, Array]) -> object:
    """Return the value with None for each array, and put the arrays into ``arrays`` by their path."""
    if isinstance(value, Mapping):
        return {name: _without_arrays(member, f"{path}/{name}", arrays) for name, member in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        arrays[path.lstrip("/")] = np.asarray(value)
        return None
    return value


def _with_arrays(value: Any, path: str, arrays: Mapping[str, Array]) -> Any:
    """Undo ``_without_arrays``."""
    if isinstance(value, dict):
        return {name: _with_arrays(member, f"{path}/{name}", arrays) for name, member in value.items()}
    return arrays.get(path.lstrip("/"), value) if value is None else value
