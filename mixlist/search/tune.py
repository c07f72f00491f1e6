"""Tune a model: base check, search, final check, explanation of each edit, validation (Rules S9.1 to S9.15)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mixlist.benchmark.timed_session import measure_shortest_run
from mixlist.checker.label_accuracy import warn_unused_labels
from mixlist.checker.limits import describe_near_limit, missing_evidence
from mixlist.checker.result import CheckReport, Verdict
from mixlist.checker.run import run_check
from mixlist.decide import Resolver
from mixlist.diagnostics import warning
from mixlist.errors import UsageError
from mixlist.installed_runtime import require_onnxruntime
from mixlist.lists.policy import Policy, require_policy
from mixlist.model.save import INLINE_LIMIT, content_digest
from mixlist.option_fields import with_fields
from mixlist.progress import PhaseTimer
from mixlist.run import executors
from mixlist.run.feeds import as_batches, digest
from mixlist.run.segments import segment_bytes_if_needed, weight_bytes
from mixlist.search.candidates import Candidate, CandidateRanking
from mixlist.search.checks import (
    SearchData,
    ValidationData,
    check_base,
    check_in_float32,
    explain_failed_check,
    needs_search,
    split_batches,
    warn_not_validated,
)
from mixlist.search.edits import (
    NO_EDITS,
    Edit,
    EditSet,
    NodeEdit,
    read_tuned_policy,
    render_customize_dtypes,
    render_modify_mixlist,
)
from mixlist.search.options import Objective, TrialOptions, TuneOptions
from mixlist.search.search_state import SearchState
from mixlist.search.strategy import CostModel, Strategy, alternative_objectives
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trial_verdict import TrialLimits
from mixlist.search.trials import Trial, Trials
from mixlist.search.tune_result import NOT_NEEDED, TunedEdit, TunedList, TuneReport
from mixlist.targets.estimate import describe_uncounted
from mixlist.version import __version__
from mixlist.write.result import NOTHING_LOW

if TYPE_CHECKING:
    from mixlist.checker.label_accuracy import Labels
    from mixlist.model.load import LoadedModel, Model
    from mixlist.run.session import Feed
    from mixlist.write.result import RewriteResult

# The copies of the weights that a search on a whole model holds in memory: of the searching process (in float32,
# rounded, in the gated graph, in the bytes that are sent) and of each worker (its sessions). Measured were 9 and 6, on
# models with 200 and 400 MB of weights; some of this memory is shared, and counted twice.
SEARCH_COPIES, WORKER_COPIES = 8, 5
MAX_JOINS = 3  # failing held-out batches join the search at most so often (Rule S9.10)
MAX_SEARCHES = 5  # a search is repeated if its result fails the final check (Rule S9.8)
# Node rules are searched if the result keeps less than this share of the matrix work that is low under the base lists
# (Rule S9.15).
LEAST_KEPT_WORK = 0.9


@with_fields(TuneOptions)
def tune(model: Model, policy: Policy, data: object, options: TuneOptions) -> TuneReport:
    """Find the smallest change of the policy's lists under which a model keeps the limits of ``check`` on data.

    The keyword arguments are the fields of ``TuneOptions``. ``data`` has the forms that ``check`` accepts. Ctrl-C ends
    the search: the report is then not ``complete``, and holds the best list so far, if there is one. Raises UsageError
    for a policy without lists and for wrong arguments, and the errors that ``check`` raises.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.tune("digits.onnx", mixlist.load_policy(ops_info="mindspore-o3"), batches)
        report.save("modify.json")
    """
    return run_tune(model, policy, data, options)


def run_tune(model: Model, policy: Policy, data: object, options: TuneOptions) -> TuneReport:
    """Do what ``tune`` does, with the options in one object."""
    require_policy(policy)
    if policy.mode.action != "lists":
        raise UsageError(f"the precision mode {policy.mode.name} has no lists to tune", hint="use mixed_float16")
    report, _ = run_search(model, policy, data, options)
    return _take_recommended(report)


def _take_recommended(report: TuneReport) -> TuneReport:
    """Return the report with a recommended alternative as its result, and its lists as the alternative (Rule S9.15)."""
    result = report.alternative
    if result is None or not result.recommended or not report.complete:
        return report
    assert report.check is not None, "a complete search with a list has a final check"
    lists_alone = TunedList(
        objective=report.objective,
        recommended=False,
        minimal=report.minimal,
        edits=report.edits,
        modify_mixlist=report.modify_mixlist,
        customize_dtypes=report.customize_dtypes,
        low_share=report.low_share.get("tuned"),
        check=report.check,
        validation=report.validation,
    )
    near_limit = describe_near_limit(result.check, result.validation)
    return replace(
        report,
        objective=result.objective,
        verdict="pass",  # on all data, because the result is recommended
        minimal=result.minimal,
        reasons=("the lists and the node rules keep every limit", *([near_limit] if near_limit else [])),
        edits=result.edits,
        modify_mixlist=result.modify_mixlist,
        customize_dtypes=result.customize_dtypes,
        low_share={**report.low_share, "tuned": result.low_share},
        check=result.check,
        validation=result.validation,
        alternative=lists_alone,
        # More work is low than under the lists alone, so some is.
        warnings=tuple(item for item in report.warnings if item.code != NOTHING_LOW.code),
    )


def run_search(model: Model, policy: Policy, data: object, options: TuneOptions) -> tuple[TuneReport, CheckReport]:
    """Find the smallest set of edits of a policy under which a model keeps the limits.

    Return the report, and the check under the policy without edits on the data of the search. Of a policy without
    lists, only node rules are edited (``repair`` uses this). Raises the errors of ``tune``.
    """
    # Prepare everything that can fail at once, before the first long phase.
    resolver = Resolver(model, type_hints=options.type_hints)
    batches = as_batches(data, resolver.loaded.proto, options.max_batches)
    data_of_search = split_batches(batches, resolver.loaded, options)
    tuning = _Tuning(resolver, policy, data_of_search, options)
    report, base = tuning.search()
    for _ in range(MAX_JOINS):
        # Only held-out batches join: those of --validate-on are not for the search.
        if not (report.complete and report.verdict == "fail" and report.held_out and report.validation):
            break
        if report.alternative is not None and report.alternative.recommended:  # it passes on the held-out batches
            break
        try:
            if not tuning.join_failing_batches(report):
                break
            later, base = tuning.search()
        except KeyboardInterrupt:  # in a check: the list that fails on these batches is the best so far
            return replace(report, complete=False), base
        if later.modify_mixlist:
            report = later
            continue
        # The list that fails on these batches stays in the report, for inspection.
        reasons = (*report.reasons, *(f"with these batches in the search: {reason}" for reason in later.reasons))
        report = replace(
            report, reasons=reasons, complete=later.complete, joined=later.joined,
            trials=later.trials, remembered=later.remembered, log=later.log,
        )  # fmt: skip
        break
    return report, base


class _Tuning:
    """The searches of one call of ``tune``: one, and another one after held-out batches have joined its data.

    ``data``: the data of the next search.
    """

    def __init__(self, resolver: Resolver, policy: Policy, data: SearchData, options: TuneOptions) -> None:
        self.resolver, self.loaded, self.policy, self.data, self.options = (
            resolver, resolver.loaded, policy, data, options,
        )  # fmt: skip
        # By default there is one worker for each pair of cores, with two threads. Two workers for each pair are not
        # faster: one of them would run trials ahead that the search may not need.
        core_pairs = (os.cpu_count() or 1) // 2
        self.worker_arguments = options.jobs, options.scheduler, options.executor, core_pairs
        workers = executors.count_local_workers(*self.worker_arguments)
        self.segment_bytes = trial_segment_bytes(self.loaded, options, workers)
        max_accuracy_loss = options.max_accuracy_loss if options.labels is not None else None
        self.limits = TrialLimits(
            options.output_limits, options.max_exception_rate, max_accuracy_loss, options.user_judge
        )
        self.timer = PhaseTimer()
        # Unlike a check, a search reads every batch again and again, so all of them stay in memory.
        self.feeds = list(data.batches)
        key = _search_key(self.loaded, policy, self.feeds, self.limits, options)
        self.search_state = SearchState(options.state, key)
        self.log: list[Trial] = []

    def search(self) -> tuple[TuneReport, CheckReport]:
        """Search and validate. Return the report, and the check under the policy without edits."""
        data, options = self.data, replace(self.options, labels=self.data.labels)
        with self.timer.phase("base check"):
            base = check_base(self.loaded, self.policy, data.batches, self.limits, options)
            # Trials need the float32 ranges of all batches. The base check lacks some if its mixed model did not run.
            reference = base
            if base.batches != len(self.feeds):
                reference = check_in_float32(self.loaded, self.policy, data.batches, options)
        # The labels of held-out batches follow those of the search. Data of --validate-on has no labels.
        validation = data.validation
        if validation is not None and validation.held_out and data.labels is not None and reference.task is not None:
            base, validation = _split_labels(base, validation, data.labels, reference.task.used)
            self.data = data = replace(data, validation=validation)
        report = self._run_trials(base, reference, options)
        report = replace(report, joined=data.joined)
        if report.verdict == "pass" and validation is None:
            report = replace(report, warnings=(*report.warnings, *warn_not_validated(data, options)))
        elif report.verdict == "pass" and validation is not None:
            with self.timer.phase("validation"):  # on data that the search did not see
                report = self._validate(report, validation)
        max_loss = self.limits.max_accuracy_loss
        near_limit = describe_near_limit(report.check, report.validation, max_accuracy_loss=max_loss)
        if near_limit and report.verdict == "pass":
            report = replace(report, reasons=(*report.reasons, near_limit))
        return report, base

    def join_failing_batches(self, report: TuneReport) -> bool:
        """Move the held-out batches on which a result fails to the next search; return False if none fails alone.

        ``report``: that of a search whose result fails on the held-out batches (Rule S9.10).
        """
        validation = self.data.validation
        assert validation is not None and report.validation is not None
        with self.timer.phase("validation"):
            tuned_policy = read_tuned_policy(self.policy, report.modify_mixlist, report.customize_dtypes)
            is_one = len(validation.batches) == 1
            each = validation.check_each(self.loaded, tuned_policy, self.options)
            self.data = self.data.join([report.validation] if is_one else [*each], self.limits)
        has_joined = len(self.data.batches) > len(self.feeds)
        self.feeds = list(self.data.batches)
        return has_joined

    def _run_trials(self, base: CheckReport, reference: CheckReport, options: TuneOptions) -> TuneReport:
        """Search, while the workers run. ``reference``: a check with the float32 ranges of all batches."""
        check_options, policy = options.check_options(), self.policy

        def final_check(edits: EditSet) -> CheckReport:
            with self.timer.phase("final check"):
                lists, rules = render_modify_mixlist(policy, edits), render_customize_dtypes(policy, edits)
                tuned_policy = read_tuned_policy(policy, lists, rules)
                return run_check(self.loaded, tuned_policy, self.data.batches, check_options)

        with executors.open_workers(*self.worker_arguments) as workers:
            compiler = TrialCompiler(
                self.resolver, policy, self.feeds, reference.tensors,
                labels=options.labels, saturate=check_options.saturate, threads=workers.threads, limits=self.limits,
                segment_bytes=self.segment_bytes,
            )  # fmt: skip
            try:
                # Most trials make some of the base lists' low nodes high. These gates serve all such trials.
                compiler.add_gates(NO_EDITS)
                ranking = CandidateRanking(base, compiler.low_type, compiler.costs)
                joined = digest(self.feeds[len(self.feeds) - len(self.data.joined) :]) if self.data.joined else ""
                trials = Trials(
                    compiler, self.limits, workers, self.search_state, options.progress, joined=joined, log=self.log
                )
                cost = CostModel(compiler, _measure_for(options.provider))
                search_runner = _SearchRunner(trials, ranking, cost, base, self.timer, final_check)
                gaps = missing_evidence(reference.outputs, options.max_ignored)
                return search_runner.run(options.objective, node_rules=options.node_rules, evidence_gaps=gaps)
            finally:
                compiler.close()

    def _validate(self, report: TuneReport, validation: ValidationData) -> TuneReport:
        """Return the report with the verdict on validation data (Rules S9.10 and S9.14)."""
        report = replace(report, held_out=validation.held_out)
        try:
            tuned_policy = read_tuned_policy(self.policy, report.modify_mixlist, report.customize_dtypes)
            check = validation.check(self.loaded, tuned_policy, self.options)
        except KeyboardInterrupt:
            reason = "interrupted: the list keeps the limits, but was not validated on other data"
            return replace(report, complete=False, verdict="fail", reasons=(reason,))
        reasons = validation.reasons(check, self.limits)
        if reasons:
            verdict: Verdict = "inconclusive" if check.verdict == "inconclusive" else "fail"
            report = replace(report, verdict=verdict, reasons=reasons)
        report = replace(report, validation=check)
        if report.alternative is None:
            return report
        return replace(report, alternative=self._validate_alternative(report.alternative, validation))

    def _validate_alternative(self, alternative: TunedList, validation: ValidationData) -> TunedList:
        """Return the alternative with its check on validation data.

        The alternative is not recommended if that check fails or is interrupted.
        """
        try:
            tuned_policy = read_tuned_policy(self.policy, alternative.modify_mixlist, alternative.customize_dtypes)
            check = validation.check(self.loaded, tuned_policy, self.options)
        except KeyboardInterrupt:
            return replace(alternative, recommended=False)
        return replace(alternative, validation=check, recommended=not validation.reasons(check, self.limits))


def _measure_for(provider: str) -> Callable[[RewriteResult, Feed], float] | None:
    """Return a function that measures the seconds of a run; None on the CPU provider, where costs are static.

    A time on the CPU provider would say nothing, because it computes most float16 nodes in float32.
    """
    return None if provider == "cpu" else partial(measure_shortest_run, provider=provider)


def trial_segment_bytes(loaded: LoadedModel, options: TrialOptions, workers: int) -> int | None:
    """Return the most bytes of weights in a segment; None if trials run the model whole (Rule S8.31).

    ``workers``: the number of processes on this machine. Raises UsageError for a model that must run in segments if the
    workers may be on other machines.
    """
    if options.segment_bytes is not None:
        return options.segment_bytes
    # The gated graph has each weight twice, rounded and not rounded. ONNX Runtime makes no session from more bytes.
    copies = SEARCH_COPIES + WORKER_COPIES * workers
    segment_bytes = segment_bytes_if_needed(loaded, copies, most_weights=INLINE_LIMIT // 2)
    if segment_bytes is not None and options.runs_whole:
        raise UsageError(
            f"{loaded.name} has {weight_bytes(loaded) / 1e9:.1f} GB of weights, which is too much for trials on a"
            " cluster",
            hint="leave out --scheduler: on this machine the trials load one segment of the model at a time",
        )
    return segment_bytes


def _split_labels(
    base: CheckReport, validation: ValidationData, labels: Labels, used: int
) -> tuple[CheckReport, ValidationData]:
    """Give the labels that the search does not use to the held-out batches.

    One label file covers all batches. ``used``: the number of labels of the batches of the search, which come first.
    The base check saw only these batches, so its warning that labels are left over is wrong and is removed.
    """
    wrong = warn_unused_labels(used, len(labels))
    base = replace(base, warnings=tuple(item for item in base.warnings if item not in wrong))
    return base, replace(validation, labels=labels[used:])


def _search_key(
    loaded: LoadedModel, policy: Policy, feeds: Sequence[Feed], limits: TrialLimits, options: TuneOptions
) -> dict[str, str]:
    """Return everything that the outcomes of trials depend on, by name: digests and texts (Rule S9.11)."""
    require_onnxruntime()
    import onnxruntime

    # The objective is not here: an outcome belongs to a set of edits, under whatever objective it was tried.
    return {
        "model": content_digest(loaded),
        "data": digest([*feeds, {"labels": options.labels}]),
        "lists": policy.digest,
        "type hints": repr(sorted((options.type_hints or {}).items())),
        "limits": f"{limits} {options.overflow_mode}",
        "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
    }


@dataclass(frozen=True)
class _SearchResult:
    """The result of a search.

    ``edits``: None if no set of edits keeps the limits. ``check``: the final check of the edits. Without edits, the
    check under the base lists, or the last final check if all of them failed. ``failures``: the reasons why the
    search failed, () if it succeeded.
    """

    edits: EditSet | None
    check: CheckReport
    failures: tuple[str, ...] = ()


class _SearchRunner:
    """Searches on one set of batches, and makes the report: first for lists, then for node rules if they are needed.

    ``base``: the check under the base lists.
    """

    def __init__(
        self,
        trials: Trials,
        ranking: CandidateRanking,
        cost: CostModel,
        base: CheckReport,
        timer: PhaseTimer,
        final_check: Callable[[EditSet], CheckReport],
    ) -> None:
        self.trials, self.ranking, self.cost, self.base, self.timer = trials, ranking, cost, base, timer
        self.compiler, self.final_check = trials.compiler, final_check

    def run(self, objective: Objective, *, node_rules: bool, evidence_gaps: Sequence[str]) -> TuneReport:
        """Search for the best list, and for node rules if lists alone keep too little work low (Rule S9.15).

        ``evidence_gaps``: the reasons why too little can be compared. They are facts about the reference, so no list
        can change them (Rule S9.12).
        """
        strategy = self._new_strategy(node_rules=node_rules)
        if evidence_gaps:
            failed = _SearchResult(None, self.base, tuple(evidence_gaps))
            report = self._report(strategy, objective, failed, try_without=False)
            return replace(report, verdict="inconclusive")
        if not needs_search(self.base, self.trials.limits, objective):
            return self._report(strategy, objective, _SearchResult(NO_EDITS, self.base))
        try:
            with self.timer.phase("search"):
                in_float32 = self.trials.try_reference()
            if in_float32.passed:
                result = self._search(strategy, objective)
            else:
                missed = f"the limits are missed with every node in float32 too ({in_float32.why})"
                result = _SearchResult(None, self.base, (f"{missed}: data or limits are wrong",))
            report = self._report(strategy, objective, result)
        except KeyboardInterrupt:
            return self._report_interrupted(strategy, objective)
        if result.edits is None or node_rules:
            # There is no list whose work an alternative could exceed, or the search used node rules already.
            return report
        try:
            alternative = self._find_alternative(result.edits, objective)
        except KeyboardInterrupt:
            message = "interrupted: the search for node rules, which may keep more work in low precision, did not end"
            return replace(report, warnings=(*report.warnings, warning("ML606", message)))
        return self._with_trial_log(replace(report, alternative=alternative))

    def _new_strategy(self, *, node_rules: bool) -> Strategy:
        return Strategy(self.trials, self.ranking, self.cost, node_rules=node_rules)

    def _search(self, strategy: Strategy, objective: Objective) -> _SearchResult:
        """Search and check the result; search again if the check fails (Rule S9.8).

        A result can pass its trial and fail the check, because a trial computes fewer statistics than a check.
        """
        for _ in range(MAX_SEARCHES):
            with self.timer.phase("search"):
                edits = strategy.run(objective)
            if edits is None:
                return _SearchResult(None, self.base, tuple(strategy.notes))
            check = self.final_check(edits)
            reasons = explain_failed_check(check, self.trials.limits)
            if not reasons:
                return _SearchResult(edits, check)
            # From now on trials compute all statistics, so they should agree with the check.
            self.trials.reject(edits, f"final check: {reasons[0]}")
        return _SearchResult(None, check, ("the final check contradicts the search", *reasons))

    def _find_alternative(self, edits: EditSet, objective: Objective) -> TunedList | None:
        """Return a result with node rules that keeps more work low than ``edits`` do (Rule S9.15).

        Return None if ``edits`` keep enough work low, or if no such result is found.
        """
        low_share, best = self.compiler.low_share, None
        least_share = LEAST_KEPT_WORK * (low_share(NO_EDITS) or 0.0)
        best_share = low_share(edits) or 0.0
        for other_objective in alternative_objectives(objective) if best_share < least_share else ():
            strategy = self._new_strategy(node_rules=True)
            result = self._search(strategy, other_objective)
            if result.edits is not None and (low_share(result.edits) or 0.0) > best_share:
                best, best_share = (strategy, other_objective, result), low_share(result.edits) or 0.0
            # This result keeps enough work low, so the search for the most work is not needed.
            if best_share >= least_share:
                break
        if best is None:
            return None
        with self.timer.phase("search"):  # the trials without each edit
            return self._tuned_list(*best)

    def _tuned_list(self, strategy: Strategy, objective: Objective, result: _SearchResult) -> TunedList:
        """Return a search result with edits as the alternative of a report."""
        assert result.edits is not None
        explained = _explain_edits(result.edits, strategy, try_without=True)
        policy = self.compiler.base
        return TunedList(
            objective=objective,
            recommended=True,
            minimal=_is_minimal(explained),
            edits=explained,
            modify_mixlist=render_modify_mixlist(policy, result.edits),
            customize_dtypes=render_customize_dtypes(policy, result.edits),
            low_share=self.compiler.low_share(result.edits),
            check=result.check,
        )

    def _report_interrupted(self, strategy: Strategy, objective: Objective) -> TuneReport:
        """Return the best list that passed a trial before Ctrl-C; no check has judged it (Rule S9.11)."""
        best = min(self.trials.passing, key=strategy.preference_key, default=None)
        reason = "interrupted: the best list so far, not minimal and not checked"
        if best is None:
            reason = "interrupted before any list kept the limits"
        report = self._report(strategy, objective, _SearchResult(best, self.base, (reason,)), try_without=False)
        return replace(report, complete=False, check=None)

    def _report(
        self, strategy: Strategy, objective: Objective, result: _SearchResult, *, try_without: bool = True
    ) -> TuneReport:
        """Return the report on a search. ``try_without``: run a trial without each edit, to explain the edit."""
        policy, low_share = self.compiler.base, self.compiler.low_share
        # Of the final check, only this warning can be new: the base check gives the others.
        nothing_low = [item for item in result.check.warnings if item.code == NOTHING_LOW.code]
        kept = "every limit is kept, because nothing is low" if nothing_low else "the lists keep every limit"
        reasons = result.failures or (kept,)
        edits = result.edits or NO_EDITS
        explained = _explain_edits(edits, strategy, try_without=try_without)
        notes = [warning("ML612", note) for note in strategy.notes if note not in reasons]
        if uncounted := describe_uncounted(self.compiler.costs):
            notes.append(warning("ML618", f"the share of matrix and convolution work {uncounted}"))
        report = TuneReport(
            model=self.compiler.resolver.loaded.name,
            objective=objective,
            verdict="fail" if result.failures else "pass",
            complete=True,
            minimal=try_without and result.edits is not None and _is_minimal(explained),
            reasons=reasons,
            edits=explained,
            modify_mixlist="" if result.edits is None else render_modify_mixlist(policy, edits),
            customize_dtypes="" if result.edits is None else render_customize_dtypes(policy, edits),
            low_share={"base": low_share(NO_EDITS), "tuned": low_share(edits)},
            # ``_with_trial_log`` counts the trials at the end, because the explanation above runs some.
            trials=0,
            remembered=0,
            check=result.check,
            warnings=tuple(dict.fromkeys((*self.base.warnings, *nothing_low, *notes))),
            seconds=self.timer.seconds,
        )
        return self._with_trial_log(report)

    def _with_trial_log(self, report: TuneReport) -> TuneReport:
        """Return the report with the log of all trials so far, and the numbers of trials in it."""
        log = self.trials.log
        remembered = sum(trial.remembered for trial in log)
        entries = tuple(trial.to_json() for trial in log)
        return replace(report, trials=len(log) - remembered, remembered=remembered, log=entries)


# --- explain each edit ---


def _is_minimal(explained: Iterable[TunedEdit]) -> bool:
    """Return True if every edit is needed, after each was left out once (Rule S9.5)."""
    return all(edit.without != NOT_NEEDED for edit in explained)


def _explain_edits(edits: EditSet, strategy: Strategy, *, try_without: bool) -> tuple[TunedEdit, ...]:
    """Return the explanation of each edit, edits of lists first.

    ``try_without``: run a trial without each edit and say what it breaks. Otherwise ``TunedEdit.without`` is "".
    """
    compiler, explained = strategy.compiler, []
    for edit in sorted(edits, key=lambda e: (isinstance(e, NodeEdit), str(e))):
        other_edits = edits - {edit}
        without = _describe_without(edit, edits, strategy) if try_without else ""
        if isinstance(edit, NodeEdit):
            op, node, before, after = edit.op_type, edit.pattern, str(compiler.base.mode.low), "float32"
        else:
            op, node, before, after = edit.op, "", str(edit.before), str(edit.after)
        why = strategy.ranking.explain(strategy.candidates.get(edit, Candidate(edit, ())))
        # One edit changes low nodes to high nodes or the reverse, so the symmetric difference counts both.
        changed_nodes = len(compiler.low_nodes(edits) ^ compiler.low_nodes(other_edits))
        share, share_without = compiler.low_share(edits), compiler.low_share(other_edits)
        cost = share_without - share if share is not None and share_without is not None else None
        explained.append(TunedEdit(op, node, before, after, why, changed_nodes, cost, without))
    return tuple(explained)


def _describe_without(edit: Edit, edits: EditSet, strategy: Strategy) -> str:
    """Return what breaks without an edit, from a trial without it."""
    outcome = strategy.trials.try_edits(edits - {edit})
    if not outcome.passed:
        return outcome.why
    # The limits hold without the edit. It may still be needed for the objective (``max-low``, ``max-speed``).
    loss = strategy.describe_objective_loss(edit, edits)
    return f"{NOT_NEEDED}, {loss}" if loss else NOT_NEEDED
