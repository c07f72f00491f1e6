"""The tuning of a model: base check, search, final check, and what each edit is for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from mixlist.checker.keywords import with_keywords
from mixlist.checker.result import CheckReport
from mixlist.checker.run import run_check
from mixlist.errors import ModelError, UsageError
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.runtime import executors
from mixlist.runtime.feeds import as_batches
from mixlist.runtime.phase_timer import Clock
from mixlist.tuner import edit_report
from mixlist.tuner.candidate_ranking import Suspicion, matrix_work
from mixlist.tuner.candidates import Choice
from mixlist.tuner.cost_model import Price
from mixlist.tuner.options import Objective, TuneOptions
from mixlist.tuner.output_files import mixlist_text, read_back, rules_text
from mixlist.tuner.result import TuneReport
from mixlist.tuner.strategy import Strategy
from mixlist.tuner.trial_compiler import Rig
from mixlist.tuner.trial_log import Memory
from mixlist.tuner.trial_outcome import Goal
from mixlist.tuner.trials import Trials

if TYPE_CHECKING:
    from mixlist.checker.keywords import Model
    from mixlist.graph.io import Loaded

AGAIN = 5  # searches after a final check that did not agree


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
    clock = Clock()
    resolver = Resolver(model, type_hints=options.type_hints)
    batches = as_batches(data, resolver.loaded.proto)
    checking = options.of_check()
    goal = _goal(options)
    feeds = list(islice(batches, options.steps))
    memory = Memory(options.state, edit_report.key(resolver.loaded, policy, feeds, goal, options))
    with clock.phase("base check"):
        base = run_check(resolver.loaded, policy, batches, replace(checking, layerwise=True, per_tensor=True))
    if not base.batches:
        raise ModelError(f"{resolver.loaded.name} cannot be tuned: {base.reasons[0]}")

    def final(choice: Choice) -> CheckReport:
        with clock.phase("final check"):
            tuned = read_back(policy, mixlist_text(policy, choice), rules_text(policy, choice))
            return run_check(resolver.loaded, tuned, batches, checking)

    pairs = (os.cpu_count() or 1) // 2  # two threads on a run are as fast as two runs, of which one may be in vain
    with executors.open_workers(options.jobs, options.scheduler, options.executor, pairs) as crew:
        rig = Rig(
            resolver,
            policy,
            feeds,
            base.tensors,
            labels=options.labels,
            saturate=checking.saturate,
            threads=crew.threads,
            goal=goal,
        )
        try:
            search = _Search(rig, Trials(rig, goal, crew, memory, options.told), base, goal, options, clock)
            report = search.run(final)
        finally:
            rig.close()
    if options.validate_on is None or report.verdict == "fail":
        return report
    return _validated(report, resolver.loaded, policy, options, clock)


def _goal(options: TuneOptions) -> Goal:
    """Return what a trial must keep."""
    accuracy_loss = options.max_accuracy_loss if options.labels is not None else None
    return Goal(options.output_limits, options.max_exception_rate, accuracy_loss)


def _validated(report: TuneReport, loaded: Loaded, policy: Policy, options: TuneOptions, clock: Clock) -> TuneReport:
    """Return the report with the verdict on the data of ``validate_on``, all of it, without labels."""
    checking = replace(options.of_check(), labels=None, steps=None)
    try:
        with clock.phase("validation"):
            tuned = read_back(policy, report.modify_mixlist, report.customize_dtypes)
            held = run_check(loaded, tuned, as_batches(options.validate_on, loaded.proto), checking)
    except KeyboardInterrupt:
        stopped = "interrupted: the list keeps the limits, but was not validated on other data"
        return replace(report, complete=False, verdict="fail", reasons=(stopped,))
    if held.verdict == "pass":
        return replace(report, validation=held)
    reasons = tuple(f"on the data of --validate-on: {reason}" for reason in held.reasons)
    return replace(report, validation=held, verdict="fail", reasons=reasons)


class _Search:
    """The search of one tuning, and the report that it ends in."""

    def __init__(
        self, rig: Rig, trials: Trials, base: CheckReport, goal: Goal, options: TuneOptions, clock: Clock
    ) -> None:
        self.rig, self.trials, self.base, self.goal = rig, trials, base, goal
        self.objective: Objective = options.objective
        self.clock = clock
        self.suspicion = Suspicion(base, rig.low)
        nothing: Choice = frozenset()
        rig.offer(nothing)
        work = matrix_work(rig.costs)
        self.strategy = Strategy(rig, trials, self.suspicion, work, options.node_rules, Price(rig, options.provider))

    def run(self, final: Callable[[Choice], CheckReport]) -> TuneReport:
        """Search, check, and search again where the check does not agree."""
        nothing: Choice = frozenset()
        if self.objective == "min-edits" and not edit_report.broken(self.base, self.goal):
            return self._report(nothing, self.base, minimal=True)
        try:
            with self.clock.phase("search"):
                hopeless = self.trials.reference()
            if not hopeless.passed:
                told = f"the limits are missed with every node in float32 too ({hopeless.why})"
                return self._report(None, self.base, f"{told}: data or limits are wrong")
            for _ in range(AGAIN):
                with self.clock.phase("search"):
                    choice = self.strategy.run(self.objective)
                if choice is None:
                    return self._report(None, self.base, *self.strategy.notes)
                report = final(choice)
                broken = edit_report.broken(report, self.goal)
                if not broken:
                    return self._report(choice, report, minimal=True)
                self.trials.forget(choice, f"the check of the whole: {broken[0]}")
            return self._report(None, report, "the final check contradicts the search", *broken)
        except KeyboardInterrupt:
            return self._interrupted()

    def _interrupted(self) -> TuneReport:
        best = min(self.trials.passing, key=self.strategy.merit, default=None)
        told = "interrupted: the best list so far, not minimal and not checked"
        if best is None:
            told = "interrupted before any list kept the limits"
        return replace(self._report(best, None, told), complete=False)

    def _report(
        self, choice: Choice | None, report: CheckReport | None, *reasons: str, minimal: bool = False
    ) -> TuneReport:
        policy = self.rig.base
        chosen: Choice = choice or frozenset()
        told = reasons or ("the lists keep every limit",)
        edits = edit_report.edits(chosen, self.rig, self.trials, self.strategy, self.suspicion, quick=not minimal)
        remembered = sum(t.remembered for t in self.trials.log)
        return TuneReport(
            model=self.rig.resolver.loaded.name,
            objective=self.objective,
            verdict="fail" if reasons else "pass",
            complete=True,
            minimal=minimal and all(edit.without != edit_report.SPARE for edit in edits),
            reasons=told,
            edits=edits,
            modify_mixlist="" if choice is None else mixlist_text(policy, choice),
            customize_dtypes="" if choice is None else rules_text(policy, choice),
            low_share={"base": self.rig.share(frozenset()), "tuned": self.rig.share(chosen)},
            trials=len(self.trials.log) - remembered,
            remembered=remembered,
            check=report,
            log=tuple(edit_report.logged(t) for t in self.trials.log),
            warnings=(*self.base.warnings, *(n for n in self.strategy.notes if n not in told)),
            seconds=self.clock.seconds,
        )
