"""Tests of each rule of the verdict on training, with histories that were written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from mixlist.show.html_page import render_document
from mixlist.show.train_document import train_document
from mixlist.training.options import TrainOptions
from mixlist.training.result import GradientUnderflow, Replay, SeedRun, TrainingHistory
from mixlist.training.scalers import make_scaler
from mixlist.training.verdict import (
    FEW_RUNS,
    Metric,
    TrainingVerdict,
    describe_bounds,
    describe_comparison,
    judge,
    learns,
    lower_bound,
    reason_of_failure,
    seeds_to_replay,
)
from tests.support.train_reports import PASSING

LOSS = [1 / (1 + k) for k in range(200)]
ACCURACY, MEAN_LOSS = Metric("accuracy", True), Metric("loss", False)
NO_UNDERFLOW = GradientUnderflow(0.0, 8, {"float32": 0.2, "mixed": 0.2})


def make_run(
    seed: int = 0,
    float32: float | None = 0.98,
    mixed: float | None = 0.98,
    twin: float | None = None,
    loss: Sequence[float] = LOSS,
    **changes: Any,
) -> SeedRun:
    """Return a run of 200 steps with these metrics; ``changes`` are fields of the mixed history."""
    histories = [
        TrainingHistory(
            list(loss), metric=metric, scale=[1024.0] * len(loss), last_scale=1024.0, applied=[(True,)] * len(loss)
        )
        for metric in (mixed, float32, float32 if twin is None else twin)
    ]
    return SeedRun(seed, replace(histories[0], **changes), histories[1], histories[2])


def verdict_on(
    finished: Sequence[SeedRun],
    metric: Metric = ACCURACY,
    underflow: GradientUnderflow | None = NO_UNDERFLOW,
    scaler: str = "torch",
    replays: Sequence[Replay] = (),
    **options: Any,
) -> TrainingVerdict:
    parameters = options.pop("scaler_parameters", {})
    train_options = TrainOptions(**{"runs": len(finished), **options})
    return judge(finished, replays, underflow, metric, make_scaler(scaler, **parameters), train_options)


def with_exceptions(steps: Sequence[int], seed: int = 0, scales: Sequence[float] = ()) -> SeedRun:
    return make_run(seed, exceptions=list(steps), scale=list(scales) or [1024.0] * len(LOSS))


def halved(steps: Sequence[int], first: float = 65536.0) -> list[float]:
    """Return the scales of a training that halves its scale after these steps."""
    return [first / 2 ** sum(step < k for step in steps) for k in range(len(LOSS))]


NOTHING_TO_COMPARE = (
    "so there is nothing to compare with: correct the training in float32 first, its learning rate, number of steps or"
    " data"
)
PASSING_RUNS = [make_run(seed) for seed in range(3)]


def test_three_equal_runs_pass() -> None:
    """Verdict of train."""
    judged = verdict_on(PASSING_RUNS)
    assert judged.verdict == "pass"
    assert judged.reasons == (
        "no step has an exception, no training diverges, and gradients do not become zero",
        "accuracy is as in float32",
        FEW_RUNS,
    )


@pytest.mark.parametrize(("mixed", "word"), [(0.978, "worse"), (0.982, "better")])
def test_the_reason_says_whether_the_metric_is_better_or_worse(mixed: float, word: str) -> None:
    reasons = verdict_on([make_run(seed, mixed=mixed) for seed in range(3)]).reasons
    assert reasons[1] == f"accuracy is {word} than in float32 by 0.002{'; 0.005 is allowed' * (word == 'worse')}"


def test_a_larger_margin_than_the_tolerance_is_explained() -> None:
    twins = (1.8, 2.2, 2.0)
    runs = [make_run(seed, mixed=1.99, float32=2.0, twin=twin) for seed, twin in enumerate(twins)]
    comparison = verdict_on(runs).comparison
    assert comparison is not None and comparison.margin > 0.005
    loss = replace(comparison, relative=True, verdict="pass", difference=0.0011, margin=0.011, scatter=0.004)
    assert describe_comparison(loss, "mse", 0.005) == (
        "mse is worse than in float32 by 0.11 %; 1.1 % is allowed, as float32 itself varies by 0.4 %"
    )
    better = replace(loss, difference=-0.0011)
    assert describe_comparison(better, "loss", 0.005) == (
        "loss is better than in float32 by 0.11 % of what float32 has learned"
    )
    assert describe_comparison(replace(loss, difference=18.4), "mse", 0.02) == (
        "mse is worse than in float32 by 18 times the value in float32; 1.1 % is allowed"
    )


@pytest.mark.parametrize(("spread", "verdict"), [(0.05, "pass"), (0.1, "inconclusive")])
def test_a_comparison_that_would_pass_anything_shows_nothing(spread: float, verdict: str) -> None:
    """With the margin of three runs, 3 times what float32 and its twin differ by: 0.15 and 0.3 of 0.8."""
    runs = [make_run(seed, mixed=0.8, float32=0.8, twin=0.8 + sign * spread) for seed, sign in enumerate((-1, 1, 1))]
    judged = verdict_on(runs)
    assert judged.verdict == verdict and judged.comparison is not None and judged.comparison.verdict == "pass"
    text = "trainings in float32 differ so much that accuracy could be worse by 0.3 and pass"
    assert any(text in reason for reason in judged.reasons) == (verdict == "inconclusive")


def test_the_page_has_the_bounds_behind_the_sentence() -> None:
    runs = [make_run(seed, mixed=mixed) for seed, mixed in enumerate((0.978, 0.98, 0.983))]
    comparison = verdict_on(runs).comparison
    assert comparison is not None and comparison.lower < 0 < comparison.upper
    assert f"between {comparison.lower:.2g} and {comparison.upper:.2g} (positive is worse)" in describe_bounds(
        comparison
    )
    page = replace(PASSING, comparison=comparison)
    assert describe_bounds(comparison) in render_document(train_document(page))


# --- exceptions ---


@pytest.mark.parametrize(("exceptions", "steps"), [(1, 100), (3, 150), (50, 60), (7, 7), (2, 10_000)])
def test_the_bounds_are_exact(exceptions: int, steps: int) -> None:
    """So many exceptions, or more, have the probability 5 % if the rate is the lower bound."""
    assert binom.sf(exceptions - 1, steps, lower_bound(exceptions, steps)) == pytest.approx(0.05)
    assert lower_bound(0, steps) == 0


def test_only_exceptions_that_can_decide_are_replayed() -> None:
    """An exception belongs to the scale or to the network."""
    few = [with_exceptions([5]), with_exceptions([7], 1), make_run(2)]
    assert seeds_to_replay(few, 0.005) == []  # 2 of 600
    assert seeds_to_replay([*few[:2], with_exceptions([5], 2)], 0.005) == [0, 1, 2]  # 3 of 600 are the limit
    diverged = [make_run(exceptions=[5], diverged="diverges"), *PASSING_RUNS[1:]]
    assert seeds_to_replay(diverged, 0.005) == [0]


def test_exceptions_of_the_scale_pass_with_advice() -> None:
    steps = [0, 1, 2, 50]
    runs = [with_exceptions(steps, seed, halved(steps)) for seed in range(3)]
    replays = [Replay(seed, True, ()) for seed in range(3)]
    judged = verdict_on(runs, replays=replays)
    assert judged.verdict == "pass"
    assert judged.reasons[-1] == ("the loss scale is too large in 12 of 600 steps: start it at 4096")


def test_a_network_with_exceptions_of_its_own_has_no_first_scale() -> None:
    """They lower the scale, too."""
    steps = [0, 1, 2, 50]
    runs = [with_exceptions(steps, seed, halved(steps)) for seed in range(3)]
    judged = verdict_on(runs, replays=[Replay(seed, True, (50,)) for seed in range(3)])
    assert judged.scale_exceptions is not None and judged.scale_exceptions.first_scale is None
    assert judged.reasons[-1] == "the loss scale is too large in 9 of 600 steps: the scaler lowers it"


def test_a_scale_that_never_falls_or_grows_too_often_fails() -> None:
    runs = [with_exceptions([50, 60, 70, 80, 90], seed) for seed in range(3)]
    replays = [Replay(seed, True, ()) for seed in range(3)]
    fixed = verdict_on(runs, replays=replays, scaler="mindspore-fixed")
    assert (fixed.verdict, fixed.reasons[0]) == (
        "fail",
        "the loss scale is too large in 15 of 600 steps, and the scaler mindspore-fixed never lowers it",
    )
    often = verdict_on(runs, replays=replays, scaler_parameters={"growth_interval": 20})
    assert often.verdict == "fail" and "it grows too often, raise growth_interval from 20" in often.reasons[0]
    assert often.scale_exceptions is not None and often.scale_exceptions.first_scale is None


@pytest.mark.parametrize(
    ("scaler", "remark"), [("mindspore-fixed", True), ("none", False), ("torch", False), ("npu-tf2", True)]
)
def test_a_static_scale_is_not_recommended(scaler: str, remark: bool) -> None:
    parameters = {"dynamic": False, "initial_scale": 1024} if scaler == "npu-tf2" else {}
    judged = verdict_on(PASSING_RUNS, scaler=scaler, scaler_parameters=parameters)
    assert judged.verdict == "pass"
    assert judged.reasons[-1].startswith("a static loss scale is not recommended") == remark


def test_three_runs_give_a_remark_and_four_none() -> None:
    """The source asks for more than three; ``test_comparison.py`` has the statistics."""
    for count in (3, 4):
        judged = verdict_on([make_run(seed) for seed in range(count)])
        assert judged.verdict == "pass" and (FEW_RUNS in judged.reasons) == (count == 3)


@pytest.mark.parametrize(
    ("metrics", "metric", "verdict"),
    [
        ((0.98, 0.981, 0.979, 0.98), ACCURACY, "pass"),
        ((0.98, 0.9, 0.97, 0.94), ACCURACY, "inconclusive"),
        ((200.0, 200.5, 199.8, 200.1), MEAN_LOSS, "pass"),
        ((200.0, 230.0, 199.8, 200.1), MEAN_LOSS, "inconclusive"),
    ],
)
def test_without_float32_the_metric_must_be_constant(metrics: Sequence[float], metric: Metric, verdict: str) -> None:
    """The verdict names what was not compared, and a divergence still fails."""
    nothing = TrainingHistory()
    runs = [replace(make_run(seed, mixed=m), float32=nothing, twin=nothing) for seed, m in enumerate(metrics)]
    judged = verdict_on(runs, metric, None, float32=False)
    assert judged.verdict == verdict and judged.comparison is None
    assert any("float32 was not trained" in reason for reason in judged.reasons)
    runs[0] = replace(runs[0], mixed=replace(runs[0].mixed, diverged="diverges"))
    assert verdict_on(runs, metric, None, float32=False).verdict == "fail"
    flat = [replace(run, mixed=replace(run.mixed, loss=[1.0] * 200, diverged="")) for run in runs]
    assert verdict_on(flat, metric, None, float32=False).verdict == "inconclusive"


def test_own_exceptions_fail_if_two_of_three_runs_prove_them() -> None:
    """The network's own exceptions must be rare."""
    steps = [10, 20, 30, 40]
    runs = [*(with_exceptions(steps, seed) for seed in range(2)), make_run(2)]
    own = [Replay(seed, True, tuple(steps)) for seed in range(2)]
    judged = verdict_on(runs, replays=own)
    assert judged.verdict == "fail"
    assert judged.reasons == (
        "8 of 600 steps have an exception that no loss scale prevents: 1.33 %, the limit is 0.5 %",
    )
    assert verdict_on(runs, replays=own, max_exception_rate=0.02).verdict == "pass"
    one = verdict_on([runs[0], *PASSING_RUNS[1:]], replays=own[:1])
    assert one.verdict == "inconclusive" and one.reasons[0].endswith("only in seed 0, so more runs would decide")
    few = verdict_on(
        [with_exceptions([10], seed) for seed in range(3)], replays=[Replay(s, True, (10,)) for s in range(3)]
    )
    assert few.verdict == "inconclusive" and few.reasons[0].endswith("more steps would decide")
    single = verdict_on([runs[0], *PASSING_RUNS[1:]], replays=[Replay(0, True, (10,))])
    assert single.verdict == "pass"  # 1 of 600


