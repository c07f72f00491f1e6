"""Folders of list files: the kind of each file, and the files that are no list files."""

from __future__ import annotations

from pathlib import Path

import pytest

import mixlist
from mixlist.errors import FileError
from mixlist.lists.detect_kind import find_list_files

LIBRARY = '{"Add": {"precision_reduce": {"flag": "true"}}}'
FILES = {
    "lists/m.json": '{"black-list": {"to-add": ["Add"]}}',
    "lists/empty.json": "{}",
    "lists/damaged.json": "{",
    "lists/package.json": '{"name": "x", "scripts": {"a": "b"}}',
    "lists/tags.json": '["a"]',
    "lists/schemas/modify-mixlist.json": Path(__file__).parents[2].joinpath("schemas/modify-mixlist.json").read_text(),
    "lists/keep_dtype.cfg": "/fc/MatMul\n",
    "lists/rules.txt": "OpType::Add\n",
    "lists/types.ini": "a::InputDtype:,OutputDtype:fp16\n",
    "lists/op_precision.ini": "[ByOpType]\nAdd=high_precision\n",
    "lists/README.txt": "read me\n",
    "lists/README.md": "OpType::Add\n",
    "lists/.hidden.json": "{",
    "lists/.git/x.json": "{",
    "lists/b/ops.json": LIBRARY,
    "lists/b/objects.json": '{"Own": {}}',
    "lists/b/damaged.json": "{",
    "lists/b/m.json": '{"white-list": {}}',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "lists"


def test_every_file_is_taken_for_its_kind(folder: Path) -> None:
    list_files, other_files = find_list_files(folder)
    kinds = {Path(file.path).relative_to(folder).as_posix(): file.kind for file in list_files}
    assert kinds == {
        "damaged.json": "auto",
        "empty.json": "modify-mixlist",
        "keep_dtype.cfg": "keep-dtype",
        "m.json": "modify-mixlist",
        "rules.txt": "keep-dtype",
        "types.ini": "customize-dtypes",
        "b": "ops-info",
        "b/m.json": "modify-mixlist",
    }
    (library,) = (file for file in list_files if file.kind == "ops-info")
    assert [Path(path).name for path in library.members] == ["damaged.json", "objects.json", "ops.json"]
    names = ["README.txt", "op_precision.ini", "package.json", "tags.json", "modify-mixlist.json"]
    assert [Path(path).name for path in other_files] == names


def test_a_report_of_a_folder_has_a_report_for_each_file(folder: Path) -> None:
    report = mixlist.validate(folder)
    assert report.kind == "folder" and len(report.parts) == 8
    codes = {(Path(part.path).name, finding.code) for part in report.parts for finding in part.findings}
    assert codes == {("damaged.json", "ML001"), ("b", "ML001")}
    assert len(report.findings) == 2
    by_file = {Path(part.path).relative_to(folder).as_posix(): part.kind for part in report.by_file()}
    assert by_file["b/damaged.json"] == "ops-info"


def test_a_folder_that_is_one_library_has_one_report(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(LIBRARY)
    (tmp_path / "b.json").write_text(LIBRARY.replace("true", "false"))
    report = mixlist.validate(tmp_path)
    assert (report.kind, [finding.code for finding in report.findings]) == ("ops-info", ["ML206"])


def test_the_names_of_a_library_in_a_mixed_folder_are_not_loaded_with_the_other_files(folder: Path) -> None:
    (folder / "b" / "damaged.json").unlink()
    (folder / "damaged.json").unlink()
    findings = mixlist.validate(folder, ops_info="onnx").findings
    assert [finding.code for finding in findings] == ["ML402"]  # of the library: Add is a name of both spaces


@pytest.mark.parametrize("name", ["notes.txt", "package.json", ".m.json"])
def test_a_folder_without_a_list_file_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES["lists/package.json"])
    with pytest.raises(FileError, match="holds no list file"):
        find_list_files(tmp_path)


def test_a_vocabulary_that_is_too_large_is_no_list_file(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{}")
    (tmp_path / "vocabulary.json").write_text('["' + '","'.join("a" * 500_001) + '"]')
    _, other_files = find_list_files(tmp_path)
    assert [Path(path).name for path in other_files] == ["vocabulary.json"]


@pytest.mark.parametrize(
    ("text", "is_guess"),
    [
        ("# keep these\n/fc/MatMul\n\n", True),
        ("/fc/MatMul # second\r\n  MatMul_12\n", True),
        ("bert/encoder/layer.0/dense\n", True),
        ("n32\nfc\n", True),
        ("p2o.Softmax.0\n", True),
        ("1.0\n2.5.1\n", False),
        ("0.5\n12\n", False),
        ("# only a comment\n", False),
        ("", False),
        ("read me\n/fc/MatMul\n", False),
        ("cat\ndog\n", False),
        ("[paths]\ndata=/a/b\n", False),
        ("images/1.png\n", False),
        ("https://example.org/a_1\n", False),
        ("numpy==2\n", False),
    ],
)
def test_a_file_whose_lines_can_be_names_of_nodes_is_a_guess(tmp_path: Path, text: str, is_guess: bool) -> None:
    (tmp_path / "m.json").write_text("{}")
    (tmp_path / "high.cfg").write_bytes(text.encode())
    list_files, other_files = find_list_files(tmp_path)
    guesses = [(Path(file.path).name, file.kind) for file in list_files if file.is_guess]
    assert guesses == ([("high.cfg", "keep-dtype")] if is_guess else [])
    assert [Path(path).name for path in other_files] == ([] if is_guess else ["high.cfg"])


def test_a_comment_does_not_hide_a_rule(tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_text("# keep these\n# two lines\nOpType::Add\n")
    (tmp_path / "b.cfg").write_text("# types\na::InputDtype:,OutputDtype:fp16\n")
    assert [(file.kind, file.is_guess) for file in find_list_files(tmp_path)[0]] == [
        ("keep-dtype", False),
        ("customize-dtypes", False),
    ]


def test_a_guess_is_reported_and_checked_but_left_out_without_its_warning(tmp_path: Path) -> None:
    (tmp_path / "high.cfg").write_text("# keep these\n/fc/MatMul\n/fc/MatMul\n")
    report = mixlist.validate(tmp_path)
    assert [finding.code for finding in report.findings] == ["ML015", "ML303", "ML304"] and report.skipped == ()
    message = "every line can be the name of a node, so the file is checked as a keep_dtype file"
    assert report.findings[0].message == message
    report = mixlist.validate(tmp_path, ignore="ML015")
    assert report.findings == () and [Path(path).name for path in report.skipped] == ["high.cfg"]


SWAPPED = '{"to-add": {"black-list": ["Softmax"]}}'


@pytest.mark.parametrize("text", [SWAPPED, '{"to-remove": ["Softmax"]}', '{"lists": {"gray-list": {}}}'])
def test_any_key_word_shows_a_modify_mixlist(tmp_path: Path, text: str) -> None:
    """Rule S2.1: Three lists with two actions each. A file with swapped keys is a modify_mixlist, too."""
    path = tmp_path / "list.json"
    path.write_text(text)
    for report in (mixlist.validate(path), mixlist.validate(tmp_path).parts[0]):
        assert (report.kind, {finding.code for finding in report.findings}) == ("modify-mixlist", {"ML101"})


def test_swapped_keys_have_a_hint_about_their_order(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(SWAPPED)
    (finding,) = mixlist.validate(tmp_path / "list.json").findings
    assert str(finding.hint).startswith('the list comes first: {"black-list": {"to-add": [...]}}')


def test_a_kind_counts_for_the_files_of_a_folder_that_have_its_ending(folder: Path) -> None:
    report = mixlist.validate(folder, "modify-mixlist")
    names = {Path(part.path).relative_to(folder).as_posix() for part in report.parts}
    assert names == {name.removeprefix("lists/") for name in FILES if name.endswith(".json") and "/." not in name}
    assert {part.kind for part in report.parts} == {"modify-mixlist"}
    codes = {Path(part.path).relative_to(folder).as_posix(): [f.code for f in part.findings] for part in report.parts}
    assert codes["tags.json"] == ["ML102"] and codes["b/ops.json"] == ["ML109"] and codes["m.json"] == []
    assert {Path(path).name for path in report.skipped} == {
        "README.txt",
        "keep_dtype.cfg",
        "op_precision.ini",
        "rules.txt",
        "types.ini",
    }
    rules = mixlist.validate(folder, "keep-dtype")
    assert {Path(part.path).name for part in rules.parts} == {
        "README.txt",
        "keep_dtype.cfg",
        "op_precision.ini",
        "rules.txt",
        "types.ini",
    }
    assert mixlist.validate(folder / "b", "ops-info").kind == "ops-info"
