"""Waiting for a task of a cluster that loses data or workers."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future

import pytest

from mixlist.run.executors import MAX_RESENDS, wait_for
from mixlist.worker_processes import WorkerDied


class KilledWorker(Exception):  # noqa: N818
    """Dask's error has this name."""


def ended(outcome: int | Exception) -> Future[int]:
    future: Future[int] = Future()
    if isinstance(outcome, CancelledError):
        future.cancel()
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


def wait_for_outcomes(*outcomes: int | Exception) -> int:
    """Wait for a task that has another outcome each time it is sent."""
    futures = map(ended, outcomes)
    return wait_for(next(futures), lambda: next(futures))


LOST = [CancelledError()] * MAX_RESENDS


def test_a_task_whose_data_is_lost_is_sent_again() -> None:
    assert wait_for_outcomes(7) == 7
    assert wait_for_outcomes(*LOST, 7) == 7


def test_a_task_whose_data_is_always_lost_is_given_up() -> None:
    with pytest.raises(WorkerDied, match="the cluster has lost the data of a task 4 times"):
        wait_for_outcomes(*LOST, CancelledError())


@pytest.mark.parametrize("lost", [[], LOST])
def test_a_task_that_kills_its_workers_is_a_crash(lost: list[Exception]) -> None:
    with pytest.raises(WorkerDied, match="the workers die while they run this model: f"):
        wait_for_outcomes(*lost, KilledWorker("f"))


def test_an_error_of_the_task_stays_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_for_outcomes(*LOST, ZeroDivisionError())
