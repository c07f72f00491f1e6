"""Train reports made by hand, for the tests of what shows them."""

from __future__ import annotations

import math
from dataclasses import replace

from mixlist import TrainReport
from mixlist.diagnostics import warning
from mixlist.training.result import (
    Comparison,
    GradientUnderflow,
    ModuleHeadroom,
    OperatorCount,
    OperatorFinding,
    OverflowStart,
    Replay,
    ScaleExceptions,
    SeedRun,
    TrainingHistory,
)

from .check_reports import EVIL, SUGGESTION

STEPS = 600


def curve(seed: int, mixed: bool) -> TrainingHistory:
    loss = [2.3 * math.exp(-k / 150) + 0.05 * math.sin(k * (seed + 2)) + 0.06 for k in range(STEPS)]
    if not mixed:
        return TrainingHistory(loss, metric=0.98 + 0.001 * seed, scale=[1.0] * STEPS)
    skipped = [*range(3 + seed), 300 + seed]
    scale, scales = 2.0**16, []
    for step in range(STEPS):
        scales.append(scale)
        scale = scale / 2 if step in skipped else scale * 2 if step % 200 == 199 else scale
    return TrainingHistory(
        [v * 1.02 for v in loss],
        metric=0.978 + 0.001 * seed,
        scale=scales,
        skipped=skipped,
        exceptions=skipped,
    )


def finding(module: str, *, op_type: str = "MatMul", is_low: bool = True, steps: int = 7) -> OperatorFinding:
    start = OverflowStart(module, module, "mm", op_type, "white", by_rule=False, is_low=is_low, is_gradient=True)
    return OperatorFinding(start, steps=steps, seed=0, step=3)


PASSING = TrainReport(
    loop="train.py:run",
    verdict="pass",
    reasons=(
        "no step has an exception, no training diverges, and gradients do not become zero",
        "accuracy is worse than in float32 by 0.002; 0.005 is allowed",
    ),
    device="cpu",
    precision="float16",
    overflow_mode="inf",
    overflow_detection="gradients",
    exception_rate=0.0,
    limit=0.005,
    steps=STEPS,
    metric="accuracy",
    higher=True,
    tolerance=0.005,
    comparison=Comparison("pass", 0.002, 0.001, 0.003, 0.005, 0.0, 0.0, 0.0, 0.005, None, False),
    runs=tuple(
        SeedRun(seed, replace(curve(seed, True), skipped=[], exceptions=[]), curve(seed, False), curve(seed, False))
        for seed in range(3)
    ),
    scaler={"name": "torch", "init_scale": 65536.0, "growth_interval": 2000},
    underflow=GradientUnderflow(0.0, 24, {"float32": 0.1, "mixed": 0.1}, {EVIL: 0.25, "fc.weight": 0.0}),
    headroom=(
        ModuleHeadroom("decoder/fc", 2.1, 31000.0, 9000.0, 31000.0, 0.5, 0.5, 0.25),
        ModuleHeadroom(EVIL, None, 0.0, 0.0, 0.0, None, None, None),
    ),
    operators=(OperatorCount("MatMul", "white", 5400, 0), OperatorCount("Add", "gray", 1800, 600)),
    seconds={"mixed": 3.0, "float32": 1.5, "twin": 1.5},
)

FAILING = replace(
    PASSING,
    loop=f"{EVIL}.py:run",
    verdict="fail",
    reasons=("12 of 1800 steps have an exception that no loss scale prevents", f"about {EVIL}"),
    exception_rate=15 / 1800,
    runs=tuple(SeedRun(seed, curve(seed, True), curve(seed, False), curve(seed, False)) for seed in range(3)),
    metric=EVIL,
    scale_exceptions=ScaleExceptions(steps=9, first_scale=8192.0),
    replays=tuple(Replay(seed, True, (0, 1, 2, 300 + seed)) for seed in range(3)),
    findings=(finding("decoder/fc"), finding(EVIL, op_type=EVIL, steps=2), finding("head", is_low=False, steps=1)),
    suggestion=SUGGESTION,
    unlisted_operators={"aten::_cdist_forward": 12, EVIL: 1},
    notes=(f"nnabla tries the update of such a step again, {EVIL}",),
    warnings=(warning("ML605", EVIL),),
)
NOTHING = replace(
    PASSING,
    verdict="inconclusive",
    reasons=("interrupted after 0 of 3 runs",),
    runs=(SeedRun(0, TrainingHistory([math.nan]), TrainingHistory(), TrainingHistory()),),
    underflow=None,
    comparison=None,
    complete=False,
)
EXTREME = replace(
    FAILING,
    runs=(
        SeedRun(
            0,
            TrainingHistory(
                [1.0, 2.0, math.inf, 3.0],
                metric=math.inf,
                scale=[2.0**200, math.inf, 0.0, 1e-300],
                skipped=[0, 1, 2, 3],
                exceptions=[0, 1, 2, 3],
            ),
            TrainingHistory([1.0, math.inf, math.nan, 1e30], metric=math.nan),
            TrainingHistory([1.0, 1.0, 1.0, 1e30], metric=-math.inf),
        ),
    ),
    steps=4,
)
