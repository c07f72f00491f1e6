"""Whether a network may be trained under lists: every seed twice, in float32 and mixed, on the same batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from mixlist.checker.exception_rate import DEFAULT_LIMIT, exception_rate
from mixlist.errors import UsageError
from mixlist.lists.policy import Policy
from mixlist.runtime.inputs import numpy_type
from mixlist.runtime.phase_timer import Clock
from mixlist.training.advice import advise
from mixlist.training.checkpoint import Keeper
from mixlist.training.dataset import Data, read_arrays, read_data
from mixlist.training.evaluation import choose, evaluate
from mixlist.training.gradient_underflow import Sampler
from mixlist.training.job import Job, Progress
from mixlist.training.optimizers import Settings
from mixlist.training.result import Curve, Run, TrainReport
from mixlist.training.scalers import described, make_scaler
from mixlist.training.step_session import exact_machine, mixed_machine
from mixlist.training.stepgraph import StepGraph, read_step
from mixlist.training.tuning import tune_scale
from mixlist.training.verdict import reasons

EPOCHS = 10
TOLERANCE = 0.005
PASSED = "exceptions, metric and its constancy are within their limits, and no training diverges"
Source = Mapping[str, Any] | str | os.PathLike[str]


def train(
    model: Any,
    policy: Policy,
    data: Source,
    *,
    eval_data: Source | None = None,
    batch_size: int = 32,
    steps: int | None = None,
    epochs: int | None = None,
    optimizer: Settings | None = None,
    init: Source | None = None,
    runs: int = 3,
    seed: int = 0,
    scaler: str = "torch",
    scaler_parameters: Mapping[str, Any] | None = None,
    max_exception_rate: float = DEFAULT_LIMIT,
    tolerance: float = TOLERANCE,
    metric: str | None = None,
    advance_on_skip: bool = False,
    trace_overflow: bool = False,
    tune: bool = False,
    provider: str = "cpu",
    threads: int | None = None,
    state: str | os.PathLike[str] | None = None,
    told: Callable[[Progress], None] | None = None,
) -> TrainReport:
    """Train a step graph in float32 and under ``policy``'s lists, and say whether mixed precision holds.

    ``data`` and ``eval_data``: arrays by batch input, samples along the first axis, or ``.npz`` files of them; without
    ``eval_data`` the metric is taken on ``data``. Give ``steps`` or ``epochs`` (10). ``init``: first values of
    parameters and buffers by name; others are drawn from the seed. ``runs`` seeds from ``seed`` on, each trained twice.
    ``scaler``: one of ``scalers.SCALERS``, with parameters under its framework's own names. ``trace_overflow`` looks
    for the nodes that overflow first at the first bad step; ``tune`` searches the scaler's first scale and growth.
    ``state``: a file; a training that was killed goes on from it to the same numbers. Ctrl-C ends with a report of
    what there is, not ``complete``.

    Raises ModelError for what is no step graph, UsageError for data and options that do not fit, FileError for files
    that cannot be read.
    """
    if steps is not None and epochs is not None:
        raise UsageError("steps and epochs are two lengths", hint="give one of them")
    if min(runs, batch_size, 1 if steps is None else steps, 1 if epochs is None else epochs) < 1:
        raise UsageError("runs, batch size, steps and epochs are at least 1")
    graph = read_step(model)
    samples = read_data(graph, data, "the training data")
    held = read_data(graph, eval_data, "the evaluation data") if eval_data is not None else samples
    _refuse_batch(graph, batch_size, samples, held)
    parameters = dict(scaler_parameters or {})
    job = Job(
        graph=graph,
        policy=policy,
        samples=samples,
        held=held,
        metric=choose(graph, metric),
        settings=optimizer or Settings(),
        batch_size=batch_size,
        steps=steps or (epochs or EPOCHS) * (samples.count // batch_size),
        known=_first_values(graph, init),
        scaler=(scaler, parameters),
        advance_on_skip=advance_on_skip,
        provider=provider,
        threads=threads,
        told=told,
    )
    make_scaler(scaler, **parameters)  # tells what is wrong with them before the long run
    clock = Clock()
    keeper = Keeper(state, job.key() if state is not None else {})
    with clock.phase("prepare"):
        exact = exact_machine(graph, provider, threads)
        mixed = mixed_machine(graph, policy, provider, threads)
        _try_out(job, exact, seed)
    sampler = Sampler(exact, mixed, policy.mode.low, job.steps)
    sampler.counts = keeper.counts(sampler.counts)
    found: list[Run] = []
    plain: Curve | None = None
    cut, first_bad = None, None
    try:
        for number in range(seed, seed + runs):
            plain = None
            with clock.phase("float32"):
                plain, _ = job.curve(keeper, number, "float32", exact, None)
            with clock.phase("mixed"):
                ours, bad = job.curve(keeper, number, "mixed", mixed, sampler)
            found.append(Run(number, plain, ours))
            first_bad = first_bad or bad
    except KeyboardInterrupt:
        cut = _cut_off(job, seed + len(found), plain)
    report = _report(job, found, cut, runs, max_exception_rate, tolerance, sampler)
    report = replace(report, warnings=(*report.warnings, *mixed.warnings))
    try:
        if len(found) == runs and trace_overflow and first_bad is not None:
            with clock.phase("trace"):
                advice = advise(graph, policy, first_bad, provider)
            report = replace(report, offenders=advice.offenders, trace_scale=advice.scale, suggestion=advice.suggestion)
        if len(found) == runs and tune:
            with clock.phase("tune scale"):
                trials, best = tune_scale(job, exact, mixed, seed)
            report = replace(report, scale_trials=trials, scale_choice=best)
    except KeyboardInterrupt:
        why = ("interrupted before everything that was asked for was found out", *report.reasons)
        report = replace(report, verdict="fail", reasons=why, complete=False)
    exact.close()
    mixed.close()
    return replace(report, seconds=clock.seconds)


def _refuse_batch(graph: StepGraph, batch_size: int, samples: Data, held: Data) -> None:
    fixed = graph.fixed_batch
    if fixed is not None and fixed != batch_size:
        raise UsageError(
            f"{graph.name} takes batches of {fixed} samples, not of {batch_size}",
            hint=f"give --batch-size {fixed}, or export the step with a batch size that is free",
        )
    for data in (samples, held):
        if data.count < (fixed or 1) or (data is samples and data.count < batch_size):
            raise UsageError(
                f"a batch of {batch_size} needs as many samples, and {data.where} has {data.count}",
                hint="give a smaller --batch-size, or more data",
            )


def _try_out(job: Job, exact: Any, seed: int) -> None:
    """One batch through evaluation, so that what does not fit is told before the long run."""
    start = job.training(exact, seed, None)
    values = {**start.parameters.views, **start.buffers}
    evaluate(job.graph, exact, values, job.held, job.metric, job.batch_size, batches=1)


def _first_values(graph: StepGraph, init: Source | None) -> dict[str, Any]:
    """What ``init`` gives, as arrays of the parameters' types and shapes; raises UsageError."""
    if init is None:
        return {}
    arrays, where = read_arrays(init, "the initial values")
    known = {each.name: each for each in (*graph.parameters, *graph.buffers)}
    found = {}
    for name, value in arrays.items():
        if name not in known:
            has = ", ".join(list(known)[:12])
            raise UsageError(f"{where}: {name!r} is no parameter of {graph.name}", hint=f"it has {has}")
        array = np.asarray(value)
        if array.shape != known[name].shape:
            shapes = f"{list(array.shape)}, and the parameter is {list(known[name].shape)}"
            raise UsageError(f"{where}: {name!r} is {shapes}")
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise UsageError(f"{where}: {name!r} holds values that are no finite numbers")
        found[name] = array.astype(numpy_type(known[name].type))
    return found