def test_a_rate_that_is_the_limit_fails() -> None:
    """As in a check (S8.14), a rate of at least the limit fails."""
    steps = [10, 20, 30, 40]
    runs = [*(with_exceptions(steps, seed) for seed in range(2)), make_run(2)]
    own = [Replay(seed, True, tuple(steps)) for seed in range(2)]
    bound = lower_bound(4, 200)
    assert verdict_on(runs, replays=own, max_exception_rate=bound).verdict == "fail"
    assert verdict_on(runs, replays=own, max_exception_rate=math.nextafter(bound, 1)).verdict == "inconclusive"
    one = verdict_on([runs[0], *PASSING_RUNS[1:]], replays=own[:1], max_exception_rate=0)
    assert one.verdict == "inconclusive"  # two of the runs have no exception
    # A scale that grows after each good step has an exception in every second step.
    scale = [with_exceptions([*range(120)], seed, halved([0])) for seed in range(3)]
    replays = [Replay(seed, True, ()) for seed in range(3)]
    for interval, verdict in ((1, "fail"), (2, "pass")):
        parameters = {"growth_interval": interval}
        judged = verdict_on(scale, replays=replays, max_exception_rate=0.5, scaler_parameters=parameters)
        assert judged.verdict == verdict, interval


def test_a_replay_that_does_not_repeat_decides_nothing() -> None:
    runs = [with_exceptions([10, 20, 30, 40, 50]), *PASSING_RUNS[1:]]
    judged = verdict_on(runs, replays=[Replay(0, False, (10,))])
    assert judged.verdict == "inconclusive"
    assert judged.reasons[0].startswith("seed 0: the loop depends on more than its seed")


