"""The tuning of a model: base check, search, final check, and what each edit is for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from itertools import islice
from typing import Any

from mixlist.checker.accuracy import Limits
from mixlist.checker.exception_rate import DEFAULT_LIMIT
from mixlist.checker.result import CheckReport
from mixlist.checker.run import check
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
from mixlist.tuner.output_files import mixlist_text, read_back, rules_text
from mixlist.tuner.result import TuneReport
from mixlist.tuner.strategy import OBJECTIVES, Objective, Strategy
from mixlist.tuner.trial_compiler import Rig
from mixlist.tuner.trial_log import Memory
from mixlist.tuner.trial_outcome import Goal
from mixlist.tuner.trials import Trial, Trials

AGAIN = 5  # searches after a final check that did not agree


def tune(
    model: Any,
    policy: Policy,
    data: Any,
    *,
    objective: Objective = "min-edits",
    node_rules: bool = False,
    limits: Limits | None = None,
    max_exception_rate: float = DEFAULT_LIMIT,
    labels: Any = None,
    max_accuracy_loss: float = 0.0,
    overflow_mode: str = "inf",
    provider: str = "cpu",
    steps: int | None = None,
    validate_on: Any = None,
    state: Any = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    executor: Executor | None = None,
    type_hints: Mapping[str, str] | None = None,
    isolate: bool = False,
    told: Callable[[Trial], None] | None = None,
) -> TuneReport:
    """The smallest change of ``policy``'s lists under which ``model`` keeps the limits of ``check`` on ``data``.

    ``objective``: ``min-edits`` changes as few op types as it can, ``max-low`` keeps as much matrix and convolution
    work low as it can, ``max-speed`` looks for the least static cost, or on CUDA the shortest time. ``node_rules``:
    single nodes may be kept in float32 too. With ``labels`` the share of right answers may fall by no more than
    ``max_accuracy_loss``, and outputs have no limits but those asked for. ``validate_on``: data of a last check that
    the search does not see. ``state``: a file that keeps the trials, so that a search that was killed goes on.

    Trials run in ``jobs`` processes of this machine, on the Dask cluster of ``scheduler``, or through ``executor``.
    ``isolate`` as for ``check``; ``told`` is called with each trial. Ctrl-C ends the search: the report is then not
    ``complete`` and holds the best list so far, if any. Other arguments as for ``check``. Raises UsageError for a
    policy without lists and for wrong arguments, and what ``check`` raises.
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"objective {objective!r}: it is one of {', '.join(OBJECTIVES)}")
    if policy.mode.action != "lists":
        raise UsageError(f"the precision mode {policy.mode.name} has no lists to tune", hint="use mixed_float16")
    if limits is None:
        limits = Limits() if labels is None else Limits(normalized=None, cosine=None)
    clock = Clock()
    resolver = Resolver(model, type_hints=type_hints)
    batches = as_batches(data, resolver.loaded.proto)
    goal = Goal(limits, max_exception_rate, max_accuracy_loss if labels is not None else None)
    asked: dict[str, Any] = {
        "overflow_mode": overflow_mode,
        "max_exception_rate": max_exception_rate,
        "limits": limits,
        "provider": provider,
        "isolate": isolate,
        "type_hints": type_hints,
    }
    own = {"labels": labels, "steps": steps}
    feeds = list(islice(batches, steps))
    memory = Memory(state, edit_report.key(resolver.loaded, policy, feeds, labels, goal, overflow_mode, type_hints))
    with clock.phase("base check"):
        base = check(resolver.loaded, policy, batches, layerwise=True, per_tensor=True, **asked, **own)
    if not base.batches:
        raise ModelError(f"{resolver.loaded.name} cannot be tuned: {base.reasons[0]}")
    pairs = (os.cpu_count() or 1) // 2  # two threads on a run are as fast as two runs, of which one may be in vain
    with executors.open_workers(jobs, scheduler, executor, pairs) as crew:
        rig = Rig(
            resolver,
            policy,
            feeds,
            base.tensors,
            labels=labels,
            saturate=overflow_mode == "saturate",
            threads=crew.threads,
            goal=goal,
        )
        trials = Trials(rig, goal, crew, memory, told)
        try:
            search = _Search(rig, trials, base, goal, objective, node_rules, provider, clock)

            def final(choice: Choice) -> CheckReport:
                with clock.phase("final check"):
                    tuned = read_back(policy, mixlist_text(policy, choice), rules_text(policy, choice))
                    return check(resolver.loaded, tuned, batches, **asked, **own)

            report = search.run(final)
        finally:
            rig.close()
    if validate_on is None or report.verdict == "fail":
        return report
    try:
        with clock.phase("validation"):
            tuned = read_back(policy, report.modify_mixlist, report.customize_dtypes)
            held = check(resolver.loaded, tuned, as_batches(validate_on, resolver.loaded.proto), **asked)
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
        self,
        rig: Rig,
        trials: Trials,
        base: CheckReport,
        goal: Goal,
        objective: Objective,
        nodes_allowed: bool,
        provider: str,
        clock: Clock,
    ) -> None:
        self.rig, self.trials, self.base, self.goal = rig, trials, base, goal
        self.objective: Objective = objective
        self.clock = clock
        self.suspicion = Suspicion(base, rig.low)
        nothing: Choice = frozenset()
        rig.offer(nothing)
        work = matrix_work(rig.costs)
        self.strategy = Strategy(rig, trials, self.suspicion, work, nodes_allowed, Price(rig, provider))

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
