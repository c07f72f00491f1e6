"""A check whose batches run in other processes has the same report as in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker.result import CheckReport
from mixlist.errors import UsageError
from mixlist.progress import Progress
from tests.support.builders import model
from tests.support.planted_models import PLANTED, Planted

SQUARE = "g (float[N] x) => (float[N] y) { m = Mul(x, x) y = Neg(m) }"
FEEDS = [{"x": np.array([value, 1.0], np.float32)} for value in (1.0, 2.0, 300.0, 3.0, 4.0, 5.0)]


def without_seconds(report: CheckReport) -> CheckReport:
    return replace(report, seconds={})


@pytest.mark.parametrize("processes", [True, False])
def test_the_report_of_workers_is_the_same(processes: bool) -> None:
    workers: dict[str, Any] = {"jobs": 2} if processes else {"executor": ThreadPoolExecutor(2)}
    policy = mixlist.load_policy(precision_mode_v2="fp16")
    details = {"per_tensor": True, "layerwise": True}
    local_report = mixlist.check(model(SQUARE), policy, FEEDS, **details)
    worker_report = mixlist.check(model(SQUARE), policy, FEEDS, **details, **workers)
    assert without_seconds(worker_report) == without_seconds(local_report)
    assert [n.batches for n in worker_report.nodes if n.first] == [(2,)]


@pytest.mark.parametrize("case", PLANTED[::4], ids=lambda case: case.name)
def test_workers_find_planted_overflows(case: Planted) -> None:
    with ThreadPoolExecutor(2) as threads:
        report = mixlist.check(model(case.text), case.policy, case.feeds, executor=threads)
    assert {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in report.nodes} == case.kinds


def test_workers_keep_steps_and_report_progress() -> None:
    reported: list[Progress] = []
    lists = mixlist.load_policy(precision_mode_v2="fp16")
    report = mixlist.check(model(SQUARE), lists, FEEDS, jobs=1, max_batches=2, progress=reported.append)
    assert (report.batches, reported, report.verdict) == (
        2,
        [Progress(1, 2, "batches"), Progress(2, 2, "batches")],
        "pass",
    )


def test_zero_jobs_are_an_error() -> None:
    with pytest.raises(UsageError, match="jobs must be at least 1"):
        mixlist.check(model(SQUARE), mixlist.load_policy(), FEEDS, jobs=0)


def test_external_weights_are_sent_to_workers(tmp_path: Path) -> None:
    import onnx

    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    proto = model("g (float[N,64] x, float[64,64] w) => (float[N,64] y) { y = MatMul(x, w) }")
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    feeds = [{"x": np.full((1, 64), value, np.float32)} for value in (0.5, 1.0)]
    policy = mixlist.load_policy()
    assert without_seconds(mixlist.check(path, policy, feeds, jobs=1)) == without_seconds(
        mixlist.check(path, policy, feeds)
    )
