"""Library edits that run at the same time, are killed, or meet the edit of another program: nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.lists import ops_info
from mixlist.lists.ops_info import set_flags
from tests.support.killed_runs import TEMPORARY_FILE, CommandServer
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
def test_after_a_kill_the_backup_restores_the_library(tmp_path: Path, server: CommandServer) -> None:
    """Rule S1.6: The backup is complete before the first file of the library is replaced."""
    kills_between_files = 0
    for number in range(1, 200):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_library(folder / "lib", files=2)
        originals = {path.name: path.read_bytes() for path in (folder / "lib").iterdir()}
        run = server.run(SET_ALL_FALSE, folder, kill_before=number)
        if run.status == 0:
            break
        values = {flag for file in flags(folder / "lib") for op, flag in file.items() if op in OPS}
        kills_between_files += len(values) > 1
        if values != {"true"}:
            for name in originals:
                shutil.copy(folder / "backup" / name, folder / "lib" / name)
        assert {name: (folder / "lib" / name).read_bytes() for name in originals} == originals
        assert server.run(SET_ALL_FALSE, folder).status == 0
        assert {flag for file in flags(folder / "lib") for op, flag in file.items() if op in OPS} == {"false"}
        # A killed edit leaves temporary files, which no engine loads.
        other_names = {path.name for path in (folder / "lib").iterdir()} - originals.keys()
        assert all(TEMPORARY_FILE.fullmatch(name) for name in other_names)
    assert kills_between_files and number > 10  # two files are saved, staged and replaced


def test_a_file_that_changes_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S1.6: A change by another program, which does not lock the library, is not lost."""
    write_library(tmp_path / "lib")
    copy_original = ops_info._copy_original

    def copy_and_change(*args: object) -> None:
        copy_original(*args)  # type: ignore[arg-type]
        (tmp_path / "lib" / "part3.json").write_text("{}")

    monkeypatch.setattr(ops_info, "_copy_original", copy_and_change)
    with pytest.raises(FileError, match=r"part3\.json: .*changed"):
        set_flags(tmp_path / "lib", dict.fromkeys(OPS, "false"), tmp_path / "backup")
    files = sorted((tmp_path / "lib").iterdir())
    assert [path.name for path in files] == [f"part{number}.json" for number in range(6)]
    assert json.loads(files[3].read_text()) == {}
    assert {flag for file in flags(tmp_path / "lib") for op, flag in file.items() if op in OPS} == {"true"}
