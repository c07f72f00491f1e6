"""Test that every edit is needed, that Ctrl-C returns the best list, and that a state file serves one search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.search.tune_result import TuneReport
from mixlist.worker_processes import WorkerProcess
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor, interrupt_at
from tests.support.workers import use_own_helper

OVERFLOWING = {"x": np.full((1, 8), 300.0, np.float32)}
WEIGHTS = ", ".join(["0.1"] * 64)
BETWEEN = f"""g (float[1,8] x) => (float[1,8] y, float[1,8] z)
  <float[1] k = {{0.001}}, float[1] back = {{100000}}, float[8,8] w = {{{WEIGHTS}}}> {{
  [a] a = Mul(x, x) [b] b = Mul(a, k) [c] c = Tanh(b) [d] y = Mul(c, back) [e] z = MatMul(x, w) }}"""
# The first Mul overflows.
PRODUCT = f"""g (float[1,8] x) => (float[1,8] y) <float[1] k = {{0.001}}, float[8,8] w = {{{WEIGHTS}}}> {{
  [a] a = Mul(x, x) [b] b = Mul(a, k) [c] c = Tanh(b) [d] d = MatMul(c, w) [e] y = Neg(d) }}"""


def tune(text: str, state: Path | None = None, **options: Any) -> TuneReport:
    lists = policy(white=options.pop("white", ()), black=options.pop("black", ()))
    return mixlist.tune(
        model(text), lists, options.pop("data", [OVERFLOWING]), executor=InProcessExecutor(), state=state, **options
    )


def test_an_interrupted_search_returns_the_best_list_that_passed() -> None:
    """The last trials only show that each edit is needed."""
    options: dict[str, Any] = {"white": ["Mul", "Tanh", "MatMul"]}
    complete = tune(PRODUCT, **options)
    interrupted = tune(PRODUCT, progress=interrupt_at(complete.trials), **options)
    assert not interrupted.complete and not interrupted.minimal and interrupted.check is None
    assert [edit.op for edit in interrupted.edits] == [edit.op for edit in complete.edits] == ["Mul"]
    assert interrupted.low_share == complete.low_share == {"base": 1.0, "tuned": 1.0}


def test_the_state_of_other_type_hints_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    tune(BETWEEN, state, white=["Mul", "Tanh"])
    with pytest.raises(UsageError, match="another search: type hints"):
        tune(BETWEEN, state, white=["Mul", "Tanh"], type_hints={"a": "float32"})


def test_a_state_without_trials_is_replaced(tmp_path: Path) -> None:
    """A command that fails on its data leaves a state with the first line alone."""
    state = tmp_path / "state"
    judge: Any = lambda reference, mixed: 5  # noqa: E731
    with pytest.raises(UsageError):
        tune(BETWEEN, state, white=["Mul"], data=[{"x": np.zeros((1, 8), np.float32)}], judge=judge)
    assert state.read_text().count("\n") == 1
    assert tune(BETWEEN, state, white=["Mul", "Tanh"]).verdict == "pass"


def test_a_continued_search_tries_batches_in_the_same_order(tmp_path: Path) -> None:
    """Each batch overflows at another node, so that the reasons in the log show the order of the batches."""
    text = """g (float[1,8] x, float[1,8] u, float[1,8] v) => (float[1,8] y)
      <float[1] k = {0.001}, float[1] far = {20000}> {
      [a] a = Mul(x, x) [b] b = Mul(u, u) [c] c = Add(v, far) [d] d = Mul(a, k) [e] e = Mul(b, k) [f] f = Sub(c, far)
      [g] y = Sum(d, e, f) }"""
    sizes = ({"x": 1, "u": 1, "v": 1}, {"x": 300, "u": 1, "v": 1}, {"x": 1, "u": 300, "v": 60000})
    data = [{name: np.full((1, 8), value, np.float32) for name, value in values.items()} for values in sizes]
    options: dict[str, Any] = {"white": ["Mul", "Add", "Sub"], "data": data}
    complete = tune(text, **options)
    assert {edit.op for edit in complete.edits} >= {"Mul", "Add"}
    for trial_count in range(1, complete.trials):
        state = tmp_path / f"state{trial_count}"
        tune(text, state, progress=interrupt_at(trial_count), **options)
        continued = tune(text, state, **options)
        assert continued.remembered
        assert [(line["edits"], line["why"]) for line in continued.log] == [
            (x["edits"], x["why"]) for x in complete.log
        ]


def test_nodes_are_ranked_only_for_a_search() -> None:
    """A ranking takes as long as a check, and lists that pass as they are need no search."""
    passing = tune(PRODUCT, white=["MatMul"], black=["Mul"])
    assert passing.verdict == "pass" and not passing.edits and passing.trials == 0
    assert passing.check is not None and not passing.check.layerwise
    assert tune(PRODUCT, white=["MatMul", "Mul"]).trials > 0


def test_the_final_check_uses_the_process_of_the_base_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a process takes as long as the trials of a small model."""
    use_own_helper(monkeypatch)
    pids: list[int] = []

    class CountedProcess(WorkerProcess):
        def __init__(self, modules: Sequence[str] = ()) -> None:
            super().__init__(modules)
            pids.append(self.pid)

    monkeypatch.setattr("mixlist.worker_processes.WorkerProcess", CountedProcess)
    report = tune(PRODUCT, white=["MatMul", "Mul"])
    assert report.verdict == "pass" and report.trials > 0 and report.check is not None
    assert len(pids) == 1
