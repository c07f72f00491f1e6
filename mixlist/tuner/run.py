"""Tune a model: base check, search, final check, and what each edit is for (Rules S9.1 to S9.14)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mixlist.checker.evidence import missing_evidence
from mixlist.checker.keyword_arguments import with_keywords
from mixlist.checker.label_accuracy import warn_unused_labels
from mixlist.checker.result import CheckReport, Verdict
from mixlist.checker.run import run_check
from mixlist.diagnostics import warning
from mixlist.errors import ModelError, UsageError
from mixlist.graph.save import content_digest
from mixlist.lists.modes import V2
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.runtime import executors
from mixlist.runtime.feeds import Batches, as_batches, digest
from mixlist.runtime.phase_timer import PhaseTimer
from mixlist.tuner.candidate_ranking import CandidateRanking
from mixlist.tuner.candidates import EditSet
from mixlist.tuner.cost_model import CostModel
from mixlist.tuner.edit_report import explain_edits, is_minimal
from mixlist.tuner.memory_estimate import refuse_too_large
from mixlist.tuner.options import Objective, TuneOptions
from mixlist.tuner.output_files import mixlist_text, read_back, rules_text
from mixlist.tuner.result import TunedList, TuneReport
from mixlist.tuner.strategy import NO_EDITS, Strategy, alternatives
from mixlist.tuner.trial_compiler import TrialCompiler
from mixlist.tuner.trial_log import TrialLog
from mixlist.tuner.trial_verdict import Goal, check_reasons
from mixlist.tuner.trials import Trials
from mixlist.tuner.validation import Validation, split_batches, warn_not_validated
from mixlist.version import __version__

if TYPE_CHECKING:
    from mixlist.checker.keyword_arguments import Model
    from mixlist.graph.load import LoadedModel
    from mixlist.runtime.session import Feed

SEARCHES = 5  # each but the first after a final check that did not agree
WORTHWHILE = 0.9  # of the matrix work that the base lists made low: where lists keep less, node rules are searched


@with_keywords(TuneOptions)
def tune(model: Model, policy: Policy, data: object, options: TuneOptions) -> TuneReport:
    """Find the smallest change of ``policy``'s lists under which ``model`` keeps the limits of ``check`` on ``data``.

    The keyword arguments are the fields of ``TuneOptions``; ``data`` is that of ``check``. Ctrl-C ends the search: the
    report is then not ``complete`` and holds the best list so far, if any. Raises UsageError for a policy without lists
    and for wrong arguments, and what ``check`` raises.
    """
    return run_tune(model, policy, data, options)


def run_tune(model: Model, policy: Policy, data: object, options: TuneOptions) -> TuneReport:
    """Do what ``tune`` says, with its options in one object."""
    if policy.mode.action != "lists":
        raise UsageError(f"the precision mode {policy.mode.name} has no lists to tune", hint="use mixed_float16")
    timer = PhaseTimer()
    resolver = Resolver(model, type_hints=options.type_hints)
    loaded, check_options = resolver.loaded, options.of_check()
    pairs = (os.cpu_count() or 1) // 2  # two threads on a run are as fast as two runs, of which one may be in vain
    pool = options.jobs, options.scheduler, options.executor, pairs
    refuse_too_large(loaded, executors.count_local_workers(*pool))
    accuracy_loss = options.max_accuracy_loss if options.labels is not None else None
    goal = Goal(options.output_limits, options.max_exception_rate, accuracy_loss)
    batches, validation = split_batches(as_batches(data, loaded.proto), loaded, options)
    feeds = list(batches)
    trial_log = TrialLog(options.state, _search_key(loaded, policy, feeds, goal, options))
    with timer.phase("base check"):
        base = run_check(loaded, policy, batches, replace(check_options, layerwise=True, per_tensor=True))
        exact = base if base.batches == len(feeds) else _check_in_float32(loaded, policy, batches, options)
    if validation is not None and validation.held_out and options.labels is not None and exact.task is not None:
        # The labels run over all batches: those of the held-out ones are no labels without a sample.
        unused = warn_unused_labels(exact.task.used, len(options.labels))
        base = replace(base, warnings=tuple(item for item in base.warnings if item not in unused))
        validation = replace(validation, labels=options.labels[exact.task.used :])

    def final_check(edits: EditSet) -> CheckReport:
        with timer.phase("final check"):
            tuned = read_back(policy, mixlist_text(policy, edits), rules_text(policy, edits))
            return run_check(loaded, tuned, batches, check_options)

    with executors.open_workers(*pool) as workers:
        compiler = TrialCompiler(
            resolver,
            policy,
            feeds,
            exact.tensors,
            labels=options.labels,
            saturate=check_options.saturate,
            threads=workers.threads,
            goal=goal,
        )
        try:
            compiler.offer(NO_EDITS)
            ranking = CandidateRanking(base, compiler.low, compiler.costs)
            trials = Trials(compiler, goal, workers, trial_log, options.progress)
            cost = CostModel(compiler, options.provider)
            tuning = _Tuning(trials, ranking, cost, base, timer, final_check)
            gaps = missing_evidence(exact.outputs, options.max_ignored)
            report = tuning.run(options.objective, node_rules=options.node_rules, gaps=gaps)
        finally:
            compiler.close()
    if report.verdict != "pass":
        return report
    if validation is None:
        return replace(report, warnings=(*report.warnings, *warn_not_validated(feeds, options)))
    with timer.phase("validation"):
        return _validated(report, validation, loaded, policy, options, goal)


def _check_in_float32(loaded: LoadedModel, policy: Policy, batches: Batches, options: TuneOptions) -> CheckReport:
    """Return a check of the original against itself, where the mixed model did not run on all batches.

    Raises ModelError if the model does not run in float32 either.
    """
    high = replace(policy, mode=V2["cube_fp16in_fp32out"], rules=())
    report = run_check(loaded, high, batches, replace(options.of_check(), per_tensor=True))
    if not report.batches:
        raise ModelError(f"{loaded.name} cannot be tuned: {report.reasons[0]}")
    return report


def _search_key(
    loaded: LoadedModel, policy: Policy, feeds: Sequence[Feed], goal: Goal, options: TuneOptions
) -> dict[str, str]:
    """Return what the outcomes of trials depend on, each as a digest or text."""
    import onnxruntime

    return {
        "model": content_digest(loaded),
        "data": digest([*feeds, {"labels": options.labels}]),
        "lists": policy.digest,
        "type hints": repr(sorted((options.type_hints or {}).items())),
        "limits": f"{goal} {options.overflow_mode}",
        "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
    }


def _validated(
    report: TuneReport, validation: Validation, loaded: LoadedModel, policy: Policy, options: TuneOptions, goal: Goal
) -> TuneReport:
    """Return the report with the verdict on data that the search did not see (Rules S9.10 and S9.14)."""
    report = replace(report, held_out=validation.held_out)
    try:
        tuned = read_back(policy, report.modify_mixlist, report.customize_dtypes)
        checked = validation.check(loaded, tuned, options)
    except KeyboardInterrupt:
        stopped = "interrupted: the list keeps the limits, but was not validated on other data"
        return replace(report, complete=False, verdict="fail", reasons=(stopped,))
    reasons = validation.reasons(checked, goal)
    if reasons:
        verdict: Verdict = "inconclusive" if checked.verdict == "inconclusive" else "fail"
        report = replace(report, verdict=verdict, reasons=reasons)
    report = replace(report, validation=checked)
    if report.alternative is None:
        return report
    alternative = _validated_list(report.alternative, validation, loaded, policy, options, goal)
    return replace(report, alternative=alternative)


def _validated_list(
    found: TunedList, validation: Validation, loaded: LoadedModel, policy: Policy, options: TuneOptions, goal: Goal
) -> TunedList:
    """Return the other result with the check on that data; it is not recommended if that fails or is interrupted."""
    try:
        tuned = read_back(policy, found.modify_mixlist, found.customize_dtypes)
        checked = validation.check(loaded, tuned, options)
    except KeyboardInterrupt:
        return replace(found, recommended=False)
    return replace(found, validation=checked, recommended=not validation.reasons(checked, goal))


@dataclass(frozen=True)
class _SearchResult:
    """The result of a search: the edits or None, the last check of the lists, and the reasons why the search failed."""

    edits: EditSet | None
    check: CheckReport
    failures: tuple[str, ...] = ()


class _Tuning:
    """The searches of one tuning, and the report that they end in."""

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

    def run(self, objective: Objective, *, node_rules: bool, gaps: Sequence[str]) -> TuneReport:
        """Search for the best list, and for node rules where lists alone cost too much (Rule S9.15).

        ``gaps``: why nothing can be concluded. They are the reference's, so that no list changes them (Rule S9.12).
        """
        strategy = self._strategy(node_rules=node_rules)
        if gaps:
            report = self._report(strategy, objective, _SearchResult(None, self.base, tuple(gaps)), minimal=False)
            return replace(report, verdict="inconclusive")
        if objective == "min-edits" and not check_reasons(self.base, self.trials.goal):
            return self._report(strategy, objective, _SearchResult(NO_EDITS, self.base))
        try:
            with self.timer.phase("search"):
                reference = self.trials.reference()
            if not reference.passed:
                missed = f"the limits are missed with every node in float32 too ({reference.why})"
                found = _SearchResult(None, self.base, (f"{missed}: data or limits are wrong",))
            else:
                found = self._search(strategy, objective)
            report = self._report(strategy, objective, found)
        except KeyboardInterrupt:
            return self._interrupted(strategy, objective)
        if found.edits is None or node_rules:
            return report
        try:
            alternative = self._alternative(found.edits, objective)
        except KeyboardInterrupt:
            message = "interrupted: the search for node rules, which may keep more work in low precision, did not end"
            return replace(report, warnings=(*report.warnings, warning("ML606", message)))
        return self._counted(replace(report, alternative=alternative))

    def _strategy(self, *, node_rules: bool) -> Strategy:
        return Strategy(self.trials, self.ranking, self.cost, node_rules=node_rules)

    def _search(self, strategy: Strategy, objective: Objective) -> _SearchResult:
        """Search, check, and search again where the check does not agree (Rule S9.8)."""
        for _ in range(SEARCHES):
            with self.timer.phase("search"):
                edits = strategy.run(objective)
            if edits is None:
                return _SearchResult(None, self.base, tuple(strategy.notes))
            check = self.final_check(edits)
            reasons = check_reasons(check, self.trials.goal)
            if not reasons:
                return _SearchResult(edits, check)
            self.trials.forget(edits, f"the check of the whole: {reasons[0]}")
        return _SearchResult(None, check, ("the final check contradicts the search", *reasons))

    def _alternative(self, edits: EditSet, objective: Objective) -> TunedList | None:
        """Return a result with node rules that keeps more work low, where the lists keep too little (Rule S9.15)."""
        share, best = self.compiler.share, None
        worthwhile = WORTHWHILE * (share(NO_EDITS) or 0.0)
        kept = share(edits) or 0.0
        for other in alternatives(objective) if kept < worthwhile else ():
            strategy = self._strategy(node_rules=True)
            found = self._search(strategy, other)
            if found.edits is not None and (share(found.edits) or 0.0) > kept:
                best, kept = (strategy, other, found), share(found.edits) or 0.0
            if kept >= worthwhile:
                break
        if best is None:
            return None
        with self.timer.phase("search"):
            return self._tuned_list(*best)

    def _tuned_list(self, strategy: Strategy, objective: Objective, found: _SearchResult) -> TunedList:
        assert found.edits is not None
        explained = explain_edits(found.edits, strategy, minimal=True)
        policy = self.compiler.base
        return TunedList(
            objective=objective,
            recommended=True,
            minimal=is_minimal(explained),
            edits=explained,
            modify_mixlist=mixlist_text(policy, found.edits),
            customize_dtypes=rules_text(policy, found.edits),
            low_share=self.compiler.share(found.edits),
            check=found.check,
        )

    def _interrupted(self, strategy: Strategy, objective: Objective) -> TuneReport:
        """Return the best list so far, which nobody has checked (Rule S9.11)."""
        best = min(self.trials.passing, key=strategy.merit, default=None)
        reason = "interrupted: the best list so far, not minimal and not checked"
        if best is None:
            reason = "interrupted before any list kept the limits"
        report = self._report(strategy, objective, _SearchResult(best, self.base, (reason,)), minimal=False)
        return replace(report, complete=False, check=None)

    def _report(
        self, strategy: Strategy, objective: Objective, found: _SearchResult, *, minimal: bool = True
    ) -> TuneReport:
        policy, share, edits = self.compiler.base, self.compiler.share, found.edits
        reasons = found.failures or ("the lists keep every limit",)
        chosen = edits or NO_EDITS
        explained = explain_edits(chosen, strategy, minimal=minimal)
        report = TuneReport(
            model=self.compiler.resolver.loaded.name,
            objective=objective,
            verdict="fail" if found.failures else "pass",
            complete=True,
            minimal=minimal and edits is not None and is_minimal(explained),
            reasons=reasons,
            edits=explained,
            modify_mixlist="" if edits is None else mixlist_text(policy, edits),
            customize_dtypes="" if edits is None else rules_text(policy, edits),
            low_share={"base": share(NO_EDITS), "tuned": share(chosen)},
            trials=0,
            remembered=0,
            check=found.check,
            warnings=(*self.base.warnings, *(warning("ML612", note) for note in strategy.notes if note not in reasons)),
            seconds=self.timer.seconds,
        )
        return self._counted(report)

    def _counted(self, report: TuneReport) -> TuneReport:
        """Return the report with all trials so far."""
        log = self.trials.log
        remembered = sum(trial.remembered for trial in log)
        entries = tuple(trial.to_json() for trial in log)
        return replace(report, trials=len(log) - remembered, remembered=remembered, log=entries)
