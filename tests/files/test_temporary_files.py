"""Files that get their name in one step, and the files of killed processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.files import atomic_writes
from mixlist.files.atomic_writes import check_writable, new_file, remove_abandoned_files, write_atomically
from tests.support.systems import posix_only


@pytest.fixture(params=["without a name", "with a hidden name", "without locks"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test three times: on Linux, on a simulated system without O_TMPFILE, and on a simulated Windows."""
    atomic_writes._prepare_for_unnamed_files.cache_clear()
    if request.param != "without a name":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    if request.param == "without locks":
        monkeypatch.setattr(atomic_writes, "_fcntl", None)
        for name in ("fchown", "fchmod"):
            monkeypatch.delattr(os, name, raising=False)
    yield request.param
    atomic_writes._prepare_for_unnamed_files.cache_clear()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_creates_or_replaces_the_file(tmp_path: Path, system: str) -> None:
    target = tmp_path / "target.json"
    write_atomically(target, b"first")
    assert target.read_bytes() == b"first"
    target.chmod(0o640)
    write_atomically(target, b"second")
    assert target.read_bytes() == b"second"
    assert _names(tmp_path) == ["target.json"]
    if hasattr(atomic_writes.os, "fchmod"):
        assert target.stat().st_mode & 0o777 == 0o640


@posix_only
def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path, system: str) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "target", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640


def test_a_file_without_its_final_name_is_removed(tmp_path: Path, system: str) -> None:
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "target") as new:
        new.file.write(b"text")
        raise ZeroDivisionError
    assert _names(tmp_path) == []


def test_link_gives_a_name_only_once(tmp_path: Path, system: str) -> None:
    for text, is_first, is_same in ((b"first", True, True), (b"second", False, False), (b"first", False, True)):
        with new_file(tmp_path / "target") as new:
            new.file.write(text)
            assert new.link("data") is is_first
            assert is_first or new.has_content_of(tmp_path / "data") is is_same
    assert (tmp_path / "data").read_bytes() == b"first"
    assert _names(tmp_path) == ["data"]


def test_link_works_without_hard_links(tmp_path: Path, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_link_gives_a_name_only_once(tmp_path, system)
    write_atomically(tmp_path / "target", b"text")
    assert _names(tmp_path) == ["data", "target"]


def test_one_of_a_hundred_threads_gives_the_name(tmp_path: Path, system: str) -> None:
    linked: list[bytes] = []

    def link(number: int) -> None:
        with new_file(tmp_path / "target") as new:
            new.file.write(b"%d" % number)
            if new.link("data"):
                linked.append(b"%d" % number)

    threads = [threading.Thread(target=link, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert linked == [(tmp_path / "data").read_bytes()]
    assert _names(tmp_path) == ["data"]


_WRITER = """
import os, sys
from mixlist.files import atomic_writes
if sys.argv[2] == "hidden" and hasattr(os, "O_TMPFILE"):
    del os.O_TMPFILE
with atomic_writes.new_file(sys.argv[1]) as new:
    new.file.write(bytes(2**20))
    new.file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("form", ["hidden", "unnamed"])
def test_the_file_of_a_killed_writer_is_removed(tmp_path: Path, form: str) -> None:
    """The file of a living process stays. The next process removes the file of a killed one."""
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "target"), form]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        hidden_names = _names(tmp_path)
        assert len(hidden_names) == (form == "hidden" or not hasattr(os, "O_TMPFILE"))
        assert not any(name.endswith(".json") for name in hidden_names)
        remove_abandoned_files(os.fspath(tmp_path))
        assert _names(tmp_path) == hidden_names
        writer.kill()
    for name in hidden_names:  # without locks, the age decides
        os.utime(tmp_path / name, (time.time() - 3600,) * 2)
    atomic_writes._prepare_for_unnamed_files.cache_clear()
    write_atomically(tmp_path / "next", b"text")
    assert _names(tmp_path) == ["next"]


@posix_only
def test_files_of_other_programs_are_not_removed(tmp_path: Path) -> None:
    names = [".mixlist-.tmp", ".mixlist-abcdefgh.tmp.json", "mixlist-abcdefgh.tmp", ".target.42.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"text")
    (tmp_path / ".mixlist-abcdefgh.tmp").symlink_to(tmp_path / names[0])
    os.mkfifo(tmp_path / ".mixlist-abcdefgi.tmp")
    expected = _names(tmp_path)
    remove_abandoned_files(os.fspath(tmp_path))
    assert _names(tmp_path) == expected


def test_without_locks_only_an_old_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_writes, "_fcntl", None)
    young, old = tmp_path / ".mixlist-aaaaaaaa.tmp", tmp_path / ".mixlist-bbbbbbbb.tmp"
    for path in (young, old):
        path.write_bytes(b"")
    os.utime(old, (time.time() - 3600,) * 2)
    remove_abandoned_files(os.fspath(tmp_path))
    assert _names(tmp_path) == [young.name]


def test_a_name_of_the_maximum_length_can_be_written(tmp_path: Path, system: str) -> None:
    """The hidden name does not contain the name of the target, which can be as long as the system allows."""
    target = tmp_path / ("重" * 85)
    write_atomically(target, b"text")
    assert _names(tmp_path) == [target.name]


def test_a_file_with_the_same_process_number_is_not_overwritten(tmp_path: Path, system: str) -> None:
    """In a container the process numbers of two runs are the same."""
    user_file = tmp_path / f".target.{os.getpid()}.tmp"
    user_file.write_bytes(b"of a user")
    write_atomically(tmp_path / "target", b"text")
    assert user_file.read_bytes() == b"of a user"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, system: str) -> None:
    for path in (tmp_path / "missing" / "target", Path("/proc/target")):
        for write in (check_writable, lambda path: write_atomically(path, b"")):
            with pytest.raises(FileError, match="cannot be written"):
                write(path)


def test_check_writable_changes_nothing(tmp_path: Path, system: str) -> None:
    check_writable(tmp_path / "target")
    (tmp_path / "existing").write_bytes(b"text")
    check_writable(tmp_path / "existing")
    assert (tmp_path / "existing").read_bytes() == b"text"
    assert _names(tmp_path) == ["existing"]