# --- the metric ---


@pytest.mark.parametrize(
    ("float32", "mixed", "higher", "verdict"),
    [(0.98, 0.976, True, "pass"), (0.98, 0.974, True, "fail"), (0.97, 0.99, True, "pass"),
     (0.5, 0.502, False, "pass"), (0.5, 0.504, False, "fail"), (0.5, 0.1, False, "pass"),
     (0.98, math.nan, True, "fail"), (0.5, math.inf, False, "fail")],
)  # fmt: skip
def test_the_metric_may_be_worse_by_the_tolerance(float32: float, mixed: float, higher: bool, verdict: str) -> None:
    """The metric must match float32. A loss is judged by its share: 0.004 of 0.5 is 0.008."""
    runs = [make_run(seed, float32, mixed) for seed in range(3)]
    assert verdict_on(runs, ACCURACY if higher else MEAN_LOSS).verdict == verdict


def test_what_float32_varies_by_itself_is_allowed() -> None:
    runs = [
        make_run(seed, 0.9, 0.9 + shift, 0.9 - shift) for seed, shift in enumerate((0.01, -0.01, 0.008, -0.009, 0.012))
    ]
    assert verdict_on(runs).verdict == "pass"
    without_scatter = [make_run(run.seed, 0.9, run.mixed.metric, 0.9) for run in runs]
    assert verdict_on(without_scatter).verdict == "fail"  # not constant


