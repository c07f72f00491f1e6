"""Time two models in turn, and find out what ONNX Runtime ran.

Each model has a process of its own. A crash of ONNX Runtime then ends one session and not the command, and the memory
of the two models can be measured apart.

A *turn* loads the model, warms up until its runs take equally long, and runs one batch several times in a row: at
least ``LEAST_REPEATS`` times, and for at least ``TURN_SECONDS``. Its time is that of its fastest run. The first runs of
a turn are slow, because the caches hold other data, and another load on the machine interrupts some of the runs. Each
turn loads the model anew, because the speed of a session depends on where its memory lies: on one machine, sessions of
the same model differed by up to 15 %. The models take their turns one after the other and change their order, so that a
load that lasts slows both.
``compute_ratio`` compares the times.
Profiling slows a session, so the profiles come from other sessions, after the timing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from mixlist.benchmark.executed_graph import compare_graphs, count_nodes_with_low_kernel
from mixlist.benchmark.options import DEFAULT_ROUNDS, BenchOptions
from mixlist.benchmark.result import (
    BenchReport,
    GraphChanges,
    TimedModel,
    compute_ratio,
    compute_spread,
    scale_batches,
)
from mixlist.benchmark.timed_session import TimedSession
from mixlist.decide import Plan, resolve
from mixlist.diagnostics import Diagnostic
from mixlist.errors import ModelError
from mixlist.files.scratch_folder import ScratchFolder
from mixlist.lists.policy import Policy
from mixlist.model.load import LoadedModel, load_model
from mixlist.model.shape_inference import refuse_large_expansion
from mixlist.option_fields import with_fields
from mixlist.option_spelling import spell
from mixlist.progress import ProgressCounter
from mixlist.run.executors import Workers, open_process
from mixlist.run.feeds import Data, as_batches
from mixlist.run.inputs import make_feed, model_inputs
from mixlist.run.local_session import RunRefused
from mixlist.run.model_files import is_readable_in_place, write_model
from mixlist.run.profile_reader import Profile, read_profile
from mixlist.run.remote_session import Crashed, RemoteSession
from mixlist.run.session import SessionOptions
from mixlist.targets.providers import PROVIDERS
from mixlist.targets.target import describe_refused_bfloat16
from mixlist.worker_processes import WorkerDied
from mixlist.write import rewrite

if TYPE_CHECKING:
    from mixlist.model.protos import ModelSource
    from mixlist.run.session import Feed

    ComparedModel: TypeAlias = Policy | Plan | ModelSource | LoadedModel

P = ParamSpec("P")
T = TypeVar("T")
# The least length of a turn. On two cores with seven times as many busy threads, a few runs of a turn of this length
# are not interrupted, if a run takes some milliseconds.
TURN_SECONDS = 0.1
# A slow model has few runs in a row, and more rounds in the same time: the interval of the ratio comes from the rounds.
LEAST_REPEATS, MOST_REPEATS = 2, 1000
BENCH_SECONDS = 45.0  # from the start of the warm-up; the profiles follow
_WARM_UP_RUNS = 3  # at least, and at least one of each batch
_PROFILED_BATCHES = 4
_PROFILED_RUNS = 5  # of each batch


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Arguments(BenchOptions):
        model: ModelSource | LoadedModel
        policy_or_other: ComparedModel
        batches: Data

else:
    _Arguments = BenchOptions


@with_fields(_Arguments)
def bench(
    model: ModelSource | LoadedModel, policy_or_other: ComparedModel, batches: Data, options: BenchOptions
) -> BenchReport:
    """Time ``model`` against the mixed model that a Policy or a Plan makes of it, or against another model.

    ``batches``: paths, or arrays by input name, as ``check`` takes them; the first ``rounds`` of them are used (15 by
    default). The keyword arguments are options of ``mixlist bench --help-all``. If ONNX Runtime refuses one of the
    models or crashes on it, the report says so and has no ratio. A report of fewer than ten rounds has none either.

    Example::

        batches = mixlist.random_batches("digits.onnx", 4, dims={"batch": 16})
        report = mixlist.bench("digits.onnx", mixlist.load_policy(), batches, rounds=10)
        print(report.verdict, report.ratio)

    Raises UsageError if there is no batch, no such provider or no round, FileError for data that cannot be read, and
    the errors of ``load_model`` and ``resolve``.
    """
    return run_bench(model, policy_or_other, batches, options)


def run_bench(
    model: ModelSource | LoadedModel, policy_or_other: ComparedModel, batches: Data, options: BenchOptions
) -> BenchReport:
    """Do the same as ``bench``, with its options in one object."""
    original = load_model(model)
    refuse_large_expansion(original.proto)
    data = as_batches(batches, original.proto, options.most_batches)
    feeds = list(islice(data, options.most_batches))
    with ScratchFolder() as folder, ExitStack() as processes:
        hints = [data.refusal_hint(index) for index in range(len(feeds))]
        refusal_hint = next((hint for hint in hints if hint is not None), None)
        comparison = _Comparison(folder, feeds, options, processes, refusal_hint)
        warnings = (*data.warnings, *comparison.add_models(original, policy_or_other))
        comparison.time_models()
        comparison.profile_models()
        return comparison.report(warnings)


class _Measurement:
    """One of the two models, its process, and the measurements so far.

    ``path``: the file that the process loads. ``loaded``: the same model in this process, for its inputs and its types.
    ``scratch``: the folder of the file if it is temporary. ``process``: the process of the model, which starts with its
    first session. ``refusal_hint``: what to do if the model refuses to run a batch; None if nothing is known.
    """

    def __init__(
        self,
        name: str,
        loaded: LoadedModel,
        path: Path,
        scratch: ScratchFolder | None,
        process: Workers,
        refusal_hint: str | None,
    ) -> None:
        self.name = name
        self.loaded = loaded
        self.path = path
        self.scratch = scratch
        self.process = process
        self.refusal_hint = refusal_hint
        self.times: list[float] = []  # seconds of one run, by round
        self.memory: int | None = None
        self.graph: GraphChanges | None = None
        self.profile: Profile | None = None
        self.failure = ""

    def attempt(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of ``work``; None if ONNX Runtime refuses the model or crashes, or did before.

        The error is stored in ``failure``, so that the other model can still be timed. A model on which ONNX Runtime
        crashes is kept for a report.
        """
        if self.failure:
            return None
        try:
            return work(*args, **kwargs)
        except ModelError as error:
            hint = f"; {self.refusal_hint}" if self.refusal_hint and isinstance(error, RunRefused) else ""
            self.failure = error.message + hint
            if isinstance(error, Crashed) and self.scratch is not None:
                self.scratch.keep()
            return None


