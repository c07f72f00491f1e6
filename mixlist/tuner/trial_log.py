"""The trials of a search, kept: a search that was killed goes on where it was.

A state file is text: one JSON object per line, the first says of which search it is. Trials are appended as they are
made, so a line that was cut off at the end is the only damage that a kill can do; it is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixlist.errors import FileError, UsageError
from mixlist.tuner.trial_outcome import Outcome

FORMAT = "mixlist.tune-state/1"


class Memory:
    """Outcomes by the text of a choice; with a path, those of earlier runs and for later ones.

    ``key`` says what the outcomes depend on. Raises UsageError for the state of another search, FileError for a file
    that cannot be read or is no state.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: Mapping[str, Any]) -> None:
        self.path = Path(path) if path is not None else None
        self.known: dict[str, Outcome] = {}
        self.found = 0
        if self.path is None:
            return
        head = {"format": FORMAT, **key}
        if self.path.exists():
            self._read(self.path, head)
        else:
            self._append(head)

    def get(self, choice: str) -> Outcome | None:
        """The outcome of a choice that was tried before."""
        return self.known.get(choice)

    def put(self, choice: str, outcome: Outcome) -> None:
        """Keep an outcome."""
        self.known[choice] = outcome
        if self.path is not None:
            self._append({"choice": choice, "passed": outcome.passed, "why": outcome.why, "batch": outcome.batch})

    def drop(self, choice: str) -> None:
        """Do not know an outcome any more, in this run."""
        self.known.pop(choice, None)

    def _append(self, entry: Mapping[str, Any]) -> None:
        assert self.path is not None
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(entry))
        except OSError as problem:
            raise FileError(
                f"{self.path}: the state cannot be written ({problem.strerror})", hint="name another file with --state"
            ) from None

    def _read(self, path: Path, head: Mapping[str, Any]) -> None:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise FileError(f"{path}: no state of a search can be read ({problem})", hint="name another file") from None
        whole, _, torn = text.rpartition("\n")
        entries = [_entry(path, at, line) for at, line in enumerate(whole.split("\n"), start=1)] if whole else []
        if not entries and _line(head).startswith(torn):  # killed while the first line was written
            path.write_bytes(b"")
            self._append(head)
            return
        if not entries or entries[0].get("format") != FORMAT:
            raise FileError(f"{path}: this is no state of a search", hint="name a file that does not exist yet")
        other = sorted(name for name in head if entries[0].get(name) != head[name])
        if other and len(entries) == 1:  # nothing was tried: its command had failed
            path.write_bytes(b"")
            self._append(head)
            return
        if other:
            raise UsageError(
                f"{path} is the state of another search: {', '.join(other)} differs",
                hint="give the same model, data, lists and limits, or another --state",
            )
        for entry in entries[1:]:
            self.known[entry["choice"]] = Outcome(entry["passed"], entry["why"], entry["batch"])
        self.found = len(self.known)
        if torn:
            with path.open("r+b") as file:
                file.truncate(len(whole.encode()) + 1)


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True) + "\n"


def _entry(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or not (
        {"format"} <= entry.keys() or {"choice", "passed", "why", "batch"} <= entry.keys()
    ):
        raise FileError(f"{path}:{line}:1: this is no line of a search's state", hint="name another file with --state")
    return entry