def test_an_open_comparison_names_the_number_of_runs() -> None:
    runs = [
        make_run(seed, 0.9, 0.9 - loss, 0.9 + e) for seed, loss, e in ((0, 0.01, 0.01), (1, 0.02, -0.01), (2, 0.03, 0))
    ]
    judged = verdict_on(runs)
    assert judged.verdict == "inconclusive"
    # The metric alone is open: that no step has an exception is a result, too.
    assert judged.reasons[0] == "no step has an exception, no training diverges, and gradients do not become zero"
    assert "; about 4 runs would decide (runs=...)" in judged.reasons[1]


def test_more_runs_are_not_advised_where_float32_itself_varies() -> None:
    """Four runs do not show by how much: the number of runs that would decide is no forecast."""
    metrics = (0.1752, 0.1842, 0.1766), (0.2099, 0.2603, 0.2247), (0.3094, 0.3064, 0.3085), (0.2012, 0.1965, 0.1968)
    runs = [make_run(seed, *values) for seed, values in enumerate(metrics)]
    judged = verdict_on(runs, Metric("distance_error", False))
    assert judged.comparison is not None and (judged.comparison.runs_needed or 0) > 8
    assert "; more runs would hardly decide: train longer, or measure it on more data" in judged.reasons[1]


def test_a_loss_is_judged_by_what_float32_has_learned() -> None:
    learned = [make_run(seed, 1e-6, 4e-4, loss=[2.3] * 50 + [1e-6] * 150) for seed in range(3)]
    judged = verdict_on(learned, MEAN_LOSS)
    assert judged.verdict == "pass" and judged.comparison is not None
    assert judged.comparison.difference == pytest.approx(4e-4 / 2.3, rel=0.01)
    assert judged.reasons[2].startswith("loss is 0.0004, and in float32 1e-06: if that matters")
    large = [make_run(seed, 620.1, 620.1 + 0.01, loss=[900.0] * 50 + [620.1] * 150) for seed in range(3)]
    assert verdict_on(large, MEAN_LOSS).verdict == "pass"
    frozen = [make_run(seed, 4.4e-7, 1.38e-6, loss=[4.6e-7] * 50 + [4.4e-7] * 150) for seed in range(3)]
    assert verdict_on(frozen, MEAN_LOSS).verdict == "fail"


