"""A check whose batches run in other processes says what it says in one."""

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


def told(report: CheckReport) -> CheckReport:
    return replace(report, seconds={})


@pytest.mark.parametrize("processes", [True, False])
def test_the_report_is_the_same(processes: bool) -> None:
    where: dict[str, Any] = {"jobs": 2} if processes else {"executor": ThreadPoolExecutor(2)}
    policy = mixlist.load_policy(precision_mode_v2="fp16")
    others = {"per_tensor": True, "layerwise": True, "full_statistics": True}
    here = mixlist.check(model(SQUARE), policy, FEEDS, **others)
    there = mixlist.check(model(SQUARE), policy, FEEDS, **others, **where)
    assert told(there) == told(here)
    assert [n.batches for n in there.nodes if n.first] == [(2,)]


@pytest.mark.parametrize("case", PLANTED[::4], ids=lambda case: case.name)
def test_planted(case: Planted) -> None:
    with ThreadPoolExecutor(2) as threads:
        report = mixlist.check(model(case.text), case.policy, case.feeds, executor=threads)
    assert {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in report.nodes} == case.kinds


def test_steps_are_kept_and_progress_is_told() -> None:
    seen: list[Progress] = []
    report = mixlist.check(model(SQUARE), mixlist.load_policy(), FEEDS, jobs=1, steps=2, progress=seen.append)
    assert (report.batches, seen, report.verdict) == (2, [Progress(1, 2, "batches"), Progress(2, 2, "batches")], "pass")


def test_no_process_is_no_pool() -> None:
    with pytest.raises(UsageError, match="jobs must be at least 1"):
        mixlist.check(model(SQUARE), mixlist.load_policy(), FEEDS, jobs=0)


def test_external_weights_are_sent_along(tmp_path: Path) -> None:
    import onnx

    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    proto = model("g (float[N,64] x, float[64,64] w) => (float[N,64] y) { y = MatMul(x, w) }")
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    feeds = [{"x": np.full((1, 64), value, np.float32)} for value in (0.5, 1.0)]
    policy = mixlist.load_policy()
    assert told(mixlist.check(path, policy, feeds, jobs=1)) == told(mixlist.check(path, policy, feeds))
