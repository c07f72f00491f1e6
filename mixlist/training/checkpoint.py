"""A training that was killed goes on: its state in one ``.npz`` file, replaced whole.

Arrays stand in it by their path in the state (``now/parameters``), everything else as JSON.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.errors import FileError, UsageError
from mixlist.files.whole_writes import write_whole
from mixlist.training.result import Curve

if TYPE_CHECKING:
    from mixlist.training.gradient_underflow import Sampler
    from mixlist.training.loop import Training

FORMAT = "mixlist.train-state/1"
SAVE_AFTER = 2.0  # seconds between two states
_REST = "state.json"


class Keeper:
    """The state file of a command: trainings that are done, and the one that runs. Without a path nothing is kept.

    Raises what ``read`` does.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: Mapping[str, str]) -> None:
        self.path, self.key = path, key
        saved = read(path, key) if path is not None else None
        self.done: dict[str, dict[str, Any]] = saved["done"] if saved is not None else {}
        self.now: dict[str, Any] = saved["now"] if saved is not None else {}
        self._counts: list[int] | None = saved["counts"] if saved is not None else None
        self._last = time.monotonic()

    def counts(self, start: list[int]) -> list[int]:
        """The sampler's counts, as they were."""
        return start if self._counts is None else list(self._counts)

    def finished(self, name: str) -> tuple[Curve, dict[str, Any] | None] | None:
        """The curve of a training that is done, and what its first bad step read."""
        if name not in self.done:
            return None
        kept = self.done[name]
        lists = {field: tuple(kept["curve"][field]) for field in ("loss", "scale", "skipped", "exceptions")}
        return Curve(**{**kept["curve"], **lists}), kept["first_bad"] or None

    def resume(self, name: str, training: Training) -> None:
        """Bring a training to where it was."""
        if self.now.get("name") == name:
            training.restore(self.now["training"])

    def keep(self, name: str, training: Training, sampler: Sampler | None) -> None:
        """Write the state, now and then."""
        if self.path is None or time.monotonic() - self._last < SAVE_AFTER:
            return
        self.now = {"name": name, "training": training.state()}
        self._write(self.path, sampler)

    def finish(self, name: str, curve: Curve, first_bad: dict[str, Any] | None, sampler: Sampler | None) -> None:
        """A training is done."""
        self.done[name] = {"curve": asdict(curve), "first_bad": first_bad or {}}
        self.now = {}
        if self.path is not None:
            self._write(self.path, sampler)

    def _write(self, path: str | os.PathLike[str], sampler: Sampler | None) -> None:
        if sampler is not None:
            self._counts = list(sampler.counts)
        save(path, self.key, {"done": self.done, "now": self.now, "counts": self._counts})
        self._last = time.monotonic()


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
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        told = json.loads(found.pop(_REST).tobytes().decode())
        theirs = told["key"] if told["format"] == FORMAT else None
        state = told["state"]
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
    joined: dict[str, Any] = _join(state, "", found)
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