def test_a_metric_that_is_no_loss_is_judged_by_its_own_value() -> None:
    runs = [make_run(seed, 5.0, 5.02, loss=[900.0] * 50 + [620.1] * 150) for seed in range(3)]
    judged = verdict_on(runs, Metric("perplexity", False))
    assert judged.comparison is not None and judged.comparison.difference == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("name", "better", "higher"),
    [("accuracy", None, True), ("eval_loss", None, False), ("Perplexity", None, False), ("metric", None, True),
     ("loss", "higher", True), ("bleu", "lower", False), ("mse", None, False), ("test_ppl", None, False)],
)  # fmt: skip
def test_the_name_of_a_metric_says_what_is_better(name: str, better: str | None, higher: bool) -> None:
    """The loop returns the metric."""
    assert Metric.of(name, better) == Metric(name, higher)
    assert Metric.of(name, None).is_known == (name != "metric")


@pytest.mark.parametrize(
    ("underflow", "reason"),
    [
        (replace(NO_UNDERFLOW, zero=0.51), "51 % of the gradient values that are not zero in float32 become zero"),
        (
            replace(NO_UNDERFLOW, zero_gradient_share={"float32": 0.6, "mixed": 0.71}),
            "71 % of the gradient values are zero, in float32 60 %",
        ),
        (replace(NO_UNDERFLOW, zero=0.49, zero_gradient_share={"float32": 0.9, "mixed": 0.95}), ""),
        (None, ""),
    ],
)
def test_gradients_that_become_zero_fail(underflow: GradientUnderflow | None, reason: str) -> None:
    """Gradients do not become zero."""
    judged = verdict_on(PASSING_RUNS, underflow=underflow)
    assert judged.verdict == ("fail" if reason else "pass")
    assert judged.reasons[0].startswith(reason)


