"""Tests of each rule of the verdict on training, with histories that were written by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mixlist.training.evaluation import Metric
from mixlist.training.options import TrainOptions
from mixlist.training.result import SeedRun, TrainingHistory
from mixlist.training.verdict import describe_unjudged_runs, failure_reasons, reason_of_failure

LOSS = tuple(1 / (1 + k) for k in range(100))


def make_run(seed: int = 0, float32: float | None = 0.98, mixed: float | None = 0.98, **changes: Any) -> SeedRun:
    """Return a run of 100 steps with these metrics; ``changes`` are fields of the mixed history."""
    return SeedRun(seed, TrainingHistory(LOSS, float32), TrainingHistory(LOSS, mixed, **changes))


def reasons_for(
    runs: list[SeedRun], exceptions: int = 0, limit: float = 0.005, higher: bool = True, complete: bool = True
) -> list[str]:
    """Return the reasons to fail. The first run gets ``exceptions`` exceptions."""
    options = TrainOptions(max_exception_rate=limit, tolerance=0.005, runs=len(runs) if complete else len(runs) + 1)
    first_run = replace(runs[0], mixed=replace(runs[0].mixed, exceptions=tuple(range(exceptions))))
    return failure_reasons([first_run, *runs[1:]], (), Metric("accuracy", higher), options)


PASSING_RUNS = [make_run(seed) for seed in range(3)]


def test_three_equal_runs_pass() -> None:
    """Rule S10.17: Verdict of train."""
    assert reasons_for(PASSING_RUNS) == []


def test_the_exception_rate_fails_at_its_limit() -> None:
    """Rule S10.13: The exception rate counts steps."""
    runs = [make_run(seed) for seed in range(10)]
    assert reasons_for(runs, exceptions=4) == []
    assert reasons_for(runs, exceptions=5) == ["5 of 1000 steps have an exception: 0.50%, the limit is 0.50%"]
    assert reasons_for(runs, exceptions=1, limit=0.001) == [
        "1 of 1000 steps have an exception: 0.10%, the limit is 0.10%"
    ]
    assert reasons_for(runs, exceptions=0, limit=0.0) == []


@pytest.mark.parametrize(
    ("float32", "mixed", "higher", "worse"),
    [(0.98, 0.976, True, False), (0.98, 0.974, True, True), (0.97, 0.99, True, False),
     (0.5, 0.504, False, False), (0.5, 0.506, False, True), (0.5, 0.1, False, False),
     (0.98, math.nan, True, True)],
)  # fmt: skip
def test_the_metric_may_be_worse_by_the_tolerance(float32: float, mixed: float, higher: bool, worse: bool) -> None:
    """Rule S10.14: The metric must match float32."""
    runs = [make_run(seed, float32, mixed) for seed in range(3)]
    assert any("worse by" in reason for reason in reasons_for(runs, higher=higher)) == worse


def test_the_means_of_the_metric_are_compared() -> None:
    assert reasons_for([make_run(0, 0.98, 0.974), make_run(1, 0.98, 0.979), make_run(2, 0.98, 0.983)]) == []


def test_fewer_than_three_runs_do_not_qualify() -> None:
    """Rule S10.15: The metric must be constant over three runs."""
    assert reasons_for(PASSING_RUNS[:2]) == ["2 of at least 3 runs: too few to show that accuracy is constant"]
    assert reasons_for(PASSING_RUNS[:2], complete=False) == []


def test_the_metric_must_be_constant() -> None:
    """Rule S10.15: The metric must be constant over three runs."""
    runs = [make_run(0, 0.98, 0.96), make_run(1, 0.98, 0.98), make_run(2, 0.98, 1.0)]
    assert reasons_for(runs) == [
        "accuracy varies by 0.04 over the runs, in float32 by 0: it is not constant within 0.01"
    ]
    assert (
        reasons_for([make_run(seed, 0.96 + 0.02 * seed, 0.96 + 0.02 * seed) for seed in range(3)]) == []
    )  # float32 varies as much


def test_a_mixed_run_that_diverges_fails() -> None:
    """Rule S10.16: No training diverges."""
    diverged = make_run(1, diverged="diverges: its loss or its parameters are not finite")
    assert reasons_for([PASSING_RUNS[0], diverged, PASSING_RUNS[2]]) == [
        "seed 1: training in mixed precision diverges: its loss or its parameters are not finite"
    ]
    float32_diverged = SeedRun(1, TrainingHistory(LOSS, 0.98, diverged="does not learn"), TrainingHistory(LOSS, 0.98))
    assert reasons_for([PASSING_RUNS[0], float32_diverged, PASSING_RUNS[2]]) == []


def test_a_seed_that_float32_cannot_train_is_not_judged() -> None:
    """Rule S10.19: A float32 run must be something to compare with."""
    metric = Metric("accuracy", True)
    float32_diverged = SeedRun(
        1,
        TrainingHistory(LOSS, 0.98, diverged="does not learn"),
        TrainingHistory(LOSS, 0.1, exceptions=(1, 2), diverged="diverges"),
    )
    without_metric = make_run(2, math.nan, 0.98)
    runs = [PASSING_RUNS[0], float32_diverged, without_metric]
    assert describe_unjudged_runs(runs, metric) == [
        "seed 1: training in float32 does not learn, so there is nothing to compare with",
        "seed 2: accuracy is nan in float32, so there is nothing to compare with",
    ]
    assert reasons_for(runs) == []
    worse = make_run(0, 0.98, 0.9)
    assert reasons_for([worse, *runs[1:]]) == [
        "accuracy is 0.9, in float32 0.98: worse by 0.08, the tolerance is 0.005"
    ]
    assert describe_unjudged_runs(PASSING_RUNS, metric) == []


def test_divergence_of_a_single_training() -> None:
    assert reason_of_failure(LOSS, (), True) == ""
    assert reason_of_failure(LOSS, (), False).startswith("diverges")
    assert reason_of_failure((*LOSS, math.nan), (), True).startswith("diverges")
    assert reason_of_failure((*LOSS, math.inf), (100,), True) == ""  # the loss of a skipped step does not count
    assert reason_of_failure(LOSS, range(100), True).startswith("applied no step")
    assert reason_of_failure(LOSS[::-1], (), True).startswith("does not learn")
    assert reason_of_failure([2.3] * 100, (), True).startswith("does not learn")
    assert reason_of_failure([0.0] * 100, (), True) == ""  # there was nothing to learn
