"""The modify_mixlist file (Rules S2.1 to S2.7)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, ListError
from mixlist.lists.library import Library, ListName
from mixlist.lists.modify_mixlist import LEGAL_COMBINATIONS, apply_edits, read_edits
from mixlist.lists.suggestions import closest_names

WriteFile = Callable[[str], Path]

DATA = Path(__file__).parent / "data" / "edit_combinations.json"
COMBINATIONS = json.loads(DATA.read_text("utf-8"))["combinations"]
LIBRARY = Library("lib", {"MatMul": "white", "Softmax": "black", "Relu": "gray", "matmul_v2": "gray"})


def mixlist_text(actions: list[str], op: str = "Op") -> str:
    """Return a modify_mixlist file that names one op type in the arrays of the actions."""
    content: dict[str, dict[str, list[str]]] = {}
    for action in actions:
        verb, color = action.split("-")
        content.setdefault(f"{color}-list", {})["to-add" if verb == "add" else "to-remove"] = [op]
    return json.dumps(content, indent=1)


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    def write_file(text: str) -> Path:
        path = tmp_path / "modify.json"
        path.write_text(text, "utf-8")
        return path

    return write_file


def warnings_of(path: Path, library: Library = LIBRARY) -> list[Diagnostic]:
    edits, warnings = read_edits(path)
    return [*warnings, *apply_edits(library, edits)[1]]


def codes(findings: list[Diagnostic]) -> list[str]:
    return [f.code for f in findings]


def test_the_data_holds_all_63_combinations() -> None:
    assert len({frozenset(c["actions"]) for c in COMBINATIONS}) == 63
    assert {frozenset(c["actions"]) for c in COMBINATIONS if c["accepted"]} == LEGAL_COMBINATIONS


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "+".join(c["actions"]))
def test_a_combination_of_actions_is_legal_or_refused_as_the_data_says(
    combination: dict[str, Any], write: WriteFile
) -> None:
    """Rule S2.2: Eleven combinations of actions are legal."""
    path = write(mixlist_text(combination["actions"]))
    if not combination["accepted"]:
        with pytest.raises(ListError) as caught:
            read_edits(path)
        (finding,) = caught.value.diagnostics
        assert isinstance(finding, Diagnostic)
        assert finding.code == "ML104"
        assert '"Op"' in finding.message
        for action in combination["actions"]:
            verb, color = action.split("-")
            line = _line_of(path, f"{color}-list", "to-add" if verb == "add" else "to-remove")
            assert f"{color}-list to-{'add' if verb == 'add' else 'remove'} ({line}:" in finding.message
        # An author who follows the hint has a file that is accepted.
        assert finding.hint and finding.hint.startswith(("keep only ", "keep one of ", "remove the entry"))
        for part in re.split(r": | or |keep only ", finding.hint)[1:] if finding.hint.startswith("keep") else ():
            kept = [
                action
                for action in combination["actions"]
                if f"{action.split('-')[1]}-list to-{'add' if action.startswith('add') else 'remove'} (" in part
            ]
            read_edits(write(mixlist_text(kept)))
        return
    edits, warnings = read_edits(path)
    assert not warnings
    for before, expected in combination["by_default_list"].items():
        lists, warnings = apply_edits(Library("lib", {"Op": before}), edits)
        assert lists.list_of("Op") == expected["result"]
        assert ("ML106" in codes(warnings)) == expected["warns_remove_mismatch"]
        assert ("Op" in lists.moves) == (before != expected["result"])


def _line_of(path: Path, *keys: str) -> int:
    """Return the line of the first name under the keys, in a text that json.dumps(indent=1) wrote."""
    lines = path.read_text("utf-8").splitlines()
    top = next(i for i, line in enumerate(lines) if line.startswith(f' "{keys[0]}"'))
    inner = next(i for i in range(top, len(lines)) if lines[i].startswith(f'  "{keys[1]}"'))
    return inner + 2


def test_a_move_names_the_entry_that_decides_it(write: WriteFile) -> None:
    path = write('{"white-list": {"to-remove": ["MatMul"]},\n "black-list": {"to-add": ["MatMul", "Relu"]}}')
    lists, warnings = apply_edits(LIBRARY, read_edits(path)[0])
    assert not warnings
    move = lists.moves["MatMul"]
    assert (move.before, move.after) == ("white", "black")
    assert str(move.place) == f"{path}:2:28"
    assert lists.source("Relu") == f"{path}:2:38"
    assert lists.list_of("Softmax") == "black" and lists.named_ops == {"MatMul", "Relu"}


def test_a_removal_without_effect_warns(write: WriteFile) -> None:
    """Rule S2.3: Removals act first, then additions."""
    (finding,) = warnings_of(write('{"black-list": {"to-remove": ["MatMul"]}}'))
    assert (finding.code, finding.severity, finding.line, finding.column) == ("ML106", "warning", 1, 31)
    assert "is white in library lib, not black" in finding.message
    assert finding.hint == "to make it gray, name it in white-list to-remove"


def test_gray_list_to_add_alone_warns_and_names_the_removal(write: WriteFile) -> None:
    """Rule S2.4: add-gray moves nothing."""
    white, gray = warnings_of(write('{"gray-list": {"to-add": ["MatMul", "Relu"]}}'))
    assert (white.code, gray.code) == ("ML107", "ML107")
    assert "stays white" in white.message and white.hint == "to make it gray, name it in white-list to-remove"
    assert "is gray already" in gray.message


def test_an_unknown_op_type_warns_with_the_most_similar_name(write: WriteFile) -> None:
    """Rule S2.5: An unknown op type starts gray."""
    path = write('{"white-list": {"to-add": ["Matmul"]}}')
    (finding,) = warnings_of(path)
    assert finding.code == "ML108" and finding.hint is not None
    assert finding.hint == "did you mean MatMul?"
    assert apply_edits(LIBRARY, read_edits(path)[0])[0].list_of("Matmul") == "white"


def test_the_removal_of_an_unknown_op_type_has_two_warnings(write: WriteFile) -> None:
    assert codes(warnings_of(write('{"white-list": {"to-remove": ["UnknownOp"]}}'))) == ["ML108", "ML106"]


def test_a_duplicate_name_warns(write: WriteFile) -> None:
    path = write('{"black-list": {"to-add": ["Relu",\n"Relu"]}}')
    (finding,) = warnings_of(path)
    assert (finding.code, finding.severity, finding.line, finding.column) == ("ML105", "warning", 2, 1)
    assert "here and at 1:28" in finding.message
    assert apply_edits(LIBRARY, read_edits(path)[0])[0].list_of("Relu") == "black"


def test_blanks_around_a_name_warn(write: WriteFile) -> None:
    assert codes(warnings_of(write('{"black-list": {"to-add": ["Relu "]}}'))) == ["ML110", "ML108"]


def test_the_empty_object_is_legal_and_the_empty_file_is_not(write: WriteFile) -> None:
    """Rule S2.7: Files that the engine misreads are errors."""
    assert read_edits(write("{}")) == ((), [])
    with pytest.raises(ListError, match="the file is empty"):
        read_edits(write(""))


@pytest.mark.parametrize(
    ("text", "code", "position", "message_part"),
    [
        ('{"$schema": "x"}', "ML103", (1, 2), "the Ascend engine rejects every key"),
        ('{"black-lists": {}}', "ML101", (1, 2), 'unknown key "black-lists"'),
        ('{"black-list": {"add": []}}', "ML101", (1, 17), 'unknown key "add" in "black-list"'),
        ('{"black-list": ["MatMul"]}', "ML102", (1, 16), '"black-list" is an array'),
        ('{"black-list": {"to-add": "MatMul"}}', "ML102", (1, 27), 'is the string "MatMul"'),
        ('{"black-list": {"to-add": [\n "MatMul", 3]}}', "ML102", (2, 12), '"black-list"."to-add"[1] is the number 3'),
        ('["MatMul"]', "ML102", (1, 1), "the file is an array"),
        ('{"MatMul": {"precision_reduce": {"flag": "true"}}}', "ML109", (1, 1), "operator information library"),
        ('{"black-list": {}, "black-list": {}}', "ML005", (1, 20), "here and at 1:2"),
    ],
)
def test_an_invalid_file_is_refused_at_its_position(
    text: str, code: str, position: tuple[int, int], message_part: str, write: WriteFile
) -> None:
    with pytest.raises(ListError) as caught:
        read_edits(write(text))
    (finding,) = caught.value.diagnostics
    assert isinstance(finding, Diagnostic)
    assert (finding.code, finding.line, finding.column) == (code, *position)
    assert message_part in finding.message
    assert finding.hint


def test_all_errors_of_a_file_are_reported(write: WriteFile) -> None:
    text = '{"$schema": 1, "white-list": {"to-add": ["A", 2], "x": 0}, "black-list": {"to-add": ["A"]}, "gray-list": 7}'
    with pytest.raises(ListError, match=r"and 4 more") as caught:
        read_edits(write(text))
    assert sorted(codes([*caught.value.diagnostics])) == ["ML101", "ML102", "ML102", "ML103", "ML104"]  # type: ignore[list-item]


def test_strict_makes_comments_errors(write: WriteFile) -> None:
    path = write('{ // why\n "black-list": {"to-add": ["Relu",]}}')
    assert codes(read_edits(path)[1]) == ["ML006", "ML007"]
    with pytest.raises(ListError):
        read_edits(path, strict=True)


def test_a_missing_file_and_a_directory_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        read_edits(tmp_path / "none.json")
    with pytest.raises(FileError, match="is a directory"):
        read_edits(tmp_path)


def test_many_unknown_names_cost_little_time(write: WriteFile) -> None:
    names = [f"Op{i}" for i in range(100_000)]
    library = Library("lib", {f"Known{i}": "gray" for i in range(1500)})
    warnings = warnings_of(write(json.dumps({"white-list": {"to-add": names}})), library)
    assert len(warnings) == 101 and warnings[-1].message == "99900 more findings of this kind"


def test_closest_names_are_similar_and_not_equal() -> None:
    ops = ["MatMul", "BatchMatMul", "Softmax", "Conv", "conv"]
    assert closest_names("Matmul", ops)[0] == "MatMul"
    assert closest_names("Conv", ops) == ["conv"]
    assert closest_names("Softmaks", ops) == ["Softmax"]
    assert closest_names("zzz", ops) == []
    assert closest_names("x" * 10_000_000, ops) == []


NAMES = ["A", "B", "C", "D"]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["white", "black", "gray"])),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(map(sorted, LEGAL_COMBINATIONS)))),
)
def test_legal_edits_agree_with_the_data(before: dict[str, ListName], actions_by_op: dict[str, list[str]]) -> None:
    """Rule S2.3: Removals act first, then additions."""
    from mixlist.files.jsonc import parse
    from mixlist.lists.modify_mixlist import parse_edits

    content: dict[str, dict[str, list[str]]] = {}
    for op, actions in actions_by_op.items():
        for action in actions:
            verb, color = action.split("-")
            key = "to-add" if verb == "add" else "to-remove"
            content.setdefault(f"{color}-list", {}).setdefault(key, []).append(op)
    edits, findings = parse_edits(parse(json.dumps(content), "f"))
    assert not findings
    lists, _ = apply_edits(Library("lib", before), edits)
    by_actions = {frozenset(c["actions"]): c for c in COMBINATIONS}
    for op in NAMES:
        start = before.get(op, "gray")
        if op in actions_by_op:
            assert lists.list_of(op) == by_actions[frozenset(actions_by_op[op])]["by_default_list"][start]["result"]
        else:
            assert lists.list_of(op) == start
