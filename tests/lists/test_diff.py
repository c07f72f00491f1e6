"""diff: the modify_mixlist that turns one set of lists into another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.files.jsonc import parse
from mixlist.lists import presets
from mixlist.lists.diff import diff_lists
from mixlist.lists.library import Library, Lists
from mixlist.lists.modify_mixlist import apply_edits, parse_edits

COLORS = ["white", "black", "gray"]
OPS = ["A", "B", "C", "D", "ai.onnx::A", "com.microsoft::A", "com.microsoft::D"]


def applied(edits: dict[str, Any], library: Library) -> Lists:
    """The edits as a file would have them, refused if the file would be."""
    read, findings = parse_edits(parse(json.dumps(edits), "edits.json"))
    assert [f for f in findings if f.severity == "error"] == []
    lists, _ = apply_edits(library, read)
    return lists


def library(lists: dict[str, str]) -> Library:
    return Library("lib", lists)  # type: ignore[arg-type]


def edited(base: dict[str, str], legal: dict[str, tuple[str, ...]]) -> Lists:
    """A library with edits made to it: per op one of the legal combinations."""
    edits: dict[str, dict[str, list[str]]] = {}
    for op, actions in legal.items():
        for action in actions:
            color, key = action.split()
            edits.setdefault(f"{color}-list", {}).setdefault(key, []).append(op)
    return applied(edits, library(base))


LEGAL = [
    ("black to-remove",),
    ("white to-remove",),
    ("gray to-add",),
    ("gray to-add", "black to-remove"),
    ("gray to-add", "white to-remove"),
    ("white to-add",),
    ("white to-add", "gray to-remove"),
    ("white to-add", "black to-remove"),
    ("black to-add",),
    ("black to-add", "gray to-remove"),
    ("black to-add", "white to-remove"),
]
libraries = st.dictionaries(st.sampled_from(OPS), st.sampled_from(COLORS))
sets = st.builds(edited, libraries, st.dictionaries(st.sampled_from(OPS), st.sampled_from(LEGAL)))


@given(sets, sets)
def test_round_trip(base: Lists, target: Lists) -> None:
    edits = diff_lists(base, target)
    result = applied(
        edits, Library("base", {op: base.list_of(op) for op in base.library.lists.keys() | base.named_ops})
    )
    assert {op: result.list_of(op) for op in OPS} == {op: target.list_of(op) for op in OPS}


@given(sets, sets)
def test_only_what_differs_is_named_and_sorted(base: Lists, target: Lists) -> None:
    edits = diff_lists(base, target)
    arrays = [names for part in edits.values() for names in part.values()]
    named = {op for names in arrays for op in names}
    differ = {op for op in OPS if base.list_of(op) != target.list_of(op)}
    plain = {op for op in named if "::" not in op}
    assert plain == {op for op in differ if "::" not in op}
    assert all(names == sorted(set(names)) and names for names in arrays)


@given(sets)
def test_equal_lists_need_no_edit(lists: Lists) -> None:
    assert diff_lists(lists, lists) == {}


@pytest.mark.parametrize(
    ("before", "after", "edits"),
    [
        ("white", "black", {"black-list": {"to-add": ["A"]}, "white-list": {"to-remove": ["A"]}}),
        ("black", "white", {"black-list": {"to-remove": ["A"]}, "white-list": {"to-add": ["A"]}}),
        ("gray", "white", {"white-list": {"to-add": ["A"]}}),
        ("gray", "black", {"black-list": {"to-add": ["A"]}}),
        ("white", "gray", {"white-list": {"to-remove": ["A"]}}),
        ("black", "gray", {"black-list": {"to-remove": ["A"]}}),
    ],
)
def test_each_move(before: str, after: str, edits: dict[str, Any]) -> None:
    assert diff_lists(Lists(library({"A": before})), Lists(library({"A": after}))) == edits


def test_between_real_libraries(tmp_path: Path) -> None:
    base, target = Lists(presets.load("ascend910")), Lists(presets.load("ascend910b"))
    result = applied(diff_lists(base, target), base.library)
    ops = base.library.lists.keys() | target.library.lists.keys()
    assert {op: result.list_of(op) for op in ops} == {op: target.list_of(op) for op in ops}
