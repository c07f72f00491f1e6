"""Decide whether a network may be trained under lists: every seed twice, on the same batches (Rule S10.1)."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from mixlist.checker.exception_rate import exception_rate
from mixlist.checker.keyword_arguments import with_keywords
from mixlist.lists.policy import Policy
from mixlist.progress import ProgressCounter
from mixlist.runtime.phase_timer import PhaseTimer
from mixlist.training.checkpoint import StateFile
from mixlist.training.gradient_underflow import UnderflowSampler
from mixlist.training.job import TrainingJob, TrainingStep, make_job
from mixlist.training.loop import all_finite
from mixlist.training.options import Source, TrainOptions
from mixlist.training.overflow_advice import advise_on_overflow
from mixlist.training.result import SeedRun, TrainingHistory, TrainReport
from mixlist.training.scale_tuning import tune_scale
from mixlist.training.scalers import ScalerError, describe_scaler
from mixlist.training.step_graph import read_step
from mixlist.training.step_session import StepSession, make_float32_session, make_mixed_session
from mixlist.training.verdict import diverged, failure_reasons, missing_comparisons

if TYPE_CHECKING:
    from mixlist.checker.keyword_arguments import Model
    from mixlist.runtime.session import Array

PASSED = "exceptions, metric and its constancy are within their limits, and no training diverges"


@with_keywords(TrainOptions)
def train(model: Model, policy: Policy, data: Source, options: TrainOptions) -> TrainReport:
    """Train a step graph in float32 and under ``policy``'s lists, and decide whether mixed precision holds.

    ``data``: arrays by batch input, samples along the first axis, or a ``.npz`` file of them. The keyword arguments are
    the fields of ``TrainOptions``. Ctrl-C ends with a report of what there is, not ``complete``.

    Raises ModelError for what is no step graph, UsageError for data and options that do not fit, FileError for files
    that cannot be read.
    """
    return run_train(model, policy, data, options)


def run_train(model: Model, policy: Policy, data: Source, options: TrainOptions) -> TrainReport:
    """Do what ``train`` says, with its options in one object."""
    job = make_job(read_step(model), policy, data, options)
    clock = PhaseTimer()
    states = StateFile(options.state, job.key() if options.state is not None else {})
    with clock.phase("prepare"):
        exact = make_float32_session(job.graph, options.provider, options.threads)
        mixed = make_mixed_session(job.graph, policy, options.provider, options.threads)
        job.measure(job.training(exact, options.seed, None), batches=1)  # errors of the data come before the long run
    series = _Series(job, exact, mixed, states, clock)
    series.run()
    report = series.follow_up(series.report())
    exact.close()
    mixed.close()
    return replace(report, seconds=clock.seconds)


class _Series:
    """The trainings of one command, one after the other: every seed in float32, then mixed."""

    def __init__(
        self, job: TrainingJob, exact: StepSession, mixed: StepSession, states: StateFile, clock: PhaseTimer
    ) -> None:
        self.job, self.exact, self.mixed, self.states, self.clock = job, exact, mixed, states, clock
        self.sampler = UnderflowSampler(exact, mixed, job.policy.mode.low, job.steps)
        self.progress = ProgressCounter(job.options.progress, "steps", 2 * job.options.runs * job.steps)
        self.sampler.counts = list(states.state["counts"] or self.sampler.counts)
        self.finished: list[SeedRun] = []
        self.cut_off: list[SeedRun] = []  # the one that Ctrl-C ended, as far as it came
        self.curves: dict[str, TrainingHistory] = {}  # of the current seed, by kind
        self.first_bad: dict[str, Array] | None = None  # what the first bad step of all runs read

    @property
    def complete(self) -> bool:
        """Return True if every run came to its end."""
        return len(self.finished) == self.job.options.runs

    def run(self) -> None:
        """Train until all runs are done, or the user ends them."""
        first = self.job.options.seed
        try:
            for seed in range(first, first + self.job.options.runs):
                self.curves = {"float32": TrainingHistory(), "mixed": TrainingHistory()}
                with self.clock.phase("float32"):
                    self.train(seed, "float32", self.exact, None)
                with self.clock.phase("mixed"):
                    first_bad = self.train(seed, "mixed", self.mixed, self.sampler)
                self.finished.append(SeedRun(seed, **self.curves))
                self.first_bad = self.first_bad or first_bad
        except KeyboardInterrupt:
            self.cut_off.append(SeedRun(seed, **self.curves))

    def train(
        self, seed: int, kind: str, session: StepSession, sampler: UnderflowSampler | None
    ) -> dict[str, Array] | None:
        """Make one whole training, or what is left of it; return the feed of its first bad step.

        Its curve is in ``curves`` from its first step on.
        """
        name, job = f"{seed}/{kind}", self.job
        finished = self.states.state["done"].get(name)
        if finished is not None:
            self.curves[kind] = TrainingHistory(**finished["curve"])
            self.progress.skip(job.steps)
            return finished["first_bad"]
        training = job.training(session, seed, job.new_scaler() if kind == "mixed" else None)
        training.sampler = sampler
        self.states.resume(name, training)
        self.progress.skip(training.step)
        curve = self.curves[kind] = training.history
        ended = ""
        while training.step < job.steps:
            try:
                training.run(training.step + 1)
            except ScalerError as problem:
                ended = f"was ended: {problem.message}"
                break
            step = TrainingStep(seed, kind, training.step, job.steps, curve.loss[-1], curve.scale[-1])
            self.progress.add(detail=step)
            self.states.keep(name, training)
        curve.metric = job.measure(training)
        curve.diverged = ended or diverged(curve.loss, curve.skipped, all_finite(training.parameters.data))
        if kind == "float32" and curve.exceptions and not curve.diverged:
            curve.diverged = f"has gradients that are not finite in {len(curve.exceptions)} of {training.step} steps"
        self.states.finish(name, training)
        return training.first_bad

    def report(self) -> TrainReport:
        """Return the verdict on the runs and everything behind it."""
        job, options = self.job, self.job.options
        runs = (*self.finished, *self.cut_off)
        steps = sum(len(run.mixed.loss) for run in runs)
        exceptions = sum(len(run.mixed.exceptions) for run in runs)
        reasons = failure_reasons(self.finished, self.cut_off, job.metric, options)
        if not self.complete:
            reasons.insert(0, f"interrupted after {len(self.finished)} of {options.runs} runs")
        unjudged = missing_comparisons(self.finished, job.metric)
        return TrainReport(
            model=job.graph.name,
            verdict="fail" if reasons else "inconclusive" if unjudged else "pass",
            reasons=(*reasons, *unjudged) or (PASSED,),
            provider=options.provider,
            mode="emulated" if options.provider == "cpu" else "native",
            precision=job.policy.mode.low,
            exception_rate=exception_rate(exceptions, steps),
            limit=options.max_exception_rate,
            steps=job.steps,
            batch_size=options.batch_size,
            metric=job.metric.name,
            higher=job.metric.higher,
            tolerance=options.tolerance,
            runs=runs,
            scaler=describe_scaler(job.new_scaler()),
            optimizer=asdict(job.settings),
            underflow=self.sampler.result(),
            complete=self.complete,
            warnings=(*job.data_warnings(), *self.mixed.warnings),
        )

    def follow_up(self, report: TrainReport) -> TrainReport:
        """Return the report with what else was asked for: the nodes that overflow first, and a better scale."""
        job, options = self.job, self.job.options
        if not self.complete:
            return report
        try:
            if options.trace_overflow and self.first_bad is not None:
                with self.clock.phase("trace"):
                    offenders, scale, suggestion = advise_on_overflow(
                        job.graph, job.policy, self.first_bad, options.provider
                    )
                report = replace(report, offenders=offenders, trace_scale=scale, suggestion=suggestion)
            if options.tune:
                with self.clock.phase("tune scale"):
                    trials, best = tune_scale(job, self.exact, self.mixed, options.seed)
                report = replace(report, scale_trials=trials, scale_choice=best)
        except KeyboardInterrupt:
            why = ("interrupted before everything that was asked for was found out", *report.reasons)
            report = replace(report, verdict="fail", reasons=why, complete=False)
        return report
