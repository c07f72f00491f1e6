"""A result close to a limit says so, and a trial which limit would pass it."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist import OutputFinding
from mixlist.checker.limits import describe_near_limit
from mixlist.search.trial_verdict import TrialJudge, TrialLimits
from tests.support.builders import model, policy
from tests.support.check_reports import PASSING
from tests.support.local_workers import InProcessExecutor

PERFECT = OutputFinding("y", 0.0, 0.0, 0.0, 1.0, math.inf, None, 1.0, passed=True)


@pytest.mark.parametrize(
    ("field", "limit", "near", "far"),
    [
        ("normalized_error", {"normalized": 0.01}, 0.0084, 0.0079),
        ("max_abs_error", {"max_abs": 2.0}, 1.6, 1.5),
        ("cosine", {"cosine": 0.999}, 0.9991, 0.9993),
        ("cosine", {"cosine": -1.0}, -0.8, 0.5),
        ("snr_db", {"snr": 40.0}, 41.9, 42.0),
        ("mismatches", {"mismatch": 0.1}, 0.09, 0.05),
    ],
)
def test_a_result_from_80_percent_of_a_limit_on_is_near(
    field: str, limit: dict[str, float], near: float, far: float
) -> None:
    def describe(value: float) -> str:
        report = replace(PASSING, limits=limit, outputs=(PERFECT, replace(PERFECT, name="z", **{field: value})))
        return describe_near_limit(None, report)

    (name, number), *_ = limit.items()
    assert (
        describe(near)
        == f"output 'z' has {name} {near:g} of {number:g}: another batch may miss it, so give more batches"
    )
    assert describe(far) == ""


def test_limits_of_zero_and_limits_that_do_not_judge_an_output_are_never_near() -> None:
    exact = replace(PASSING, limits={"max_abs": 0.0, "cosine": 1.0}, outputs=(PERFECT,))
    assert describe_near_limit(exact) == ""
    integers = replace(PERFECT, normalized_error=0.9, mismatches=0.001)
    assert describe_near_limit(replace(PASSING, limits={"normalized": 1.0}, outputs=(integers,))) == ""


def test_the_exception_rate_has_a_limit_too() -> None:
    rate = replace(PASSING, limits={"exception_rate": 0.1}, exception_rate=0.09, outputs=())
    assert (
        describe_near_limit(rate)
        == "the exception rate is 9 % of 10 %: another batch may miss it, so give more batches"
    )


def test_the_report_of_tune_names_the_limit() -> None:
    """2049 becomes 2048 in float16: an error of 0.000488."""
    feed = {"x": np.array([2049.0], np.float32)}
    text = "g (float[1] x) => (float[1] y) { [a] y = Neg(x) }"

    def reasons(limit: float) -> tuple[str, ...]:
        limits = mixlist.Limits(normalized=limit)
        return mixlist.tune(
            model(text), policy(white=["Neg"]), [feed], limits=limits, executor=InProcessExecutor()
        ).reasons

    near = "output 'y' has normalized 0.000488 of 0.0005: another batch may miss it, so give more batches"
    assert reasons(0.0005) == ("the lists keep every limit", near)
    assert reasons(0.001) == ("the lists keep every limit",)


@pytest.mark.parametrize(
    ("missed", "limits", "batches", "kept"),
    [
        (("normalized",), mixlist.Limits(), 1, 0.02),
        ((), mixlist.Limits(), 1, 0.02),
        (("normalized", "cosine"), mixlist.Limits(), 1, None),
        (("normalized",), mixlist.Limits(per_index=1), 1, None),
        (("normalized",), mixlist.Limits(), 2, None),  # the second batch does not run
    ],
)
def test_a_trial_knows_the_limit_that_passes_it(
    missed: tuple[str, ...], limits: mixlist.Limits, batches: int, kept: float | None
) -> None:
    finding = replace(PERFECT, normalized_error=0.02, failed_limits=missed, passed=not missed)
    output: Any = SimpleNamespace(
        name="y", merge=lambda _: None, cannot_pass=lambda _: bool(missed), finding=lambda _: finding
    )
    batch: Any = SimpleNamespace(refusal=None, overflow="", outputs=(None,), model_outputs=None)
    outcome = TrialJudge(TrialLimits(limits, 0.005), [output], batches).add(0, batch)
    assert outcome is not None and outcome.kept_limit == kept
