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
# Both Muls around Tanh are high. So a low Tanh costs two Casts and saves nothing, but a low MatMul saves time.
BETWEEN = f"""g (float[1,8] x) => (float[1,8] y, float[1,8] z)
  <float[1] k = {{0.001}}, float[1] back = {{100000}}, float[8,8] w = {{{WEIGHTS}}}> {{
  [a] a = Mul(x, x) [b] b = Mul(a, k) [c] c = Tanh(b) [d] y = Mul(c, back) [e] z = MatMul(x, w) }}"""
# The first Mul overflows. The tests put MatMul on the black list: max-low moves it to the white list.
PRODUCT = f"""g (float[1,8] x) => (float[1,8] y) <float[1] k = {{0.001}}, float[8,8] w = {{{WEIGHTS}}}> {{
  [a] a = Mul(x, x) [b] b = Mul(a, k) [c] c = Tanh(b) [d] d = MatMul(c, w) [e] y = Neg(d) }}"""


def tune(text: str, state: Path | None = None, **options: Any) -> TuneReport:
    lists = policy(white=options.pop("white", ()), black=options.pop("black", ()))
    return mixlist.tune(
        model(text), lists, options.pop("data", [OVERFLOWING]), executor=InProcessExecutor(), state=state, **options
    )


def test_max_speed_keeps_an_edit_that_saves_casts() -> None:
    """Rule S9.6: Three objectives."""
    report = tune(BETWEEN, white=["Tanh", "MatMul"], black=["Mul"], objective="max-speed")
    assert [(e.op, e.before, e.after) for e in report.edits] == [("Tanh", "white", "black")]
    assert report.edits[0].without == "keeps the limits too, at a higher cost"
    assert report.verdict == "pass" and report.minimal


def test_max_speed_keeps_at_least_one_node_low() -> None:
    """Even if float32 is the cheapest: a model without low nodes is no mixed model."""
    report = tune(BETWEEN, white=["Tanh"], black=["Mul", "MatMul"], objective="max-speed")
    assert report.check is not None and not any(
        "no node is low" in warning.message for warning in report.check.warnings
    )
    without_matmul = tune(
        BETWEEN.replace("MatMul(x, w)", "Mul(x, k)"), white=["Tanh"], black=["Mul"], objective="max-speed"
    )
    assert not without_matmul.edits


def test_the_report_says_that_an_edit_gains_work_in_low_precision() -> None:
    report = tune(PRODUCT, white=["Tanh"], black=["Mul", "MatMul"], objective="max-low")
    assert [(e.op, e.after) for e in report.edits] == [("MatMul", "white")]
    assert report.edits[0].without == "keeps the limits too, with less in low precision"
    assert report.minimal and report.edits[0].cost == -1


def test_max_low_keeps_other_nodes_low_where_that_saves_bytes() -> None:
    """Rule S9.6: a low Tanh between two low products needs no Casts; between two high nodes it would need two."""
    between = f"""g (float[1,8] x) => (float[1,8] y) <float[8,8] w = {{{WEIGHTS}}}> {{
      [a] a = MatMul(x, w) [t] t = Tanh(a) [b] b = MatMul(t, w) [c] c = Softmax(b) [d] d = Abs(c) [y] y = Neg(d) }}"""
    report = tune(between, white=["MatMul"], black=["Tanh", "Softmax", "Neg"], objective="max-low")
    assert [(e.op, e.after) for e in report.edits] == [("Neg", "white"), ("Softmax", "white"), ("Tanh", "white")]
    assert {edit.without for edit in report.edits} == {"keeps the limits too, with more bytes between nodes"}
    assert report.minimal
    # A low Tanh between two high Muls saves no bytes, so that max-low makes it high.
    alone = tune(BETWEEN, white=["MatMul"], black=["Mul", "Tanh"], objective="max-low")
    assert alone.edits == ()


def test_max_low_replaces_a_black_op_type_by_rules_that_save_bytes() -> None:
    """Rule S9.7: three of four Exps overflow, so that rules do not suffice by their number."""
    text = """g (float[1,8] x, float[1,8] s) => (float[1,8] y, float[1,8] z, float[1,8] u, float[1,8] v) {
      [y] y = Exp(x) [z] z = Exp(x) [u] u = Exp(x) [a] a = Neg(s) [e] e = Exp(a) [v] v = Neg(e) }"""
    data = [{"x": np.full((1, 8), 12.0, np.float32), "s": np.ones((1, 8), np.float32)}]
    options: dict[str, Any] = {"white": ["Exp", "Neg"], "data": data, "node_rules": True}
    rules = tune(text, objective="max-low", **options)
    assert [edit.node for edit in rules.edits] == ["u", "y", "z"]
    assert [edit.op for edit in tune(text, **options).edits] == ["Exp"]