def test_fewer_than_three_runs_are_inconclusive() -> None:
    judged = verdict_on(PASSING_RUNS[:2])
    assert (judged.verdict, judged.reasons) == (
        "inconclusive",
        ("2 of at least 3 runs: too few to judge a training by",),
    )
    assert verdict_on(PASSING_RUNS[:2], runs=3).verdict == "pass"  # Ctrl-C is a reason of its own


def test_a_mixed_run_that_diverges_fails() -> None:
    """No training diverges."""
    diverged = make_run(1, mixed=math.nan, diverged="diverges: its loss or its parameters are not finite")
    judged = verdict_on([PASSING_RUNS[0], diverged, PASSING_RUNS[2]])
    assert judged.reasons == (
        "seed 1: training in mixed precision diverges: its loss or its parameters are not finite",
    )


def test_seeds_with_the_same_problem_share_a_sentence() -> None:
    runs = [make_run(seed, mixed=None, diverged="diverges" if seed < 2 else "applied no step") for seed in range(3)]
    assert verdict_on(runs).reasons[:2] == (
        "seeds 0, 1: training in mixed precision diverges",
        "seed 2: training in mixed precision applied no step",
    )


def test_a_seed_that_float32_cannot_train_is_not_judged() -> None:
    """A float32 run must be something to compare with."""
    diverged = make_run(1, exceptions=list(range(100)), diverged="diverges")
    diverged = replace(diverged, float32=replace(diverged.float32, diverged="diverges"))
    twin_diverged = make_run(2)
    twin_diverged = replace(twin_diverged, twin=replace(twin_diverged.twin, diverged="diverges"))
    runs = [PASSING_RUNS[0], diverged, twin_diverged, make_run(3, math.nan, 0.98)]
    judged = verdict_on(runs)
    assert judged.verdict == "inconclusive"
    assert judged.reasons[:3] == (
        f"seed 1: training in float32 diverges, {NOTHING_TO_COMPARE}",
        f"seed 2: training of the float32 twin diverges, {NOTHING_TO_COMPARE}",
        f"seed 3: accuracy is nan in float32, {NOTHING_TO_COMPARE}",
    )
    # A judged seed that fails decides, unless float32 fails in most seeds.
    fails = make_run(0, exceptions=list(range(100)), diverged="diverges")
    assert verdict_on([fails, *runs[2:], PASSING_RUNS[1]]).verdict == "fail"
    most = verdict_on([fails, *runs[1:]])
    assert most.verdict == "inconclusive" and most.reasons[:3] == judged.reasons[:3] and not most.judged
    assert "seed 0: training in mixed precision diverges" in most.reasons


def test_a_training_that_learns_little_is_remarked() -> None:
    def passes(fall: float) -> tuple[str, ...]:
        loss = [3.5 * (1 - fall * step / 199) for step in range(200)]
        judged = verdict_on([make_run(seed, loss=loss) for seed in range(4)])
        assert judged.verdict == "pass"
        return judged.reasons

    little = "float32 learns little: its loss falls by at most 0.902 %, so train longer to see more"
    assert little in passes(0.01) and "learns little" not in " ".join(passes(0.1))


