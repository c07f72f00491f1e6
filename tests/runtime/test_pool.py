"""The executor of processes: results, errors, and processes that die."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mixlist.errors import FileError
from mixlist.runtime import pipe_protocol
from mixlist.runtime.pool import OneProcess, ProcessPool, WorkerDied

Pool = Callable[[], ProcessPool | OneProcess]
one = pytest.mark.parametrize("make", [partial(ProcessPool, 1), OneProcess], ids=["thread", "alone"])
any_number = pytest.mark.parametrize("make", [partial(ProcessPool, 2), OneProcess], ids=["two", "one"])


@any_number
def test_tasks_run_in_other_processes_and_give_their_values(make: Pool) -> None:
    with make() as pool:
        found = list(pool.map(pow, [2, 3, 4], [5, 5, 5]))
        assert found == [32, 243, 1024]
        assert pool.submit(os.getpid).result() != os.getpid()
        assert pool.submit(sorted, [1, 3, 2], reverse=True).result() == [3, 2, 1]
    assert pool.pids == []


@one
def test_an_error_arrives_with_its_hint(make: Pool) -> None:
    with make() as pool, pytest.raises(FileError, match="no such file") as caught:
        from mixlist.runtime.data_files import sources

        pool.submit(sources, Path("nothing-here"), ()).result()
    assert "test_data_set" in (caught.value.hint or "")


@one
def test_a_process_that_was_killed_is_replaced_and_its_task_done_again(make: Pool) -> None:
    with make() as pool:
        first = pool.submit(os.getpid).result()
        waiting = pool.submit(time.sleep, 0.5)
        time.sleep(0.2)
        os.kill(first, signal.SIGKILL)
        assert waiting.result() is None
        assert pool.submit(os.getpid).result() != first


@one
def test_a_task_that_kills_is_given_up(make: Pool) -> None:
    with make() as pool:
        after = pool.submit(abs, -1), pool.submit(os.abort), pool.submit(abs, -2)
        with pytest.raises(WorkerDied):
            after[1].result()
        assert [after[0].result(), after[2].result()] == [1, 2]
        assert pool.submit(abs, -3).result() == 3


@any_number
def test_what_nobody_waits_for_any_more_is_in_nobodys_way(make: Pool) -> None:
    with make() as pool:
        running, waiting = pool.submit(time.sleep, 0.1), [pool.submit(abs, -at) for at in range(4)]
        assert waiting[2].cancel()
        assert [waiting[at].result() for at in (3, 1, 0)] == [3, 1, 0]
        assert waiting[2].cancelled()
        assert not running.cancel()
    with make() as pool:
        left, last = pool.submit(abs, -1), [pool.submit(abs, -2) for _ in range(3)][-1]
        last.cancel()
    assert left.result() == 1, "leaving waits for what was submitted"
    with make() as pool:
        assert next(iter(pool.map(abs, [-1, -2, -3, -4]))) == 1, "and not for what was given up"
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, -1)


@any_number
def test_what_cannot_be_sent_is_an_error_of_its_own(make: Pool) -> None:
    with make() as pool:
        first, second, third = pool.submit(abs, -1), pool.submit(lambda: 1), pool.submit(abs, -3)
        assert [third.result(), first.result()] == [3, 1]
        assert isinstance(second.exception(), (pickle.PicklingError, AttributeError))
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pool.submit(lambda: 2).result()


@pytest.mark.parametrize("at", ["first", "second"])
def test_an_interrupted_task_is_not_waited_for(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send = pipe_protocol.send

    def interrupted(stream: Any, value: Any) -> None:
        monkeypatch.setattr(pipe_protocol, "send", send)
        stream.write(b"half")
        raise KeyboardInterrupt

    with OneProcess() as pool:
        first = pool.submit(os.getpid)
        pid = first.result()
        again = [pool.submit(abs, -1), pool.submit(abs, -2)] if at == "second" else []
        monkeypatch.setattr(pipe_protocol, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            again[0].result() if again else pool.submit(abs, -3)
        assert [each.cancelled() for each in again] == ([False, False] if again else [])
        assert [each.exception() for each in again[:1]] == ([None] if again else [])
        assert all(isinstance(each.exception(), CancelledError) for each in again[1:])
        assert pool.submit(os.getpid).result() != pid


def test_an_interrupted_answer_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = pipe_protocol.receive

    def interrupted(stream: object) -> None:
        monkeypatch.setattr(pipe_protocol, "receive", receive)
        raise KeyboardInterrupt

    with OneProcess() as pool:
        first = pool.submit(os.getpid).result()
        running, waiting = pool.submit(abs, -1), pool.submit(abs, -2)
        monkeypatch.setattr(pipe_protocol, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            running.result()
        assert running.done() and waiting.cancelled()
        assert pool.submit(os.getpid).result() != first
