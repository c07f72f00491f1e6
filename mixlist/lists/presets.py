"""The built-in libraries: ordinary library files in sample_lists/presets/, made by tools/make_presets.py."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mixlist.errors import UsageError
from mixlist.files.package_data import data_folder
from mixlist.lists.library import LIST_OF_FLAG, Library, NameSpace
from mixlist.lists.suggestions import choices_hint


class Preset(NamedTuple):
    """A built-in library.

    ``title`` describes it in a few words. ``origin`` is the source of its lists, with the version. ``space`` is the
    name space of its op types. ``path`` is its file. ``clear_ops`` are the op types of TensorFlow's clear list:
    operators without numeric effect.
    """

    name: str
    title: str
    origin: str
    space: NameSpace
    path: Path
    clear_ops: frozenset[str] = frozenset()


@cache
def _presets_by_name() -> dict[str, Preset]:
    """Return the built-in libraries in the order of data/presets.json, in which the default is the first."""
    samples = data_folder("sample_lists")
    presets = json.loads((Path(__file__).parent / "data" / "presets.json").read_text("utf-8"))["presets"]
    return {
        p["name"]: Preset(p["name"], p["title"], p["origin"], p["space"], samples / p["file"], frozenset(p["clear"]))
        for p in presets
    }


def names() -> list[str]:
    """Return the names of the built-in libraries, the default one first."""
    return list(_presets_by_name())


def find(name: str) -> Preset:
    """Return the built-in library with this name; raise UsageError, with the nearest names, if there is none."""
    presets = _presets_by_name()
    if name not in presets:
        hint = choices_hint(name, presets, "the built-in libraries are")
        raise UsageError(f"there is no built-in library {name!r}", hint=hint)
    return presets[name]


@cache
def load(name: str) -> Library:
    """Return the built-in library with this name. Raises UsageError if there is none.

    tests/lists/test_presets.py checks that the files are valid, so this skips the checks of ``ops_info.py``.
    """
    preset = find(name)
    entries = json.loads(preset.path.read_text("utf-8"))
    # An entry without ``precision_reduce`` is a gray op type (Rule S1.1).
    flags = {op: entry.get("precision_reduce", {}).get("flag") for op, entry in entries.items()}
    lists = {op: LIST_OF_FLAG.get(flag, "gray") for op, flag in flags.items()}
    reasons = {op: entry["reason"] for op, entry in entries.items() if "reason" in entry}
    return Library(name, lists, preset.space, clear_ops=preset.clear_ops, reasons=reasons)
