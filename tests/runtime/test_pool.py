"""The executor of processes: results, errors, and processes that die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.runtime.pool import ProcessPool, WorkerDied


def test_tasks_run_in_other_processes_and_give_their_values() -> None:
    with ProcessPool(2) as pool:
        found = list(pool.map(pow, [2, 3, 4], [5, 5, 5]))
        assert found == [32, 243, 1024]
        assert pool.submit(os.getpid).result() != os.getpid()
        assert pool.submit(sorted, [1, 3, 2], reverse=True).result() == [3, 2, 1]
    assert pool.pids == []


def test_an_error_arrives_with_its_hint() -> None:
    with ProcessPool(1) as pool, pytest.raises(FileError, match="no such file") as caught:
        from mixlist.runtime.datafiles import sources

        pool.submit(sources, Path("nothing-here"), ()).result()
    assert "test_data_set" in (caught.value.hint or "")


def test_a_process_that_was_killed_is_replaced_and_its_task_done_again() -> None:
    with ProcessPool(1) as pool:
        first = pool.submit(os.getpid).result()
        waiting = pool.submit(time.sleep, 0.5)
        time.sleep(0.2)
        os.kill(first, signal.SIGKILL)
        assert waiting.result() is None
        assert pool.submit(os.getpid).result() != first


def test_a_task_that_kills_is_given_up() -> None:
    with ProcessPool(1) as pool:
        with pytest.raises(WorkerDied):
            pool.submit(os.abort).result()
        assert pool.submit(abs, -1).result() == 1
