"""Time two models in turn, pair by pair, and look at what really ran.

Each model has a process of its own, so that a crash of ONNX Runtime ends one session and not the command, and so that
memory can be told apart. A *turn* is one batch run several times in a row, at least ``TURN`` seconds long, after one
run that is not timed: short models are not measured by the time it takes to wake a process. The two take their turns
one after the other and swap who goes first, so that what slows the machine for a while slows both; the ratio is taken
pair by pair. Profiling slows a session, so the profiles come from other sessions, after the timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from mixlist.benchmark.graph_changes import GraphChanges, graph_changes
from mixlist.benchmark.kernel_coverage import low_coverage
from mixlist.benchmark.options import PROFILE_NAMES, BenchOptions
from mixlist.benchmark.paired_statistics import compute_ratio, compute_spread
from mixlist.benchmark.result import BenchReport, TimedModel
from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, ModelError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.scratch_folder import ScratchFolder
from mixlist.graph.load import LoadedModel, load_model
from mixlist.lists.policy import Policy
from mixlist.ops.shape_inference import refuse_large_expansion
from mixlist.progress import ProgressCallback, ProgressCounter
from mixlist.resolver import Plan, resolve
from mixlist.rewriter import rewrite
from mixlist.runtime.feeds import as_batches
from mixlist.runtime.inputs import make_feed, model_inputs
from mixlist.runtime.model_files import is_readable_in_place
from mixlist.runtime.profile_reader import Profile, read_profile
from mixlist.runtime.session import SessionOptions
from mixlist.runtime.timed_session import TimedSession
from mixlist.targets.providers import PROVIDERS

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.graph.proto_types import ModelSource
    from mixlist.runtime.session import Feed

    Rival: TypeAlias = Policy | Plan | ModelSource | LoadedModel

P = ParamSpec("P")
T = TypeVar("T")
TURN = 0.01  # seconds: a hundred times what a process takes to wake
_MOST_REPEATS = 1000
_PROFILED = 4  # batches
_PROFILED_RUNS = 5  # of each


def bench(
    model: ModelSource | LoadedModel,
    policy_or_other: Rival,
    batches: object,
    *,
    provider: str = BenchOptions.provider,
    rounds: int = BenchOptions.rounds,
    warmup: int = BenchOptions.warmup,
    transfers: bool = BenchOptions.transfers,
    threads: int | None = BenchOptions.threads,
    profiles: Path | None = BenchOptions.profiles,
    progress: ProgressCallback | None = BenchOptions.progress,
) -> BenchReport:
    """Time ``model`` against the mixed model that a Policy or a Plan makes of it, or against another model.

    ``batches`` are those of ``runtime.feeds.as_batches``: paths, or arrays by input name; the first ``rounds`` of them
    are used. The keyword arguments are the fields of ``BenchOptions``. A model that ONNX Runtime refuses or dies of is
    named in the report.

    Raises UsageError where there is no batch, no such provider or no round, FileError for data that cannot be read, and
    what ``load`` and ``resolve`` raise.
    """
    options = BenchOptions(
        provider=provider,
        rounds=rounds,
        warmup=warmup,
        transfers=transfers,
        threads=threads,
        profiles=profiles,
        progress=progress,
    )
    return run_bench(model, policy_or_other, batches, options)


def run_bench(model: ModelSource | LoadedModel, other: Rival, batches: object, options: BenchOptions) -> BenchReport:
    """Do what ``bench`` says, with its options in one object."""
    original = load_model(model)
    refuse_large_expansion(original.proto)
    data = as_batches(batches, original.proto)
    feeds = list(islice(data, options.rounds))
    with ScratchFolder() as home:
        comparison = _Comparison(home, feeds, options)
        warnings = (*data.warnings, *comparison.enter(original, other))
        comparison.run()
        comparison.look()
        return comparison.report(warnings)


class _Entry:
    """One of the two models: its process and what was measured."""

    def __init__(self, name: str, loaded: LoadedModel, model: Path | ModelProto) -> None:
        self.name = name
        self.loaded = loaded
        self.model = model
        self.session: TimedSession  # once it has started
        self.times: list[float] = []
        self.memory: int | None = None
        self.graph: GraphChanges | None = None
        self.profile: Profile | None = None
        self.failure = ""

    def attempt(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result, or None where ONNX Runtime refuses the model or dies of it, which is noted."""
        if self.failure:
            return None
        try:
            return work(*args, **kwargs)
        except ModelError as error:
            self.failure = error.message
            return None


