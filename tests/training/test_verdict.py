"""Tests of each rule of the verdict on training, with histories that were written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mixlist.training.evaluation import Metric
from mixlist.training.options import TrainOptions
from mixlist.training.result import GradientUnderflow, SeedRun, TrainingHistory
from mixlist.training.scalers import make_scaler
from mixlist.training.steady_state import measure_rates
from mixlist.training.verdict import TrainingVerdict, judge, judged_runs, reason_of_failure

LOSS = [1 / (1 + k) for k in range(100)]
ACCURACY, MEAN_LOSS = Metric("accuracy", True), Metric("loss", False)
NO_UNDERFLOW = GradientUnderflow(0.0, 0.0, 0.0, 0.0, 8, {"float32": 0.2, "mixed": 0.2})


def make_run(
    seed: int = 0,
    float32: float | None = 0.98,
    mixed: float | None = 0.98,
    twin: float | None = None,
    first: float | None = None,
    **changes: Any,
) -> SeedRun:
    """Return a run of 100 steps with these metrics; ``changes`` are fields of the mixed history."""
    histories = [
        TrainingHistory(LOSS, first, metric=metric, scale=[1024.0] * 100)
        for metric in (float32, float32 if twin is None else twin, mixed)
    ]
    return SeedRun(seed, histories[0], histories[1], replace(histories[2], **changes))


def verdict_on(
    finished: Sequence[SeedRun],
    metric: Metric = ACCURACY,
    underflow: GradientUnderflow | None = NO_UNDERFLOW,
    scaler: str = "torch",
    **options: Any,
) -> TrainingVerdict:
    train_options = TrainOptions(**{"runs": len(finished), **options})
    histories = [run.mixed for run in judged_runs(finished, metric)]
    rates = measure_rates(histories, make_scaler(scaler), train_options.planned_steps)
    return judge(finished, rates, underflow, metric, train_options)


def with_exceptions(steps: Sequence[int], seed: int = 0, scale: float = 1024.0) -> SeedRun:
    return make_run(seed, exceptions=list(steps), scale=[scale] * 100)


PASSING_RUNS = [make_run(seed) for seed in range(3)]


def test_three_equal_runs_pass() -> None:
    """Rule S10.17: Verdict of train."""
    judged = verdict_on(PASSING_RUNS)
    assert judged.verdict == "pass"
    assert judged.reasons == (
        "exceptions stay below their limit, no training diverges, and accuracy is worse than in float32 by 0 (worse by"
        " at least 0 and at most 0), the margin is 0.005",
    )


@pytest.mark.parametrize(
    ("mixed", "sentence"),
    [
        (0.978, "accuracy is worse than in float32 by 0.002 (worse by at least 0.002 and at most 0.002)"),
        (0.982, "accuracy is better than in float32 by 0.002 (worse by at least -0.002 and at most -0.002)"),
    ],
)
def test_the_reason_says_whether_the_metric_is_better_or_worse(mixed: float, sentence: str) -> None:
    """Rule S10.17: Verdict of train."""
    (reason,) = verdict_on([make_run(seed, mixed=mixed) for seed in range(3)]).reasons
    assert sentence in reason


def test_only_a_rate_that_is_certain_fails() -> None:
    """Rule S10.13: The exceptions of the steady state are judged."""
    two, three = with_exceptions([50, 60]), with_exceptions([50, 60, 70, 80])
    assert verdict_on([two, *PASSING_RUNS[1:]]).verdict == "pass"  # 2 of 270: the lower bound is 0.13 %
    assert verdict_on([two, *PASSING_RUNS[1:]], max_exception_rate=0.001).verdict == "fail"
    judged = verdict_on([three, *PASSING_RUNS[1:]])
    assert judged.reasons == ("4 of 270 steps after the start-up have an exception: 1.48%, the limit is 0.50%",)


def test_the_start_up_does_not_fail() -> None:
    """Rule S10.20: The start-up belongs to the scale."""
    assert verdict_on([with_exceptions(range(9)), *PASSING_RUNS[1:]]).verdict == "pass"


def test_exceptions_that_no_smaller_scale_prevents_fail() -> None:
    """Rule S10.13."""
    runs = [with_exceptions(range(100), seed, scale=1.0) for seed in range(3)]
    assert verdict_on(runs).reasons[0].startswith("300 of 300 steps have an exception: 100.00%")
    falling = [
        make_run(seed, exceptions=list(range(100)), scale=[2.0 ** (9 - k) for k in range(100)]) for seed in range(3)
    ]
    assert verdict_on(falling).reasons[0].startswith("273 of 273 steps at the smallest loss scale have an exception")
    fixed = [with_exceptions([50, 60, 70, 80, 90], seed) for seed in range(3)]
    assert verdict_on(fixed, scaler="mindspore-fixed").verdict == "fail"


def test_without_a_steady_state_the_verdict_is_open() -> None:
    """Rule S10.20."""
    runs = [*PASSING_RUNS[:2], with_exceptions(range(0, 100, 8), 2)]
    judged = verdict_on(runs)
    assert judged.verdict == "inconclusive"
    assert judged.reasons == (
        "1 of 3 mixed trainings have no step after 10 good steps in a row, so the rate of exceptions is not known: give"
        " more --steps, or a smaller --loss-scale",
    )


def test_planned_steps_judge_the_whole_training() -> None:
    """Rule S10.20."""
    runs = [with_exceptions(range(5), seed) for seed in range(3)]
    assert verdict_on(runs).verdict == "pass"
    judged = verdict_on(runs, planned_steps=500)
    assert judged.reasons[0].startswith("of 500 planned steps 1.0")
    assert verdict_on(runs, planned_steps=100_000).verdict == "pass"


@pytest.mark.parametrize(
    ("float32", "mixed", "higher", "verdict"),
    [(0.98, 0.976, True, "pass"), (0.98, 0.974, True, "fail"), (0.97, 0.99, True, "pass"),
     (0.5, 0.502, False, "pass"), (0.5, 0.504, False, "fail"), (0.5, 0.1, False, "pass"),
     (0.98, math.nan, True, "fail"), (0.5, math.inf, False, "fail")],
)  # fmt: skip
def test_the_metric_may_be_worse_by_the_tolerance(float32: float, mixed: float, higher: bool, verdict: str) -> None:
    """Rule S10.14: The metric must match float32. A loss is judged by its share: 0.004 of 0.5 is 0.008."""
    runs = [make_run(seed, float32, mixed) for seed in range(3)]
    assert verdict_on(runs, ACCURACY if higher else MEAN_LOSS).verdict == verdict


def test_what_float32_varies_by_itself_is_allowed() -> None:
    """Rule S10.14."""
    runs = [
        make_run(seed, 0.9, 0.9 + shift, 0.9 - shift) for seed, shift in enumerate((0.01, -0.01, 0.008, -0.009, 0.012))
    ]
    assert verdict_on(runs).verdict == "pass"
    without_scatter = [make_run(run.seed, 0.9, run.mixed.metric, 0.9) for run in runs]
    assert verdict_on(without_scatter).verdict == "fail"  # not constant


def test_an_open_comparison_names_the_number_of_runs() -> None:
    """Rule S10.14."""
    runs = [
        make_run(seed, 0.9, 0.9 - loss, 0.9 + e) for seed, loss, e in ((0, 0.01, 0.01), (1, 0.02, -0.01), (2, 0.03, 0))
    ]
    judged = verdict_on(runs)
    assert judged.verdict == "inconclusive"
    assert "runs would decide (--runs)" in judged.reasons[0]


def test_a_loss_is_judged_by_what_float32_has_learned() -> None:
    """Rule S10.14."""
    learned = [make_run(seed, 1e-6, 4e-4, first=2.3) for seed in range(3)]
    judged = verdict_on(learned, MEAN_LOSS)
    assert judged.verdict == "pass" and judged.comparison is not None
    assert judged.comparison.difference == pytest.approx(4e-4 / 2.3, rel=0.01)
    assert judged.reasons[1].startswith("but loss is 0.0004, and in float32 1e-06: float32 varies by less")
    large = [make_run(seed, 620.1, 620.1 + 0.01, first=900.0) for seed in range(3)]
    assert verdict_on(large, MEAN_LOSS).verdict == "pass"
    frozen = [make_run(seed, 4.4e-7, 1.38e-6, first=4.6e-7) for seed in range(3)]
    assert verdict_on(frozen, MEAN_LOSS).verdict == "fail"


def test_fine_tuning_from_converged_values_passes() -> None:
    """Rule S10.14: both keep the loss within the noise of the twins."""
    runs = [make_run(seed, 0.1, 0.1001, 0.0999, first=0.1) for seed in range(3)]
    assert verdict_on(runs, MEAN_LOSS).verdict == "pass"


@pytest.mark.parametrize(
    ("underflow", "reason"),
    [
        (replace(NO_UNDERFLOW, zero=0.51), "51.0% of the gradient values that are not zero in float32 become zero"),
        (
            replace(NO_UNDERFLOW, zero_gradient_share={"float32": 0.6, "mixed": 0.71}),
            "71.0% of the gradient values are zero, in float32 60.0%",
        ),
        (replace(NO_UNDERFLOW, zero=0.49, zero_gradient_share={"float32": 0.9, "mixed": 0.95}), ""),
        (None, ""),
    ],
)
def test_gradients_that_become_zero_fail(underflow: GradientUnderflow | None, reason: str) -> None:
    """Rule S10.21: Gradients do not become zero."""
    judged = verdict_on(PASSING_RUNS, underflow=underflow)
    assert judged.verdict == ("fail" if reason else "pass")
    assert judged.reasons[0].startswith(reason)


def test_fewer_than_three_runs_are_inconclusive() -> None:
    """Rule S10.17."""
    judged = verdict_on(PASSING_RUNS[:2])
    assert (judged.verdict, judged.reasons) == (
        "inconclusive",
        ("2 of at least 3 runs: too few to judge a training by",),
    )
    assert verdict_on(PASSING_RUNS[:2], runs=3).verdict == "pass"  # Ctrl-C is a reason of its own


def test_a_mixed_run_that_diverges_fails() -> None:
    """Rule S10.16: No training diverges."""
    diverged = make_run(1, mixed=math.nan, diverged="diverges: its loss or its parameters are not finite")
    judged = verdict_on([PASSING_RUNS[0], diverged, PASSING_RUNS[2]])
    assert judged.reasons == (
        "seed 1: training in mixed precision diverges: its loss or its parameters are not finite",
    )


def test_a_seed_that_float32_cannot_train_is_not_judged() -> None:
    """Rule S10.19: A float32 run must be something to compare with."""
    diverged = make_run(1, exceptions=list(range(100)), diverged="diverges")
    diverged = replace(diverged, float32=replace(diverged.float32, diverged="diverges"))
    twin_diverged = make_run(2)
    twin_diverged = replace(twin_diverged, twin=replace(twin_diverged.twin, diverged="diverges"))
    runs = [PASSING_RUNS[0], diverged, twin_diverged, make_run(3, math.nan, 0.98)]
    judged = verdict_on(runs)
    assert judged.verdict == "inconclusive"
    assert judged.reasons[:3] == (
        "seed 1: training in float32 diverges, so there is nothing to compare with",
        "seed 2: training of the float32 twin diverges, so there is nothing to compare with",
        "seed 3: accuracy is nan in float32, so there is nothing to compare with",
    )
    worse = verdict_on([make_run(0, 0.98, 0.9), *runs[1:]])
    assert worse.verdict == "fail"


def test_divergence_of_a_single_training() -> None:
    """Rule S10.16."""
    assert reason_of_failure(LOSS, (), True) == ""
    assert reason_of_failure(LOSS, (), False).startswith("diverges")
    assert reason_of_failure((*LOSS, math.nan), (), True).startswith("diverges")
    assert reason_of_failure((*LOSS, math.inf), (100,), True) == ""  # the loss of a skipped step does not count
    assert reason_of_failure(LOSS, range(100), True).startswith("applied no step")
    assert reason_of_failure(LOSS[::-1], (), True) == ""  # fine-tuning need not learn