def test_a_float32_training_that_learns_nothing_is_not_judged() -> None:
    noise = np.random.default_rng(0).normal(1.0, 0.1, 200).tolist()
    assert not learns(noise) and not learns(LOSS[::-1]) and not learns([1.0] * 200) and not learns([])
    assert not learns([*LOSS[:-1], math.nan])
    assert not learns([2.3, *np.linspace(1e7, 1e6, 199)])  # it falls from a peak, and not below the start
    # One step is far above all others.
    assert learns([4.0, 4000.0, *np.linspace(1, 0.01, 198)]) and not learns([4.0, *[1.5] * 199])
    assert learns(LOSS) and learns([value - 0.002 * k for k, value in enumerate(noise)]) and learns([2.0, 1.0])
    runs = [make_run(0, mixed=0.5, loss=noise), *PASSING_RUNS[1:]]
    judged = verdict_on(runs)
    assert (judged.verdict, judged.reasons) == (
        "inconclusive",
        (f"seed 0: training in float32 learns nothing: its loss does not fall, {NOTHING_TO_COMPARE}",),
    )
    several = replace(runs[0].float32, several_losses=True)
    judged = verdict_on([replace(make_run(0, loss=noise), float32=several), *PASSING_RUNS[1:]])
    assert judged.verdict == "pass"


@pytest.mark.parametrize(
    ("untrained", "metric", "verdict"),
    [
        (0.5, ACCURACY, "pass"), (0.976, ACCURACY, "inconclusive"), (math.nan, ACCURACY, "inconclusive"),
        (2.0, MEAN_LOSS, "pass"), (0.5, MEAN_LOSS, "inconclusive"),
    ],
)  # fmt: skip
def test_a_metric_that_becomes_better_is_learned(untrained: float, metric: Metric, verdict: str) -> None:
    """As in reinforcement learning, whose loss does not fall. The metric is 0.98 after the training."""
    flat = [1.0 + 0.1 * (-1) ** step for step in range(200)]
    runs = [replace(make_run(seed, loss=flat), untrained=untrained) for seed in range(3)]
    judged = verdict_on(runs, metric)
    assert judged.verdict == verdict
    if verdict != "pass":
        before = f", and {metric.name} is as before the training" if untrained == 0.976 else ""
        assert f"learns nothing: its loss does not fall{before}, so" in judged.reasons[0]
    rising = [replace(run, float32=replace(run.float32, loss=[1.0, *[1e6] * 199])) for run in runs]
    assert verdict_on(rising, metric).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("untrained", "metric", "options", "verdict"),
    [
        ((0.978, 0.979, 0.98), ACCURACY, {}, "inconclusive"),  # the training changes it by 0.001
        ((0.96, 0.999, 0.999), ACCURACY, {}, "inconclusive"),  # by more in one seed, but not on average
        ((0.97, 0.97, 0.971), ACCURACY, {}, "pass"),  # by a little, in every seed
        ((0.5, None, None), ACCURACY, {}, "pass"),  # by so much that one seed is enough
        ((0.5, None, None), ACCURACY, {"tolerance": 0.3}, "inconclusive"),
        ((math.nan, None, None), ACCURACY, {}, "pass"),
        ((0.98, 0.98, 0.98), Metric("elo", True), {}, "pass"),  # it may be better when lower
        ((0.98, 0.98, 0.98), Metric("elo", True), {"better": "higher"}, "inconclusive"),
    ],
)
def test_a_metric_that_float32_does_not_improve_shows_nothing(
    untrained: tuple[float | None, ...], metric: Metric, options: dict[str, Any], verdict: str
) -> None:
    """The loss falls, as with labels at random that the network learns by heart."""
    runs = [replace(make_run(seed), untrained=value) for seed, value in enumerate(untrained)]
    judged = verdict_on(runs, metric, **options)
    assert judged.verdict == verdict, judged.reasons
    if metric is ACCURACY and untrained[2] == 0.98:
        reason = "accuracy is 0.979 before the training and 0.98 after it in float32, so it cannot show a loss"
        assert judged.reasons[-1] == f"{reason}: correct the data, or return a metric that the training improves"


