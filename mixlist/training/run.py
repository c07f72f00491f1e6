"""Whether a network may be trained under lists: every seed twice, in float32 and mixed, on the same batches."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mixlist.checker.clock import Clock
from mixlist.errors import UsageError
from mixlist.lists.policy import Policy
from mixlist.training import checkpoint
from mixlist.training.advice import find_offenders, suggest
from mixlist.training.evaluation import Metric, choose, evaluate
from mixlist.training.feeding import Data
from mixlist.training.gradients import Sampler
from mixlist.training.loop import Training, all_finite
from mixlist.training.machine import Machine, exact_machine, mixed_machine
from mixlist.training.optimizers import Settings
from mixlist.training.result import Curve, Run, TrainReport
from mixlist.training.scalers import Scaler, make_scaler, state_of
from mixlist.training.stepgraph import StepGraph, read_step
from mixlist.training.tuning import tune_scale
from mixlist.training.verdict import diverged, reasons

SAVE_AFTER = 2.0  # seconds between two states
EPOCHS = 10
TOLERANCE = 0.005


@dataclass(frozen=True)
class Progress:
    """Where a training is, for those who are told. ``kind``: float32 or mixed."""

    seed: int
    kind: str
    step: int
    steps: int
    loss: float
    scale: float


def train(
    model: Any,
    policy: Policy,
    data: Mapping[str, Any],
    *,
    eval_data: Mapping[str, Any] | None = None,
    batch_size: int = 32,
    steps: int | None = None,
    epochs: int | None = None,
    optimizer: Settings | None = None,
    init: Mapping[str, Any] | None = None,
    runs: int = 3,
    seed: int = 0,
    scaler: str = "torch",
    scaler_parameters: Mapping[str, Any] | None = None,
    max_exception_rate: float = 0.005,
    tolerance: float = TOLERANCE,
    metric: str | None = None,
    advance_on_skip: bool = False,
    trace_overflow: bool = False,
    tune: bool = False,
    provider: str = "cpu",
    threads: int | None = None,
    state: Any = None,
    told: Callable[[Progress], None] | None = None,
) -> TrainReport:
    """Train a step graph in float32 and under ``policy``'s lists, and say whether mixed precision holds.

    ``data`` and ``eval_data``: arrays by batch input, samples along the first axis. Give ``steps`` or ``epochs`` (10).
    ``init``: first values of parameters by name; others are drawn from the seed. ``runs`` seeds from ``seed`` on.
    ``scaler``: one of ``scalers.SCALERS``. ``trace_overflow`` looks for the first node that overflows at the first bad
    step; ``tune`` searches the scaler's first scale and growth. ``state``: a file; a training that was killed goes on
    from it to the same numbers. Ctrl-C ends with a report of what there is, not ``complete``.

    Raises ModelError for what is no step graph, UsageError for data and options that do not fit, FileError for a
    state that cannot be read.
    """
    _refuse(steps, epochs, runs, batch_size)
    graph = read_step(model)
    samples = Data(graph, data, "the training data")
    held = Data(graph, eval_data, "the evaluation data") if eval_data is not None else None
    length = steps or (epochs or EPOCHS) * (samples.count // batch_size)
    if not length:
        raise UsageError(f"a batch of {batch_size} needs as many samples, and the data has {samples.count}")
    parameters = dict(scaler_parameters or {})
    job = _Job(
        graph=graph,
        policy=policy,
        samples=samples,
        held=held,
        metric=choose(graph, metric),
        settings=optimizer or Settings(),
        batch_size=batch_size,
        steps=length,
        known=_first_values(graph, init),
        scaler=(scaler, parameters, state_of(make_scaler(scaler, **parameters))),
        advance_on_skip=advance_on_skip,
        provider=provider,
        told=told,
    )
    clock = Clock()
    keeper = _Keeper(state, job.key() if state is not None else {})
    with clock.phase("prepare"):
        exact = exact_machine(graph, provider, threads)
        mixed, _ = mixed_machine(graph, policy, provider, threads)
    found, complete, bad = [], True, None
    sampler = Sampler(exact, mixed, policy.mode.low, length)
    sampler.counts = keeper.counts(sampler.counts)
    try:
        for number in range(runs):
            with clock.phase("float32"):
                plain, _ = job.curve(keeper, seed + number, "float32", exact, None)
            with clock.phase("mixed"):
                ours, first_bad = job.curve(keeper, seed + number, "mixed", mixed, sampler)
            found.append(Run(seed + number, plain, ours))
            bad = bad or first_bad
    except KeyboardInterrupt:
        complete = False
    report = _report(job, found, runs, max_exception_rate, tolerance, sampler, complete, clock)
    if complete and trace_overflow and bad is not None:
        with clock.phase("trace"):
            offenders = find_offenders(graph, policy, bad, provider)
            report = replace(report, offenders=offenders, suggestion=suggest(graph, policy, offenders))
    if complete and tune:
        with clock.phase("tune scale"):
            trials, best = tune_scale(
                lambda tried, count: job.training(mixed, seed, tried, count),
                lambda count: Sampler(exact, mixed, policy.mode.low, count),
                scaler,
                parameters,
                length,
            )
        report = replace(report, scale_trials=trials, scale_choice=best)
    exact.close()
    mixed.close()
    return report


def _refuse(steps: int | None, epochs: int | None, runs: int, batch_size: int) -> None:
    if steps is not None and epochs is not None:
        raise UsageError("steps and epochs are two lengths", hint="give one of them")
    if min(runs, batch_size, steps if steps is not None else 1, epochs if epochs is not None else 1) < 1:
        raise UsageError("runs, batch size, steps and epochs are at least 1")


def _first_values(graph: StepGraph, init: Mapping[str, Any] | None) -> dict[str, Any]:
    known = {each.name: each for each in (*graph.parameters, *graph.buffers)}
    found = {}
    for name, value in (init or {}).items():
        if name not in known:
            raise UsageError(f"the initial values have {name!r}, which is no parameter of {graph.name}")
        array = np.asarray(value, np.float32)
        if array.shape != known[name].shape:
            shapes = f"{list(array.shape)}, and the parameter is {list(known[name].shape)}"
            raise UsageError(f"the initial value of {name!r} is {shapes}")
        found[name] = array
    return found


def _report(
    job: _Job,
    found: list[Run],
    runs: int,
    limit: float,
    tolerance: float,
    sampler: Sampler,
    complete: bool,
    clock: Clock,
) -> TrainReport:
    exceptions = sum(len(run.mixed.exceptions) for run in found)
    why = reasons(found, job.steps, exceptions, limit, job.metric.higher, tolerance, job.metric.name)
    if not complete:
        why.insert(0, f"interrupted after {len(found)} of {runs} runs")
    return TrainReport(
        model=job.graph.name,
        verdict="fail" if why else "pass",
        reasons=tuple(why) or ("exceptions, metric and its constancy are within their limits",),
        provider=job.provider,
        mode="emulated" if job.provider == "cpu" else "native",
        precision=job.policy.mode.low,
        exception_rate=exceptions / max(1, job.steps * len(found)),
        limit=limit,
        steps=job.steps,
        metric=job.metric.name if job.held is not None else "",
        higher=job.metric.higher,
        tolerance=tolerance,
        runs=tuple(found),
        scaler=job.scaler[2],
        optimizer=asdict(job.settings),
        underflow=sampler.result(),
        complete=complete,
        warnings=tuple(job.warnings()),
        seconds=clock.seconds,
    )


@dataclass
class _Job:
    """What all trainings of one command have in common."""

    graph: StepGraph
    policy: Policy
    samples: Data
    held: Data | None
    metric: Metric
    settings: Settings
    batch_size: int
    steps: int
    known: dict[str, Any]
    scaler: tuple[str, dict[str, Any], dict[str, Any]]  # name, parameters, state at the start
    advance_on_skip: bool
    provider: str
    told: Callable[[Progress], None] | None

    def training(self, machine: Machine, seed: int, scaler: Scaler | None, steps: int) -> Training:
        """A training at its start."""
        return Training(
            self.graph,
            machine,
            self.samples,
            self.settings,
            batch_size=self.batch_size,
            steps=steps,
            seed=seed,
            scaler=scaler,
            given=self.known,
            advance_on_skip=self.advance_on_skip,
        )

    def curve(
        self, keeper: _Keeper, seed: int, kind: str, machine: Machine, sampler: Sampler | None
    ) -> tuple[Curve, dict[str, Any] | None]:
        """One whole training, or what is left of it; and what its first bad step read."""
        name = f"{seed}/{kind}"
        if name in keeper.done:
            kept = keeper.done[name]
            return _curve_from(kept["curve"]), kept["first_bad"] or None
        scaler = make_scaler(self.scaler[0], **self.scaler[1]) if kind == "mixed" else None
        training = self.training(machine, seed, scaler, self.steps)
        keeper.resume(name, training)
        training.sampler = sampler
        while not training.done:
            training.run(training.step + 1)
            if self.told is not None:
                last = training.history
                self.told(Progress(seed, kind, training.step, self.steps, last.loss[-1], last.scale[-1]))
            keeper.keep(name, training, sampler)
        curve = self._judge(training, machine, kind)
        keeper.finish(name, curve, training.first_bad, sampler)
        return curve, training.first_bad

    def _judge(self, training: Training, machine: Machine, kind: str) -> Curve:
        history = training.history
        metric = None
        if self.held is not None:
            values = {**training.parameters.views, **training.buffers.views}
            metric = evaluate(self.graph, machine, values, self.held, self.metric, self.batch_size)
        why = diverged(history.loss, history.skipped, all_finite(training.parameters.data))
        if kind == "float32":
            return Curve(tuple(history.loss), metric, diverged=why)
        return Curve(
            tuple(history.loss),
            metric,
            tuple(history.scale),
            tuple(history.skipped),
            tuple(history.exceptions),
            history.tries,
            history.bad,
            why,
        )

    def warnings(self) -> list[str]:
        """What to know of the data and the lists."""
        found = [f"{self.samples.where}: {name}: {what}" for name, what in self.samples.notes.items()]
        if self.held is None:
            found.append("there is no evaluation data: the metric is not judged")
        return found + [str(w) for w in self.policy.warnings]

    def key(self) -> dict[str, str]:
        """What the numbers of a training depend on."""
        import onnxruntime

        from mixlist import __version__

        def digest(arrays: Mapping[str, Any]) -> str:
            found = hashlib.sha256()
            for name in sorted(arrays):
                array = np.ascontiguousarray(arrays[name])
                found.update(f"{name} {array.dtype} {array.shape}".encode())
                found.update(array.tobytes())
            return found.hexdigest()

        proto = self.graph.loaded.proto
        return {
            "step graph": hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest(),
            "data": digest(self.samples.arrays) + (digest(self.held.arrays) if self.held is not None else ""),
            "lists": self.policy.digest,
            "initial values": digest(self.known),
            "options": f"{self.settings} {self.batch_size} {self.steps} {self.scaler[2]} {self.advance_on_skip}"
            f" {self.provider} {self.metric}",
            "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
        }


class _Keeper:
    """The state file of a command: trainings that are done, and the one that runs. Without a path nothing is kept."""

    def __init__(self, path: Any, key: Mapping[str, str]) -> None:
        self.path, self.key = path, key
        saved = checkpoint.read(path, key) if path is not None else None
        self.done: dict[str, dict[str, Any]] = saved["done"] if saved is not None else {}
        self.now: dict[str, Any] = saved["now"] if saved is not None else {}
        self._counts = saved["counts"] if saved is not None else None
        self._last = time.monotonic()

    def counts(self, start: list[int]) -> list[int]:
        """The sampler's counts, as they were."""
        return start if self._counts is None else list(self._counts)

    def resume(self, name: str, training: Training) -> None:
        """Bring a training to where it was."""
        if self.now.get("name") == name:
            training.restore(self.now["training"])

    def keep(self, name: str, training: Training, sampler: Sampler | None) -> None:
        """Write the state, now and then."""
        if self.path is None or time.monotonic() - self._last < SAVE_AFTER:
            return
        self.now = {"name": name, "training": training.state()}
        self._write(sampler)

    def finish(self, name: str, curve: Curve, first_bad: dict[str, Any] | None, sampler: Sampler | None) -> None:
        """A training is done."""
        self.done[name] = {"curve": asdict(curve), "first_bad": first_bad or {}}
        self.now = {}
        if self.path is not None:
            self._write(sampler)

    def _write(self, sampler: Sampler | None) -> None:
        if sampler is not None:
            self._counts = list(sampler.counts)
        checkpoint.save(self.path, self.key, {"done": self.done, "now": self.now, "counts": self._counts})
        self._last = time.monotonic()


def _curve_from(kept: Mapping[str, Any]) -> Curve:
    lists = {name: tuple(kept[name]) for name in ("loss", "scale", "skipped", "exceptions")}
    return Curve(**{**kept, **lists})
