"""Test the pool of worker processes: results, errors, processes that die, and Ctrl-C."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path

import pytest

from mixlist.errors import FileError
from mixlist.runtime.process_pool import ProcessPool
from mixlist.runtime.worker_process import WorkerDied
from tests.support.local_workers import live_pids
from tests.support.scripts import interrupt, is_gone, started_script
from tests.support.systems import posix_only

any_number = pytest.mark.parametrize("count", [1, 2])


@any_number
def test_tasks_run_in_other_processes(count: int) -> None:
    with ProcessPool(count) as pool:
        assert list(pool.map(pow, [2, 3, 4], [5, 5, 5])) == [32, 243, 1024]
        assert pool.submit(os.getpid).result() != os.getpid()
        assert pool.submit(sorted, [1, 3, 2], reverse=True).result() == [3, 2, 1]
        assert 0 < len(live_pids(pool)) <= count
    assert live_pids(pool) == []


def test_an_error_arrives_with_its_hint() -> None:
    with ProcessPool(1) as pool, pytest.raises(FileError, match="no such file") as caught:
        from mixlist.runtime.batch_files import find_batch_paths

        pool.submit(find_batch_paths, Path("nothing-here"), ()).result()
    assert "test_data_set" in (caught.value.hint or "")


def test_a_killed_process_is_replaced_and_its_task_runs_again() -> None:
    with ProcessPool(1) as pool:
        first = pool.submit(os.getpid).result()
        waiting = pool.submit(time.sleep, 0.5)
        time.sleep(0.2)
        os.kill(first, signal.SIGKILL)
        assert waiting.result() is None
        assert pool.submit(os.getpid).result() != first


def test_a_killed_idle_process_is_replaced() -> None:
    with ProcessPool(1) as pool:
        first = pool.submit(os.getpid).result()
        os.kill(first, signal.SIGKILL)
        assert pool.submit(os.getpid).result() != first


def test_a_task_that_kills_its_process_runs_twice_and_fails() -> None:
    with ProcessPool(1) as pool:
        before, aborting, after = pool.submit(abs, -1), pool.submit(os.abort), pool.submit(abs, -2)
        with pytest.raises(WorkerDied, match="two worker processes died") as death:
            aborting.result()
        assert death.value.signal == "SIGABRT"
        assert [before.result(), after.result()] == [1, 2]
        assert pool.submit(abs, -3).result() == 3


@any_number
def test_cancelled_tasks_do_not_block_the_pool(count: int) -> None:
    with ProcessPool(count) as pool:
        running, waiting = [pool.submit(time.sleep, 1) for _ in range(count)], [pool.submit(abs, -n) for n in range(4)]
        assert waiting[2].cancel()
        assert [waiting[index].result() for index in (3, 1, 0)] == [3, 1, 0]
        assert waiting[2].cancelled()
        assert not running[0].cancel()
    with ProcessPool(count) as pool:
        busy = [pool.submit(time.sleep, 1) for _ in range(count)]
        uncancelled, last = pool.submit(abs, -1), [pool.submit(abs, -2) for _ in range(3)][-1]
        assert last.cancel()
    assert all(task.done() for task in busy) and uncancelled.result() == 1, "the end waits for submitted tasks"
    with ProcessPool(count) as pool:
        assert next(iter(pool.map(abs, [-1, -2, -3, -4]))) == 1, "the end does not wait for cancelled tasks"
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, -1)


@any_number
def test_a_task_that_cannot_be_pickled_fails_alone(count: int) -> None:
    with ProcessPool(count) as pool:
        first, second, third = pool.submit(abs, -1), pool.submit(lambda: 1), pool.submit(abs, -3)
        assert [third.result(), first.result()] == [3, 1]
        assert isinstance(second.exception(), (pickle.PicklingError, AttributeError))
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pool.submit(lambda: 2).result()


@any_number
def test_an_interrupted_pool_does_not_wait_for_its_tasks(count: int) -> None:
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ProcessPool(count) as pool:
        pool.submit(os.getpid).result()
        tasks = [pool.submit(time.sleep, 60) for _ in range(4)]
        raise KeyboardInterrupt
    assert time.monotonic() - start < 30
    assert live_pids(pool) == []
    assert all(task.done() for task in tasks)


SCRIPT = """
import os, time
from mixlist.runtime.process_pool import ProcessPool
with ProcessPool(1) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 60).result()
"""


@posix_only
def test_ctrl_c_ends_a_working_pool(tmp_path: Path) -> None:
    with started_script(SCRIPT, tmp_path) as (process, pid):
        errors = interrupt(process)
    assert process.returncode == -signal.SIGINT, errors
    assert is_gone(pid)