@pytest.mark.parametrize(("loss", "rises"), [(1e6, True), (math.nan, True), (2.3, False)])
def test_where_mixed_skips_most_steps_nothing_is_claimed_about_float32(loss: float, rises: bool) -> None:
    """float32 skips these steps too, so it was not trained: the exceptions decide."""
    bad = tuple(range(1, 200))
    runs = [make_run(seed, loss=[2.3, *[loss] * 199]) for seed in range(3)]
    runs = [replace(run, mixed=replace(run.mixed, skipped=[*bad], exceptions=[*bad])) for run in runs]
    own = verdict_on(runs, replays=[Replay(run.seed, True, bad) for run in runs])
    assert own.verdict == "fail" and own.judged == {0, 1, 2}
    assert own.reasons[0].startswith("597 of 600 steps have an exception that no loss scale prevents")
    assert "float32" not in " ".join(own.reasons)
    of_scale = verdict_on(runs, replays=[Replay(run.seed, True, ()) for run in runs])
    assert of_scale.verdict == ("inconclusive" if rises else "pass")
    assert ("more than half of the steps are skipped" in of_scale.reasons[0]) == rises
    diverged = replace(runs[0], float32=replace(runs[0].float32, diverged="has gradients that are not finite"))
    assert "training in float32 has gradients" in " ".join(verdict_on([diverged, *PASSING_RUNS[1:]]).reasons)


def test_trainings_that_cannot_be_compared_are_inconclusive() -> None:
    shorter = replace(PASSING_RUNS[0], mixed=replace(PASSING_RUNS[0].mixed, loss=LOSS[:150], metric=0.1))
    judged = verdict_on([shorter, *PASSING_RUNS[1:]])
    assert judged.verdict == "inconclusive" and "have 150, 200 and 200 steps" in judged.reasons[0]
    assert judged.comparison is not None and judged.comparison.difference == 0  # it is left out
    other_start = replace(
        PASSING_RUNS[0],
        float32=replace(PASSING_RUNS[0].float32, first_loss=1.0),
        twin=replace(PASSING_RUNS[0].twin, first_loss=0.5),
    )
    judged = verdict_on([other_start, *PASSING_RUNS[1:]])
    assert judged.verdict == "inconclusive" and "begin with the losses 1 and 0.5" in judged.reasons[0]


def test_divergence_of_a_single_training() -> None:

    def reason(loss: Sequence[float], *skipped: int, finite: bool = True) -> str:
        applied = [(step not in skipped,) for step in range(len(loss))]
        return reason_of_failure(TrainingHistory(list(loss), applied=applied), parameters_finite=finite)

    assert reason(LOSS) == "" and reason(LOSS[::-1]) == ""
    assert reason(LOSS, finite=False).startswith("diverges")
    assert reason([*LOSS, math.nan]).startswith("diverges")
    assert reason([*LOSS, math.inf]) == ""  # printed; its gradients are finite, or the step would be skipped
    assert reason([*LOSS, math.nan], 200) == ""  # the loss of a skipped step does not count
    assert reason([math.inf, *LOSS]) == ""  # one batch without a finite loss is no end
    assert reason(LOSS, *range(200)).startswith("applied no step")


@pytest.mark.parametrize(
    ("library", "scaler", "mode"),
    [
        ("ascend910", "npu", "saturate"), ("lib/aic-ascend910-ops-info.json", "npu-tf2", "saturate"),
        ("ascend910b", "npu", "inf"), ("aic-ascend910_93-ops-info.json", "npu", "inf"), ("onnx", "npu", "inf"),
        ("ascend910", "torch", "inf"),
    ],
)  # fmt: skip
def test_the_chip_of_the_library_decides_the_overflow_mode(library: str, scaler: str, mode: str) -> None:
    """The Atlas training series saturates; A2 and A3 give infinity."""
    parameters = {"init_loss_scale": 1024, "incr_every_n_steps": 100} if scaler == "npu" else {}
    options = TrainOptions(loss_scaler=scaler, scaler_parameters=parameters)
    detection = "gradients" if scaler == "torch" else "any-node"
    found = options.for_library(library)
    assert (found.overflow_mode, found.overflow_detection) == (mode, detection)
    found = replace(options, overflow_mode="saturate").for_library(library)
    assert (found.overflow_mode, found.overflow_detection) == ("saturate", "any-node")
