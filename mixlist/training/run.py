"""Train a network in float32 and in mixed precision, and decide whether mixed precision works (Rule S10.1)."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from mixlist.checker.exception_rate import exception_rate
from mixlist.checker.keyword_arguments import with_keywords
from mixlist.installed_runtime import require_scipy
from mixlist.lists.policy import Policy
from mixlist.progress import ProgressCounter
from mixlist.runtime.phase_timer import PhaseTimer
from mixlist.training.evaluation import describe_evaluation
from mixlist.training.gradient_underflow import UnderflowCounts, UnderflowSampler
from mixlist.training.job import TrainingJob, make_job
from mixlist.training.loop import all_finite
from mixlist.training.options import DataSource, TrainOptions
from mixlist.training.overflow_advice import advise_on_overflow
from mixlist.training.result import SeedRun, TrainingHistory, TrainReport
from mixlist.training.scale_tuning import tune_scale
from mixlist.training.scalers import ScalerError, describe_scaler
from mixlist.training.state_file import StateFile
from mixlist.training.steady_state import measure_rates
from mixlist.training.step_graph import load_step_graph
from mixlist.training.step_session import StepSession, make_float32_session, make_mixed_session
from mixlist.training.verdict import judge, judged_runs, reason_of_failure

if TYPE_CHECKING:
    from mixlist.checker.keyword_arguments import Model
    from mixlist.runtime.session import Array

Kind = Literal["float32", "twin", "mixed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class StepProgress:
    """Progress of a training after one step: the ``detail`` of the ``progress`` callback.

    ``step`` counts from 1 to ``steps``, the length of the training. ``loss`` is not scaled; ``scale`` is the loss scale
    of the step.
    """

    seed: int
    kind: Kind
    step: int
    steps: int
    loss: float
    scale: float


@with_keywords(TrainOptions)
def train(model: Model, policy: Policy, data: DataSource, options: TrainOptions) -> TrainReport:
    """Train a step graph in float32 and under ``policy``, and decide whether mixed precision works.

    ``data`` has an array for each batch input by name, with the samples along the first axis, or is the path of a
    ``.npz`` file of such arrays, or of a directory of such files (Rule S10.26). An iterable of mappings yields whole
    batches. The keyword arguments are the fields of ``TrainOptions``. Ctrl-C ends the training; the report then has
    ``complete`` False and the results so far.

    Raises ModelError for a model that is not a step graph, UsageError for data and options that do not fit, FileError
    for files that cannot be read.
    """
    return run_train(model, policy, data, options)


def run_train(model: Model, policy: Policy, data: DataSource, options: TrainOptions) -> TrainReport:
    """Do the work of ``train``, with its options in one object."""
    require_scipy()  # now, not after the trainings
    job = make_job(load_step_graph(model), policy, data, options)
    timer = PhaseTimer()
    state_file = StateFile(options.state, job.fingerprint() if options.state is not None else {})
    with ExitStack() as stack:  # closes the sessions
        with timer.phase("prepare"):
            float32_session = make_float32_session(job.graph, options.provider, options.threads)
            stack.enter_context(closing(float32_session))
            mixed_session = make_mixed_session(job.graph, policy, options)
            stack.enter_context(closing(mixed_session))
            # One batch is evaluated now, so that labels that do not fit the logits are an error before the long run.
            job.measure(job.new_training(float32_session, options.seed, None), max_batches=1)
        series = _TrainingSeries(job, float32_session, mixed_session, state_file, timer)
        series.run()
        report = series.add_advice(series.make_report())
    return replace(report, seconds=timer.seconds)


class _TrainingSeries:
    """The trainings of one command: for each seed the float32 training, its twin, and the mixed one."""

    def __init__(
        self,
        job: TrainingJob,
        float32_session: StepSession,
        mixed_session: StepSession,
        state_file: StateFile,
        timer: PhaseTimer,
    ) -> None:
        self.job, self.state_file, self.timer = job, state_file, timer
        self.float32_session, self.mixed_session = float32_session, mixed_session
        self.sampler = UnderflowSampler(float32_session, mixed_session, job.policy.mode.low, job.steps)
        self.progress = ProgressCounter(job.options.progress, "steps", len(KINDS) * job.options.runs * job.steps)
        # A continued command adds to the counts of the steps that an earlier command has sampled.
        if state_file.state["counts"] is not None:
            self.sampler.counts = UnderflowCounts(**state_file.state["counts"])
        self.finished: list[SeedRun] = []
        self.interrupted: list[SeedRun] = []  # the run that Ctrl-C ended, with the steps so far; else empty
        self.histories: dict[Kind, TrainingHistory] = {}  # of the current seed, by kind
        self.first_bad_feed: dict[str, Array] | None = None  # of the first exception in a mixed training

    @property
    def complete(self) -> bool:
        """Return True if every run came to its end."""
        return len(self.finished) == self.job.options.runs

    def run(self) -> None:
        """Train every seed, until all runs are finished or Ctrl-C ends them."""
        first_seed = self.job.options.seed
        # Ctrl-C may come at any step. ``histories`` then has the steps so far, which the report shows.
        try:
            for seed in range(first_seed, first_seed + self.job.options.runs):
                self.histories = {kind: TrainingHistory() for kind in KINDS}
                for kind in KINDS:
                    with self.timer.phase(kind):
                        first_bad_feed = self.run_training(seed, kind)
                self.finished.append(SeedRun(seed, **self.histories))
                self.first_bad_feed = self.first_bad_feed or first_bad_feed  # of the mixed training, which is last
        except KeyboardInterrupt:
            self.interrupted.append(SeedRun(seed, **self.histories))

    def run_training(self, seed: int, kind: Kind) -> dict[str, Array] | None:
        """Run one training to its end, from its saved state if there is one; return the feed of its first exception.

        The history of the training is put into ``histories[kind]`` before its first step, so that the report of an
        interrupted training has the steps that were made.
        """
        # An earlier command may have finished this training: the state file has its history then.
        name, job = f"{seed}/{kind}", self.job
        saved_result = self.state_file.state["done"].get(name)
        if saved_result is not None:
            self.histories[kind] = TrainingHistory(**saved_result["curve"])
            self.progress.skip(job.steps)  # the steps of the earlier command count as done
            return saved_result["first_bad"]

        if kind == "mixed":
            training = job.new_training(self.mixed_session, seed, job.new_scaler())
            training.sampler = self.sampler
        else:
            training = job.new_training(self.float32_session, seed, None)
        if kind == "twin":
            training.make_twin()
        self.state_file.restore(name, training)
        self.progress.skip(training.step)
        history = self.histories[kind] = training.history
        # Only a metric that is better when lower is compared with what float32 has learned of it (Rule S10.14).
        if kind == "float32" and not job.metric.higher_is_better and not training.step:
            history.first_metric = job.measure(training)
        failure_by_scaler = ""  # the end of a sentence, like ``diverged``
        # One step at a time, for the progress callback and the state file.
        while training.step < job.steps:
            try:
                training.run(training.step + 1)
            except ScalerError as error:
                failure_by_scaler = f"was ended: {error.message}"
                break
            if training.step in job.evaluation_steps:
                history.evaluations.append(job.measure(training))
            step = StepProgress(seed, kind, training.step, job.steps, history.loss[-1], history.scale[-1])
            self.progress.add(detail=step)
            self.state_file.save_if_due(name, training)

        # A training that has diverged has a metric too, perhaps NaN. One that the scaler has ended is measured now.
        values = [job.measure(training)] if failure_by_scaler else history.evaluations
        history.metric = sum(values) / len(values)
        parameters_finite = all_finite(training.parameters.flat)
        history.diverged = failure_by_scaler or reason_of_failure(history.loss, history.skipped, parameters_finite)
        # A float32 training has no loss scaling. If its gradients are not finite, the network or the data cause it. The
        # exceptions of the mixed training then prove nothing about the precision (Rule S10.16).
        if kind != "mixed" and history.exceptions and not history.diverged:
            exceptions = len(history.exceptions)
            history.diverged = f"has gradients that are not finite in {exceptions} of {training.step} steps"
        self.state_file.save_finished(name, training)
        return training.first_bad_feed

    def make_report(self) -> TrainReport:
        """Return the report on the runs so far: the verdict, and the measurements that decide it."""
        job, options = self.job, self.job.options
        runs = (*self.finished, *self.interrupted)
        steps = sum(len(run.mixed.loss) for run in runs)
        exceptions = sum(len(run.mixed.exceptions) for run in runs)
        histories = [run.mixed for run in judged_runs(self.finished, job.metric)]
        rates = measure_rates(histories, job.new_scaler(), job.planned_steps)
        underflow = self.sampler.result()
        judged = judge(self.finished, rates, underflow, job.metric, options)
        verdict, reasons = judged.verdict, judged.reasons
        if not self.complete:
            verdict = "fail"
            reasons = (f"interrupted after {len(self.finished)} of {options.runs} runs", *reasons)
        return TrainReport(
            model=job.graph.name,
            verdict=verdict,
            reasons=reasons,
            provider=options.provider,
            mode="emulated" if options.emulated else "native",
            precision=job.policy.mode.low,
            overflow_mode=options.overflow_mode,
            overflow_detection="any-node" if options.examines_every_node else "gradients",
            exception_rate=exception_rate(exceptions, steps),
            start_up_rate=rates.start_up_rate,
            steady_rate=rates.steady_rate,
            initial_scale=rates.initial_scale,
            projected_rate=rates.projected_rate,
            limit=options.max_exception_rate,
            steps=job.steps,
            batch_size=None if job.training_data.has_whole_batches else options.batch_size,
            metric=job.metric.name,
            higher=job.metric.higher_is_better,
            tolerance=options.tolerance,
            comparison=judged.comparison,
            runs=runs,
            scaler=describe_scaler(job.new_scaler()),
            optimizer=asdict(job.settings),
            underflow=underflow,
            start=job.describe_start(),
            evaluation=describe_evaluation(job.graph),
            complete=self.complete,
            warnings=(*job.data_warnings(), *self.mixed_session.warnings),
        )

    def add_advice(self, report: TrainReport) -> TrainReport:
        """Return the report with the results of --trace-overflow and --tune-scale, if they are asked for."""
        job, options = self.job, self.job.options
        if not self.complete:  # after Ctrl-C the user waits for the end of the command
            return report
        try:
            if options.trace_overflow and self.first_bad_feed is not None:
                with self.timer.phase("trace"):
                    offenders, scale, suggestion = advise_on_overflow(
                        job.graph, job.policy, self.first_bad_feed, options
                    )
                report = replace(report, offenders=offenders, trace_scale=scale, suggestion=suggestion)
            if options.tune:
                with self.timer.phase("tune scale"):
                    runs, best = tune_scale(job, self.float32_session, self.mixed_session, options.seed)
                report = replace(report, scale_trials=runs, scale_choice=best)
        except KeyboardInterrupt:
            # The runs are complete, but the user asked for more than the report has.
            reasons = ("interrupted before --trace-overflow and --tune-scale were finished", *report.reasons)
            report = replace(report, verdict="fail", reasons=reasons, complete=False)
        return report
