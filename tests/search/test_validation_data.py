"""Validation data, which the search does not see: a quarter of the batches, or --validate-on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist import CheckReport
from mixlist.search.checks import SearchData
from mixlist.search.tune_result import TuneReport
from tests.support.builders import customize, model, policy

TEXT = "g (float[2] x) => (float[2] y, float[2] z) { [m] m = Mul(x, x) [n] y = Neg(m) [t] z = Tanh(x) }"
POLICY = policy(white=["Mul", "Tanh"])
SMALL, LARGE = 3.0, 300.0  # the square of LARGE overflows in float16


def feeds(sizes: Sequence[float]) -> list[dict[str, Any]]:
    return [{"x": np.array([size, 1], np.float32)} for size in sizes]


def tune(sizes: Sequence[float], **options: Any) -> TuneReport:
    return mixlist.tune(model(TEXT), POLICY, feeds(sizes), **options)


def names(*indices: int) -> tuple[str, ...]:
    return tuple(f"batch {at}" for at in indices)


@pytest.mark.parametrize(
    ("count", "held_out"), [(4, names(3)), (7, names(6)), (8, names(6, 7)), (13, names(10, 11, 12))]
)
def test_the_last_quarter_is_held_out(count: int, held_out: tuple[str, ...]) -> None:
    report = tune([SMALL] * count)
    assert report.held_out == held_out
    assert report.validation is not None and report.check is not None
    assert (report.validation.batches, report.check.batches) == (len(held_out), count - len(held_out))
    assert not any("not validated" in warning.message for warning in report.warnings)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_fewer_than_four_batches_none_is_held_out(count: int) -> None:
    report = tune([SMALL] * count)
    assert (report.verdict, report.validation, report.held_out) == ("pass", None, ())
    (warning,) = [warning for warning in report.warnings if "not validated" in warning.message]
    assert f"there {'is 1 batch' if count == 1 else f'are {count} batches'}, and a quarter" in warning.message


def test_a_failing_held_out_batch_joins_the_search() -> None:
    """One edit fixes the held-out batch, and the other one validates it."""
    report = tune([SMALL] * 6 + [SMALL, LARGE])
    assert (report.verdict, [edit.op for edit in report.edits]) == ("pass", ["Mul"])
    assert (report.joined, report.held_out) == (names(7), names(6))
    assert report.check is not None and report.check.batches == 7
    assert report.validation is not None and report.validation.batches == 1
    assert len(report.log) == report.trials > 0


def test_a_result_without_batches_left_says_so() -> None:
    report = tune([SMALL, SMALL, SMALL, LARGE])
    assert (report.verdict, report.joined, report.held_out, report.validation) == ("pass", names(3), (), None)
    (warning,) = [warning for warning in report.warnings if warning.code == "ML611"]
    assert "every batch that was held out failed, and joined the search" in warning.message


@pytest.mark.parametrize(("failing", "verdict"), [(3, "pass"), (4, "fail")])
def test_batches_join_at_most_three_times(failing: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each held-out batch overflows at a node of its own, and only the first failing batch joins at a time."""
    join = SearchData.join

    def join_first(self: SearchData, checks: Sequence[CheckReport]) -> SearchData:
        first = next(index for index, check in enumerate(checks) if check.verdict == "fail")
        return join(
            self,
            [check if index == first else replace(check, verdict="pass") for index, check in enumerate(checks)],
        )

    monkeypatch.setattr(SearchData, "join", join_first)
    text = """g (float[1] a, float[1] b, float[1] c, float[1] d) => (float[1] p, float[1] q, float[1] r, float[1] s)
      { p = Mul(a, a) q = Exp(b) r = Sum(c, c) s = Reciprocal(d) }"""
    large = {"a": 300.0, "b": 12.0, "c": 60000.0, "d": 1e-5}
    small = {name: np.ones(1, np.float32) for name in large}
    held_out = [small | {name: np.array([large[name]], np.float32)} for name in list(large)[:failing]]
    ops = ["Mul", "Exp", "Sum", "Reciprocal"]
    report = mixlist.tune(model(text), policy(white=ops), [small] * (3 * failing) + held_out)
    assert (report.verdict, [edit.op for edit in report.edits]) == (verdict, sorted(ops[:3]))
    assert report.joined == tuple(f"batch {3 * failing + index}" for index in range(3))