def test_max_low_makes_a_black_op_type_white_around_the_node_that_fails() -> None:
    """Rule S9.7: a white Exp overflows at one node of two, and saves bytes at the other one."""
    text = """g (float[1,8] x, float[1,8] s) => (float[1,8] y, float[1,8] v) {
      [y] y = Exp(x) [a] a = Neg(s) [e] e = Exp(a) [v] v = Neg(e) }"""
    data = [{"x": np.full((1, 8), 12.0, np.float32), "s": np.ones((1, 8), np.float32)}]
    options: dict[str, Any] = {"white": ["Neg"], "black": ["Exp"], "data": data, "objective": "max-low"}
    assert tune(text, **options).edits == ()
    rules = tune(text, node_rules=True, **options)
    assert [(edit.op, edit.node, edit.after) for edit in rules.edits] == [("Exp", "", "white"), ("Exp", "y", "float32")]
    assert rules.minimal and rules.verdict == "pass"


def test_an_edit_that_gained_next_to_a_dropped_one_is_dropped_too() -> None:
    """A white Tanh saves bytes only where Mul is black, which it need not be: a gray Mul follows Exp or MatMul."""
    text = f"""g (float[1,8] x) => (float[1,8] y, float[1,8] z)
      <float[1] k = {{0.0001}}, float[8,8] w = {{{WEIGHTS}}}> {{
      [e] e = Exp(x) [m] y = Mul(e, k)
      [a] a = MatMul(x, w) [b] b = Mul(a, k) [t] t = Tanh(b) [z] z = MatMul(t, w) }}"""
    data = [{"x": np.full((1, 8), 12.0, np.float32)}]
    report = tune(text, white=["MatMul"], black=["Exp"], data=data, objective="max-low")
    assert report.edits == () and report.minimal and report.verdict == "pass"


def test_an_interrupted_search_for_max_low_returns_the_list_with_the_most_work_low() -> None:
    """It is not the list with the fewest edits: the first list that passes keeps no work low."""
    options: dict[str, Any] = {"white": ["Mul", "Tanh"], "black": ["MatMul"], "objective": "max-low"}
    complete = tune(PRODUCT, **options)
    progress_calls: list[Any] = []

    def stop(trial: Any) -> None:
        progress_calls.append(trial)
        if len(progress_calls) == complete.trials:
            raise KeyboardInterrupt

    interrupted = tune(PRODUCT, progress=stop, **options)
    assert not interrupted.complete and interrupted.low_share == complete.low_share == {"base": 0.0, "tuned": 1.0}


def test_a_loss_of_accuracy_equal_to_the_limit_passes_the_final_check() -> None:
    """Rule S9.3: 8 right answers of 10 become 7. In floating point 0.8 - 0.7 is more than 0.1."""
    text = "g (float[10,2] x) => (float[10,2] y) <float[1] one = {1}> { [a] y = Mul(x, one) }"
    rows = np.tile(np.array([[1.0, 2.0]], np.float32), (10, 1))
    rows[0] = [1.0, 1.0001]  # the difference is gone in float16, and the first class wins
    labels = np.array([1] * 8 + [0] * 2)
    report = tune(text, white=["Mul"], data=[{"x": rows}], labels=labels, max_accuracy_loss=0.1)
    assert report.check is not None and report.check.task is not None
    assert (report.check.task.reference, report.check.task.mixed) == (0.8, 0.7)
    assert report.verdict == "pass" and not report.edits


def test_the_state_of_other_type_hints_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    tune(BETWEEN, state, white=["Mul", "Tanh"])
    with pytest.raises(UsageError, match="another search: type hints"):
        tune(BETWEEN, state, white=["Mul", "Tanh"], type_hints={"a": "float32"})


def test_a_state_without_trials_is_replaced(tmp_path: Path) -> None:
    """A command that fails on its data leaves a state with the first line alone."""
    state = tmp_path / "state"
    with pytest.raises(mixlist.MixlistError):
        tune(BETWEEN, state, white=["Mul"], data=[{"x": np.zeros((1, 8), np.float32)}], labels=np.zeros((3, 3), int))
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
    """A ranking takes as long as a check, and lists that pass as they are need no search (Rule S9.4)."""
    passing = tune(PRODUCT, white=["MatMul"], black=["Mul"])
    assert passing.verdict == "pass" and not passing.edits and passing.trials == 0
    assert passing.check is not None and not passing.check.layerwise
    searched = tune(PRODUCT, white=["MatMul"], black=["Mul"], objective="max-low", state=None)
    assert searched.trials > 0


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
