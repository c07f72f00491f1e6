"""Train reports made by hand, for the tests of what shows them."""

from __future__ import annotations

import math
from dataclasses import replace

from mixlist.diagnostics import warning
from mixlist.training.result import GradientUnderflow, SeedRun, TrainingHistory, TrainReport, TuningRun

from .check_reports import EVIL, SUGGESTION, finding

STEPS = 600


def curve(seed: int, mixed: bool) -> TrainingHistory:
    loss = tuple(2.3 * math.exp(-k / 150) + 0.05 * math.sin(k * (seed + 2)) + 0.06 for k in range(STEPS))
    if not mixed:
        return TrainingHistory(loss, 0.98 + 0.001 * seed)
    skipped = (*range(3 + seed), 300 + seed)
    scale, scales = 2.0**16, []
    for step in range(STEPS):
        scales.append(scale)
        scale = scale / 2 if step in skipped else scale * 2 if step % 200 == 199 else scale
    bad = {"fc.weight": 4 + seed, EVIL: 2, "conv.bias": 1}
    return TrainingHistory(tuple(v * 1.02 for v in loss), 0.978 + 0.001 * seed, tuple(scales), skipped, skipped, 0, bad)


PASSING = TrainReport(
    model="good_step.onnx",
    verdict="pass",
    reasons=(
        "exceptions and metric are within their limits, the metric is constant over the runs, and no training diverges",
    ),
    provider="cpu",
    mode="emulated",
    precision="float16",
    exception_rate=0.0,
    limit=0.005,
    steps=STEPS,
    batch_size=32,
    metric="accuracy",
    higher=True,
    tolerance=0.005,
    runs=tuple(
        SeedRun(seed, curve(seed, False), replace(curve(seed, True), skipped=(), exceptions=(), bad={}))
        for seed in range(3)
    ),
    scaler={"name": "torch", "init_scale": 65536.0, "growth_interval": 2000},
    optimizer={"name": "adam", "lr": 0.001},
    underflow=GradientUnderflow(0.0, 0.001, 0.12, 0.3, 24),
    seconds={"float32": 1.5, "mixed": 3.0},
)

FAILING = replace(
    PASSING,
    model=f"models/{EVIL}.onnx",
    verdict="fail",
    reasons=("15 of 1800 steps have an exception: 0.83%, the limit is 0.50%", f"about {EVIL}"),
    exception_rate=15 / 1800,
    runs=tuple(SeedRun(seed, curve(seed, False), curve(seed, True)) for seed in range(3)),
    metric=EVIL,
    offenders=(finding("/grad/fc/MatMul"), finding(EVIL)),
    trace_scale=1.0,
    suggestion=SUGGESTION,
    scale_trials=(TuningRun({"init_scale": 1024.0}, 0, 40, 0.001), TuningRun({"init_scale": 65536.0}, 4, 40, 0.0)),
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
    runs=(SeedRun(0, TrainingHistory((math.nan,), None), TrainingHistory((), None)),),
    underflow=None,
    complete=False,
)
EXTREME = replace(
    FAILING,
    runs=(
        SeedRun(
            0,
            TrainingHistory((1.0, math.inf, math.nan, 1e30), math.nan),
            TrainingHistory(
                (1.0, 2.0, math.inf, 3.0), math.inf, (2.0**200, math.inf, 0.0, 1e-300), (0, 1, 2, 3), (0, 1, 2, 3)
            ),
        ),
    ),
    steps=4,
)