class _Comparison:
    """The two models and the batches on which they are compared.

    ``folder`` is for temporary files. ``processes`` ends the processes of the models.
    """

    def __init__(
        self,
        folder: Path,
        feeds: Sequence[Feed],
        options: BenchOptions,
        processes: ExitStack,
        refusal_hint: str | None = None,
    ) -> None:
        self.folder = folder
        self.processes = processes
        self.feeds = feeds
        self.options = options
        self.refusal_hint = refusal_hint
        # Both can change later: transfers that a model cannot avoid are timed, and the warm-up decides the repeats.
        self.transfers, self.repeats = False, 1
        self.rounds = options.rounds or DEFAULT_ROUNDS[-1]  # the first round decides the default
        self.cuda_graph = False  # in the turns
        self.notes: list[str] = []
        self.measurements: list[_Measurement] = []  # the original model first

    def add_models(self, original: LoadedModel, policy_or_other: ComparedModel) -> tuple[Diagnostic, ...]:
        """Add both models; return the warnings about the mixed one."""
        self._add_model(original.name, original)
        if isinstance(policy_or_other, Policy | Plan):
            plan = policy_or_other if isinstance(policy_or_other, Plan) else resolve(original, policy_or_other)
            result = rewrite(plan.solution.loaded, plan)
            scratch = ScratchFolder()
            # Save and load it: saving converts the constants, so the process gets the model that ``apply`` writes.
            result.save(scratch.path / "mixed.onnx")
            self._add_model(f"{original.name}, mixed", load_model(scratch.path / "mixed.onnx"), scratch)
            return result.warnings
        loaded = load_model(policy_or_other)
        refuse_large_expansion(loaded.proto)
        self._add_model(loaded.name, loaded)
        return ()

    def _add_model(self, name: str, loaded: LoadedModel, scratch: ScratchFolder | None = None) -> None:
        """Add a model. ``scratch``: the folder of its file if that is temporary."""
        path = loaded.path
        # Write a model once that has no file, or whose external data a session cannot read: each turn loads it.
        if path is None or not is_readable_in_place(loaded.proto, loaded.folder):
            scratch = ScratchFolder()
            path = write_model(loaded.proto, scratch.path, loaded.folder)
        if scratch is not None:
            self.processes.enter_context(scratch)
        # A new process and not the helper, which can hold memory of its own.
        process = self.processes.enter_context(open_process(is_helper=False))
        self.measurements.append(_Measurement(name, loaded, path, scratch, process, self.refusal_hint))

    def _start_session(
        self,
        measurement: _Measurement,
        feeds: Sequence[Feed],
        profile: Path | None = None,
        optimized_model: Path | None = None,
    ) -> RemoteSession:
        """Load a model in its process and send it the batches."""
        provider, threads = self.options.provider, self.options.threads
        # The profile of a replayed graph has no nodes.
        cuda_graph = self.cuda_graph and profile is None
        options = SessionOptions(
            provider, threads=threads, cuda_graph=cuda_graph, profile=profile, optimized_model=optimized_model
        )
        session = RemoteSession(measurement.path, options, workers=measurement.process, session_class=TimedSession)
        self._load_batches(measurement, session, feeds)
        return session

    def _load_batches(self, measurement: _Measurement, session: RemoteSession, feeds: Sequence[Feed]) -> None:
        """Send the batches to the process of a model."""
        inputs = model_inputs(measurement.loaded.proto)
        # The two models may declare different input types: convert the batches to those of this model.
        converted_feeds = [make_feed(feed, inputs, f"batch {index}")[0] for index, feed in enumerate(feeds)]
        if session.call(TimedSession.load_batches, converted_feeds, self.transfers) and not self.transfers:
            self.transfers = True
            self.notes.append("inputs or outputs that are no tensors cannot stay on the device: transfers are timed")

    # --- timing ---

    def time_models(self) -> None:
        """Warm both models up, and time them in turn."""
        begin = time.perf_counter()
        # 1. Warm up, and choose the number of repeats from the time of a warm run.
        warm_seconds = [measurement.attempt(self._warm_up, measurement) for measurement in self.measurements]
        if self.options.provider == "cuda" and not self.transfers and all(warm_seconds):
            warm_seconds += self._try_cuda_graphs()
        # Both models repeat their runs equally often. The faster model decides how often, because its
        # turns are the shorter ones.
        fastest = min((seconds for seconds in warm_seconds if seconds), default=TURN_SECONDS)
        self.repeats = min(max(math.ceil(TURN_SECONDS / fastest), LEAST_REPEATS), MOST_REPEATS)
        # 2. Time the models in turn.
        self._note_other_load()
        rounds = ProgressCounter(self.options.progress, "rounds")
        start = time.perf_counter()
        index = 0
        while index < self.rounds:
            batch, pass_number = index % len(self.feeds), index // len(self.feeds)
            # The order of the models changes with each batch. It also changes with each pass over the batches:
            # otherwise, the same model would always be first for a batch.
            is_swapped = (batch + pass_number) % 2
            for measurement in self.measurements[::-1] if is_swapped else self.measurements:
                measurement.attempt(self._take_turn, measurement, self.feeds[batch])
            index += 1
            seconds_of_round = (time.perf_counter() - start) / index
            if index == 1 and self.options.rounds is None:
                self.rounds = _choose_rounds(BENCH_SECONDS - (start - begin), seconds_of_round)
            rounds.total = self.rounds
            rounds.add(detail=seconds_of_round * self.rounds)

    def _note_other_load(self) -> None:
        """Add a note if other programs keep the cores busy while several threads compute an operator."""
        # The warm-up itself is a load of about one. Windows does not know this number.
        load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
        if self.options.provider == "cpu" and self.options.threads != 1 and load > cores + 1:
            self.notes.append(
                f"other programs use this machine (load {load:.1f} on {cores} cores), and the threads of an operator"
                f" wait for one another: with {spell('threads', 1)} the times depend less on the load"
            )

    def _warm_up(self, measurement: _Measurement) -> float:
        """Run every batch, and measure the memory; return the seconds of the fastest run."""
        runs = max(_WARM_UP_RUNS, len(self.feeds))
        with self._start_session(measurement, self.feeds) as session:
            seconds = [session.call(TimedSession.time_runs, run % len(self.feeds), 1) for run in range(runs)]
            # Later sessions use memory that this one has freed, so their memory would look too small.
            measurement.memory = session.call(TimedSession.peak_added_memory)
        return min(seconds)

    def _try_cuda_graphs(self) -> list[float]:
        """Time both models as CUDA graphs from now on, if both can; return the seconds of a run of each.

        A model that cannot is no failure: then both are timed without, so that the comparison stays fair.
        """
        self.cuda_graph = True
        seconds: list[float] = []
        for measurement in self.measurements:
            try:
                # One batch, as in a turn: a graph replays the addresses of the batch that it was recorded with.
                with self._start_session(measurement, self.feeds[:1]) as session:
                    session.call(TimedSession.warm_up, 0)
                    seconds.append(session.call(TimedSession.time_runs, 0, LEAST_REPEATS))
            except ModelError as error:
                self.cuda_graph = False
                if isinstance(error, WorkerDied):
                    measurement.process = self.processes.enter_context(open_process(is_helper=False))
                self.notes.append(f"the times are without CUDA graphs: {measurement.name}: {error.message}")
                return []
        self.notes.append("both models were timed as CUDA graphs, without the time in which the host launches kernels")
        return seconds

    def _take_turn(self, measurement: _Measurement, feed: Feed) -> None:
        with self._start_session(measurement, [feed]) as session:
            session.call(TimedSession.warm_up, 0)
            measurement.times.append(session.call(TimedSession.time_runs, 0, self.repeats))

    # --- profiles ---

    def profile_models(self) -> None:
        """Run a few batches of each model again, with ONNX Runtime's profile and the optimized graph as files."""
        for index, measurement in enumerate(self.measurements):
            folder = self.folder / f"profile{index}"
            folder.mkdir()
            try:
                if not measurement.failure:
                    self._profile_model(measurement, folder)
            except ModelError as error:  # the times are valid without a profile
                self.notes.append(f"there is no profile of {measurement.name}: {error.message}")

    def _profile_model(self, measurement: _Measurement, folder: Path) -> None:
        import onnx

        feeds = self.feeds[:_PROFILED_BATCHES]
        optimized_model = folder / "optimized.onnx"
        with self._start_session(measurement, feeds, folder / "profile", optimized_model) as session:
            for runs in (1, _PROFILED_RUNS):  # the first run of each batch is a warm-up, which read_profile skips
                for batch in range(len(feeds)):
                    session.call(TimedSession.time_runs, batch, runs)
            measurement.profile = read_profile(Path(session.call(TimedSession.end_profile)), warmup=len(feeds))
        optimized_proto = onnx.load(optimized_model, load_external_data=False)
        measurement.graph = compare_graphs(measurement.loaded.proto, optimized_proto)

    # --- the report ---

    def report(self, warnings: tuple[Diagnostic, ...]) -> BenchReport:
        """Return the report of all measurements."""
        options = self.options
        times = scale_batches([measurement.times for measurement in self.measurements], len(self.feeds))
        timed_models = tuple(map(self._timed_model, self.measurements, times))
        return BenchReport(
            provider=options.provider,
            threads=options.threads,
            rounds=self.rounds,
            repeats=self.repeats,
            batches=len(self.feeds),
            transfers=self.transfers,
            original=timed_models[0],
            other=timed_models[1],
            ratio=None if any(m.failure for m in timed_models) else compute_ratio(*times),
            notes=(*self.notes, *_notes(options.provider, timed_models)),
            warnings=warnings,
        )

    def _timed_model(self, measurement: _Measurement, times: list[float]) -> TimedModel:
        failure = measurement.failure
        # ONNX Runtime names the first node without a kernel. Its message does not say that the type is the reason.
        if failure and self.options.provider == "cpu" and (refusal := describe_refused_bfloat16(measurement.loaded)):
            failure = f"{failure}; {refusal}"
        low_nodes, low_kernels = count_nodes_with_low_kernel(measurement.loaded, self.options.provider)
        return TimedModel(
            name=measurement.name,
            low_nodes=low_nodes,
            low_kernels=low_kernels,
            seconds=compute_spread(times) if times else None,
            host_memory=measurement.memory,
            graph=measurement.graph,
            profile=measurement.profile,
            failure=failure,
        )


def _choose_rounds(seconds: float, seconds_of_round: float) -> int:
    """Return how many rounds fit in ``seconds``, within ``DEFAULT_ROUNDS``."""
    fitting = int(min(seconds / max(seconds_of_round, 1e-9), DEFAULT_ROUNDS[-1]))
    return max(fitting, DEFAULT_ROUNDS[0])


def _notes(provider: str, timed_models: Sequence[TimedModel]) -> Iterator[str]:
    """Yield the sentences that a reader needs to interpret the figures."""
    if provider == "cpu":
        yield (
            "float16 timing on the CPU says nothing about an accelerator: ONNX Runtime's CPU provider computes most"
            " float16 nodes in float32, with Casts around them"
        )
        return
    yield "float32 products may run in TF32, as is ONNX Runtime's default on CUDA"
    for model in timed_models:
        profile = model.profile
        if profile is None:
            continue
        outside_nodes = profile.nodes - profile.providers.get(PROVIDERS[provider], 0)
        if outside_nodes:
            yield f"{outside_nodes} of {profile.nodes} nodes of {model.name} ran outside the {provider} provider"
        if not profile.device_times:
            yield f"times by operator of {model.name} are those of the host, which only launches the kernels"
