"""Train reports made by hand, for the tests of what shows them."""

from __future__ import annotations

import math
from dataclasses import replace

from mixlist.diagnostics import warning
from mixlist.training.comparison import Comparison
from mixlist.training.result import (
    GradientHistogram,
    GradientUnderflow,
    SeedRun,
    TrainingHistory,
    TrainReport,
    TuningRun,
)

from .check_reports import EVIL, SUGGESTION, finding

STEPS = 600


def curve(seed: int, mixed: bool) -> TrainingHistory:
    loss = tuple(2.3 * math.exp(-k / 150) + 0.05 * math.sin(k * (seed + 2)) + 0.06 for k in range(STEPS))
    if not mixed:
        return TrainingHistory(loss, metric=0.98 + 0.001 * seed)
    skipped = (*range(3 + seed), 300 + seed)
    scale, scales = 2.0**16, []
    for step in range(STEPS):
        scales.append(scale)
        scale = scale / 2 if step in skipped else scale * 2 if step % 200 == 199 else scale
    bad = {"fc.weight": 4 + seed, EVIL: 2, "conv.bias": 1}
    return TrainingHistory(
        tuple(v * 1.02 for v in loss),
        metric=0.978 + 0.001 * seed,
        scale=tuple(scales),
        skipped=skipped,
        exceptions=skipped,
        bad=bad,
    )


PASSING = TrainReport(
    model="good_step.onnx",
    verdict="pass",
    reasons=(
        "exceptions stay below their limit, no training diverges, and accuracy is worse than in float32 by 0.002"
        " (worse by at least 0.001 and at most 0.003), the margin is 0.005",
    ),
    provider="cpu",
    mode="emulated",
    precision="float16",
    overflow_mode="inf",
    overflow_detection="gradients",
    exception_rate=0.0,
    start_up_rate=0.0,
    steady_rate=0.0,
    initial_scale=65536.0,
    projected_rate=None,
    limit=0.005,
    steps=STEPS,
    batch_size=32,
    metric="accuracy",
    higher=True,
    tolerance=0.005,
    comparison=Comparison("pass", 0.002, 0.001, 0.003, 0.005, 0.0, 0.0, 0.005, None, False),
    runs=tuple(
        SeedRun(
            seed, curve(seed, False), curve(seed, False), replace(curve(seed, True), skipped=(), exceptions=(), bad={})
        )
        for seed in range(3)
    ),
    scaler={"name": "torch", "init_scale": 65536.0, "growth_interval": 2000},
    optimizer={"name": "adam", "lr": 0.001},
    underflow=GradientUnderflow(
        0.0,
        0.001,
        0.12,
        0.3,
        24,
        {"float32": 0.1, "mixed": 0.1},
        (-24, -19, -14, -9, -4, 1, 6, 11, 16),
        (
            GradientHistogram("fc.weight", (0, 0, 1, 2, 8, 20, 10, 3, 0, 0, 0), (4, 5, 9, 12, 10, 4, 0, 0, 0, 0, 0)),
            GradientHistogram(EVIL, (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5), (0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0)),
        ),
    ),
    seconds={"float32": 1.5, "mixed": 3.0},
)

FAILING = replace(
    PASSING,
    model=f"models/{EVIL}.onnx",
    verdict="fail",
    reasons=("3 of 1761 steps after the start-up have an exception: 0.17%, the limit is 0.01%", f"about {EVIL}"),
    exception_rate=15 / 1800,
    start_up_rate=12 / 42,
    steady_rate=3 / 1758,
    runs=tuple(SeedRun(seed, curve(seed, False), curve(seed, False), curve(seed, True)) for seed in range(3)),
    metric=EVIL,
    offenders=(finding("/grad/fc/MatMul"), finding(EVIL)),
    trace_scale=1.0,
    suggestion=SUGGESTION,
    scale_trials=(
        TuningRun({"init_scale": 1024.0}, 0, 40, 0.001, 0.0005),
        TuningRun({"init_scale": 65536.0}, 4, 40, 0.0, 0.1),
    ),
    scale_choice={"init_scale": 1024.0},
    warnings=(
        warning("ML609", "there is no evaluation data: the metric is measured on the training data"),
        warning("ML602", EVIL),
    ),
)
NOTHING = replace(
    PASSING,
    verdict="fail",
    reasons=("interrupted after 0 of 3 runs",),
    runs=(SeedRun(0, TrainingHistory((math.nan,)), TrainingHistory(), TrainingHistory()),),
    underflow=None,
    steady_rate=None,
    initial_scale=None,
    comparison=None,
    complete=False,
)
EXTREME = replace(
    FAILING,
    runs=(
        SeedRun(
            0,
            TrainingHistory((1.0, math.inf, math.nan, 1e30), metric=math.nan),
            TrainingHistory((1.0, 1.0, 1.0, 1e30), metric=-math.inf),
            TrainingHistory(
                (1.0, 2.0, math.inf, 3.0),
                metric=math.inf,
                scale=(2.0**200, math.inf, 0.0, 1e-300),
                skipped=(0, 1, 2, 3),
                exceptions=(0, 1, 2, 3),
            ),
        ),
    ),
    steps=4,
)
