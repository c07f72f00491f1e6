"""Library edits that run at the same time or are killed: no edit is lost, and no library stays half edited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.lists import library_writes
from mixlist.lists.ops_info_edit import set_flags
from tests.support.killed_runs import CommandServer, KillCampaign, KilledCommand
from tests.support.libraries import OPS, flags, write_library
from tests.support.systems import posix_only

SET_ALL_FALSE = ["ops-info", "set", "lib", *(f"{op}=false" for op in OPS), "--backup", "backup"]


needs_fork = posix_only  # the server of commands forks


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    with CommandServer() as server:
        yield server


@needs_fork
def test_no_edit_is_lost_if_several_run_at_the_same_time(tmp_path: Path, server: CommandServer) -> None:
    """Rule S1.6: Edits of one library wait for each other."""
    for _ in range(5):
        write_library(tmp_path / "lib", files=2)
        commands = [["ops-info", "set", "lib", f"{op}=false", "--backup", f"backup-{op}"] for op in OPS]
        runs = server.run_all([(command, tmp_path) for command in commands])
        assert [run.status for run in runs] == [0] * len(OPS), runs
        assert {flag for file in flags(tmp_path / "lib") for flag in file.values()} == {"false"}
        assert [path.name for path in sorted((tmp_path / "lib").iterdir())] == ["part0.json", "part1.json"]


@needs_fork
def test_a_kill_at_any_operation_is_finished_or_undone_by_the_next_edit(tmp_path: Path) -> None:
    """Rule S1.6: The next edit finishes or undoes one that was killed."""
    command = KilledCommand("ops-info set", SET_ALL_FALSE, lambda folder: write_library(folder / "lib", files=2))
    counts = KillCampaign(command, tmp_path).kill_at_each_operation()
    assert counts.wrong == []
    assert counts.killed > 10  # two files are saved, staged and replaced


@needs_fork
def test_an_edit_of_other_op_types_finishes_a_killed_one_too(tmp_path: Path, server: CommandServer) -> None:
    """Rule S1.6: The next edit finishes or undoes one that was killed."""
    final_flags, report_count = [], 0
    for number in range(1, 200):
        write_library(tmp_path / "lib", files=2)
        run = server.run(SET_ALL_FALSE, tmp_path, kill_before=number)
        second = server.run(["ops-info", "set", "lib", "Own0=true", "--backup", "backup"], tmp_path)
        report_count += "lib: completed the edit that was interrupted: Add=false" in second.output
        files = flags(tmp_path / "lib")
        assert files[0].pop("Own0") == "true"
        values = {flag for file in files for op, flag in file.items() if op in OPS}
        assert len(values) == 1, f"killed before operation {number}: half edited"
        assert {path.suffix for path in (tmp_path / "lib").iterdir()} == {".json"}
        final_flags += values
        if run.status == 0:
            break
    # An early kill leaves the old flags everywhere, a later one the new flags.
    assert final_flags == sorted(final_flags, reverse=True) and set(final_flags) == {"true", "false"}
    assert report_count > 0


def test_a_file_that_changes_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S1.6: A change by another program, which does not lock the library, is not lost."""
    write_library(tmp_path / "lib")
    copy_original = library_writes._copy_original

    def copy_and_change(*args: object) -> None:
        copy_original(*args)  # type: ignore[arg-type]
        (tmp_path / "lib" / "part3.json").write_text("{}")

    monkeypatch.setattr(library_writes, "_copy_original", copy_and_change)
    with pytest.raises(FileError, match=r"part3\.json: .*changed"):
        set_flags(tmp_path / "lib", dict.fromkeys(OPS, "false"), tmp_path / "backup")
    files = sorted((tmp_path / "lib").iterdir())
    assert [path.name for path in files] == [f"part{number}.json" for number in range(6)]
    assert json.loads(files[3].read_text()) == {}
    assert {flag for file in flags(tmp_path / "lib") for op, flag in file.items() if op in OPS} == {"true"}


@pytest.mark.parametrize(
    "record",
    [
        "{",
        "[]",
        '{"changes": {"Add": "yes"}, "files": []}',
        '{"changes": {"Add": "true"}, "files": ["../other.json"]}',
        '{"changes": {"Add": "true"}, "files": ["/other.json"]}',
        '{"changes": {"Add": "true"}, "files": ["other.txt"]}',
        '{"changes": {"Add": "true"}, "files": ["a\\u0000.json"]}',
        '{"changes": {"Add": ["true"]}, "files": [3]}',
    ],
)
def test_an_invalid_record_is_refused(tmp_path: Path, record: str) -> None:
    write_library(tmp_path / "lib")
    (tmp_path / "other.json").write_text('{"Add": {}}')
    (tmp_path / "lib" / library_writes.RECORD_FILE).write_text(record)
    with pytest.raises(FileError, match="record of an interrupted edit cannot be used"):
        set_flags(tmp_path / "lib", {"Add": "false"}, tmp_path / "backup")
    assert (tmp_path / "other.json").read_text() == '{"Add": {}}'


def test_an_interrupted_edit_is_reported_and_its_record_removed(tmp_path: Path) -> None:
    write_library(tmp_path / "lib")
    record = {"changes": {"Add": "false", "Missing": "true"}, "files": ["part1.json", "part2.json", "missing.json"]}
    (tmp_path / "lib" / library_writes.RECORD_FILE).write_text(json.dumps(record))
    (tmp_path / "lib" / "part0.json").write_text('{"Relu": {"precision_reduce": {"flag": "true"}}}')
    for name in ("part3.json", "part4.json", "part5.json"):
        (tmp_path / "lib" / name).unlink()
    changed, finished = set_flags(tmp_path / "lib", {"Relu": "none"}, tmp_path / "backup")
    assert finished == {"Add": "false"}
    assert [path.name for path in changed] == ["part0.json", "part1.json", "part2.json"]
    assert sorted(path.name for path in (tmp_path / "lib").iterdir()) == ["part0.json", "part1.json", "part2.json"]
    assert '"Relu": {}' in (tmp_path / "lib" / "part0.json").read_text()
