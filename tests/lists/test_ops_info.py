"""Operator information libraries (Rules S1.1 to S1.4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, ListError
from mixlist.lists.library import Library
from mixlist.lists.ops_info import load_ops_info


def load_text(tmp_path: Path, text: str) -> tuple[Library, list[Diagnostic]]:
    """Return the library in a file with this text, and the warnings about it."""
    path = tmp_path / "lib.json"
    path.write_text(text, "utf-8")
    return load_ops_info(path)


def entry(flag: str) -> str:
    """Return the JSON text of an entry with this flag."""
    return json.dumps({"input0": {"dtype": "float16"}, "precision_reduce": {"flag": flag}})


def test_the_flag_puts_an_op_type_on_one_of_three_lists(tmp_path: Path) -> None:
    """Rule S1.1: The flag puts an op type on a list."""
    text = f'{{"A": {entry("true")},\n "B": {entry("false")},\n "C": {{"opFile": {{"value": "c"}}}}}}'
    library, warnings = load_text(tmp_path, text)
    assert library.lists == {"A": "white", "B": "black", "C": "gray"}
    assert not warnings
    column = column_of("false", text)
    assert str(library.place("B")) == f"{tmp_path}/lib.json:2:{column}"
    assert str(library.place("C")) == f"{tmp_path}/lib.json:3:2"
    assert library.place("D") is None


def column_of(part: str, text: str) -> int:
    """Return the column of the string ``part`` on the only line that holds it."""
    (line,) = [line for line in text.splitlines() if f'"{part}"' in line]
    return line.index(f'"{part}"') + 1


@pytest.mark.parametrize(("flag", "expected"), [(" true\n", "white"), ("TRUE", "white"), ("\tFalse ", "black")])
def test_flags_are_read_without_case_and_blanks(tmp_path: Path, flag: str, expected: str) -> None:
    """Rule S1.2: Unusual flags are read or refused, never guessed."""
    library, warnings = load_text(tmp_path, f'{{"A": {entry(flag)}}}')
    assert library.lists == {"A": expected}
    assert not warnings


@pytest.mark.parametrize("flag", ["true", "false"])
def test_a_boolean_flag_is_refused(tmp_path: Path, flag: str) -> None:
    """Rule S1.2: Unusual flags are read or refused, never guessed. The engine converts each value to a string."""
    with pytest.raises(ListError) as caught:
        load_text(tmp_path, f'{{"A": {{"precision_reduce": {{"flag": {flag}}}}}}}')
    (finding,) = caught.value.diagnostics
    assert isinstance(finding, Diagnostic)
    assert (finding.code, finding.severity, finding.line, finding.column) == ("ML204", "error", 1, 37)


def test_precision_reduce_without_flag_is_gray_with_a_warning(tmp_path: Path) -> None:
    """Rule S1.2: Unusual flags are read or refused, never guessed."""
    library, (warning,) = load_text(tmp_path, '{"A": {"precision_reduce": {}}}')
    assert library.lists == {"A": "gray"}
    assert (warning.code, warning.column) == ("ML205", 8)


def test_a_misspelled_precision_reduce_warns(tmp_path: Path) -> None:
    library, (warning,) = load_text(tmp_path, '{"A": {"precision-Reduced": {"flag": "true"}}}')
    assert library.lists == {"A": "gray"}
    assert (warning.code, warning.hint) == ("ML209", 'did you mean "precision_reduce"?')


@pytest.mark.parametrize(
    ("text", "code", "column", "message_part"),
    [
        ('{"A": {"precision_reduce": {"flag": "maybe"}}}', "ML203", 37, 'is the string "maybe"'),
        ('{"A": {"precision_reduce": {"flag": ""}}}', "ML203", 37, 'is the string ""'),
        ('{"A": {"precision_reduce": {"flag": 1}}}', "ML203", 37, "is the number 1"),
        ('{"A": {"precision_reduce": {"flag": null}}}', "ML203", 37, "is null"),
        ('{"A": {"precision_reduce": "true"}}', "ML202", 28, 'is the string "true"'),
        ('{"A": {"precision_reduce": null}}', "ML202", 28, "is null"),
        ('{"A": "true"}', "ML201", 7, 'is the string "true"'),
        ("[]", "ML201", 1, "the file is an array"),
        ('"x"', "ML201", 1, 'the file is the string "x"'),
        ('{"white-list": {"to-add": ["A"]}}', "ML208", 1, "this is a modify_mixlist"),
    ],
)
def test_an_invalid_file_is_refused_at_its_position(
    tmp_path: Path, text: str, code: str, column: int, message_part: str
) -> None:
    with pytest.raises(ListError) as caught:
        load_text(tmp_path, text)
    (finding,) = caught.value.diagnostics
    assert isinstance(finding, Diagnostic)
    assert (finding.code, finding.severity, finding.line, finding.column) == (code, "error", 1, column)
    assert message_part in finding.message and finding.hint


def test_names_that_differ_in_case_are_different_op_types(tmp_path: Path) -> None:
    """Rule S1.4: Names are exact."""
    library, _ = load_text(tmp_path, f'{{"MatMul": {entry("true")}, "Matmul": {entry("false")}}}')
    assert library.lists == {"MatMul": "white", "Matmul": "black"}


def test_an_empty_library_warns(tmp_path: Path) -> None:
    library, (warning,) = load_text(tmp_path, "{}")
    assert library.lists == {} and warning.code == "ML207"


def test_all_errors_of_a_file_are_reported(tmp_path: Path) -> None:
    ops = {f"Op{i}": {"precision_reduce": {"flag": "x"}} for i in range(250)}
    with pytest.raises(ListError, match=r"\(and 100 more\)") as caught:
        load_text(tmp_path, json.dumps(ops))
    last = caught.value.diagnostics[-1]
    assert isinstance(last, Diagnostic)
    assert last.message == "150 more errors like these"


def test_a_directory_is_one_library(tmp_path: Path) -> None:
    """Rule S1.3: A directory is one library."""
    (tmp_path / "b.json").write_text(f'{{"B": {entry("false")}}}')
    (tmp_path / "a.json").write_text(f'{{"A": {entry("true")}}}')
    (tmp_path / "notes.txt").write_text("not read")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "c.json").write_text("not read")
    (tmp_path / "folder.json").mkdir()
    library, warnings = load_ops_info(tmp_path)
    assert library.lists == {"A": "white", "B": "black"} and not warnings
    assert library.name == str(tmp_path)
    column = column_of("false", (tmp_path / "b.json").read_text())
    assert str(library.place("B")) == f"{tmp_path}/b.json:1:{column}"


def test_a_directory_can_have_one_file_per_op_type(tmp_path: Path) -> None:
    for number in range(300):
        flag = "true" if number % 2 else "false"
        (tmp_path / f"op{number}.json").write_text(f'{{"Op{number}": {entry(flag)}}}')
    library, _ = load_ops_info(tmp_path)
    assert len(library.lists) == 300
    assert library.lists["Op7"] == "white" and library.lists["Op8"] == "black"


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("aic-ascend910b-ops-info-legacy.json", "aic-ascend910b-ops-info.json"),
        ("aic-ascend910b-ops-info-legacy.json", "aic-ascend910b-ops-info-cv.json"),
        ("z.json", "ab.json"),
        ("a.json", "b.json"),
    ],
)
def test_the_last_file_in_the_order_of_the_engine_decides(tmp_path: Path, first: str, last: str) -> None:
    """Rule S1.3: A directory is one library (``LoadOpInfo`` in ``sub_op_info_store.cc`` of hicann/ge)."""
    (tmp_path / last).write_text(f'{{\n"A": {entry("false")}}}')
    (tmp_path / first).write_text(f'{{"A": {entry("true")}}}')
    (tmp_path / ".hidden.json").write_text("not read")
    library, (finding,) = load_ops_info(tmp_path)
    assert library.lists == {"A": "black"}
    assert (finding.code, finding.severity) == ("ML206", "warning")
    column = column_of("false", (tmp_path / last).read_text())
    assert finding.place == str(library.place("A")) == f"{tmp_path}/{last}:2:{column}"
    column = column_of("true", (tmp_path / first).read_text())
    assert f'"A" is black here but white at {tmp_path}/{first}:1:{column}' in finding.message
    assert ("no fixed order" in (finding.hint or "")) == (first == "a.json")


def test_an_op_type_can_have_the_same_flag_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"A": {entry("true")}}}')
    (tmp_path / "b.json").write_text(f'{{"A": {entry(" TRUE")}}}')
    assert load_ops_info(tmp_path)[0].lists == {"A": "white"}


def test_errors_of_all_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"A": 1}')
    (tmp_path / "c.json").write_bytes(b'{"\xff": {}}')
    with pytest.raises(ListError) as caught:
        load_ops_info(tmp_path)
    findings = [f for f in caught.value.diagnostics if isinstance(f, Diagnostic)]
    assert {(f.code, Path(f.path or "").name) for f in findings} == {
        ("ML001", "a.json"),
        ("ML201", "b.json"),
        ("ML002", "c.json"),
    }


def test_a_directory_without_json_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"the directory holds no \.json file"):
        load_ops_info(tmp_path)


def test_a_broken_link_in_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to(tmp_path / "missing")
    with pytest.raises(FileError, match="no such file"):
        load_ops_info(tmp_path)
