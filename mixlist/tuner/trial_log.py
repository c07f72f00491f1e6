"""Keep the outcomes of trials, so that a search that was killed goes on where it was (Rule S9.11).

A state file is text: one JSON object per line, the first says of which search it is. Trials are appended as they are
made, so a line that was cut off at the end is the only damage that a kill can do; it is left out. A checksum in each
line tells it from one that was changed since: an outcome that no trial had would give another list.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixlist.errors import FileError, UsageError
from mixlist.files.regular_files import open_regular
from mixlist.tuner.trial_verdict import Outcome

FORMAT = "mixlist.tune-state/2"
_CHECKSUM = "checksum"


class TrialLog:
    """``outcomes`` by the text of their edits; with a path, those of earlier runs and for later ones.

    ``key``: what the outcomes depend on. Raises UsageError for the state of another search, FileError for a file that
    cannot be read or is no state.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: Mapping[str, str]) -> None:
        self.path = Path(path) if path is not None else None
        self.outcomes: dict[str, Outcome] = {}
        if self.path is not None and not (self.path.exists() and self._read(self.path, key)):
            self._append({"format": FORMAT, **key})

    def put(self, edits: str, outcome: Outcome) -> None:
        """Keep an outcome."""
        self.outcomes[edits] = outcome
        self._append({"choice": edits, "passed": outcome.passed, "why": outcome.why, "batch": outcome.batch})

    def _append(self, entry: Mapping[str, object]) -> None:
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(_line(entry))
        except OSError as problem:
            raise FileError(
                f"{self.path}: the state cannot be written ({problem.strerror})", hint="name another file with --state"
            ) from None

    def _read(self, path: Path, key: Mapping[str, str]) -> bool:
        """Read the outcomes of a state file; False, and an empty file, where it has no trial yet."""
        try:
            with open_regular(path) as file:
                text = file.read().decode()
        except (OSError, UnicodeDecodeError) as problem:
            raise FileError(f"{path}: no state of a search can be read ({problem})", hint="name another file") from None
        whole, _, torn = text.rpartition("\n")
        head, *entries = [_entry(path, at, line) for at, line in enumerate(whole.split("\n"), 1)] if whole else [{}]
        if not head and _line({"format": FORMAT, **key}).startswith(torn):  # killed while the first line was written
            path.write_bytes(b"")
            return False
        if head.get("format") != FORMAT:
            raise FileError(f"{path}: this is no state of a search", hint="name a file that does not exist yet")
        other = sorted(name for name in key if head.get(name) != key[name])
        if other and not entries:  # nothing was tried: its command had failed
            path.write_bytes(b"")
            return False
        if other:
            raise UsageError(
                f"{path} is the state of another search: {', '.join(other)} differs",
                hint="give the same model, data, lists and limits, or another --state",
            )
        for entry in entries:
            self.outcomes[entry["choice"]] = Outcome(entry["passed"], entry["why"], entry["batch"])
        if torn:
            os.truncate(path, len(whole.encode()) + 1)
        return True


def _line(entry: Mapping[str, object]) -> str:
    return json.dumps({**entry, _CHECKSUM: _checksum(entry)}, sort_keys=True) + "\n"


def _checksum(entry: Mapping[str, object]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of an object in JSON."""
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]


def _entry(path: Path, line: int, text: str) -> dict[str, Any]:
    """Return the object of one line: the first says of which search the file is, each other holds a trial."""
    try:
        entry = json.loads(text)
        is_whole = isinstance(entry, dict) and entry.pop(_CHECKSUM, None) == _checksum(entry)
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole or not ("format" in entry if line == 1 else _is_trial(entry)):
        raise FileError(f"{path}:{line}:1: this is no line of a search's state", hint="name another file with --state")
    kept: dict[str, Any] = entry
    return kept


def _is_trial(entry: dict[str, Any]) -> bool:
    """Return True if an object holds what ``put`` writes."""
    kinds = {"choice": str, "passed": bool, "why": str, "batch": int | None}
    return entry.keys() == kinds.keys() and all(isinstance(entry[name], kind) for name, kind in kinds.items())