class _Comparison:
    """The two models, the batches, and the folder ``home`` for files."""

    def __init__(self, home: Path, feeds: Sequence[Feed], options: BenchOptions) -> None:
        self.home = home
        self.feeds = feeds
        self.options = options
        self.transfers = options.transfers
        self.repeats = 1
        self.notes: list[str] = []
        self.entries: list[_Entry] = []

    def enter(self, original: LoadedModel, policy_or_other: Rival) -> tuple[Diagnostic, ...]:
        """Make the entries of both models; return the warnings of the resolution."""
        self.entries.append(_Entry(original.name, original, _source(original)))
        if isinstance(policy_or_other, Policy | Plan):
            plan = policy_or_other if isinstance(policy_or_other, Plan) else resolve(original, policy_or_other)
            result = rewrite(plan.solution.loaded, plan)
            result.save(self.home / "mixed.onnx")  # converts its constants, as ``apply`` does
            mixed = load_model(self.home / "mixed.onnx")
            # Not the file, which is removed: if ONNX Runtime dies of the model, its session keeps a copy.
            self.entries.append(_Entry(f"{original.name}, mixed", mixed, mixed.proto))
            return result.warnings
        other = load_model(policy_or_other)
        refuse_large_expansion(other.proto)
        self.entries.append(_Entry(other.name, other, _source(other)))
        return ()

    def _open(
        self, entry: _Entry, feeds: Sequence[Feed], profile: Path | None = None, optimized_model: Path | None = None
    ) -> TimedSession:
        """Start a process with the entry's model and send it the batches."""
        provider, threads = self.options.provider, self.options.threads
        options = SessionOptions(provider, threads=threads, profile=profile, optimized_model=optimized_model)
        session = TimedSession(entry.model, options, folder=entry.loaded.folder)
        inputs = model_inputs(entry.loaded.proto)
        fitted = [make_feed(feed, inputs, f"batch {at}")[0] for at, feed in enumerate(feeds)]
        if session.load_batches(fitted, self.transfers) and not self.transfers:
            self.transfers = True
            self.notes.append("inputs or outputs that are no tensors cannot wait on the device: transfers are timed")
        return session

    # --- timing ---

    def run(self) -> None:
        """Load both, warm up, and time them in turn."""
        with ExitStack() as stack:
            for entry in self.entries:
                entry.attempt(self._start, entry, stack)
            once = [entry.attempt(self._warm, entry) for entry in self.entries]
            fastest = min((seconds for seconds in once if seconds), default=TURN)
            self.repeats = min(max(math.ceil(TURN / fastest), 1), _MOST_REPEATS)
            rounds = ProgressCounter(self.options.progress, "rounds", self.options.rounds)
            for count in range(self.options.rounds):
                batch = count % len(self.feeds)
                swap = (batch + count // len(self.feeds)) % 2  # so that each batch meets both orders
                for entry in self.entries[::-1] if swap else self.entries:
                    entry.attempt(self._turn, entry, batch)
                rounds.add()
            for entry in self.entries:
                if not entry.failure:
                    entry.memory = entry.attempt(entry.session.peak_memory)

    def _start(self, entry: _Entry, stack: ExitStack) -> None:
        entry.session = stack.enter_context(self._open(entry, self.feeds))

    def _warm(self, entry: _Entry) -> float:
        """Run every batch; return the least seconds that one took."""
        turns = self.options.warmup * len(self.feeds)
        return min(entry.session.time_runs(turn % len(self.feeds), 1) for turn in range(turns))

    def _turn(self, entry: _Entry, batch: int) -> None:
        if self.repeats > 1:
            entry.session.time_runs(batch, 1)
        entry.times.append(entry.session.time_runs(batch, self.repeats) / self.repeats)

    # --- what really ran ---

    def look(self) -> None:
        """Run a few batches of each once more, with a profile and the optimized graph written."""
        for place, entry in zip(PROFILE_NAMES, self.entries, strict=True):
            folder = self.home / f"{place}-profile"
            folder.mkdir()
            try:
                if not entry.failure:
                    self._look(entry, folder)
            except ModelError as error:  # it could be timed: that stands
                self.notes.append(f"what ran of {entry.name} is not known: {error.message}")
            if self.options.profiles is not None and entry.profile is not None:
                _keep(folder, self.options.profiles, place)

    def _look(self, entry: _Entry, folder: Path) -> None:
        import onnx

        feeds = self.feeds[:_PROFILED]
        graph = folder / "optimized.onnx"
        with self._open(entry, feeds, folder / "profile", graph) as session:
            for runs in (1, _PROFILED_RUNS):
                for batch in range(len(feeds)):
                    session.time_runs(batch, runs)
            entry.profile = read_profile(session.end_profile(), warmup=len(feeds))
        entry.graph = graph_changes(entry.loaded.proto, onnx.load(graph, load_external_data=False))

    # --- the report ---

    def report(self, warnings: tuple[Diagnostic, ...]) -> BenchReport:
        """Return everything that was measured."""
        options = self.options
        original, other = (self._contender(entry) for entry in self.entries)
        times = [entry.times for entry in self.entries]
        return BenchReport(
            provider=options.provider,
            threads=options.threads,
            rounds=options.rounds,
            warmup=options.warmup,
            repeats=self.repeats,
            batches=len(self.feeds),
            transfers=self.transfers,
            original=original,
            other=other,
            ratio=None if original.failure or other.failure else compute_ratio(times[0], times[1]),
            notes=(*self.notes, *_notes(options.provider, original, other)),
            warnings=warnings,
        )

    def _contender(self, entry: _Entry) -> TimedModel:
        low, covered = low_coverage(entry.loaded, self.options.provider)
        return TimedModel(
            name=entry.name,
            low_nodes=low,
            low_kernels=covered,
            seconds=compute_spread(entry.times) if entry.times else None,
            host_memory=entry.memory,
            graph=entry.graph,
            profile=entry.profile,
            failure=entry.failure,
        )


def _source(loaded: LoadedModel) -> Path | ModelProto:
    """Return the model's own file, or the message where there is none or its data cannot be read where it lies."""
    if loaded.path is not None and is_readable_in_place(loaded.proto, loaded.folder):
        return loaded.path
    return loaded.proto


def _keep(folder: Path, profiles: Path, name: str) -> None:
    """Copy a profile to where the user wants it."""
    try:
        profiles.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("profile*.json"):
            write_atomically(profiles / f"{name}.json", path.read_bytes())
    except OSError as problem:
        raise FileError(f"cannot write the profiles to {profiles}: {problem.strerror}") from None


def _notes(provider: str, original: TimedModel, other: TimedModel) -> Iterator[str]:
    """Yield what one must know to read the figures."""
    if provider == "cpu":
        yield (
            "float16 timing on the CPU says nothing about an accelerator: ONNX Runtime's CPU provider computes most"
            " float16 nodes in float32, with Casts around them"
        )
        return
    yield "float32 products may run in TF32, as is ONNX Runtime's default on CUDA"
    for contender in (original, other):
        profile = contender.profile
        if profile is None:
            continue
        elsewhere = profile.nodes - profile.providers.get(PROVIDERS[provider], 0)
        if elsewhere:
            yield f"{elsewhere} of {profile.nodes} nodes of {contender.name} ran outside the {provider} provider"
        if not profile.device_times:
            yield f"times by operator of {contender.name} are those of the host, which only launches the kernels"
