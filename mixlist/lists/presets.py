"""The built-in libraries: ordinary ops-info files under sample_lists/presets/, made by tools/make_presets.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mixlist.errors import UsageError
from mixlist.files.package_data import data_folder
from mixlist.lists.library import LIST_OF_FLAG, Library, NameSpace
from mixlist.lists.suggestions import choices


@dataclass(frozen=True, slots=True)
class Preset:
    """A built-in library: what it is, where its facts come from (with version), and its file.

    ``space`` is the name space it is written in; ``clear`` are TensorFlow's ops without numeric effect.
    """

    name: str
    title: str
    origin: str
    space: NameSpace
    path: Path
    clear_ops: frozenset[str] = frozenset()


@cache
def _index() -> dict[str, Preset]:
    home = data_folder("sample_lists")
    entries = json.loads((Path(__file__).parent / "data" / "presets.json").read_text("utf-8"))["presets"]
    return {
        e["name"]: Preset(e["name"], e["title"], e["origin"], e["space"], home / e["file"], frozenset(e["clear"]))
        for e in entries
    }


def names() -> list[str]:
    """The names of the built-in libraries, the default first."""
    return list(_index())


def find(name: str) -> Preset:
    """Return the Preset of this name; raise UsageError with the nearest names if there is none."""
    known = _index()
    if name not in known:
        raise UsageError(f"there is no built-in library {name!r}", hint=choices(name, known, "they are"))
    return known[name]


@cache
def load(name: str) -> Library:
    """The built-in library ``name``; raises UsageError as ``describe`` does."""
    preset = find(name)
    entries = json.loads(preset.path.read_text("utf-8"))
    flags = {op: entry.get("precision_reduce", {}).get("flag") for op, entry in entries.items()}
    lists = {op: LIST_OF_FLAG.get(flag, "gray") for op, flag in flags.items()}
    return Library(name, lists, preset.space, clear_ops=preset.clear_ops)
