"""Store the outcomes of trials in a state file, so that a search that was stopped can continue.

A state file is text with one JSON object per line. The first line holds what the search depends on; each other line
holds a trial. Trials are appended one by one, so a kill can only damage the last line, which is then ignored. Each line
has a checksum, because an outcome that was changed by hand would lead to another list.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from mixlist.errors import FileError, UsageError
from mixlist.files.regular_files import open_regular
from mixlist.files.strict_json import JsonObject
from mixlist.option_spelling import spell
from mixlist.search.trial_verdict import Outcome

FORMAT = "mixlist.tune-state/2"
_CHECKSUM = "checksum"


class SearchState:
    """The outcomes of trials by the text of their edits; with a path, also those of earlier runs.

    ``key``: everything that the outcomes depend on, by name. Raises UsageError if the file is the state of another
    search, and FileError if it cannot be read or is no state file.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: Mapping[str, str]) -> None:
        self.path = Path(path) if path is not None else None
        self.outcomes: dict[str, Outcome] = {}
        if self.path is not None and not (self.path.exists() and self._read(self.path, key)):
            self._append({"format": FORMAT, **key})

    def put(self, edits: str, outcome: Outcome) -> None:
        """Store an outcome."""
        self.outcomes[edits] = outcome
        # "choice" is the key that the file format has for a set of edits.
        self._append({"choice": edits, "passed": outcome.passed, "why": outcome.why, "batch": outcome.batch})

    def _append(self, entry: Mapping[str, object]) -> None:
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(_format_line(entry))
        except OSError as problem:
            raise FileError(
                f"{self.path}: the state cannot be written ({problem.strerror})",
                hint=f"name another file with {spell('state')}",
            ) from None

    def _read(self, path: Path, key: Mapping[str, str]) -> bool:
        """Read the outcomes of a state file, and return True.

        Empty the file and return False in two cases: the first line is missing or cut off, or it belongs to another
        search and no trial follows it. No trial is lost in these cases.
        """
        try:
            with open_regular(path) as file:
                text = file.read().decode()
        except (OSError, UnicodeDecodeError) as problem:
            raise FileError(f"{path}: no state of a search can be read ({problem})", hint="name another file") from None
        # Text after the last line break is a line that a kill has cut off.
        complete, _, cut_off = text.rpartition("\n")
        lines = complete.split("\n") if complete else []
        # An empty file has no lines: then the header is an empty object.
        header, *entries = [_parse_line(path, number, line) for number, line in enumerate(lines, 1)] or [{}]
        # An empty file, or a first line that a kill has cut off: it is the beginning of the line of this search. Other
        # text is a file of the user, which must not be emptied.
        if not header and _format_line({"format": FORMAT, **key}).startswith(cut_off):
            path.write_bytes(b"")
            return False
        if header.get("format") != FORMAT:
            raise FileError(f"{path}: this is no state of a search", hint="name a file that does not exist yet")
        differences = sorted(name for name in key if header.get(name) != key[name])
        # An earlier command failed before its first trial, for example because of a wrong option: nothing is lost.
        if differences and not entries:
            path.write_bytes(b"")
            return False
        if differences:
            raise UsageError(
                f"{path} is the state of another search: {', '.join(differences)} differs",
                hint=f"give the same model, data, lists and limits, or another {spell('state')}",
            )
        for entry in entries:
            self.outcomes[entry["choice"]] = Outcome(entry["passed"], entry["why"], entry["batch"])
        if cut_off:
            # Remove the cut-off line, and keep the line break before it.
            os.truncate(path, len(complete.encode()) + 1)
        return True


def _format_line(entry: Mapping[str, object]) -> str:
    """Return an entry as a line of the file, with its checksum."""
    return json.dumps({**entry, _CHECKSUM: _checksum(entry)}, sort_keys=True) + "\n"


def _checksum(entry: Mapping[str, object]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of an entry in JSON."""
    # With sorted keys the digest does not depend on the order in which an entry was made.
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]


def _parse_line(path: Path, number: int, text: str) -> JsonObject:
    """Return the entry of line ``number`` (from 1), without its checksum. Raises FileError if the line is damaged."""
    try:
        entry = json.loads(text)
        is_intact = isinstance(entry, dict) and entry.pop(_CHECKSUM, None) == _checksum(entry)
    except (ValueError, RecursionError):  # no JSON, or JSON with very deep brackets
        is_intact = False
    if not is_intact or not ("format" in entry if number == 1 else _is_trial(entry)):
        raise FileError(
            f"{path}:{number}:1: this is no line of a search's state",
            hint=f"name another file with {spell('state')}",
        )
    valid_entry: JsonObject = entry
    return valid_entry


def _is_trial(entry: JsonObject) -> bool:
    """Return True if an entry has the fields that ``put`` writes."""
    kinds = {"choice": str, "passed": bool, "why": str, "batch": int | None}
    return entry.keys() == kinds.keys() and all(isinstance(entry[name], kind) for name, kind in kinds.items())
