"""Check a mixed model against the original in float32, batch by batch, and decide the verdict (Rules S8.1, S8.20)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING

from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.advice import Advisor
from mixlist.checker.counting_sessions import FullStatistics, count_findings, count_operands
from mixlist.checker.evidence import holds_only_nan, missing_evidence
from mixlist.checker.exception_rate import describe_rate, exception_rate, too_many_exceptions
from mixlist.checker.finding_rules import BatchRanges, FindingRecord, classify_outputs
from mixlist.checker.findings import node_findings, tensor_ranges, with_advice
from mixlist.checker.function_body_overflow import find_internal_risks
from mixlist.checker.hidden_overflow import HiddenOverflowFinder
from mixlist.checker.keyword_arguments import with_keywords
from mixlist.checker.label_accuracy import TaskAccuracy
from mixlist.checker.layerwise import rank_layers
from mixlist.checker.magnitudes_without_nan import find_largest_numbers
from mixlist.checker.model_pair import ModelPair, SessionConfig, make_model_pair
from mixlist.checker.native_comparison import compare_with_emulation
from mixlist.checker.operand_rules import OperandKey, OperandRecord, classify_operands
from mixlist.checker.options import CheckOptions
from mixlist.checker.refused_batches import RefusedBatches, describe_batch
from mixlist.checker.result import CheckReport, NodeError
from mixlist.diagnostics import warning
from mixlist.emulation.observed_range import ObservedRange
from mixlist.emulation.observer import ObservedBatch
from mixlist.errors import ModelError, UsageError
from mixlist.graph.load import load_model
from mixlist.graph.refs import TensorRef
from mixlist.graph.type_hints import add_type_hints
from mixlist.lists.policy import Policy
from mixlist.ops.shape_inference import refuse_large_expansion
from mixlist.progress import ProgressCounter
from mixlist.runtime.executors import open_workers
from mixlist.runtime.feeds import Batches, as_batches
from mixlist.runtime.phase_timer import PhaseTimer
from mixlist.runtime.refused_run import RunRefused
from mixlist.runtime.subprocess_session import SessionProcess
from mixlist.runtime.worker_process import WorkerDied

if TYPE_CHECKING:
    from mixlist.checker.keyword_arguments import Model
    from mixlist.runtime.session import Array, Feed

Run = Callable[[], ObservedBatch]

RANKED = 3  # batches on which nodes are ranked without --layerwise
FAST = 1.0  # seconds of one run up to which nodes are ranked without --layerwise
SLOW = 10.0  # seconds of a batch, with the load of the session; above that, one run is not even measured
QUICK = 20  # batches from which optimized sessions pay: they load 60 ms slower and run 3 ms faster (nudenet_320n)


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
    original = add_type_hints(load_model(model), options.type_hints)
    refuse_large_expansion(original.proto)
    against = add_type_hints(load_model(options.against), options.type_hints) if options.against is not None else None
    if against is not None:
        refuse_large_expansion(against.proto)
    batches = as_batches(data, original.proto)
    most = min(len(batches), options.steps if options.steps is not None else len(batches))
    with ExitStack() as stack:
        workers = None
        if options.jobs is not None or options.scheduler is not None or options.executor is not None:
            workers = stack.enter_context(open_workers(options.jobs, options.scheduler, options.executor, most))
        with timer.phase("prepare"):
            process = _session_process(options, stack) if workers is None else None
            float64_reference = options.baseline == "float64"
            config = SessionConfig(
                options.provider, process, options.saturate, float64_reference, most < QUICK, workers=workers
            )
            feeds = islice(batches, most)
            first = next(feeds, None)
            try:
                pair = make_model_pair(original, policy, against, config, first)
            except WorkerDied as problem:  # while it loaded
                return _report_without_batches(original.name, config, policy, options, [str(problem)])
        checking = _Check(pair, batches, most, timer, options)
        checking.run(chain([first] if first is not None else [], feeds))
        checking.analyze_findings()
        checking.close()
    report = checking.report(policy)
    if not options.compare_emulated:
        return report
    emulated = run_check(original, policy, batches, options.of_emulation())
    return replace(report, emulated=compare_with_emulation(report, emulated))


def _session_process(options: CheckOptions, stack: ExitStack) -> SessionProcess | None:
    """Return the process for the sessions, None for this one; the stack ends a new one."""
    if isinstance(options.isolate, SessionProcess):
        return options.isolate
    return stack.enter_context(SessionProcess()) if options.isolate else None


class _Check:
    """One check: what the batches so far have shown."""

    def __init__(self, pair: ModelPair, batches: Batches, most: int, timer: PhaseTimer, options: CheckOptions) -> None:
        self.pair, self.batches, self.most, self.timer, self.options = pair, batches, most, timer, options
        saturated = pair.largest_low if options.saturate else math.inf
        names = pair.mixed_observer.output_names
        self.accuracies = [OutputAccuracy(name, saturated=saturated) for name in names]
        self.records: dict[TensorRef, FindingRecord] = {}
        self.operands: dict[OperandKey, OperandRecord] = {}
        self.risks: list[FindingRecord] = []
        self.ranges: dict[TensorRef, tuple[ObservedRange, ObservedRange]] = {}  # over all batches, in both models
        self.task = TaskAccuracy(options.labels) if options.labels is not None else None
        self.masked_overflows = HiddenOverflowFinder(pair.nodes, frozenset(pair.low_types), pair.reference, pair.mixed)
        self.full_statistics = FullStatistics(pair) if options.full_statistics else None
        self.errors: tuple[NodeError, ...] = ()
        self.refused = RefusedBatches(pair.nodes)
        # ``count``: batches that both models have run; ``ignored``: those of them that are not judged
        self.exceptions, self.count, self.ignored, self.crash = 0, 0, 0, ""

    def run(self, feeds: Iterable[Feed]) -> None:
        """Run both models on every batch, until one crashes."""
        index = -1
        total = min(len(self.batches), self.options.steps or len(self.batches))
        progress = ProgressCounter(self.options.progress, "batches", total)
        for index, feed, reference, mixed in _ahead(self.pair, feeds):
            try:
                self._add_batch(index, feed, reference, mixed)
            except WorkerDied as problem:
                self.crash = f"{describe_batch(self.batches.names()[index], feed)}: {problem}"
                return
            progress.add()
        if index < 0:
            raise UsageError("there is no batch to check", hint="give --data or --random")

    def _add_batch(self, index: int, feed: Feed, run_reference: Run, run_mixed: Run) -> None:
        pair, timer = self.pair, self.timer
        try:
            with timer.phase("reference"):
                reference_outputs, reference = run_reference()
        except RunRefused as refused:
            raise ModelError(f"{describe_batch(self.batches.names()[index], feed)}: {refused.message}") from refused
        try:
            with timer.phase("mixed"):
                mixed_outputs, mixed = run_mixed()
        except RunRefused as refused:
            if holds_only_nan(feed):
                self._ignore(reference_outputs, reference_outputs)
            else:
                self.refused.add(index, refused, reference, self.records)
            return
        if holds_only_nan(feed):
            self._ignore(reference_outputs, mixed_outputs)
            return
        converted = pair.conversion_ranges(reference, mixed)
        mixed = pair.mixed.merge_specializations(mixed)
        if pair.config.float64_reference:
            reference = {t: span.in_float32() if t in pair.low_type_of else span for t, span in reference.items()}
        batch = BatchRanges(
            index, reference, mixed, pair.low_type_of, pair.config.saturate, conversion_ranges=converted
        )
        with timer.phase("counts"):
            batch = self.masked_overflows.add_hidden_overflows(feed, batch)
            if self.full_statistics is not None:
                counts = self.full_statistics.add(feed)
                batch = replace(batch, counts=counts, operand_counts=self.full_statistics.operands)
        self.exceptions += classify_outputs(batch, pair.nodes, self.records) | classify_operands(
            batch, pair.conversion_readers, self.operands
        )
        if self.full_statistics is not None:
            self.full_statistics.count_findings(index, self.records, self.operands)
        for tensor, span in reference.items():
            mixed_span = mixed.get(tensor)
            if mixed_span is not None and span.ran and mixed_span.ran:
                before, mixed_before = self.ranges.get(tensor, (span, mixed_span))
                self.ranges[tensor] = before.union(span), mixed_before.union(mixed_span)
        for accuracy in self.accuracies:
            accuracy.add(reference_outputs[accuracy.name], mixed_outputs[accuracy.name])
        if self.task is not None:
            self.task.add(reference_outputs, mixed_outputs)
        self.count += 1

    def _ignore(self, reference_outputs: Mapping[str, Array], mixed_outputs: Mapping[str, Array]) -> None:
        """Count a batch that holds nothing but NaN, which is not judged (Rule S8.28)."""
        for accuracy in self.accuracies:
            accuracy.ignore(reference_outputs[accuracy.name])
        if self.task is not None:  # labels are for all batches, so each batch has to consume its own
            self.task.add(reference_outputs, mixed_outputs)
        self.count += 1
        self.ignored += 1

    @property
    def judged(self) -> int:
        """The batches that count in the exception rate."""
        return self.count - self.ignored

    def analyze_findings(self) -> None:
        """Count values, look into operators and rank layers, as far as no session crashes."""
        if self.crash:
            return
        pair, records = self.pair, self.records
        try:
            with self.timer.phase("second look"):
                if self.full_statistics is None:
                    count_findings(pair, self.batches, records)
                    count_operands(pair, self.batches, self.operands)
                find_largest_numbers(pair, self.batches, records, self.operands)
                looked_at = self.most if self.full_statistics is not None else 1
                self.risks = find_internal_risks(pair, self.batches, records, looked_at)
            steps = self.most if self.options.layerwise else RANKED if self._misses_outputs_alone() else 0
            if steps:
                masks = {tensor for tensor, record in records.items() if "intended" in record.batches}
                self.errors = rank_layers(pair, self.batches, steps, masks)
        except (WorkerDied, RunRefused) as problem:
            pair.warnings.append(warning("ML606", f"the details of the findings are not complete: {problem}"))

    def _misses_outputs_alone(self) -> bool:
        """Return whether limits of outputs are all that fails, of a model that runs fast enough to rank its nodes."""
        if self.count < self.most or self.exceptions or self.timer.seconds.get("mixed", 0.0) > SLOW * self.count:
            return False
        if all(accuracy.finding(self.options.output_limits).passed for accuracy in self.accuracies):
            return False
        start = perf_counter()  # now that the session is loaded, which a first run waits for
        self.pair.reference_observer.run(next(iter(self.batches)))
        return perf_counter() - start <= FAST

    def close(self) -> None:
        """Release the sessions."""
        for part in (self.pair, self.masked_overflows, self.full_statistics):
            if part is not None:
                part.close()

    def _all_records(self) -> Iterable[FindingRecord]:
        return (*self.operands.values(), *self.records.values(), *self.risks)

    def report(self, policy: Policy) -> CheckReport:
        """Return the verdict and everything behind it (Rules S8.20, S8.21)."""
        pair, options, task = self.pair, self.options, self.task
        outputs = tuple(a.finding(options.output_limits, options.max_ignored) for a in self.accuracies)
        reasons = [*([self.crash] if self.crash else ()), *self.refused.reasons()]
        if too_many_exceptions(self.exceptions, self.judged, options.max_exception_rate):
            rate = describe_rate(self.exceptions, self.judged, options.max_exception_rate)
            reasons.append(f"{self.exceptions} of {self.judged} batches overflow: {rate}")
        reasons += [f"output {o.name!r} misses {', '.join(o.failed_limits)}" for o in outputs if o.verdict == "fail"]
        gaps = missing_evidence(outputs, options.max_ignored)
        warnings = [*pair.warnings, *self.batches.warnings]
        for part in (*self.accuracies, *(() if task is None else (task,))):
            warnings += part.warnings()
        per_tensor = options.per_tensor or options.full_statistics
        advisor = Advisor(pair.plan, pair.nodes, {tensor.producer for tensor, t in self.records.items() if t.batches})
        return replace(
            _report_without_batches(pair.reference.loaded.name, pair.config, policy, options, reasons, gaps),
            batches=self.count,
            exception_rate=exception_rate(self.exceptions, self.judged),
            nodes=node_findings(advisor, pair.nodes, self._all_records()),
            outputs=outputs,
            tensors=tensor_ranges(pair.nodes, self.ranges, pair.low_type_of, self.full_statistics)
            if per_tensor
            else (),
            layerwise=with_advice(self.errors, advisor),
            task=task.result() if task is not None else None,
            warnings=tuple(warnings),
            seconds=self.timer.seconds,
        )


def _report_without_batches(
    model: str,
    config: SessionConfig,
    policy: Policy,
    options: CheckOptions,
    reasons: Sequence[str],
    gaps: Sequence[str] = (),
) -> CheckReport:
    """Return the verdict, and what is known before any batch has run.

    ``reasons`` say why the check fails; ``gaps``, which count where it does not, why nothing can be concluded.
    """
    return CheckReport(
        model=model,
        verdict="fail" if reasons else "inconclusive" if gaps else "pass",
        reasons=tuple(reasons or gaps) or ("no batch overflowed and every output keeps its limits",),
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
    """Yield each batch with its two runs; in other workers they begin for as many batches as there are workers."""
    width = pair.config.workers.count if pair.config.workers is not None else 0
    waiting: deque[tuple[int, Feed, Run, Run]] = deque()
    for index, feed in enumerate(feeds):
        waiting.append((index, feed, pair.reference_observer.start(feed), pair.mixed_observer.start(feed)))
        if len(waiting) > width:
            yield waiting.popleft()
    yield from waiting
