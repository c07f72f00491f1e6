"""Editing a library in place: only the given flags change (Rule S1.5)."""

from __future__ import annotations

import errno
import json
import os
import stat
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.errors import FileError, ListError, UsageError
from mixlist.files.atomic_writes import NewFile
from mixlist.lists.ops_info import load_ops_info, set_flags
from tests.support.systems import posix_only

LIBRARY = """{
    "Add": {
        "input0": {
            "dtype": "float16,float"
        },
        "precision_reduce": {
            "flag": "true"
        },
        "slicePattern":   {"value": "elemwise"}
    },
    "Relu": {
        "attr": 1.50
    },
    "Mul": {},
    "Sub": {
        "precision_reduce": {
            "flag": " FALSE "
        }
    }
}
"""


def edit(tmp_path: Path, text: str | bytes, **changes: str) -> bytes:
    """Return the bytes of a library after the changes."""
    path = tmp_path / "lib" / "ops.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    set_flags(path, changes, tmp_path / "backup")
    return path.read_bytes()


def test_only_the_flag_changes(tmp_path: Path) -> None:
    """Rule S1.5: Editing a library changes only the flags."""
    after = edit(tmp_path, LIBRARY, Add="false")
    assert after.decode() == LIBRARY.replace('"flag": "true"', '"flag": "false"')


def test_a_file_that_has_the_flags_already_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ops.json"
    path.write_text(LIBRARY)
    before = path.stat()
    assert set_flags(path, {"Add": "true", "Sub": "false", "Relu": "none"}, tmp_path.parent / "backup") == []
    after = path.stat()  # without the time of access, which reading changes
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert not (tmp_path.parent / "backup").exists()


def test_a_new_flag_has_the_layout_of_the_others(tmp_path: Path) -> None:
    after = edit(tmp_path, LIBRARY, Relu="true", Mul="false").decode()
    relu = '"attr": 1.50,\n        "precision_reduce": {\n            "flag": "true"\n        }\n    },'
    mul = '"Mul": {\n        "precision_reduce": {\n            "flag": "false"\n        }\n    },'
    assert after == LIBRARY.replace('"attr": 1.50\n    },', relu).replace('"Mul": {},', mul)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"A": {"precision_reduce": {"flag": "true"}, "b": 1}}', '{"A": {"b": 1}}'),
        ('{"A": {"b": 1, "precision_reduce": {"flag": "true"}}}', '{"A": {"b": 1}}'),
        ('{"A": {"b": 1, "precision_reduce": {}, "c": 2}}', '{"A": {"b": 1, "c": 2}}'),
        ('{"A":{"precision_reduce":{"flag":"true"}}}', '{"A":{}}'),
        ('{"A": {\n  "precision_reduce": {}\n}}', '{"A": {}}'),
        ('{"A": {\n  "precision_reduce": {},\n  "b": 1\n}}', '{"A": {\n  "b": 1\n}}'),
        ('{"A": {\n  "b": 1,\n  "precision_reduce": {}\n}}', '{"A": {\n  "b": 1\n}}'),
        ('{"A": {\n  "b": 1, // of b\n  "precision_reduce": {},\n}}', '{"A": {\n  "b": 1, // of b\n}}'),
        ('{"A": {\n  "b": 1, // of b\n  "precision_reduce": {}\n}}', '{"A": {\n  "b": 1 // of b\n}}'),
        ('{"A": {"precision_reduce": {}, /* b */ "b": 1}}', '{"A": {/* b */ "b": 1}}'),
        ('{"A": {"precision_reduce": {},}}', '{"A": {}}'),
        ('{"A": {/* a */ "precision_reduce": {},}}', '{"A": {/* a */ }}'),
        ('{"A": {"precision_reduce": {} /* a, b */}}', '{"A": { /* a, b */}}'),
        ('{"A": {"precision_reduce": {} /* a, b */, // c, d\n}}', '{"A": { /* a, b */ // c, d\n}}'),
    ],
)
def test_none_removes_precision_reduce(tmp_path: Path, text: str, expected: str) -> None:
    assert edit(tmp_path, text, A="none").decode() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"A": {}}', '{"A": {"precision_reduce": {"flag": "true"}}}'),
        ('{"A":{"b":1}}', '{"A":{"b":1,"precision_reduce":{"flag":"true"}}}'),
        ('{"A":{"b":{"c":1}}}', '{"A":{"b":{"c":1},"precision_reduce":{"flag":"true"}}}'),
        ('{"A": {"b": 1,}}', '{"A": {"b": 1, "precision_reduce": {"flag": "true"},}}'),
        ('{"A": {"precision_reduce": {}}}', '{"A": {"precision_reduce": {"flag": "true"}}}'),
        ('{"A": {"precision_reduce": {"x": 1}}}', '{"A": {"precision_reduce": {"x": 1, "flag": "true"}}}'),
        (
            '{"A": {\r\n\t"b": 1 // b\r\n}}',
            '{"A": {\r\n\t"b": 1,\r\n\t"precision_reduce": {\r\n\t\t"flag": "true"\r\n\t} // b\r\n}}',
        ),
        ('{"A": { "x:\\"" : [1] }}', '{"A": { "x:\\"" : [1], "precision_reduce" : { "flag" : "true" } }}'),
    ],
)
def test_true_adds_precision_reduce(tmp_path: Path, text: str, expected: str) -> None:
    assert edit(tmp_path, text, A="true").decode() == expected


