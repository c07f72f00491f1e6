"""Check a mixed model against the original in float32, batch by batch, and decide the verdict (Rules S8.1, S8.20).

``run_check`` goes through a check from start to end, and ``_CheckRun`` holds what its batches have shown. Two parts
follow: ``start_runs`` starts the runs of later batches before the results of earlier ones are needed, and
``record_refusal`` is about the batches that ONNX Runtime refuses to run in the mixed model only.

If ONNX Runtime refuses the mixed model, the check fails, and the node where the run ended has the finding ``refused``;
the other batches are judged as usual. Example: a length that is 1 in float32 and 0 in float16 makes a Conv refuse its
input. Missing memory, and a batch that the reference refuses too, are errors that name the batch, and its inputs that
are empty or all NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.broken_reference import BrokenReference, describe_low_reference
from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.chosen_order import judge_in_reference_order
from mixlist.checker.finding_rules import FindingRecord, OperandKey, classify_operands, classify_outputs
from mixlist.checker.findings import (
    Advisor,
    describe_helpful_options,
    describe_protected_nodes,
    node_findings,
    tensor_ranges,
    with_advice,
)
from mixlist.checker.hidden_overflow import HiddenOverflowFinder
from mixlist.checker.inner_sums import InnerSums
from mixlist.checker.integer_outputs import find_id_outputs, find_quantity_outputs
from mixlist.checker.layerwise import rank_layers
from mixlist.checker.limits import (
    describe_failed_limits,
    describe_rate,
    exception_rate,
    missing_evidence,
    too_many_exceptions,
)
from mixlist.checker.model_pair import ModelPair, make_model_pair
from mixlist.checker.observer import ObservedBatch, ObservedRange, Ranges
from mixlist.checker.options import CheckOptions
from mixlist.checker.quantized_reference import describe_own_spread
from mixlist.checker.random_seeds import seed_random_nodes
from mixlist.checker.result import (
    IN_FLOAT32,
    LOW_REFERENCE_REASON,
    NOTHING_CHANGED_REASON,
    NOTHING_LOW_REASON,
    OTHER_NOT_LOW_REASON,
    CheckReport,
    NodeError,
    NodeFinding,
    OrderChange,
    OutputFinding,
    TensorRange,
    Verdict,
)
from mixlist.checker.user_judge import JudgeMeasures, describe_broken_limits, find_missing_evidence
from mixlist.checker.value_counts import take_second_look
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.diagnostics import warning
from mixlist.errors import ModelError, UsageError
from mixlist.lists.policy import Policy, require_policy
from mixlist.model import dtypes
from mixlist.model.dataflow import DataflowNode
from mixlist.model.load import add_type_hints, load_model
from mixlist.model.naming import TensorRef
from mixlist.model.shape_inference import refuse_large_expansion
from mixlist.option_fields import with_fields
from mixlist.option_spelling import spell
from mixlist.progress import PhaseTimer, ProgressCounter
from mixlist.run.executors import open_process, open_workers, start_process
from mixlist.run.feeds import Batches, Data, as_batches, has_empty_array, holds_only_nan
from mixlist.run.local_session import Refusal, RunRefused
from mixlist.run.segments import segment_bytes_if_needed
from mixlist.worker_processes import WorkerDied

if TYPE_CHECKING:
    from mixlist.model.load import LoadedModel, Model
    from mixlist.run.session import Array, Feed

PendingRun = Callable[[], ObservedBatch]  # waits for a run that has begun
GROUP_BYTES = 2**28  # of inputs of the batches that run together in segments
RANKED_BATCHES = 3  # batches on which nodes are ranked without --layerwise
_BFLOAT16_OPSET = 13  # from this opset on, ONNX has bfloat16
FAST_RUN_SECONDS = 1.0  # without --layerwise, nodes are ranked only if one run takes at most this long
# If a batch took longer than this on average, not even one run is measured. The average includes the load of the
# session.
SLOW_BATCH_SECONDS = 10.0
# From this number of batches on, ONNX Runtime optimizes the graphs, which takes time once and saves time in each batch:
# a session of nudenet_320n then loads 60 ms slower and runs 3 ms faster.
BATCHES_FOR_OPTIMIZATION = 20
# How often memory holds the weights of a model that runs whole: ONNX Runtime packs the weights of the two models, and
# their pages are mapped.
WEIGHT_COPIES = 4


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Arguments(CheckOptions):
        model: Model
        policy: Policy
        data: Data

else:
    _Arguments = CheckOptions


@with_fields(_Arguments)
def check(model: Model, policy: Policy, data: Data, options: CheckOptions) -> CheckReport:
    """Check whether ``model`` under ``policy`` overflows on ``data``, and how far its outputs are from float32.

    ``data``: a path or several (as ``--data`` takes them), or feeds, each a mapping of input names to arrays. The
    keyword arguments are options of ``mixlist check --help-all``. On CUDA the mixed model runs as it is. On the CPU it
    is emulated in float32 with every low value rounded, because ONNX Runtime's CPU provider computes float16 in
    float32. Raises UsageError if there is no data, or if options contradict each other.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.check("digits.onnx", mixlist.load_policy(precision_mode_v2="fp16"), batches)
        print(report.verdict, report.reasons)
    """
    return run_check(model, policy, data, options)


def run_check(
    model: Model,
    policy: Policy,
    data: Data,
    options: CheckOptions,
    *,
    rank_if: Callable[[CheckReport], bool] = lambda report: True,
    layerwise_batches: int | None = None,
) -> CheckReport:
    """Do what ``check`` does.

    ``rank_if``: asked with the report so far; False skips the ranking, which takes as long as a check.
    ``layerwise_batches``: the number of batches on which ``layerwise`` ranks the nodes, None for all.
    """
    require_policy(policy)
    if not options.on_workers:
        start_process()
    timer = PhaseTimer()
    original = _load(model, options)
    mixed_model = _load(options.mixed_model, options) if options.mixed_model is not None else None
    batches = as_batches(data, original.proto, options.max_batches)
    batch_count = min(len(batches), options.max_batches if options.max_batches is not None else len(batches))
    # Make both models, run all batches, then analyze what they showed. Sessions and processes end with the stack,
    # also after errors.
    with ExitStack() as stack:
        with timer.phase("prepare"):
            sessions = _open_processes(original, options, batch_count, stack)
            feeds = islice(batches, batch_count)
            # The reference begins with the first batch while the mixed model is made.
            first_feed = next(feeds, None)
            try:
                pair = make_model_pair(original, policy, mixed_model, sessions, first_feed)
            except WorkerDied as problem:  # ONNX Runtime died while it loaded a model: the check fails
                return _report_crash_at_load(original.name, sessions, policy, options, str(problem))
        check_run = _CheckRun(pair, batches, batch_count, timer, options)
        check_run.layerwise_batches = min(batch_count, layerwise_batches or batch_count)
        stack.callback(check_run.close)
        check_run.run(chain([first_feed] if first_feed is not None else [], feeds))
        check_run.analyze_findings(lambda: rank_if(check_run.report(policy)))
    return check_run.report(policy)


def _load(model: Model, options: CheckOptions) -> LoadedModel:
    """Load a model with seeds of random nodes; refuse a small file that calls of functions expand to a huge graph."""
    loaded = seed_random_nodes(add_type_hints(load_model(model), options.type_hints))
    refuse_large_expansion(loaded.proto)
    return loaded


def _open_processes(original: LoadedModel, options: CheckOptions, batch_count: int, stack: ExitStack) -> CheckSessions:
    """Return the opener of the sessions, in the workers that the options name or in one process.

    ``stack`` closes them.
    """
    if options.on_workers:
        opened = open_workers(options.jobs, options.scheduler, options.executor, batch_count)
    else:
        opened = open_process()
    segment_bytes = options.segment_bytes
    if segment_bytes is None and not options.on_workers:
        segment_bytes = segment_bytes_if_needed(original, WEIGHT_COPIES)
    return CheckSessions(
        options.provider,
        stack.enter_context(opened),
        options.saturate,
        authored_reference=options.reference_type == "authored",
        skip_optimization=batch_count < BATCHES_FOR_OPTIMIZATION,
        segment_bytes=segment_bytes,
    )


class _CheckRun:
    """One check in progress: everything that its batches so far have shown."""

    def __init__(
        self,
        pair: ModelPair,
        batches: Batches,
        batch_count: int,
        timer: PhaseTimer,
        options: CheckOptions,
    ) -> None:
        self.pair, self.batches, self.batch_count = pair, batches, batch_count
        self.layerwise_batches = batch_count  # the batches on which ``layerwise`` ranks the nodes
        self.timer, self.options = timer, options
        self.quantities = find_quantity_outputs(pair.graph)
        self.id_columns = find_id_outputs(pair.graph)
        self.accuracies = [self._new_accuracy(name) for name in pair.mixed_observer.output_names]
        self.order_changes: tuple[OrderChange, ...] = ()
        self.records: dict[TensorRef, FindingRecord] = {}
        self.operand_records: dict[OperandKey, FindingRecord] = {}
        self.range_pairs: dict[TensorRef, tuple[ObservedRange, ObservedRange]] = {}  # over all batches, in both models
        self.judge = JudgeMeasures(options.user_judge)
        self.hidden_overflows = HiddenOverflowFinder(pair.graph, frozenset(pair.low_types), pair.reference, pair.mixed)
        self.inner_sums = InnerSums(pair, options.inner_type, self.records, self.operand_records)
        self.broken_reference = BrokenReference(pair.graph, ConstantRanges(pair.original_folder), pair.nodes)
        self.layer_errors: tuple[NodeError, ...] = ()
        self.own_spread: tuple[str, ...] = ()  # of a quantized model
        self.refusals: dict[int, Refusal] = {}  # by the index of the batch
        self.exceptions = 0
        self.batches_run = 0  # batches that ran in both models
        self.ignored_batches = 0  # those of them that are not judged
        self.crash = ""  # why a process died, "" if none did

    def _new_accuracy(self, name: str) -> OutputAccuracy:
        """Return an object without batches that measures one output."""
        return OutputAccuracy(
            name,
            saturated_magnitude=self.pair.largest_finite if self.options.saturate else math.inf,
            low=next(iter(self.pair.low_types), dtypes.FLOAT16),
            quantity=name in self.quantities,
            id_columns=self.id_columns.get(name),
            per_index=self.options.output_limits.per_index,
        )

    def run(self, feeds: Iterable[Feed]) -> None:
        """Run both models on every batch, until one crashes."""
        has_batches = False
        progress = ProgressCounter(self.options.progress, "batches", self.batch_count)
        for group in start_runs(self.pair, feeds):
            has_batches, last = True, group[-1].batch_index
            for batch in group:
                try:
                    self._add_batch(*batch)
                except WorkerDied as problem:  # Rule S8.20: the check fails, with the batches so far in its report
                    names = self.batches.names()[batch.batch_index : last + 1]
                    together = f"{names[0]} to {names[-1]}, which ran together"
                    self.crash = f"{together if len(names) > 1 else describe_batch(names[0], batch.feed)}: {problem}"
                    return
                progress.add()
        if not has_batches:
            raise UsageError("there is no batch to check", hint=f"give {spell('data')} or {spell('random')}")
        self.judge.require_limited_names()

    def _add_batch(self, index: int, feed: Feed, pending_reference: PendingRun, pending_mixed: PendingRun) -> None:
        """Wait for both runs of a batch, and judge them unless the batch is refused or holds only NaN."""
        try:
            with self.timer.phase("reference"), self.pair.naming_the_reference():
                reference_outputs, reference = pending_reference()
        except RunRefused as refused:
            # Without a reference there is nothing to compare with, so the check ends with an error.
            raise make_reference_error(self.batches, index, feed, refused) from refused
        try:
            with self.timer.phase("mixed"), self.pair.naming_the_mixed_model():
                mixed_outputs, mixed = pending_mixed()
        except RunRefused as refused:
            if holds_only_nan(feed):
                self._ignore_batch(reference_outputs)
            else:
                self.refusals[index] = refused.refusal
                record_refusal(index, refused.refusal, reference, self.pair.nodes, self.records)
            return
        if holds_only_nan(feed):
            self._ignore_batch(reference_outputs)
            return
        # If a counting session dies in the next line, the batch counts neither in the exception rate nor in the
        # outputs.
        self._judge_ranges(index, feed, reference, mixed)
        for accuracy in self.accuracies:
            accuracy.add(reference_outputs[accuracy.name], mixed_outputs[accuracy.name], index)
        self.judge.add(index, reference_outputs, mixed_outputs)
        self.batches_run += 1

    def _judge_ranges(self, index: int, feed: Feed, reference: Ranges, mixed: Ranges) -> None:
        """Add the findings of one batch to the records; ``reference`` and ``mixed`` are the ranges of its runs."""
        pair = self.pair
        # Add the facts that only counts show. This runs the models once more in batches whose ranges may hide an
        # overflow.
        with self.timer.phase("counts"):
            batch = self.hidden_overflows.add_hidden_overflows(feed, pair.batch_ranges(index, reference, mixed))
        # Classify node outputs and converted inputs. A batch with both kinds of overflow is one exception.
        outputs_overflow = classify_outputs(batch, pair.nodes, self.records)
        operands_overflow = classify_operands(batch, pair.conversion_readers, self.operand_records)
        self.broken_reference.add(index, feed, batch.reference, self.records)
        inner_overflow = self.inner_sums.overflow_in(index, feed)
        self.exceptions += outputs_overflow or operands_overflow or inner_overflow
        # Join the ranges with those of earlier batches, for the report of all tensors.
        for tensor, reference_range in batch.reference.items():
            mixed_range = batch.mixed.get(tensor)
            if mixed_range is not None and reference_range.ran and mixed_range.ran:
                earlier = self.range_pairs.get(tensor, (reference_range, mixed_range))
                self.range_pairs[tensor] = earlier[0].union(reference_range), earlier[1].union(mixed_range)

    def _ignore_batch(self, reference_outputs: Mapping[str, Array]) -> None:
        """Count a batch that holds nothing but NaN, which is not judged (Rule S8.28)."""
        for accuracy in self.accuracies:
            accuracy.ignore(reference_outputs[accuracy.name])
        self.batches_run += 1
        self.ignored_batches += 1

    @property
    def judged_batches(self) -> int:
        """Return the number of batches that count in the exception rate."""
        return self.batches_run - self.ignored_batches

    def analyze_findings(self, needs_ranking: Callable[[], bool]) -> None:
        """Count values, look for overflow inside operators, and rank nodes if needed, unless a session crashed.

        Each of these steps runs more sessions. If one of them crashes, the report has a warning instead.
        """
        if self.crash:
            return
        pair, records = self.pair, self.records
        try:
            with self.timer.phase("second look"):
                take_second_look(pair, self.batches, (*records.values(), *self.operand_records.values()))
                self.inner_sums.examine_first(self.batches)
                self._judge_in_reference_order()
            # The ranking is last of these: if it crashes, the report has all other details.
            ranked_batches = self._count_batches_to_rank()
            if ranked_batches and needs_ranking() and self._can_round_in_reference():
                masks = {tensor for tensor, record in records.items() if "intended" in record.batches}
                finite = {tensor for tensor, (reference, _) in self.range_pairs.items() if reference.finite}
                finite_in_mixed = {tensor for tensor, (_, mixed) in self.range_pairs.items() if mixed.finite}
                self.layer_errors = rank_layers(pair, self.batches, ranked_batches, masks, finite, finite_in_mixed)
        except (WorkerDied, RunRefused) as problem:
            pair.warnings.append(warning("ML606", f"the details of the findings are not complete: {problem}"))
            return
        # Last of all: ONNX Runtime's optimizations can crash the process, with all its sessions.
        limits = self.options.output_limits
        failing = [a.name for a in self.accuracies if not a.finding(limits).passed]
        self.own_spread = describe_own_spread(pair, self.batches, [self._new_accuracy(n) for n in failing], limits)

    def _can_round_in_reference(self) -> bool:
        """Return whether the opset of the reference has the low types of the mixed model; warn if it does not."""
        opset = self.pair.graph.opsets.get("", 0)
        if opset >= _BFLOAT16_OPSET or dtypes.BFLOAT16 not in self.pair.low_type_of.values():
            return True
        message = f"the nodes are not ranked by their errors: opset {opset} of the reference has no bfloat16"
        hint = f"compare with the original at opset {_BFLOAT16_OPSET} or later"
        self.pair.warnings.append(warning("ML606", message, hint=hint))
        return False

    def _judge_in_reference_order(self) -> None:
        """Measure the outputs that fail only because nearly equal values changed places once more (Rule S8.38)."""
        limits = self.options.output_limits
        failing = {a.name: self._new_accuracy(a.name) for a in self.accuracies if not a.finding(limits).passed}
        # A refused batch fails the check in any case.
        if failing and not self.refusals:
            right, self.order_changes = judge_in_reference_order(
                self.pair, self.batches, self.batch_count, failing, limits
            )
            self.accuracies = [right.get(accuracy.name, accuracy) for accuracy in self.accuracies]

    def _count_batches_to_rank(self) -> int:
        """Return the number of batches on which nodes are ranked by the error that they add, 0 for no ranking.

        This may run the model once, to measure it. Without --layerwise, nodes are ranked if only limits of outputs or
        of the judge fail, on the first three batches, and if a run of the mixed model takes at most a second.
        """
        if self.options.layerwise:
            return self.layerwise_batches
        # The finding of a refused batch or of an overflow explains a failure better than a ranking does. A ranking of a
        # slow model would take too long.
        is_complete = self.batches_run == self.batch_count
        is_slow = self.timer.seconds.get("mixed", 0.0) > SLOW_BATCH_SECONDS * self.batches_run
        if not is_complete or self.exceptions or is_slow:
            return 0
        outputs_pass = all(accuracy.finding(self.options.output_limits).passed for accuracy in self.accuracies)
        if outputs_pass and all(result.passed for result in self.judge.results()):
            return 0
        # Measure a run of its own: the times so far include the load of the session, for which the first run waits.
        start = perf_counter()
        self.pair.reference_observer.run(next(iter(self.batches)))
        return RANKED_BATCHES if perf_counter() - start <= FAST_RUN_SECONDS else 0

    def close(self) -> None:
        """Release the sessions."""
        for part in (self.pair, self.hidden_overflows, self.inner_sums):
            part.close()

    def _all_records(self) -> Iterable[FindingRecord]:
        return (*self.operand_records.values(), *self.records.values(), *self.inner_sums.records.values())

    def report(self, policy: Policy) -> CheckReport:
        """Return the verdict and everything behind it (Rules S8.20, S8.21)."""
        pair, options = self.pair, self.options
        broken = self.broken_reference.reasons
        outputs = tuple(
            a.finding(options.output_limits, options.max_ignored, broken.get(a.name, "")) for a in self.accuracies
        )
        verdict, reasons = self._judge(outputs)
        warnings = [*pair.warnings, *self.batches.warnings]
        for accuracy in self.accuracies:
            warnings += accuracy.warnings()
        tensors: tuple[TensorRange, ...] = ()
        if options.per_tensor:
            tensors = tensor_ranges(pair.nodes, self.range_pairs, pair.low_type_of)
        # Each tensor of a judged batch has a record; a tensor whose record has no batches has no finding.
        nodes_with_findings = {tensor.producer for tensor, record in self.records.items() if record.batches}
        advisor = Advisor(pair.plan, pair.nodes, nodes_with_findings)
        findings = node_findings(advisor, pair.nodes, self._all_records())
        return CheckReport(
            model=pair.reference.loaded.name,
            verdict=verdict,
            reasons=reasons,
            provider=pair.sessions.provider,
            mode=pair.sessions.mode,
            precision=pair.precision(policy),
            batches=self.batches_run,
            exception_rate=exception_rate(self.exceptions, self.judged_batches),
            limits=options.all_limits(),
            nodes=findings,
            outputs=outputs,
            low=pair.low_part,
            mixed_model=pair.mixed.loaded.name if pair.plan is None else "",
            order_changes=self.order_changes,
            tensors=tensors,
            layerwise=with_advice(self.layer_errors, advisor),
            warnings=tuple(warnings),
            segment_bytes=pair.sessions.segment_bytes,
            judge=self.judge.results(),
            advice=self._advice(verdict, findings),
            seconds=self.timer.seconds,
        )

    def _advice(self, verdict: Verdict, findings: Sequence[NodeFinding]) -> tuple[str, ...]:
        """Return the options that help, one sentence each; () after a pass."""
        if verdict == "pass":
            return ()
        pair = self.pair
        helpful = describe_helpful_options(pair.plan, findings) if verdict == "fail" else ()
        return (*self.own_spread, *describe_low_reference(pair.nodes, findings), *helpful)

    def _judge(self, outputs: Sequence[OutputFinding]) -> tuple[Verdict, tuple[str, ...]]:
        """Return the verdict, and its reasons, one sentence each."""
        options = self.options
        # A crash, refused batches, too many exceptions, and limits of outputs.
        fail_reasons = [*([self.crash] if self.crash else ()), *describe_refusals(self.refusals)]
        if too_many_exceptions(self.exceptions, self.judged_batches, options.max_exception_rate):
            rate = describe_rate(self.exceptions, self.judged_batches, options.max_exception_rate)
            fail_reasons.append(f"{self.exceptions} of {self.judged_batches} batches overflow: {rate}")
        for output in outputs:
            missed = describe_failed_limits(output, options.output_limits)
            if output.verdict == "fail" and missed:
                fail_reasons.append(f"output {output.name!r} misses {missed}{output.place}")
            fail_reasons += [output.collapse_text] if output.collapses else []
        fail_reasons += describe_broken_limits(self.judge.results())
        if fail_reasons:
            return "fail", tuple(fail_reasons)
        inconclusive_reasons = (
            *missing_evidence(outputs, options.max_ignored),
            *find_missing_evidence(options.user_judge, self.judge.results()),
        )
        if inconclusive_reasons:
            return "inconclusive", inconclusive_reasons
        protected_nodes = describe_protected_nodes(self.pair.plan)
        if not self.pair.low_types:
            return "inconclusive", (
                OTHER_NOT_LOW_REASON if self.pair.plan is None else NOTHING_LOW_REASON,
                *protected_nodes,
            )
        if options.reference_type == "authored" and self.pair.changes_nothing:
            return "inconclusive", (
                NOTHING_CHANGED_REASON,
                f"{spell('reference_type', 'float32')} of check {IN_FLOAT32}",
            )
        kept = "no batch overflowed and every output keeps its limits"
        is_low_already = options.reference_type == "authored" and self.pair.is_low_already
        low_reference = (LOW_REFERENCE_REASON,) if is_low_already else ()
        return "pass", (kept, *low_reference, *map(str, self.order_changes), *protected_nodes)


def _report_crash_at_load(
    model: str, sessions: CheckSessions, policy: Policy, options: CheckOptions, reason: str
) -> CheckReport:
    """Return the report of a check that fails before its first batch."""
    return CheckReport(
        model=model,
        verdict="fail",
        reasons=(reason,),
        provider=sessions.provider,
        mode=sessions.mode,
        precision=policy.mode.low,
        batches=0,
        exception_rate=0.0,
        limits=options.all_limits(),
        nodes=(),
        outputs=(),
        segment_bytes=sessions.segment_bytes,
    )


# --- runs that begin early ---


class StartedBatch(NamedTuple):
    """A batch, and its runs in the two models, which have begun."""

    batch_index: int
    feed: Feed
    reference: PendingRun
    mixed: PendingRun


def start_runs(pair: ModelPair, feeds: Iterable[Feed]) -> Iterator[list[StartedBatch]]:
    """Yield the batches, whose runs in the reference and in the mixed model have begun, in groups that run together.

    With n workers, n later batches have begun too, so that no worker waits for this process; a batch is a group of its
    own. Models that run in segments get groups until their inputs exceed GROUP_BYTES, because a group loads all
    segments once.
    """
    in_segments, batches_ahead = pair.sessions.segment_bytes is not None, pair.sessions.workers.batches_ahead
    started: list[StartedBatch] = []
    group_bytes = 0
    for index, feed in enumerate(feeds):
        runs = pair.reference_observer.start(feed), pair.mixed_observer.start(feed)
        started.append(StartedBatch(index, feed, *runs))
        group_bytes += sum(getattr(value, "nbytes", 0) for value in feed.values())
        if in_segments and group_bytes > GROUP_BYTES:
            yield started
            started, group_bytes = [], 0
        elif not in_segments and len(started) > batches_ahead:
            yield [started.pop(0)]
    if in_segments and started:
        yield started
    elif not in_segments:
        yield from ([batch] for batch in started)


# --- refused batches ---


def describe_batch(name: str, feed: Feed) -> str:
    """Return the name of a batch for an error message, with the inputs that most likely cause the error."""
    problems = [f"input {input_name!r} {problem}" for input_name, value in feed.items() if (problem := _problem(value))]
    return f"{name}, whose {' and '.join(problems)}" if problems else name


def make_reference_error(batches: Batches, index: int, feed: Feed, refused: RunRefused) -> ModelError:
    """Return the error for a batch that the reference refuses; for random data with the sizes that may not fit."""
    name, hint = batches.names()[index], batches.refusal_hint(index)
    if name.startswith("random "):
        shapes = ", ".join(f"{input_name} {list(value.shape)}" for input_name, value in feed.items())
        hint = f"the inputs are {shapes}: give open sizes that fit together with {spell('dims')}, or real data"
        hint += f" with {spell('data')}"
    return ModelError(f"{describe_batch(name, feed)}: {refused.message}", hint=hint)


def _problem(value: Array) -> str:
    """Return why ONNX Runtime may refuse the value of an input; "" for an ordinary value."""
    if has_empty_array({"": value}):
        return "has no elements"
    return "holds nothing but NaN" if holds_only_nan({"": value}) else ""


def record_refusal(
    index: int,
    refusal: Refusal,
    reference: Ranges,
    nodes: Sequence[DataflowNode],
    records: dict[TensorRef, FindingRecord],
) -> None:
    """Add the finding of a refused batch to ``records``.

    ``reference``: the ranges of the reference. ``nodes``: those of the original model.
    """
    # A refusal names no scope: the first node with this name and operator gets the finding. ONNX Runtime may name an
    # operator that the model does not have, such as FusedMatMul, which its optimizer made. Or the operator has no name.
    # Then no node can have a finding, and only the reason names the operator.
    refused_nodes = (n for n in nodes if n.ref.name == refusal.node and n.node.op_type == refusal.op_type)
    node = next(refused_nodes, None)
    if node is None:
        return
    # The finding is recorded at the first output, which may have findings of other batches already.
    tensor = TensorRef(*node.ref, 0)
    record = records.setdefault(tensor, FindingRecord(node, tensor))
    record.batches.setdefault("refused", []).append(index)
    if tensor in reference:
        record.reference_magnitude = max(record.reference_magnitude, reference[tensor].magnitude)


def describe_refusals(refusals: Mapping[int, Refusal]) -> list[str]:
    """Return why the check fails: one sentence about all refused batches, [] if there is none."""
    if not refusals:
        return []
    first, refusal = next(iter(refusals.items()))
    more = f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""
    return [f"ONNX Runtime runs the reference and refuses the mixed model on batch {first}{more}, {refusal}"]
