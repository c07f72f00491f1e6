"""The check: the original in float32 and the mixed model, batch by batch, judged."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from mixlist.checker import accuracy
from mixlist.checker.compare import compare
from mixlist.checker.counting_sessions import FullStatistics, MaskedOverflowFinder, count_findings
from mixlist.checker.exception_rate import DEFAULT_LIMIT, describe_rate, exception_rate, too_many
from mixlist.checker.finding_rules import BatchRanges, Tally, classify
from mixlist.checker.findings import node_findings, tensor_ranges
from mixlist.checker.function_body_overflow import find_internal_risks
from mixlist.checker.label_accuracy import TaskAccuracy
from mixlist.checker.layerwise import rank_layers
from mixlist.checker.model_pair import ModelPair, SessionConfig, in_original_scope, make_pair
from mixlist.checker.result import CheckReport, NodeError, OutputFinding
from mixlist.emulation.observed_range import ObservedRange
from mixlist.emulation.observer import Observed, Ranges
from mixlist.errors import UsageError
from mixlist.graph.io import load
from mixlist.graph.refs import TensorRef
from mixlist.graph.type_hints import hinted
from mixlist.lists.policy import Policy
from mixlist.runtime.executors import open_workers
from mixlist.runtime.feeds import Batches, as_batches
from mixlist.runtime.phase_timer import Clock
from mixlist.runtime.pool import WorkerDied
from mixlist.runtime.subprocess_session import Crashed, Process

Run = Callable[[], Observed]

QUICK = 20  # batches from which optimised sessions pay: they load 60 ms slower and run 3 ms faster (nudenet_320n)


_LARGEST = float.fromhex("0x1.fffffep127")  # of float32


def check(
    model: Any,
    policy: Policy,
    data: Any,
    *,
    against: Any = None,
    provider: str = "cpu",
    isolate: bool | Process = False,
    overflow_mode: str = "inf",
    full_statistics: bool = False,
    steps: int | None = None,
    max_exception_rate: float = DEFAULT_LIMIT,
    limits: accuracy.Limits | None = None,
    labels: Any = None,
    baseline: str = "float32",
    layerwise: bool = False,
    per_tensor: bool = False,
    type_hints: Mapping[str, str] | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    executor: Executor | None = None,
    compare_emulated: bool = False,
    progress: Callable[[int], None] | None = None,
) -> CheckReport:
    """Whether ``model`` under ``policy`` overflows on ``data``, and how far its outputs are from float32.

    ``data``: a path or several (as ``--data`` takes them), or feeds, each a mapping of input names to arrays;
    ``against`` is a mixed model that is judged instead of the one that the policy makes. On CUDA it runs as it is; on
    the CPU it is emulated in float32 with every low value rounded, since ONNX Runtime's CPU provider hides float16.
    With ``isolate`` the sessions run in a process of their own, or in the one given, and a crash is a finding.
    ``steps`` looks at no more batches than that;
    ``labels`` are the right answers to the batches' samples (``task.read_labels``); ``layerwise`` ranks the low nodes
    by the error that each adds itself; ``per_tensor`` and ``full_statistics`` report every tensor's range.
    ``baseline`` float64 computes the reference in double where ONNX Runtime has such kernels.
    ``max_exception_rate`` is the share of batches with an overflow at which the check fails.
    ``type_hints`` names the types of tensors that custom operators make, as for ``resolve``.
    With ``jobs`` the batches run in so many processes of this machine, with ``scheduler`` on a Dask cluster, with
    ``executor`` through that. ``compare_emulated`` runs the emulation too, beside a native check. ``progress`` is
    told each batch. Raises UsageError where there is no data.
    """
    if overflow_mode not in ("inf", "saturate"):
        raise UsageError(f"overflow mode {overflow_mode!r}: it is inf or saturate")
    if baseline not in ("float32", "float64"):
        raise UsageError(f"baseline {baseline!r}: it is float32 or float64")
    if compare_emulated and provider == "cpu":
        raise UsageError(
            "on the CPU a check is emulated: there is nothing native to compare", hint="use --provider cuda"
        )
    if isinstance(jobs, int) and jobs < 1:
        raise UsageError("a check needs one process at least")
    limits = limits or accuracy.Limits()
    clock = Clock()
    original = hinted(load(model), type_hints)
    judged_instead = hinted(load(against), type_hints) if against is not None else None
    batches = as_batches(data, original.proto)
    most = min(len(batches), steps if steps is not None else len(batches))
    saturate, wide = overflow_mode == "saturate", baseline == "float64"
    with ExitStack() as stack:
        workers = None
        if jobs is not None or scheduler is not None or executor is not None:
            workers = stack.enter_context(open_workers(jobs, scheduler, executor, most))
        with clock.phase("prepare"):
            process = Process() if isolate is True and workers is None else isolate
            way = SessionConfig(provider, process, saturate, wide, most < QUICK, workers=workers)
            feeds = islice(batches, most)
            first = next(feeds, None)
            try:
                pair = make_pair(original, policy, judged_instead, way, first)
            except (Crashed, WorkerDied) as problem:  # while it loaded
                return _never_ran(original.name, way, policy, max_exception_rate, limits, str(problem))
        run = _Check(pair, batches, most, clock, full_statistics, labels, progress)
        run.all_batches(chain([first] if first is not None else [], feeds))
        run.further_looks(layerwise)
        run.close()
    report = run.report(policy, max_exception_rate, limits, per_tensor or full_statistics)
    if not compare_emulated:
        return report
    rest: dict[str, Any] = {"steps": steps, "max_exception_rate": max_exception_rate, "limits": limits}
    rest |= {
        "full_statistics": full_statistics,
        "overflow_mode": overflow_mode,
        "against": against,
        "type_hints": type_hints,
        "isolate": bool(isolate),
    }
    return replace(report, emulated=compare(report, check(original, policy, batches, **rest)))


class _Check:
    """One check as it goes: what the batches said so far."""

    def __init__(
        self,
        pair: ModelPair,
        batches: Batches,
        most: int,
        clock: Clock,
        full_statistics: bool,
        labels: Any,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.pair, self.batches, self.most, self.clock = pair, batches, most, clock
        self.progress = progress
        self.judged = [accuracy.OutputAccuracy(name) for name in pair.mixed_observer.output_names]
        self.tallies: dict[TensorRef, Tally] = {}
        self.spans: dict[TensorRef, tuple[ObservedRange, ObservedRange]] = {}
        self.task = TaskAccuracy(labels) if labels is not None else None
        self.hidden = MaskedOverflowFinder.of(pair)
        self.census = FullStatistics(pair) if full_statistics else None
        self.errors: tuple[NodeError, ...] = ()
        self.exceptions, self.count, self.crash = 0, 0, ""

    def all_batches(self, feeds: Iterable[Mapping[str, Any]]) -> None:
        """Both models on every batch, until one crashes."""
        for index, feed, exact, ours in _ahead(self.pair, feeds):
            try:
                self._batch(index, feed, exact, ours)
            except (Crashed, WorkerDied) as problem:
                self.crash = str(problem)
                return
            self.count += 1
            if self.progress is not None:
                self.progress(1)
        if not self.count:
            raise UsageError("there is no batch to check", hint="give --data or --random")

    def _batch(self, index: int, feed: Mapping[str, Any], reference: Run, mixed: Run) -> None:
        pair, clock = self.pair, self.clock
        with clock.phase("reference"):
            exact, exact_ranges = reference()
        with clock.phase("mixed"):
            ours, mixed_ranges = mixed()
        mixed_ranges = _by_original_scope(mixed_ranges, pair.original_scopes)
        if pair.config.wide:
            exact_ranges = {k: _in_float32(span) if k in pair.low else span for k, span in exact_ranges.items()}
        batch = BatchRanges(index, exact_ranges, mixed_ranges, pair.low, pair.config.saturate)
        with clock.phase("counts"):
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

    def further_looks(self, layerwise: bool) -> None:
        """Counts, the insides of operators and layers, as far as no session crashes."""
        if self.crash:
            return
        pair, tallies = self.pair, self.tallies
        try:
            with self.clock.phase("second look"):
                if self.census is None:
                    count_findings(pair, self.batches, tallies)
                find_internal_risks(pair, self.batches, tallies, self.most if self.census is not None else 1)
            masks = {key for key, tally in tallies.items() if "intended" in tally.batches}
            self.errors = rank_layers(pair, self.batches, self.most, masks) if layerwise else ()
        except (Crashed, WorkerDied) as problem:
            pair.warnings.append(f"the look at the findings ended early: {problem}")

    def close(self) -> None:
        """Let the sessions go."""
        for each in (self.pair, self.hidden, self.census):
            if each is not None:
                each.close()

    def report(self, policy: Policy, max_rate: float, limits: accuracy.Limits, per_tensor: bool) -> CheckReport:
        """The verdict and everything behind it."""
        pair, judged = self.pair, self.judged
        outputs = tuple(output.finding(limits) for output in judged)
        reasons = [self.crash] if self.crash else []
        reasons += _reasons(self.exceptions, self.count, max_rate, outputs)
        warnings = [*pair.warnings, *self.batches.notes, *(note for output in judged for note in output.notes())]
        warnings += self.task.notes() if self.task is not None else ()
        return CheckReport(
            model=pair.original.name,
            verdict="fail" if reasons else "pass",
            reasons=tuple(reasons) or ("no batch overflowed and every output keeps its limits",),
            provider=pair.config.provider,
            mode=pair.config.mode,
            precision=policy.mode.low,
            batches=self.count,
            exception_rate=exception_rate(self.exceptions, self.count),
            limits={"exception_rate": max_rate, **limits.asked()},
            nodes=node_findings(pair.plan, self.tallies),
            outputs=outputs,
            tensors=tensor_ranges(pair.nodes, self.spans, pair.low, self.census) if per_tensor else (),
            layerwise=self.errors,
            task=self.task.result() if self.task is not None else None,
            warnings=tuple(warnings),
            seconds=self.clock.seconds,
        )


def _never_ran(
    model: str, way: SessionConfig, policy: Policy, max_rate: float, limits: accuracy.Limits, why: str
) -> CheckReport:
    """The report where ONNX Runtime died while it loaded a model."""
    return CheckReport(
        model=model,
        verdict="fail",
        reasons=(why,),
        provider=way.provider,
        mode=way.mode,
        precision=policy.mode.low,
        batches=0,
        exception_rate=0.0,
        limits={"exception_rate": max_rate, **limits.asked()},
        nodes=(),
        outputs=(),
    )


def _ahead(pair: ModelPair, feeds: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any], Run, Run]]:
    """Each batch with its two runs; those in other workers have begun for as many batches as there are workers."""
    width = pair.config.workers.count if pair.config.workers is not None else 0
    waiting: deque[tuple[int, Mapping[str, Any], Run, Run]] = deque()
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


def _by_original_scope(ranges: Ranges, renamed: Mapping[str, str]) -> Ranges:
    """Specialisations of one function are one function to the original."""
    if not renamed:
        return ranges
    found: dict[TensorRef, ObservedRange] = {}
    for key, span in ranges.items():
        plain = in_original_scope(key, renamed)
        found[plain] = found[plain].union(span) if plain in found and span.ran else found.get(plain, span)
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
