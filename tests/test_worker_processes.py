"""Test worker processes: the helper and its bounds, pools, processes that die, and Ctrl-C."""

from __future__ import annotations

import os
import pickle
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from mixlist import worker_processes
from mixlist.errors import FileError, ModelError
from mixlist.worker_processes import ProcessPool, WorkerDied, helper_process, start_helper
from tests.support.scripts import interrupt, is_gone, started_script
from tests.support.systems import linux_only, posix_only
from tests.support.workers import end_helper, live_pids, use_own_helper

# --- the helper ---


@pytest.fixture
def own_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_helper(monkeypatch)


@pytest.mark.usefixtures("own_helper")
def test_the_helper_is_kept_for_the_next_call() -> None:
    start_helper()
    assert worker_processes._helper is not None
    started = worker_processes._helper.pid
    for _ in range(2):
        with helper_process() as process:
            assert process.call(os.getpid) == started == process.pid
    end_helper()
    with helper_process() as process:
        assert process.call(os.getpid) != started


@pytest.mark.usefixtures("own_helper")
def test_another_process_takes_the_place_of_a_helper_that_is_lent() -> None:
    with helper_process() as first, helper_process() as second:
        assert first.call(os.getpid) != second.call(os.getpid)
    assert not first.alive and second.alive, "one of them is kept"


@pytest.mark.usefixtures("own_helper")
def test_a_call_that_takes_too_long_is_ended() -> None:
    with helper_process() as process:
        assert process.call(partial(abs, -1), seconds=60) == 1
        start = time.monotonic()
        with pytest.raises(WorkerDied):
            process.call(partial(time.sleep, 60), seconds=0.2)
    assert time.monotonic() - start < 30
    with helper_process() as process:
        assert process.call(partial(abs, -2)) == 2


@linux_only
@pytest.mark.usefixtures("own_helper")
def test_a_call_that_takes_too_much_memory_is_an_error() -> None:
    """The limit belongs to the call: the process goes on without it."""
    with helper_process() as process:
        for _ in range(2):
            with pytest.raises(ModelError, match="not enough memory"):
                process.call(partial(count_bytes, 2**30), memory=2**28)
            assert process.call(partial(count_bytes, 2**20), memory=2**28) == 2**20
        assert process.call(partial(count_bytes, 2**30)) == 2**30


def count_bytes(size: int) -> int:
    """Take ``size`` bytes of memory, and return their number."""
    return len(bytes(size))


@linux_only
@pytest.mark.usefixtures("own_helper")
def test_a_helper_that_holds_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "KEPT_BYTES", 1)
    with helper_process() as process:
        process.call(os.getpid)
    assert not process.alive


@pytest.mark.usefixtures("own_helper")
def test_a_call_that_cannot_be_pickled_leaves_the_helper_as_it_is() -> None:
    with helper_process() as process:
        with pytest.raises((pickle.PicklingError, AttributeError)):
            process.call(lambda: 1)
        assert process.call(os.getpid) == process.pid
    assert process.alive


@pytest.mark.usefixtures("own_helper")
def test_the_last_line_of_a_death_is_of_its_call() -> None:
    with helper_process() as process:
        process.call(partial(os.write, 2, b"an earlier line\n"))
        with pytest.raises(WorkerDied) as death:
            process.call(os.abort)
    assert death.value.last_line == ""


@posix_only
@pytest.mark.usefixtures("own_helper")
def test_a_forked_child_leaves_the_helper_to_its_parent() -> None:
    with helper_process() as process:
        pid = process.call(os.getpid)
    child = os.fork()
    if not child:
        with helper_process() as process:
            is_own = process.call(os.getpid) != pid
        end_helper()
        os._exit(0 if is_own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with helper_process() as process:
        assert process.call(os.getpid) == pid


# --- pools ---

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
        from mixlist.run.batch_files import find_batch_paths

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
from mixlist.worker_processes import ProcessPool
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
