"""The executor of worker processes: results, errors, processes that die, and Ctrl-C."""

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
def test_tasks_run_in_other_processes_and_give_their_values(count: int) -> None:
    with ProcessPool(count) as pool:
        found = list(pool.map(pow, [2, 3, 4], [5, 5, 5]))
        assert found == [32, 243, 1024]
        assert pool.submit(os.getpid).result() != os.getpid()
        assert pool.submit(sorted, [1, 3, 2], reverse=True).result() == [3, 2, 1]
        assert 0 < len(live_pids(pool)) <= count
    assert live_pids(pool) == []


def test_an_error_arrives_with_its_hint() -> None:
    with ProcessPool(1) as pool, pytest.raises(FileError, match="no such file") as caught:
        from mixlist.runtime.batch_files import find_batch_sources

        pool.submit(find_batch_sources, Path("nothing-here"), ()).result()
    assert "test_data_set" in (caught.value.hint or "")


def test_a_process_that_was_killed_is_replaced_and_its_task_done_again() -> None:
    with ProcessPool(1) as pool:
        first = pool.submit(os.getpid).result()
        waiting = pool.submit(time.sleep, 0.5)
        time.sleep(0.2)
        os.kill(first, signal.SIGKILL)
        assert waiting.result() is None
        assert pool.submit(os.getpid).result() != first


def test_an_idle_process_that_was_killed_is_replaced() -> None:
    with ProcessPool(1) as pool:
        first = pool.submit(os.getpid).result()
        os.kill(first, signal.SIGKILL)
        assert pool.submit(os.getpid).result() != first


def test_a_task_that_kills_is_given_up() -> None:
    with ProcessPool(1) as pool:
        after = pool.submit(abs, -1), pool.submit(os.abort), pool.submit(abs, -2)
        with pytest.raises(WorkerDied, match="two worker processes died") as death:
            after[1].result()
        assert death.value.signal == "SIGABRT"
        assert [after[0].result(), after[2].result()] == [1, 2]
        assert pool.submit(abs, -3).result() == 3


@any_number
def test_what_nobody_waits_for_any_more_is_in_nobodys_way(count: int) -> None:
    with ProcessPool(count) as pool:
        running, waiting = [pool.submit(time.sleep, 1) for _ in range(count)], [pool.submit(abs, -n) for n in range(4)]
        assert waiting[2].cancel()
        assert [waiting[at].result() for at in (3, 1, 0)] == [3, 1, 0]
        assert waiting[2].cancelled()
        assert not running[0].cancel()
    with ProcessPool(count) as pool:
        busy = [pool.submit(time.sleep, 1) for _ in range(count)]
        left, last = pool.submit(abs, -1), [pool.submit(abs, -2) for _ in range(3)][-1]
        assert last.cancel()
    assert all(each.done() for each in busy) and left.result() == 1, "leaving waits for what was submitted"
    with ProcessPool(count) as pool:
        assert next(iter(pool.map(abs, [-1, -2, -3, -4]))) == 1, "and not for what was given up"
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, -1)


@any_number
def test_what_cannot_be_sent_is_an_error_of_its_own(count: int) -> None:
    with ProcessPool(count) as pool:
        first, second, third = pool.submit(abs, -1), pool.submit(lambda: 1), pool.submit(abs, -3)
        assert [third.result(), first.result()] == [3, 1]
        assert isinstance(second.exception(), (pickle.PicklingError, AttributeError))
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pool.submit(lambda: 2).result()


@any_number
def test_an_interrupted_task_is_not_waited_for(count: int) -> None:
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
def test_ctrl_c_ends_a_pool_that_is_at_work(tmp_path: Path) -> None:
    with started_script(SCRIPT, tmp_path) as (process, pid):
        errors = interrupt(process)
    assert process.returncode == -signal.SIGINT, errors
    assert is_gone(pid)
