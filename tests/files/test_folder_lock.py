"""Locks of folders: one process at a time, released when the process ends, without a file that is left behind."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.files import folder_lock
from mixlist.files.folder_lock import LOCK_FILE, lock_folders
from tests.support.systems import posix_only

IMPORTS = "import sys, time; from pathlib import Path; from mixlist.files import folder_lock"
WITHOUT_FOLDER_LOCKS = "; folder_lock._try_lock_folder = lambda folder: None"
HOLD_LOCK = "\nwith folder_lock.lock_folders([Path(sys.argv[1])]): print('locked', flush=True); time.sleep(100)"


@pytest.fixture(params=["the folder", "a file in it"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test twice: on a system that locks folders, and on a simulated one that cannot."""
    if request.param == "a file in it":

        def refuse(descriptor: int, operation: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.EBADF, "Bad file descriptor")
            flock(descriptor, operation)

        assert folder_lock.fcntl is not None
        flock = folder_lock.fcntl.flock
        monkeypatch.setattr(folder_lock.fcntl, "flock", refuse)
    yield request.param


@posix_only
def test_one_thread_at_a_time_holds_the_lock_and_no_file_remains(tmp_path: Path, system: str) -> None:
    count, max_count = 0, 0

    def work() -> None:
        nonlocal count, max_count
        for _ in range(20):
            with lock_folders([tmp_path]):
                count += 1
                max_count = max(max_count, count)
                time.sleep(0.0005)
                count -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max_count == 1
    assert list(tmp_path.iterdir()) == []


@posix_only
def test_a_lock_that_another_process_holds_too_long_is_an_error(
    tmp_path: Path, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "WAIT_SECONDS", 0.05)
    code = IMPORTS + (WITHOUT_FOLDER_LOCKS if system == "a file in it" else "") + HOLD_LOCK
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"locked\n"
        with pytest.raises(FileError, match="another process holds the lock"), lock_folders([tmp_path]):
            pass
        process.kill()
        process.wait()
        with lock_folders([tmp_path]):  # the lock ends with the process
            pass
    assert list(tmp_path.iterdir()) == []


@posix_only
def test_locking_two_folders_in_two_orders_does_not_deadlock(tmp_path: Path, system: str) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()

    def work(order: list[Path]) -> None:
        for _ in range(20):
            with lock_folders(order):
                pass

    threads = [threading.Thread(target=work, args=(order,)) for order in (folders, folders[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_locking_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be locked: No such file"), lock_folders([tmp_path / "missing"]):
        pass


def test_a_folder_in_place_of_the_lock_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "_try_lock_folder", lambda folder: None)
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(FileError, match="cannot be locked"), lock_folders([tmp_path]):
        pass


@posix_only
def test_a_file_system_without_locks_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    assert folder_lock.fcntl is not None
    monkeypatch.setattr(folder_lock.fcntl, "flock", refuse)
    with lock_folders([tmp_path]), lock_folders([tmp_path]):  # the second one does not wait
        pass
    assert list(tmp_path.iterdir()) == []


def test_windows_locks_a_hidden_file_and_closes_it_before_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """msvcrt locks the hidden file, which is closed before it is removed: Windows does not remove an open file."""
    locks: list[int] = []

    def locking(descriptor: int, mode: int, length: int) -> None:
        assert (mode, length) == (2, 1)
        if locks:
            raise PermissionError(errno.EACCES, "Permission denied")
        locks.append(descriptor)

    monkeypatch.setattr(folder_lock, "fcntl", None)
    monkeypatch.setattr(folder_lock, "WAIT_SECONDS", 0.05)
    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    with lock_folders([tmp_path]):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
        with pytest.raises(FileError, match="another process holds the lock"), lock_folders([tmp_path]):
            pass
    assert list(tmp_path.iterdir()) == []
