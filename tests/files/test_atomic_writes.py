"""Files that get their name in one step, and what a killed process leaves."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.files.atomic_writes import check_writable, new_file, replace_unless_changed, write_atomically
from tests.support.systems import posix_only


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_creates_or_replaces_the_file(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    write_atomically(target, b"first")
    assert target.read_bytes() == b"first"
    write_atomically(target, b"second")
    assert target.read_bytes() == b"second"
    assert _names(tmp_path) == ["target.json"]


@posix_only
def test_a_replaced_file_keeps_its_permissions_and_a_new_one_has_those_of_the_umask(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "old").chmod(0o604)
    before = os.umask(0o027)
    try:
        for name in ("old", "new"):
            write_atomically(tmp_path / name, b"text")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new")] == [0o604, 0o640]


@posix_only
def test_nobody_else_reads_the_new_content_of_a_private_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "target").chmod(0o600)
    with new_file(tmp_path / "target") as new:
        assert stat.S_IMODE(new.path.stat().st_mode) == 0o600


@posix_only
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/target")
    write_atomically(tmp_path / "link", b"text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "target").read_bytes() == b"text"
    assert _names(tmp_path) == ["folder", "link"]


def test_a_file_without_its_final_name_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "target") as new:
        new.file.write(b"text")
        raise ZeroDivisionError
    assert _names(tmp_path) == []


def test_many_writers_at_once_give_the_content_of_one_of_them(tmp_path: Path) -> None:
    contents = [b"%d" % number * 10_000 for number in range(50)]
    seen: set[bytes] = set()

    def write(content: bytes) -> None:
        write_atomically(tmp_path / "target", content)
        seen.add((tmp_path / "target").read_bytes())

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen and seen <= set(contents)
    assert _names(tmp_path) == ["target"]


_WRITER = """
import sys
from mixlist.files.atomic_writes import new_file
with new_file(sys.argv[1]) as new:
    new.file.write(bytes(2**20))
    new.file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_the_old_file_and_a_file_that_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_bytes(b"old")
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "target.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.kill()
    hidden, target = _names(tmp_path)
    assert re.fullmatch(r"\.mixlist-[0-9a-f]{8}\.tmp", hidden)
    assert target == "target.json" and (tmp_path / target).read_bytes() == b"old"
    write_atomically(tmp_path / target, b"new")
    assert (tmp_path / target).read_bytes() == b"new"


def test_a_name_of_the_maximum_length_can_be_written(tmp_path: Path) -> None:
    """The temporary name does not contain the name of the target, which can be as long as the system allows."""
    target = tmp_path / ("重" * 85)
    write_atomically(target, b"text")
    assert _names(tmp_path) == [target.name]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "target", Path("/proc/target")):
        for write in (check_writable, lambda path: write_atomically(path, b"")):
            with pytest.raises(FileError, match="cannot be written"):
                write(path)


def test_check_writable_changes_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "target")
    (tmp_path / "existing").write_bytes(b"text")
    check_writable(tmp_path / "existing")
    assert (tmp_path / "existing").read_bytes() == b"text"
    assert _names(tmp_path) == ["existing"]


def test_a_file_that_another_program_changed_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(b"before")
    replace_unless_changed(path, b"before", b"after")
    assert path.read_bytes() == b"after"
    with pytest.raises(FileError, match=r"list\.json: another program changed the file meanwhile"):
        replace_unless_changed(path, b"before", b"later")
    assert path.read_bytes() == b"after"


@posix_only
def test_the_bytes_are_written_into_a_pipe(tmp_path: Path) -> None:
    """The same code serves devices: root must not replace /dev/null with a file."""
    pipe, contents = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: contents.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"text")
    reader.join(10)
    assert contents == [b"text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_writing_to_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write_atomically(tmp_path, b"text")
