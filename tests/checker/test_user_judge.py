"""A function of the user judges the outputs of each batch, in checks and in trials."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker.result import JudgeResult
from mixlist.checker.user_judge import JudgeMeasures, UserJudge, describe_broken_limits, find_missing_evidence
from mixlist.errors import UsageError, UserCodeError
from mixlist.run.python_function import call_user_code
from tests.support.builders import model, policy

# 4096 + 0.3 is 4096 in float16; the output keeps the limits of errors.
SUM = "g (float[4] x) => (float[4] y) <float big = {4096}> { [up] a = Add(x, big) [keep] y = Neg(a) }"
FEEDS: list[dict[str, Any]] = [{"x": np.full(4, fraction, np.float32)} for fraction in (0, 0.3, 1.3, 0.1)]
LOW = policy(white=["Add"])


def largest_difference(reference: dict[str, Any], mixed: dict[str, Any]) -> dict[str, float]:
    """Return the largest difference, and change the arrays, which are copies."""
    difference = np.abs(reference["y"] - mixed["y"]).max()
    reference["y"][:] = mixed["y"][:] = 0
    return {"difference": difference, "first": float(mixed["y"][0])}


def test_the_worst_batch_is_judged_by_its_limit() -> None:
    for limit, passed in ((2.0, True), (0.5, False)):
        report = mixlist.check(model(SUM), LOW, FEEDS, judge=largest_difference, judge_limits={"difference": limit})
        by_name = {result.name: result for result in report.judge}
        worst = by_name["difference"]
        assert (worst.batch, worst.limit, worst.passed) == (2, limit, passed)
        assert worst.value == pytest.approx(1.3, abs=1e-3)
        assert (by_name["first"].limit, by_name["first"].passed) == (None, True)
        assert report.verdict == ("pass" if passed else "fail")
        assert all(output.passed for output in report.outputs)
    assert report.reasons == ("the judge gives difference 1.3 in batch 2, the limit is 0.5",)
    assert report.layerwise, "nodes are ranked, because accuracy alone fails"
    assert report.to_rows("judge")[0]["name"] == "difference"


def test_nan_keeps_no_limit() -> None:
    values = iter([1.0, np.nan, 2.0, 3.0])

    def judge(reference: object, mixed: object) -> dict[str, float]:
        return {"loss": next(values)}

    report = mixlist.check(model(SUM), LOW, FEEDS, judge=judge, judge_limits={"loss": 9})
    assert (report.verdict, report.judge[0].batch) == ("fail", 1)


def test_nan_without_a_limit_is_no_evidence() -> None:
    values = iter([1.0, np.nan, 2.0, 3.0])
    report = mixlist.check(model(SUM), LOW, FEEDS, judge=lambda reference, mixed: {"loss": next(values)})
    reason = "the judge gives loss nan in batch 1: return a number, or leave the name out there"
    assert (report.verdict, report.reasons) == ("inconclusive", (reason,))
    nothing = {"judge": lambda reference, mixed: {"loss": np.nan}}
    assert mixlist.tune(model(SUM), LOW, FEEDS, holdout=False, **nothing).verdict == "inconclusive"
    assert mixlist.convert(model(SUM), FEEDS, LOW, **nothing).report.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("judge", "limits", "message"),
    [
        (None, {"loss": 1}, "'loss' has a limit, and there is no judge"),
        (lambda reference, mixed: {"loss": 0}, {"los": 1}, "the judge never returned 'los', which has a limit"),
        (lambda reference, mixed: 0.5, {}, "returned an object of the type float, and not numbers by name"),
        (lambda reference, mixed: None, {}, "returned None, and not numbers by name"),
        (lambda reference, mixed: {"loss": "0"}, {}, "returned an object of the type str for 'loss', and not a number"),
        (lambda reference, mixed: {"loss": np.zeros(2)}, {}, "and not a number"),
        (lambda outputs: {}, {}, "cannot be called with two dicts"),
        (lambda reference, mixed: {}, {"loss": np.nan}, "the limit of 'loss' is NaN"),
        ("judge.py:f", {}, "the judge is an object of the type str, and not a function"),
    ],
)
def test_what_is_no_judge_is_an_error(judge: Any, limits: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mixlist.check(model(SUM), LOW, FEEDS, judge=judge, judge_limits=limits)


def test_numbers_of_numpy_are_numbers() -> None:
    numbers = {"a": np.float16(1), "b": np.array(2.0), "c": np.int64(3), "d": True, "e": np.False_}
    measured = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 0}
    assert UserJudge(lambda reference, mixed: numbers, {}).measure({}, {}) == measured


def test_a_judge_that_raises_an_error_of_its_own_class_is_told() -> None:
    class StopNow(BaseException):
        pass

    def judge(reference: Any, mixed: Any) -> dict[str, float]:
        raise StopNow("enough")

    with pytest.raises(UserCodeError, match="StopNow: enough"):
        call_user_code(lambda: UserJudge(judge, {}).measure({}, {}))


def test_a_number_beyond_the_range_of_float_is_infinite() -> None:
    numbers = {"a": 10**400, "b": -(10**400), "c": Fraction(10**400, 3)}
    expected = {"a": np.inf, "b": -np.inf, "c": np.inf}
    assert UserJudge(lambda reference, mixed: numbers, {}).measure({}, {}) == expected
    report = mixlist.check(model(SUM), LOW, FEEDS, judge=lambda reference, mixed: numbers, judge_limits={"a": 1})
    assert report.verdict == "fail"


def test_a_batch_that_is_not_judged_is_not_shown_to_the_judge() -> None:
    seen = []

    def judge(reference: dict[str, Any], mixed: dict[str, Any]) -> dict[str, float]:
        seen.append(float(reference["y"][0]))
        return {}

    feeds = [{"x": np.full(4, np.nan, np.float32)}, FEEDS[0]]
    mixlist.check(model(SUM), LOW, feeds, judge=judge)
    assert seen == [-4096]


@pytest.mark.parametrize("options", [{}, {"jobs": 2}])
def test_a_search_keeps_the_limits_of_the_judge(options: dict[str, Any]) -> None:
    """A local function cannot be sent to a worker: it runs in this process."""
    arguments: dict[str, Any] = {"judge": lambda r, m: largest_difference(r, m), "judge_limits": {"difference": 0.5}}
    report = mixlist.tune(model(SUM), LOW, FEEDS, holdout=False, **arguments, **options)
    assert (report.verdict, [edit.op for edit in report.edits]) == ("inconclusive", ["Add"])
    assert report.keeps_nothing_low
    assert report.edits[0].without.startswith("the judge gives difference")
    assert report.check is not None and report.check.judge[0].passed
    assert mixlist.tune(model(SUM), LOW, FEEDS, holdout=False, judge=arguments["judge"], **options).edits == ()


def test_a_state_belongs_to_a_judge(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    limits = {"difference": 0.5}
    mixlist.tune(model(SUM), LOW, FEEDS, state=state, judge=largest_difference, judge_limits=limits)
    trials = mixlist.tune(model(SUM), LOW, FEEDS, state=state, judge=largest_difference, judge_limits=limits).log
    assert trials and all(trial["remembered"] for trial in trials)
    with pytest.raises(UsageError, match="limits differs"):
        mixlist.tune(model(SUM), LOW, FEEDS, state=state, judge=largest_difference, judge_limits={"difference": 1})


def test_a_judge_without_a_file_has_a_text() -> None:
    """The state of tune compares judges by this text: an object, and a function without a file."""
    judge = eval("lambda reference, mixed: {}")
    assert repr(UserJudge(judge, {"b": 2.0, "a": 1.0})) == "<lambda>  [('a', 1.0), ('b', 2.0)]"
    assert repr(UserJudge(Counter(), {})) == "Counter  []"
    assert repr(UserJudge(judge_of_file, {})) == repr(UserJudge(judge_of_file, {}))
    assert repr(UserJudge(functools.wraps(judge_of_file)(judge), {})) == repr(UserJudge(judge_of_file, {}))
    name, digest, limits = repr(UserJudge(judge_of_file, {})).split(" ")
    assert (name, len(digest), limits) == ("judge_of_file", 16, "[]")


class Counter:
    """A judge that is an object."""

    def __call__(self, reference: dict[str, Any], mixed: dict[str, Any]) -> dict[str, float]:
        return {}


def judge_of_file(reference: dict[str, Any], mixed: dict[str, Any]) -> dict[str, float]:
    return {}


def test_the_worst_value_of_each_name() -> None:
    """NaN is the worst value, and stays it; of equal values the first batch counts."""
    values = iter([{"a": 1.0, "n": math.nan}, {"a": 3.0, "b": -2.0, "n": 7.0}, {"a": 3.0, "b": -5.0}, {"c": -math.inf}])
    measures = JudgeMeasures(UserJudge(lambda reference, mixed: next(values), {"a": 3.0, "b": -2.5, "n": 9.0}))
    for index in range(4):
        measures.add(index, {}, {})
    results = {result.name: result for result in measures.results()}
    assert [(r.value, r.batch, r.limit, r.passed) for name, r in results.items() if name != "n"] == [
        (3.0, 1, 3.0, True),
        (-2.0, 1, -2.5, False),
        (-math.inf, 3, None, True),
    ]
    assert math.isnan(results["n"].value) and results["n"].batch == 0 and not results["n"].passed
    assert describe_broken_limits(measures.results()) == [
        "the judge gives n nan in batch 0, the limit is 9",
        "the judge gives b -2 in batch 1, the limit is -2.5",
    ]


@pytest.mark.parametrize("number", [0.0, 2.0])
def test_evidence_is_a_number_above_zero(number: float) -> None:
    judge = UserJudge(lambda reference, mixed: {"boxes": number, "lost": 0.0}, {"lost": 0}, "boxes", str)
    measures = JudgeMeasures(judge)
    assert find_missing_evidence(judge, measures.results()) == ()  # no batch was judged
    measures.add(0, {}, {})
    assert bool(find_missing_evidence(judge, measures.results())) == (number == 0)
    assert measures.results()[1] == JudgeResult("lost", None if number == 0 else 0.0, 0, 0, True)


def test_a_judge_cannot_change_the_outputs() -> None:
    output, sequence = np.ones(3), [np.ones(3)]

    def judge(reference: dict[str, Any], mixed: dict[str, Any]) -> dict[str, float]:
        reference["y"][:] = 7
        assert mixed["s"] is sequence
        return {"a": np.float16(1.5), "b": np.array(2), "c": True}

    numbers = UserJudge(judge, {}).measure({"y": output}, {"s": sequence})
    assert numbers == {"a": 1.5, "b": 2.0, "c": 1.0} and all(type(number) is float for number in numbers.values())
    assert output.tolist() == [1, 1, 1]


@pytest.mark.parametrize("result", [{"a": np.ones(2)}, {"a": np.array("x")}, {1: 2.0}, {"a": None}, [("a", 1.0)]])
def test_a_result_that_is_no_number_by_name_is_an_error(result: Any) -> None:
    with pytest.raises(UsageError, match="returned"):
        UserJudge(lambda reference, mixed: result, {}).measure({}, {})


def test_without_a_judge_or_a_batch_nothing_is_measured() -> None:
    measures = JudgeMeasures(None)
    measures.add(0, {}, {})
    judge = UserJudge(lambda reference, mixed: {}, {"loss": 1}, "boxes")
    for judged in (measures, JudgeMeasures(judge)):
        judged.require_limited_names()
        assert judged.results() == ()
