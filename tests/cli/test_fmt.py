"""``mixlist fmt``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.systems import posix_only

LOOSE = '{ // why\n "white-list": {"to-remove": ["A",]}, "black-list": {"to-add": ["A"]} }'
STRICT = """{
  "black-list": {
    "to-add": [
      "A"
    ]
  },
  "white-list": {
    "to-remove": [
      "A"
    ]
  }
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loose.json").write_text(LOOSE)
    (tmp_path / "strict.json").write_text(STRICT)
    return tmp_path


def test_fmt_rewrites_only_files_that_are_not_canonical(run, folder: Path) -> None:
    before = (folder / "strict.json").stat()
    completed = run("fmt", "loose.json", "strict.json")
    assert (completed.status, completed.out) == (0, "")
    assert (folder / "loose.json").read_text() == STRICT
    assert (folder / "strict.json").stat().st_mtime_ns == before.st_mtime_ns
    assert "loose.json: rewritten" in completed.err
    assert "ML011" in completed.err, "the lost comment is reported"
    assert "strict.json" not in completed.err


def test_fmt_check_changes_nothing(run, folder: Path) -> None:
    completed = run("fmt", "--check", ".")
    assert completed.status == 1
    assert "loose.json: not in the canonical form" in completed.err
    assert "strict.json: " not in completed.err
    assert (folder / "loose.json").read_text() == LOOSE
    assert run("fmt", "--check", "strict.json").status == 0


def test_fmt_formats_standard_input(run, folder: Path) -> None:
    completed = run("fmt", "-", stdin=LOOSE)
    assert (completed.status, completed.out) == (0, STRICT)
    assert run("fmt", "--check", "-", stdin=LOOSE).status == 1


def test_fmt_makes_node_rules_without_a_rule_an_empty_file(run, folder: Path) -> None:
    """The empty file is in the canonical form."""
    (folder / "rules.txt").write_text("# no rule yet\n")
    assert run("fmt", "rules.txt").status == 0
    assert (folder / "rules.txt").read_bytes() == b""
    completed = run("fmt", "--check", "rules.txt")
    assert (completed.status, completed.err) == (0, "")


def test_fmt_reports_every_file_that_it_cannot_read(run, folder: Path) -> None:
    (folder / "bad.json").write_text("{")
    completed = run("fmt", "bad.json", "nothing.json", "loose.json")
    assert completed.status == 2
    assert "bad.json:1:" in completed.err
    assert "nothing.json: no such file" in completed.err
    assert (folder / "loose.json").read_text() == STRICT
    assert (folder / "bad.json").read_text() == "{"


def test_fmt_reports_a_folder_without_a_list_file(run, folder: Path) -> None:
    (folder / "empty").mkdir()
    completed = run("fmt", "empty")
    assert completed.status == 2
    assert "empty: the folder holds no list file" in completed.err


def test_fmt_takes_the_list_files_of_a_folder_that_validate_takes(run, folder: Path) -> None:
    other_texts = {
        "package.json": '{"version": 3}',
        "blacks.json": '{"blacks": {"x": []}}',
        "keep_dtype.cfg": "# a\nb\n",
    }
    for name, text in other_texts.items():
        (folder / name).write_text(text)
    (folder / "ops").mkdir()
    (folder / "ops" / "add.json").write_text('{"Add":{}}')
    completed = run("fmt", "--check", ".")
    lines = completed.err.splitlines()
    changed = [line.partition(":")[0] for line in lines if "not in the canonical form" in line]
    assert (completed.status, changed) == (1, ["loose.json", str(Path("ops/add.json"))])
    assert [line for line in lines if line.endswith("skipped")] == [
        "blacks.json: no list file, skipped",
        "package.json: no list file, skipped",
    ]
    assert run("fmt", ".").status == 0 and run("fmt", "--check", ".").status == 0
    assert {name: (folder / name).read_text() for name in other_texts} == other_texts
    # A file that is named must be a list file.
    assert run("fmt", "--check", "package.json").status == 2


def test_fmt_refuses_a_damaged_file_of_a_folder(run, folder: Path) -> None:
    (folder / "damaged.json").write_text("{")
    completed = run("fmt", "--check", ".")
    assert completed.status == 2 and "damaged.json:1:2: error ML001" in completed.err


@posix_only
def test_fmt_keeps_permissions_and_follows_links(run, folder: Path) -> None:
    (folder / "loose.json").chmod(0o640)
    (folder / "link.json").symlink_to("loose.json")
    assert run("fmt", "link.json").status == 0
    assert (folder / "link.json").is_symlink()
    assert (folder / "loose.json").read_text() == STRICT
    assert (folder / "loose.json").stat().st_mode & 0o777 == 0o640


def test_fmt_does_not_overwrite_an_edit_of_another_program(run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mixlist.lists import fmt

    find_lost_comments = fmt.find_lost_comments

    def edit_meanwhile(text: str, path: str) -> object:
        (folder / "loose.json").write_text("{}")
        return find_lost_comments(text, path)

    monkeypatch.setattr(fmt, "find_lost_comments", edit_meanwhile)
    completed = run("fmt", "loose.json")
    assert completed.status == 2 and "loose.json: another program changed the file meanwhile" in completed.err
    assert (folder / "loose.json").read_text() == "{}"
