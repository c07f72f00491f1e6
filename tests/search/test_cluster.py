"""The same search on one machine, on a Dask cluster and in other executors, while workers are killed.

The cluster is a scheduler and workers in processes of their own, started as a user does in a shell.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mixlist
from mixlist.errors import UsageError
from mixlist.search.tune_result import TuneReport
from mixlist.worker_processes import ProcessPool
from tests.search.test_search_state import without_run_data
from tests.support.builders import policy
from tests.support.extras import import_extra
from tests.support.local_workers import InProcessExecutor
from tests.support.workers import live_pids

ROOT = Path(__file__).parents[2]
SIZE, BATCHES = 384, 12
WHITE = ["MatMul", "Mul", "Div", "Add", "Neg", "Tanh", "Exp", "Sub", "Relu"]


def slow_model() -> Any:
    """Return a model of matrix products that take some milliseconds per batch, and squares and an Exp that overflow."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(SIZE, SIZE)).astype(np.float32) / 20, f"w{i}") for i in range(6)
    ]
    nodes, last = [], "x"
    for i in range(6):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"m{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i}"], name=f"t{i}"))
        last = f"t{i}"
    tail = {
        "d": ("Div", [last, "small"]), "s": ("Mul", ["d", "d"]), "q": ("Mul", ["s", "tiny"]), "a": ("Add", ["q", "x"]),
        "h": ("Add", [last, "far"]), "e": ("Exp", ["h"]), "r": ("Mul", ["e", "tiny"]), "b": ("Sub", ["a", "r"]),
        "y": ("Neg", ["b"]),
    }  # fmt: skip
    for out, (op, inputs) in tail.items():
        nodes.append(helper.make_node(op, inputs, [out], name=out))
    for name, value in (("small", 1e-3), ("tiny", 1e-6), ("far", 12.0)):
        weights.append(numpy_helper.from_array(np.array([value], np.float32), name))
    model_input, model_output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", SIZE]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [model_input], [model_output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(64, SIZE)).astype(np.float32)} for _ in range(BATCHES)]


def search(**options: Any) -> TuneReport:
    return mixlist.tune(slow_model(), policy(white=WHITE), feeds(), **options)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The report of the search in one process, on one thread, without run data."""
    report = search(executor=InProcessExecutor())
    assert report.verdict == "pass" and report.edits and report.trials == 5
    return without_run_data(report)


class Killer:
    """A progress callback that kills a process while the third trial runs. ``pids`` returns the processes."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self.pids = pids
        self.trials = 0
        self.killed: list[int] = []

    def __call__(self, _: Any) -> None:
        self.trials += 1
        if self.trials == 2:
            threading.Timer(0.02, self._kill).start()

    def _kill(self) -> None:
        victim = self.pids()[0]
        os.kill(victim, signal.SIGKILL)
        self.killed.append(victim)


# --- this machine ---


def test_a_search_in_threads(expected: dict[str, Any]) -> None:
    with ThreadPoolExecutor(3) as threads:
        assert without_run_data(search(executor=threads)) == expected


def test_a_search_in_processes_of_the_standard_library(expected: dict[str, Any]) -> None:
    import multiprocessing

    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        assert without_run_data(search(executor=processes)) == expected


def test_a_search_in_own_processes(expected: dict[str, Any]) -> None:
    assert without_run_data(search(jobs=2)) == expected


def test_a_process_that_is_killed_is_replaced(expected: dict[str, Any]) -> None:
    with ProcessPool(2) as pool:
        killer = Killer(lambda: live_pids(pool))
        assert without_run_data(search(executor=pool, progress=killer)) == expected
        assert killer.killed and killer.killed[0] not in live_pids(pool)


class LosingExecutor(InProcessExecutor):
    """Cancels every third task, as a cluster does that has lost the data of the task."""

    def __init__(self) -> None:
        self.tasks = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks += 1
        if self.tasks % 3:
            return super().submit(fn, *args, **kwargs)
        lost_task: Future[Any] = Future()
        lost_task.cancel()
        lost_task.set_running_or_notify_cancel()
        return lost_task


def test_a_task_whose_data_is_lost_runs_again(expected: dict[str, Any]) -> None:
    executor = LosingExecutor()
    assert without_run_data(search(executor=executor)) == expected
    assert executor.tasks > 12, "a third of the tasks is lost"
    local = mixlist.check(slow_model(), policy(white=WHITE), feeds())
    remote = mixlist.check(slow_model(), policy(white=WHITE), feeds(), executor=LosingExecutor())
    assert replace(remote, seconds={}) == replace(local, seconds={})


# --- a cluster ---


class Cluster:
    """A scheduler and ``count`` workers with one thread each; nothing restarts them."""

    def __init__(self, home: Path, count: int) -> None:
        self.home = home
        scheduler_file = home / "scheduler.json"
        self.processes = [self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(scheduler_file))]
        deadline = time.monotonic() + 60
        while not (scheduler_file.exists() and scheduler_file.read_text()):
            assert self.processes[0].poll() is None and time.monotonic() < deadline, self.log_text()
            time.sleep(0.1)
        self.address = str(json.loads(scheduler_file.read_text())["address"])
        options = ("--no-nanny", "--nthreads", "1", "--local-directory", str(home))
        self.processes += [self._start("dask_worker", self.address, *options) for _ in range(count)]

    def _start(self, module: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{module}", "--no-dashboard", "--host", "127.0.0.1", *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def log_text(self) -> str:
        return (self.home / "log").read_text()[-3000:]

    def wait(self) -> None:
        from distributed import Client

        with Client(self.address) as client:
            client.wait_for_workers(len(self.processes) - 1, timeout=60)

    def workers(self) -> list[int]:
        return [process.pid for process in self.processes[1:] if process.poll() is None]

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster. One test kills one of its workers; the others need only one."""
    import_extra("distributed")
    dask_cluster = Cluster(tmp_path_factory.mktemp("cluster"), 2)
    try:
        dask_cluster.wait()
        yield dask_cluster
    finally:
        dask_cluster.close()


def test_a_cluster_whose_worker_is_killed_during_the_search(expected: dict[str, Any], cluster: Cluster) -> None:
    killer = Killer(cluster.workers)
    first_pids = set(cluster.workers())
    assert without_run_data(search(scheduler=cluster.address, progress=killer)) == expected, cluster.log_text()
    assert len(first_pids) == 2 and len(killer.killed) == 1
    assert set(cluster.workers()) == first_pids - set(killer.killed)


def test_a_search_in_the_executor_of_a_cluster(expected: dict[str, Any], cluster: Cluster) -> None:
    from distributed import Client

    with Client(cluster.address) as client:
        assert without_run_data(search(executor=client.get_executor(pure=False))) == expected, cluster.log_text()


def test_a_scheduler_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = import_extra("distributed")
    client = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda address, timeout: client(address, timeout=timeout / 20))
    with pytest.raises(UsageError, match="cannot be reached"):
        search(scheduler="tcp://127.0.0.1:1")


def test_a_check_on_a_cluster(cluster: Cluster) -> None:
    local = mixlist.check(slow_model(), policy(white=WHITE), feeds(), per_tensor=True)
    remote = mixlist.check(slow_model(), policy(white=WHITE), feeds(), per_tensor=True, scheduler=cluster.address)
    assert replace(remote, seconds={}) == replace(local, seconds={})
    assert local.verdict == "fail"
    assert [node.name for node in local.nodes if node.first]
