"""Tune a model: base check, search, final check, and what each edit is for (Rules S9.1 to S9.14)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mixlist.checker.evidence import missing_evidence
from mixlist.checker.keywords import with_keywords
from mixlist.checker.label_accuracy import unused_labels_note
from mixlist.checker.result import CheckReport, Verdict
from mixlist.checker.run import run_check
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
from mixlist.tuner.edit_report import NOT_NEEDED, explain_edits
from mixlist.tuner.options import Objective, TuneOptions
from mixlist.tuner.output_files import mixlist_text, read_back, rules_text
from mixlist.tuner.result import TuneReport
from mixlist.tuner.strategy import NO_EDITS, Strategy
from mixlist.tuner.trial_compiler import TrialCompiler
from mixlist.tuner.trial_log import TrialLog
from mixlist.tuner.trial_verdict import Goal, check_reasons
from mixlist.tuner.trials import Trials
from mixlist.tuner.validation import Validation, describe_missing, split_batches
from mixlist.version import __version__

if TYPE_CHECKING:
    from mixlist.checker.keywords import Model
    from mixlist.graph.io import Loaded
    from mixlist.runtime.session import Feed

SEARCHES = 5  # each but the first after a final check that did not agree


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
        unused = unused_labels_note(exact.task.used, len(options.labels))
        base = replace(base, warnings=tuple(warning for warning in base.warnings if warning not in unused))
        validation = replace(validation, labels=options.labels[exact.task.used :])

    def final_check(edits: EditSet) -> CheckReport:
        with timer.phase("final check"):
            tuned = read_back(policy, mixlist_text(policy, edits), rules_text(policy, edits))
            return run_check(loaded, tuned, batches, check_options)

    pairs = (os.cpu_count() or 1) // 2  # two threads on a run are as fast as two runs, of which one may be in vain
    with executors.open_workers(options.jobs, options.scheduler, options.executor, pairs) as workers:
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
            trials = Trials(compiler, goal, workers, trial_log, options.told)
            cost = CostModel(compiler, options.provider)
            strategy = Strategy(trials, ranking, cost, node_rules=options.node_rules)
            report = _Search(strategy, base, options.objective, timer).run(final_check)
        finally:
            compiler.close()
    if report.verdict != "pass":
        return report
    if validation is None:
        return replace(report, warnings=(*report.warnings, *describe_missing(feeds, options)))
    with timer.phase("validation"):
        return _validated(report, validation, loaded, policy, options, goal)


def _check_in_float32(loaded: Loaded, policy: Policy, batches: Batches, options: TuneOptions) -> CheckReport:
    """Return a check of the original against itself, where the mixed model did not run on all batches.

    Raises ModelError if the model does not run in float32 either.
    """
    high = replace(policy, mode=V2["cube_fp16in_fp32out"], rules=())
    report = run_check(loaded, high, batches, replace(options.of_check(), per_tensor=True))
    if not report.batches:
        raise ModelError(f"{loaded.name} cannot be tuned: {report.reasons[0]}")
    return report


def _search_key(
    loaded: Loaded, policy: Policy, feeds: Sequence[Feed], goal: Goal, options: TuneOptions
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
    report: TuneReport, validation: Validation, loaded: Loaded, policy: Policy, options: TuneOptions, goal: Goal
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
    return replace(report, validation=checked)


class _Search:
    """The search of one tuning, and the report that it ends in."""

    def __init__(self, strategy: Strategy, base: CheckReport, objective: Objective, timer: PhaseTimer) -> None:
        self.strategy, self.base, self.objective, self.timer = strategy, base, objective, timer
        self.compiler, self.trials = strategy.compiler, strategy.trials

    def run(self, final_check: Callable[[EditSet], CheckReport]) -> TuneReport:
        """Search, check, and search again where the check does not agree (Rules S9.8 and S9.12)."""
        goal = self.trials.goal
        gaps = missing_evidence(self.base.outputs, self.base.limits["max_ignored"])
        if gaps:  # they are the reference's, so that no list changes them
            return replace(self._report(None, self.base, *gaps), verdict="inconclusive")
        if self.objective == "min-edits" and not check_reasons(self.base, goal):
            return self._report(NO_EDITS, self.base, minimal=True)
        try:
            with self.timer.phase("search"):
                reference = self.trials.reference()
            if not reference.passed:
                missed = f"the limits are missed with every node in float32 too ({reference.why})"
                return self._report(None, self.base, f"{missed}: data or limits are wrong")
            for _ in range(SEARCHES):
                with self.timer.phase("search"):
                    edits = self.strategy.run(self.objective)
                if edits is None:
                    return self._report(None, self.base, *self.strategy.notes)
                report = final_check(edits)
                reasons = check_reasons(report, goal)
                if not reasons:
                    return self._report(edits, report, minimal=True)
                self.trials.forget(edits, f"the check of the whole: {reasons[0]}")
            return self._report(None, report, "the final check contradicts the search", *reasons)
        except KeyboardInterrupt:
            best = min(self.trials.passing, key=self.strategy.merit, default=None)
            reason = "interrupted: the best list so far, not minimal and not checked"
            if best is None:
                reason = "interrupted before any list kept the limits"
            return replace(self._report(best, None, reason), complete=False)

    def _report(
        self, edits: EditSet | None, report: CheckReport | None, *failures: str, minimal: bool = False
    ) -> TuneReport:
        policy, share = self.compiler.base, self.compiler.share
        reasons = failures or ("the lists keep every limit",)
        chosen = edits or NO_EDITS
        explained = explain_edits(chosen, self.strategy, minimal=minimal)
        remembered = sum(trial.remembered for trial in self.trials.log)
        return TuneReport(
            model=self.compiler.resolver.loaded.name,
            objective=self.objective,
            verdict="fail" if failures else "pass",
            complete=True,
            minimal=minimal and all(edit.without != NOT_NEEDED for edit in explained),
            reasons=reasons,
            edits=explained,
            modify_mixlist="" if edits is None else mixlist_text(policy, edits),
            customize_dtypes="" if edits is None else rules_text(policy, edits),
            low_share={"base": share(NO_EDITS), "tuned": share(chosen)},
            trials=len(self.trials.log) - remembered,
            remembered=remembered,
            check=report,
            log=tuple(trial.to_json() for trial in self.trials.log),
            warnings=(*self.base.warnings, *(note for note in self.strategy.notes if note not in reasons)),
            seconds=self.timer.seconds,
        )
