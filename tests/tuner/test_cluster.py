"""The same search on one machine, on a Dask cluster and through other executors, with workers that are killed midway.

The cluster is a scheduler and workers in processes of their own, started as from a shell.
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
from mixlist.runtime.process_pool import ProcessPool
from mixlist.tuner.result import TuneReport
from tests.support.builders import policy
from tests.support.local_workers import Here, live_pids
from tests.tuner.test_state import told

ROOT = Path(__file__).parents[2]
SIZE, BATCHES = 384, 12
WHITE = ["MatMul", "Mul", "Div", "Add", "Neg", "Tanh", "Exp", "Sub", "Relu"]


def slow() -> Any:
    """Products that take a few milliseconds per batch, and squares that overflow after them."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(SIZE, SIZE)).astype(np.float32) / 20, f"w{i}") for i in range(6)
    ]
    nodes, at = [], "x"
    for i in range(6):
        nodes.append(helper.make_node("MatMul", [at, f"w{i}"], [f"m{i}"], name=f"m{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i}"], name=f"t{i}"))
        at = f"t{i}"
    after = [("Div", [at, "small"]), ("Mul", ["d", "d"]), ("Mul", ["s", "tiny"]), ("Add", ["q", "x"]), ("Neg", ["a"])]
    for (op, inputs), out in zip(after, ("d", "s", "q", "a", "y"), strict=True):
        nodes.append(helper.make_node(op, inputs, [out], name=out))
    for name, value in (("small", 1e-3), ("tiny", 1e-6)):
        weights.append(numpy_helper.from_array(np.array([value], np.float32), name))
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", SIZE]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(64, SIZE)).astype(np.float32)} for _ in range(BATCHES)]


def search(**how: Any) -> TuneReport:
    return mixlist.tune(slow(), policy(white=WHITE), feeds(), node_rules=True, **how)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The search in one process, on one thread."""
    report = search(executor=Here())
    assert report.verdict == "pass" and report.edits and report.trials > 5
    return told(report)


class Killer:
    """Kills a process while the trial after the second one runs."""

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


def test_threads(alone: dict[str, Any]) -> None:
    with ThreadPoolExecutor(3) as threads:
        assert told(search(executor=threads)) == alone


def test_the_standard_librarys_processes(alone: dict[str, Any]) -> None:
    import multiprocessing

    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        assert told(search(executor=processes)) == alone


def test_own_processes(alone: dict[str, Any]) -> None:
    assert told(search(jobs=2)) == alone


def test_a_process_that_is_killed_is_replaced(alone: dict[str, Any]) -> None:
    with ProcessPool(2) as pool:
        killer = Killer(lambda: live_pids(pool))
        assert told(search(executor=pool, progress=killer)) == alone
        assert killer.killed and killer.killed[0] not in live_pids(pool)


class Forgetful(Here):
    """Cancels every third task, as a cluster does that has lost what the task needs."""

    def __init__(self) -> None:
        self.tasks = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks += 1
        if self.tasks % 3:
            return super().submit(fn, *args, **kwargs)
        lost: Future[Any] = Future()
        lost.cancel()
        lost.set_running_or_notify_cancel()
        return lost


def test_a_task_whose_data_were_lost_is_done_again(alone: dict[str, Any]) -> None:
    executor = Forgetful()
    assert told(search(executor=executor)) == alone
    assert executor.tasks > 12, "a third of them lost"
    here = mixlist.check(slow(), policy(white=WHITE), feeds())
    there = mixlist.check(slow(), policy(white=WHITE), feeds(), executor=Forgetful())
    assert replace(there, seconds={}) == replace(here, seconds={})


# --- a cluster ---


class Cluster:
    """A scheduler and ``count`` workers of one thread, without anyone who starts them again."""

    def __init__(self, home: Path, count: int) -> None:
        self.home = home
        told = home / "scheduler.json"
        self.processes = [self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(told))]
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text()):
            assert self.processes[0].poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.1)
        self.address = str(json.loads(told.read_text())["address"])
        options = ("--no-nanny", "--nthreads", "1", "--local-directory", str(home))
        self.processes += [self._start("dask_worker", self.address, *options) for _ in range(count)]

    def _start(self, module: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{module}", "--no-dashboard", "--host", "127.0.0.1", *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def said(self) -> str:
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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path, 3)
    try:
        made.wait()
        yield made
    finally:
        made.close()


def test_a_cluster_whose_worker_is_killed_midway(alone: dict[str, Any], cluster: Cluster) -> None:
    killer = Killer(cluster.workers)
    before = set(cluster.workers())
    assert told(search(scheduler=cluster.address, progress=killer)) == alone, cluster.said()
    assert len(before) == 3 and set(cluster.workers()) == before - set(killer.killed) and len(killer.killed) == 1


def test_an_executor_of_a_cluster(alone: dict[str, Any], cluster: Cluster) -> None:
    from distributed import Client

    with Client(cluster.address) as client:
        assert told(search(executor=client.get_executor(pure=False))) == alone, cluster.said()


def test_a_scheduler_that_is_not_there() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(UsageError, match="cannot be reached"):
        search(scheduler="tcp://127.0.0.1:1")


def test_a_check_on_a_cluster(cluster: Cluster) -> None:
    here = mixlist.check(slow(), policy(white=WHITE), feeds(), full_statistics=True)
    there = mixlist.check(slow(), policy(white=WHITE), feeds(), full_statistics=True, scheduler=cluster.address)
    assert replace(there, seconds={}) == replace(here, seconds={})
    assert here.verdict == "fail"
    assert [node.name for node in here.nodes if node.first]
