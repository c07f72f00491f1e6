"""The check: the original in float32 and the mixed model, batch by batch, judged."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from mixlist.checker import accuracy
from mixlist.checker.compare import compare
from mixlist.checker.counting_sessions import FullStatistics, MaskedOverflowFinder, count_findings
from mixlist.checker.exception_rate import describe_rate, exception_rate, too_many
from mixlist.checker.finding_rules import BatchRanges, Tally, classify
from mixlist.checker.findings import node_findings, tensor_ranges
from mixlist.checker.function_body_overflow import find_internal_risks
from mixlist.checker.keywords import with_keywords
from mixlist.checker.label_accuracy import TaskAccuracy
from mixlist.checker.layerwise import rank_layers
from mixlist.checker.model_pair import ModelPair, SessionConfig, make_pair
from mixlist.checker.options import CheckOptions
from mixlist.checker.result import CheckReport, NodeError, OutputFinding
from mixlist.emulation.observed_range import ObservedRange
from mixlist.emulation.observer import Observed
from mixlist.errors import UsageError
from mixlist.graph.io import load
from mixlist.graph.refs import TensorRef
from mixlist.graph.type_hints import hinted
from mixlist.lists.policy import Policy
from mixlist.runtime.executors import Workers, open_workers
from mixlist.runtime.feeds import Batches, as_batches
from mixlist.runtime.phase_timer import PhaseTimer
from mixlist.runtime.subprocess_session import SessionProcess
from mixlist.runtime.worker_process import WorkerDied

if TYPE_CHECKING:
    from mixlist.checker.keywords import Model
    from mixlist.runtime.session import Feed

Run = Callable[[], Observed]

QUICK = 20  # batches from which optimised sessions pay: they load 60 ms slower and run 3 ms faster (nudenet_320n)
_LARGEST = float.fromhex("0x1.fffffep127")  # of float32


@with_keywords(CheckOptions)
def check(model: Model, policy: Policy, data: object, options: CheckOptions) -> CheckReport:
    """Check whether ``model`` under ``policy`` overflows on ``data``, and how far its outputs are from float32.

    ``data``: a path or several (as ``--data`` takes them), or feeds, each a mapping of input names to arrays. The
    keyword arguments are the fields of ``CheckOptions``. On CUDA the mixed model runs as it is; on the CPU it is
    emulated in float32 with every low value rounded, since ONNX Runtime's CPU provider hides float16. Raises UsageError
    where there is no data, and for options that do not fit.
    """
    return run_check(model, policy, data, options)


def run_check(model: Model, policy: Policy, data: object, options: CheckOptions) -> CheckReport:
    """Do what ``check`` says, with its options in one object."""
    timer = PhaseTimer()
    original = hinted(load(model), options.type_hints)
    against = hinted(load(options.against), options.type_hints) if options.against is not None else None
    batches = as_batches(data, original.proto)
    most = min(len(batches), options.steps if options.steps is not None else len(batches))
    with ExitStack() as stack:
        workers = None
        if options.jobs is not None or options.scheduler is not None or options.executor is not None:
            workers = stack.enter_context(open_workers(options.jobs, options.scheduler, options.executor, most))
        with timer.phase("prepare"):
            process = _session_process(options, stack) if workers is None else None
            config = _session_config(options, process, workers, quick=most < QUICK)
            feeds = islice(batches, most)
            first = next(feeds, None)
            try:
                pair = make_pair(original, policy, against, config, first)
            except WorkerDied as problem:  # while it loaded
                return _never_ran(original.name, config, policy, options, str(problem))
        run = _Check(pair, batches, most, timer, options)
        run.all_batches(chain([first] if first is not None else [], feeds))
        run.further_looks()
        run.close()
    report = run.report(policy)
    if not options.compare_emulated:
        return report
    emulated = run_check(original, policy, batches, options.of_emulation())
    return replace(report, emulated=compare(report, emulated))


def _session_process(options: CheckOptions, stack: ExitStack) -> SessionProcess | None:
    """Return the process for the sessions, None for this one; the stack ends a new one."""
    if isinstance(options.isolate, SessionProcess):
        return options.isolate
    return stack.enter_context(SessionProcess()) if options.isolate else None


def _session_config(
    options: CheckOptions, process: SessionProcess | None, workers: Workers | None, *, quick: bool
) -> SessionConfig:
    """Return where and how the sessions of a check run."""
    wide = options.baseline == "float64"
    return SessionConfig(options.provider, process, options.saturate, wide, quick, workers=workers)


class _Check:
    """One check as it goes: what the batches said so far."""

    def __init__(self, pair: ModelPair, batches: Batches, most: int, timer: PhaseTimer, options: CheckOptions) -> None:
        self.pair, self.batches, self.most, self.timer = pair, batches, most, timer
        self.options = options
        self.judged = [accuracy.OutputAccuracy(name) for name in pair.mixed_observer.output_names]
        self.tallies: dict[TensorRef, Tally] = {}
        self.spans: dict[TensorRef, tuple[ObservedRange, ObservedRange]] = {}
        self.task = TaskAccuracy(options.labels) if options.labels is not None else None
        self.hidden = MaskedOverflowFinder(pair.nodes, frozenset(pair.low.values()), pair.reference, pair.mixed)
        self.census = FullStatistics(pair) if options.full_statistics else None
        self.errors: tuple[NodeError, ...] = ()
        self.exceptions, self.count, self.crash = 0, 0, ""

    def all_batches(self, feeds: Iterable[Feed]) -> None:
        """Both models on every batch, until one crashes."""
        for index, feed, exact, ours in _ahead(self.pair, feeds):
            try:
                self._batch(index, feed, exact, ours)
            except WorkerDied as problem:
                self.crash = str(problem)
                return
            self.count += 1
            if self.options.progress is not None:
                self.options.progress(1)
        if not self.count:
            raise UsageError("there is no batch to check", hint="give --data or --random")

    def _batch(self, index: int, feed: Feed, reference: Run, mixed: Run) -> None:
        pair, timer = self.pair, self.timer
        with timer.phase("reference"):
            exact, exact_ranges = reference()
        with timer.phase("mixed"):
            ours, mixed_ranges = mixed()
        mixed_ranges = pair.mixed.merge_specializations(mixed_ranges)
        if pair.config.wide:
            exact_ranges = {k: _in_float32(span) if k in pair.low else span for k, span in exact_ranges.items()}
        batch = BatchRanges(index, exact_ranges, mixed_ranges, pair.low, pair.config.saturate)
        with timer.phase("counts"):
            batch = self.hidden.complete(feed, batch)
            if self.census is not None:
                batch = replace(batch, counts=self.census.add(feed))
        self.exceptions += classify(batch, pair.nodes, self.tallies)
        if self.census is not None:
            self.census.count_findings(index, self.tallies)
        _widen(self.spans, exact_ranges, mixed_ranges)
        for output, one, other in zip(self.judged, exact, ours, strict=True):
            output.add(one, other)
        if self.task is not None:
            names = pair.mixed_observer.output_names
            self.task.add(dict(zip(names, exact, strict=True)), dict(zip(names, ours, strict=True)))

    def further_looks(self) -> None:
        """Counts, the insides of operators and layers, as far as no session crashes."""
        if self.crash:
            return
        pair, tallies = self.pair, self.tallies
        try:
            with self.timer.phase("second look"):
                if self.census is None:
                    count_findings(pair, self.batches, tallies)
                find_internal_risks(pair, self.batches, tallies, self.most if self.census is not None else 1)
            masks = {key for key, tally in tallies.items() if "intended" in tally.batches}
            self.errors = rank_layers(pair, self.batches, self.most, masks) if self.options.layerwise else ()
        except WorkerDied as problem:
            pair.warnings.append(f"the look at the findings ended early: {problem}")

    def close(self) -> None:
        """Let the sessions go."""
        for each in (self.pair, self.hidden, self.census):
            if each is not None:
                each.close()

    def report(self, policy: Policy) -> CheckReport:
        """Return the verdict and everything behind it."""
        pair, judged, options = self.pair, self.judged, self.options
        limits = options.output_limits
        per_tensor = options.per_tensor or options.full_statistics
        outputs = tuple(output.finding(limits) for output in judged)
        reasons = [self.crash] if self.crash else []
        reasons += _reasons(self.exceptions, self.count, options.max_exception_rate, outputs)
        warnings = [*pair.warnings, *self.batches.notes, *(note for output in judged for note in output.notes())]
        warnings += self.task.notes() if self.task is not None else ()
        return CheckReport(
            model=pair.reference.loaded.name,
            verdict="fail" if reasons else "pass",
            reasons=tuple(reasons) or ("no batch overflowed and every output keeps its limits",),
            provider=pair.config.provider,
            mode=pair.config.mode,
            precision=policy.mode.low,
            batches=self.count,
            exception_rate=exception_rate(self.exceptions, self.count),
            limits=options.all_limits(),
            nodes=node_findings(pair.plan, self.tallies),
            outputs=outputs,
            tensors=tensor_ranges(pair.nodes, self.spans, pair.low, self.census) if per_tensor else (),
            layerwise=self.errors,
            task=self.task.result() if self.task is not None else None,
            warnings=tuple(warnings),
            seconds=self.timer.seconds,
        )


def _never_ran(model: str, config: SessionConfig, policy: Policy, options: CheckOptions, why: str) -> CheckReport:
    """Return the report where ONNX Runtime died while it loaded a model."""
    return CheckReport(
        model=model,
        verdict="fail",
        reasons=(why,),
        provider=config.provider,
        mode=config.mode,
        precision=policy.mode.low,
        batches=0,
        exception_rate=0.0,
        limits=options.all_limits(),
        nodes=(),
        outputs=(),
    )


def _ahead(pair: ModelPair, feeds: Iterable[Feed]) -> Iterator[tuple[int, Feed, Run, Run]]:
    """Each batch with its two runs; those in other workers have begun for as many batches as there are workers."""
    width = pair.config.workers.count if pair.config.workers is not None else 0
    waiting: deque[tuple[int, Feed, Run, Run]] = deque()
    for index, feed in enumerate(feeds):
        waiting.append((index, feed, pair.reference_observer.start(feed), pair.mixed_observer.start(feed)))
        if len(waiting) > width:
            yield waiting.popleft()
    yield from waiting


def _reasons(exceptions: int, count: int, limit: float, outputs: tuple[OutputFinding, ...]) -> list[str]:
    found = []
    if too_many(exceptions, count, limit):
        found.append(f"{exceptions} of {count} batches overflow: {describe_rate(exceptions, count, limit)}")
    for output in outputs:
        if not output.passed:
            found.append(f"output {output.name!r} misses {', '.join(output.failed_limits)}")
    return found


def _in_float32(span: ObservedRange) -> ObservedRange:
    """What float64 holds and float32 does not is not finite in float32: no fault of the list."""
    if not span.ran or span.magnitude <= _LARGEST or not span.finite:
        return span
    low = -math.inf if span.minimum < -_LARGEST else span.minimum
    high = math.inf if span.maximum > _LARGEST else span.maximum
    return ObservedRange(low, high, span.nan, True, 0)


def _widen(
    spans: dict[TensorRef, tuple[ObservedRange, ObservedRange]],
    exact: Mapping[TensorRef, ObservedRange],
    ours: Mapping[TensorRef, ObservedRange],
) -> None:
    for key, one in exact.items():
        other = ours.get(key)
        if other is None or not (one.ran and other.ran):
            continue
        before = spans.get(key)
        spans[key] = (one, other) if before is None else (before[0].union(one), before[1].union(other))
