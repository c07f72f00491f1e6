"""diff: the modify_mixlist that turns one set of lists into another (Rule S2.2)."""

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


def apply_object(edits: dict[str, Any], library: Library) -> Lists:
    """Return the lists after the edits of a modify_mixlist object, which must be valid."""
    parsed_edits, findings = parse_edits(parse(json.dumps(edits), "edits.json"))
    assert [f for f in findings if f.severity == "error"] == []
    lists, _ = apply_edits(library, parsed_edits)
    return lists


def library(lists: dict[str, str]) -> Library:
    """Return a library with these lists by op type."""
    return Library("lib", lists)  # type: ignore[arg-type]


def edited_lists(base: dict[str, str], legal: dict[str, tuple[str, ...]]) -> Lists:
    """Return the lists of a library after edits; ``legal`` has a legal combination of actions for each op type."""
    edits: dict[str, dict[str, list[str]]] = {}
    for op, actions in legal.items():
        for action in actions:
            color, key = action.split()
            edits.setdefault(f"{color}-list", {}).setdefault(key, []).append(op)
    return apply_object(edits, library(base))


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
LIBRARIES = st.dictionaries(st.sampled_from(OPS), st.sampled_from(COLORS))
LISTS = st.builds(edited_lists, LIBRARIES, st.dictionaries(st.sampled_from(OPS), st.sampled_from(LEGAL)))


@given(LISTS, LISTS)
def test_the_diff_gives_the_lists_of_the_other_side(base: Lists, other: Lists) -> None:
    edits = diff_lists(base, other)
    result = apply_object(
        edits, Library("base", {op: base.list_of(op) for op in base.library.lists.keys() | base.named_ops})
    )
    assert {op: result.list_of(op) for op in OPS} == {op: other.list_of(op) for op in OPS}


@given(LISTS, LISTS)
def test_only_op_types_that_change_are_named(base: Lists, other: Lists) -> None:
    edits = diff_lists(base, other)
    arrays = [names for part in edits.values() for names in part.values()]
    named = {op for names in arrays for op in names}
    changed = {op for op in OPS if base.list_of(op) != other.list_of(op)}
    # domain::Op is named also to keep its list when Op moves.
    assert {op for op in named if "::" not in op} == {op for op in changed if "::" not in op}
    assert all(names == sorted(set(names)) and names for names in arrays)


@given(LISTS)
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
def test_the_edits_of_one_move(before: str, after: str, edits: dict[str, Any]) -> None:
    assert diff_lists(Lists(library({"A": before})), Lists(library({"A": after}))) == edits


def test_the_diff_of_two_built_in_libraries_gives_the_second(tmp_path: Path) -> None:
    base, other = Lists(presets.load("ascend910")), Lists(presets.load("ascend910b"))
    result = apply_object(diff_lists(base, other), base.library)
    ops = base.library.lists.keys() | other.library.lists.keys()
    assert {op: result.list_of(op) for op in ops} == {op: other.list_of(op) for op in ops}