def test_without_a_list_for_the_joined_batch_the_first_list_is_in_the_report() -> None:
    """A rule makes the Mul low, and no list changes that."""
    rule = customize("m", ["float16", "float16"], ["float16"])
    report = mixlist.tune(model(TEXT), policy(white=["Mul"], rules=(rule,)), feeds([SMALL, SMALL, SMALL, LARGE]))
    assert (report.verdict, report.edits, report.joined, report.held_out) == ("fail", (), names(3), names(3))
    assert report.reasons[0].startswith("on the batches that were held out: 1 of 1 batches overflow")
    assert report.reasons[-1].startswith("with these batches in the search: no list of op types keeps the limits")
    assert report.modify_mixlist == "{}\n"
    assert report.validation is not None and report.validation.verdict == "fail"


def test_a_state_keeps_the_trials_with_joined_batches(tmp_path: Path) -> None:
    """The second run takes every trial from the state, those of the first search and of the second one."""
    sizes = [SMALL] * 6 + [SMALL, LARGE]
    first = tune(sizes, state=tmp_path / "state.jsonl")
    again = tune(sizes, state=tmp_path / "state.jsonl")
    assert (again.trials, again.remembered) == (0, first.trials)
    assert [edit.op for edit in again.edits] == ["Mul"]


def test_no_holdout_searches_all_batches() -> None:
    report = tune([SMALL, SMALL, SMALL, LARGE], holdout=False)
    assert (report.verdict, report.validation, report.held_out) == ("pass", None, ())
    assert [edit.op for edit in report.edits] == ["Mul"]
    assert not any("not validated" in warning.message for warning in report.warnings)


def test_validate_on_replaces_the_held_out_batches() -> None:
    report = tune([SMALL, SMALL, SMALL, LARGE], validate_on=feeds([SMALL, LARGE]))
    assert (report.verdict, report.held_out, [edit.op for edit in report.edits]) == ("pass", (), ["Mul"])
    assert report.validation is not None and report.validation.batches == 2


def test_only_batches_within_steps_are_split() -> None:
    report = tune([SMALL] * 8 + [LARGE], max_batches=4)
    assert (report.verdict, report.held_out) == ("pass", names(3))


def test_a_held_out_batch_that_breaks_the_limit_of_the_judge_joins() -> None:
    """In float16, 2049 becomes 2048, so that the two values of the last batch are equal, and the answer is another."""
    text = """g (float[1, 2] x) => (float[1, 2] y, float[1] z) <float zero = {0}> {
      [a] y = Add(x, zero) [s] z = ReduceMax<axes=[1], keepdims=0>(x) }"""
    values = [[1, 2], [1, 2], [1, 2], [2048, 2049]]
    data = [{"x": np.array([row], np.float32)} for row in values]

    def changed(reference: dict[str, Any], mixed: dict[str, Any]) -> dict[str, float]:
        return {"changed": float((reference["y"].argmax(1) != mixed["y"].argmax(1)).mean())}

    report = mixlist.tune(
        model(text), policy(white=["Add", "ReduceMax"]), [*data[:3] * 2, data[3], data[0]],
        judge=changed, judge_limits={"changed": 0.0}, limits=mixlist.Limits(normalized=None, cosine=None),
    )  # fmt: skip
    assert (report.verdict, report.joined, [edit.op for edit in report.edits]) == ("pass", ("batch 6",), ["Add"])
    assert report.check is not None and report.check.batches == 7
    assert report.validation is not None and report.validation.batches == 1