def _cut_off(job: Job, seed: int, plain: Curve | None) -> Run | None:
    """The pair of trainings that Ctrl-C met, as far as they came."""
    cut = job.cut_off()
    if plain is None and cut is None:
        return None
    nothing = Curve((), None)
    return Run(seed, cut or nothing, nothing) if plain is None else Run(seed, plain, cut or nothing)


def _report(
    job: Job, found: list[Run], cut: Run | None, runs: int, limit: float, tolerance: float, sampler: Sampler
) -> TrainReport:
    every = [*found, cut] if cut is not None else found
    total = sum(len(run.mixed.loss) for run in every)
    exceptions = sum(len(run.mixed.exceptions) for run in every)
    complete = len(found) == runs
    why = reasons(found, total, exceptions, limit, job.metric.higher, tolerance, job.metric.name, complete)
    if not complete:
        why.insert(0, f"interrupted after {len(found)} of {runs} runs")
    return TrainReport(
        model=job.graph.name,
        verdict="fail" if why else "pass",
        reasons=tuple(why) or (PASSED,),
        provider=job.provider,
        mode="emulated" if job.provider == "cpu" else "native",
        precision=job.policy.mode.low,
        exception_rate=exception_rate(exceptions, total),
        limit=limit,
        steps=job.steps,
        batch_size=job.batch_size,
        metric=job.metric.name,
        higher=job.metric.higher,
        tolerance=tolerance,
        runs=tuple(every),
        scaler=described(make_scaler(job.scaler[0], **job.scaler[1])),
        optimizer=asdict(job.settings),
        underflow=sampler.result(),
        complete=complete,
        warnings=tuple(_warnings(job)),
    )


def _warnings(job: Job) -> list[str]:
    """What to know of the data; the policy's own warnings are told where it is made."""
    found = [f"{data.where}: {name}: {what}" for data in (job.samples, job.held) for name, what in data.notes.items()]
    if job.held is job.samples:
        found.append("there is no evaluation data: the metric is taken on the training data")
    left = job.held.count % job.batch_size if job.graph.fixed_batch is not None else 0
    if left:
        found.append(f"{job.held.where}: {left} samples are left out: {job.graph.name} takes whole batches only")
    return list(dict.fromkeys(found))