@pytest.mark.parametrize("marks", [1, 2])
def test_byte_order_marks_and_line_ends_stay(marks: int, tmp_path: Path) -> None:
    text = BOM_UTF8 * marks + LIBRARY.replace("\n", "\r\n").encode()
    after = edit(tmp_path, text, Relu="false", Add="none")
    assert after.startswith(BOM_UTF8 * marks + b"{\r\n")
    assert after.count(b"\n") == after.count(b"\r\n")


def test_an_op_in_two_files_changes_in_both(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("a.json", "b.json"):
        (folder / name).write_text('{"A": {"precision_reduce": {"flag": "true"}}}')
    (folder / "c.json").write_text('{"C": {}}')
    changed = set_flags(folder, {"A": "false"}, tmp_path / "backup")
    assert changed == [folder / "a.json", folder / "b.json"]
    assert load_ops_info(folder)[0].lists == {"A": "black", "C": "gray"}
    assert sorted(p.name for p in (tmp_path / "backup").iterdir()) == ["a.json", "b.json"]


def test_backups_hold_the_original_and_are_never_overwritten(tmp_path: Path) -> None:
    edit(tmp_path, LIBRARY, Add="false")
    edit(tmp_path, LIBRARY + "\n", Add="none")
    backup = tmp_path / "backup"
    assert sorted(p.name for p in backup.iterdir()) == ["ops.json", "ops.json.1"]
    assert (backup / "ops.json").read_text() == LIBRARY
    assert (backup / "ops.json.1").read_text() == LIBRARY + "\n"


@pytest.mark.parametrize("inside", [".", "deeper", "deeper/still", "../lib"])
@pytest.mark.parametrize("target", ["lib", "lib/ops.json"])
def test_a_backup_inside_the_library_is_refused(tmp_path: Path, inside: str, target: str) -> None:
    """Rule S1.5: Editing a library changes only the flags."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ops.json").write_text(LIBRARY)
    with pytest.raises(UsageError, match="inside the library's own directory"):
        set_flags(tmp_path / target, {"Add": "false"}, tmp_path / "lib" / inside)
    assert (tmp_path / "lib" / "ops.json").read_text() == LIBRARY
    assert not (tmp_path / "lib" / "deeper").exists()


def test_links_are_resolved_before_the_backup_directory_is_checked(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ops.json").write_text(LIBRARY)
    (tmp_path / "way").symlink_to(tmp_path / "lib")
    with pytest.raises(UsageError, match="inside the library's own directory"):
        set_flags(tmp_path / "lib", {"Add": "false"}, tmp_path / "way" / "backup")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.json").symlink_to(tmp_path / "lib" / "ops.json")
    for folder in ("lib", "other"):
        with pytest.raises(UsageError, match="inside the library's own directory"):
            set_flags(tmp_path / "other" / "link.json", {"Add": "false"}, tmp_path / folder)
    set_flags(tmp_path / "other" / "link.json", {"Add": "false"}, tmp_path / "backup")
    assert (tmp_path / "other" / "link.json").is_symlink()
    assert '"flag": "false"' in (tmp_path / "lib" / "ops.json").read_text()


@posix_only
def test_permissions_and_owner_stay(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "ops.json"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
    before = path.stat()
    set_flags(path, {"Add": "false"}, tmp_path / "backup")
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_a_read_only_library_is_refused_also_for_root(tmp_path: Path) -> None:
    """A rename would replace the file: it needs write permission only for the folder."""
    path = tmp_path / "lib" / "ops.json"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    path.chmod(0o444)
    with pytest.raises(FileError, match=r"ops\.json: the library is read-only") as caught:
        set_flags(path, {"Add": "false"}, tmp_path / "backup")
    assert caught.value.hint and "chmod u+w" in caught.value.hint
    assert path.read_text() == LIBRARY
    assert not (tmp_path / "backup").exists()


def test_the_error_about_an_unknown_op_type_has_the_most_similar_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='has no op type "add"') as caught:
        edit(tmp_path, LIBRARY, add="true", Relu="true")
    assert caught.value.hint and caught.value.hint.startswith("did you mean Add")
    assert (tmp_path / "lib" / "ops.json").read_text() == LIBRARY


def test_invalid_arguments_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a flag"):
        edit(tmp_path, LIBRARY, Add="yes")
    with pytest.raises(ListError, match="this is a modify_mixlist"):
        edit(tmp_path, '{"black-list": {"to-add": ["Add"]}}', Add="true")
    with pytest.raises(ListError):
        edit(tmp_path, '{"Add": {}, "Add": {}}', Add="true")
    with pytest.raises(FileError, match="no such file"):
        set_flags(tmp_path / "none.json", {"Add": "true"}, tmp_path.parent / "b")
    with pytest.raises(UsageError, match="standard input"):
        set_flags("-", {"Add": "true"}, tmp_path)


def test_without_a_backup_nothing_is_edited(tmp_path: Path) -> None:
    (tmp_path / "backup").write_text("a file")
    with pytest.raises(FileError, match="cannot be saved"):
        edit(tmp_path, LIBRARY, Add="false")
    assert (tmp_path / "lib" / "ops.json").read_text() == LIBRARY


def test_a_backup_path_that_no_directory_can_have_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    path = tmp_path / "lib" / "ops.json"
    path.write_text(LIBRARY)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for backup in ("a\0b", str(tmp_path / "loop"), "x" * 5000):
        with pytest.raises(FileError):
            set_flags(path, {"Add": "false"}, backup)
    assert path.read_text() == LIBRARY


def test_if_one_file_cannot_be_replaced_all_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    text = '{"A": {"precision_reduce": {"flag": "true"}}}'
    for name in ("a.json", "b.json"):
        (folder / name).write_text(text)

    replace = NewFile.replace

    def replace_on_full_disk(new: NewFile, path: Path) -> None:
        if path.name == "b.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(new, path)

    monkeypatch.setattr(NewFile, "replace", replace_on_full_disk)
    with pytest.raises(FileError, match=r"b\.json: cannot be written: No space left"):
        set_flags(folder, {"A": "false"}, tmp_path / "backup")
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json"]
    assert [(folder / name).read_text() for name in ("a.json", "b.json")] == [text, text]


NAMES = st.sampled_from(["A", "B", 'C"', "D:"])
REDUCE = st.sampled_from([{"flag": "true"}, {"flag": "false"}, {}, {"x": [1], "flag": " True"}])
ENTRIES = st.fixed_dictionaries(
    {}, optional={"a": st.integers(), "precision_reduce": REDUCE, "z": st.just({"deep": {"er": "}"}})}
)


@given(
    st.dictionaries(NAMES, ENTRIES, min_size=1),
    st.dictionaries(NAMES, st.sampled_from(["true", "false", "none"]), min_size=1),
    st.sampled_from([None, 1, "\t"]),
)
def test_only_the_flags_of_the_value_change(
    tmp_path_factory: pytest.TempPathFactory, library: dict[str, Any], changes: dict[str, str], indent: Any
) -> None:
    changes = {op: flag for op, flag in changes.items() if op in library}
    text = json.dumps(library, indent=indent)
    tmp_path = tmp_path_factory.mktemp("edit")
    after = json.loads(edit(tmp_path, text, **changes))
    assert list(after) == list(library)
    for op, entry in library.items():
        other_members = {key: value for key, value in entry.items() if key != "precision_reduce"}
        assert {key: value for key, value in after[op].items() if key != "precision_reduce"} == other_members
        if op not in changes:
            assert after[op] == entry
        elif changes[op] == "none":
            assert "precision_reduce" not in after[op]
        else:
            assert after[op]["precision_reduce"]["flag"].strip().lower() == changes[op]
    new_text = (tmp_path / "lib" / "ops.json").read_text()
    assert json.dumps(after, indent=indent) == new_text  # inserted members have the layout of the others
