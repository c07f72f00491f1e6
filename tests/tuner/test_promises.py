"""Promises of a result: no edit of it can go, a stopped search returns its best list, a state serves one search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.tuner.result import TuneReport
from tests.support.builders import model, policy
from tests.support.local_workers import Here, stop_at

OVER = {"x": np.full((1, 8), 300.0, np.float32)}
WEIGHTS = ", ".join(["0.1"] * 64)
# The outer products must be high, so that Tanh in low precision costs two Casts and saves nothing; MatMul does save.
BETWEEN = f"""g (float[1,8] x) => (float[1,8] y, float[1,8] z)
  <float[1] k = {{0.001}}, float[1] back = {{100000}}, float[8,8] w = {{{WEIGHTS}}}> {{
  [a] a = Mul(x, x) [b] b = Mul(a, k) [c] c = Tanh(b) [d] y = Mul(c, back) [e] z = MatMul(x, w) }}"""
# Mul overflows; the product is high at first, low if it may be.
PRODUCT = f"""g (float[1,8] x) => (float[1,8] y) <float[1] k = {{0.001}}, float[8,8] w = {{{WEIGHTS}}}> {{
  [a] a = Mul(x, x) [b] b = Mul(a, k) [c] c = Tanh(b) [d] d = MatMul(c, w) [e] y = Neg(d) }}"""


def tune(text: str, state: Path | None = None, **options: Any) -> TuneReport:
    lists = policy(white=options.pop("white", ()), black=options.pop("black", ()))
    return mixlist.tune(model(text), lists, options.pop("data", [OVER]), executor=Here(), state=state, **options)


def test_max_speed_keeps_an_edit_that_saves_casts() -> None:
    """Rule S9.6: Three objectives."""
    found = tune(BETWEEN, white=["Tanh", "MatMul"], black=["Mul"], objective="max-speed")
    assert [(e.op, e.before, e.after) for e in found.edits] == [("Tanh", "white", "black")]
    assert found.edits[0].without == "keeps the limits too, at a higher cost"
    assert found.verdict == "pass" and found.minimal


def test_max_speed_leaves_something_low() -> None:
    """Also where everything in float32 were cheapest: that is no mixed model."""
    found = tune(BETWEEN, white=["Tanh"], black=["Mul", "MatMul"], objective="max-speed")
    assert found.check is not None and not any("no node is low" in warning.message for warning in found.check.warnings)
    only = tune(BETWEEN.replace("MatMul(x, w)", "Mul(x, k)"), white=["Tanh"], black=["Mul"], objective="max-speed")
    assert not only.edits


def test_an_edit_for_more_work_in_low_precision_is_told_as_one() -> None:
    found = tune(PRODUCT, white=["Tanh"], black=["Mul", "MatMul"], objective="max-low")
    assert [(e.op, e.after) for e in found.edits] == [("MatMul", "white")]
    assert found.edits[0].without == "keeps the limits too, with less in low precision"
    assert found.minimal and found.edits[0].cost == -1


def test_a_stopped_search_for_low_work_hands_back_the_most() -> None:
    """Not the fewest edits: the first list that passes keeps nothing low, the whole work comes with another one."""
    options: dict[str, Any] = {"white": ["Mul", "Tanh"], "black": ["MatMul"], "objective": "max-low"}
    whole = tune(PRODUCT, **options)
    seen: list[Any] = []

    def stop(trial: Any) -> None:
        seen.append(trial)
        if len(seen) == whole.trials:
            raise KeyboardInterrupt

    cut = tune(PRODUCT, progress=stop, **options)
    assert not cut.complete and cut.low_share == whole.low_share == {"base": 0.0, "tuned": 1.0}


def test_a_loss_of_accuracy_at_its_limit_is_kept_by_the_check_too() -> None:
    """8 right answers of 10 become 7: 0.8 - 0.7 is more than 0.1 in floating point. Rule S9.3."""
    text = "g (float[10,2] x) => (float[10,2] y) <float[1] one = {1}> { [a] y = Mul(x, one) }"
    rows = np.tile(np.array([[1.0, 2.0]], np.float32), (10, 1))
    rows[0] = [1.0, 1.0001]  # the difference is gone in float16, and the first class wins
    labels = np.array([1] * 8 + [0] * 2)
    found = tune(text, white=["Mul"], data=[{"x": rows}], labels=labels, max_accuracy_loss=0.1)
    assert found.check is not None and found.check.task is not None
    assert (found.check.task.reference, found.check.task.mixed) == (0.8, 0.7)
    assert found.verdict == "pass" and not found.edits


def test_a_state_knows_the_type_hints(tmp_path: Path) -> None:
    state = tmp_path / "state"
    tune(BETWEEN, state, white=["Mul", "Tanh"])
    with pytest.raises(UsageError, match="another search: type hints"):
        tune(BETWEEN, state, white=["Mul", "Tanh"], type_hints={"a": "float32"})


def test_the_state_of_a_search_that_tried_nothing_is_anyones(tmp_path: Path) -> None:
    """A command that failed on its data leaves one line, which the next one replaces."""
    state = tmp_path / "state"
    with pytest.raises(mixlist.MixlistError):
        tune(BETWEEN, state, white=["Mul"], data=[{"x": np.zeros((1, 8), np.float32)}], labels=np.zeros((3, 3), int))
    assert state.read_text().count("\n") == 1
    assert tune(BETWEEN, state, white=["Mul", "Tanh"]).verdict == "pass"


def test_a_search_that_goes_on_tries_batches_in_the_same_order(tmp_path: Path) -> None:
    """Each batch fails at another node, so that the order shows in what is told."""
    text = """g (float[1,8] x, float[1,8] u, float[1,8] v) => (float[1,8] y)
      <float[1] k = {0.001}, float[1] far = {20000}> {
      [a] a = Mul(x, x) [b] b = Mul(u, u) [c] c = Add(v, far) [d] d = Mul(a, k) [e] e = Mul(b, k) [f] f = Sub(c, far)
      [g] y = Sum(d, e, f) }"""
    sizes = ({"x": 1, "u": 1, "v": 1}, {"x": 300, "u": 1, "v": 1}, {"x": 1, "u": 300, "v": 60000})
    data = [{name: np.full((1, 8), value, np.float32) for name, value in size.items()} for size in sizes]
    given: dict[str, Any] = {"white": ["Mul", "Add", "Sub"], "data": data}
    whole = tune(text, **given)
    assert {edit.op for edit in whole.edits} >= {"Mul", "Add"}
    for last in range(1, whole.trials):
        state = tmp_path / f"state{last}"
        tune(text, state, progress=stop_at(last), **given)
        again = tune(text, state, **given)
        assert again.remembered
        assert [(line["edits"], line["why"]) for line in again.log] == [(x["edits"], x["why"]) for x in whole.log]
