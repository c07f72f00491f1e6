"""Tune a model: base check, search, final check, explanation of each edit, validation.

No edit is searched if the given lists keep every limit, and ``tune`` fails at once if the limits break with every node
in float32: a judge with labels of another data set is wrong data, not a list that was not found.

A result is minimal: every edit was left out once, and then a limit broke. The search assumes that more edits keep more
limits, and this last test does not. The report gives the limit for each edit, and the first offender of an overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mixlist.checker.limits import describe_near_limit
from mixlist.checker.result import CheckReport, Verdict
from mixlist.checker.run import run_check
from mixlist.decide import Resolver
from mixlist.diagnostics import warning
from mixlist.errors import UsageError
from mixlist.files.list_text import ListText
from mixlist.installed_runtime import require_onnxruntime
from mixlist.lists.load import replace_mixlist
from mixlist.lists.policy import Policy, require_policy
from mixlist.model.save import INLINE_LIMIT, content_digest
from mixlist.option_fields import with_fields
from mixlist.option_spelling import spell
from mixlist.progress import PhaseTimer
from mixlist.run import executors
from mixlist.run.feeds import Data, as_batches, digest
from mixlist.run.segments import segment_bytes_if_needed, weight_bytes
from mixlist.search.candidates import Candidate, CandidateRanking
from mixlist.search.checks import (
    SearchData,
    ValidationData,
    check_base,
    check_in_float32,
    explain_failed_check,
    explain_failed_reference,
    find_evidence_gaps,
    split_batches,
    warn_not_validated,
)
from mixlist.search.edits import NO_EDITS, Edit, EditSet, ListEdit, read_tuned_policy, render_modify_mixlist
from mixlist.search.options import TrialOptions, TuneOptions
from mixlist.search.search_result import NOT_NEEDED, ExplainedEdit, SearchResult
from mixlist.search.search_state import SearchState
from mixlist.search.strategy import Strategy
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trial_verdict import TrialLimits
from mixlist.search.trials import Trial, Trials, most_workers
from mixlist.search.tune_result import LEAST_MATRIX_WORK, LITTLE_MATRIX_WORK_LOW_REASON, TunedEdit, TuneReport
from mixlist.targets.estimate import describe_uncounted
from mixlist.version import __version__
from mixlist.write.result import NOTHING_LOW

if TYPE_CHECKING:
    from mixlist.model.load import LoadedModel, Model
    from mixlist.run.session import Feed

# The copies of the weights that a search on a whole model holds in memory: of the searching process (in float32,
# rounded, in the gated graph, in the bytes that are sent) and of each worker (its sessions). Measured were 9 and 6, on
# models with 200 and 400 MB of weights; some of this memory is shared, and counted twice.
SEARCH_COPIES, WORKER_COPIES = 8, 5
MAX_JOINS = 3  # failing held-out batches join the search at most so often
MAX_SEARCHES = 5  # a search is repeated if its result fails the final check


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Arguments(TuneOptions):
        model: Model
        policy: Policy
        data: Data

else:
    _Arguments = TuneOptions


@with_fields(_Arguments)
def tune(model: Model, policy: Policy, data: Data, options: TuneOptions) -> TuneReport:
    """Find the smallest change of the policy's lists under which a model keeps the limits of ``check`` on data.

    The keyword arguments are options of ``mixlist tune --help-all``. ``data`` has the forms that ``check`` accepts.
    Ctrl-C ends the search: the report is then not ``complete``, and holds the best list so far, if there is one. Raises
    UsageError for a policy without lists and for wrong arguments, and the errors that ``check`` raises.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.tune("digits.onnx", mixlist.load_policy(ops_info="mindspore-o3"), batches)
        report.save("modify.json")
    """
    return run_tune(model, policy, data, options)


def run_tune(model: Model, policy: Policy, data: Data, options: TuneOptions) -> TuneReport:
    """Do what ``tune`` does, with the options in one object."""
    require_policy(policy)
    if policy.mode.action != "lists":
        raise UsageError(f"the precision mode {policy.mode.name} has no lists to tune", hint="use mixed_float16")
    result = run_search(Resolver(model, type_hints=options.type_hints), policy, data, options)
    modify_mixlist = "" if result.edits is None else render_modify_mixlist(policy, result.edits)
    verdict, reasons = result.verdict, result.reasons
    if verdict == "pass" and result.complete and _loses_matrix_work(result.low_share):
        verdict, reasons = "inconclusive", (LITTLE_MATRIX_WORK_LOW_REASON, *reasons[1:])  # Rule S8.39
    return TuneReport(
        model=result.model,
        verdict=verdict,
        complete=result.complete,
        minimal=result.minimal,
        reasons=reasons,
        edits=tuple(_tuned_edit(item) for item in result.explained),
        modify_mixlist=modify_mixlist,
        low_share=result.low_share,
        trials=result.trials,
        remembered=result.remembered,
        check=result.check,
        validation=result.validation,
        held_out=result.held_out,
        joined=result.joined,
        log=result.log,
        warnings=result.warnings,
        seconds=result.seconds,
        policy=replace_mixlist(policy, ListText(modify_mixlist)) if modify_mixlist else None,
    )


def _loses_matrix_work(low_share: Mapping[str, float | None]) -> bool:
    """Return whether hardly any matrix work stays low that the base lists make low (Rule S8.39)."""
    return (low_share["tuned"] or 0.0) < LEAST_MATRIX_WORK * (low_share["base"] or 0.0)


def _tuned_edit(item: ExplainedEdit) -> TunedEdit:
    assert isinstance(item.edit, ListEdit), "the policy has lists"
    return TunedEdit(item.edit.op, item.edit.before, item.why, item.nodes, item.cost, item.without)


def run_search(resolver: Resolver, policy: Policy, data: Data, options: TuneOptions) -> SearchResult:
    """Find the smallest set of edits of a policy under which a model keeps the limits.

    The edits are edits of lists or, for a policy without lists (``repair``), of nodes. Raises the errors of ``tune``.
    """
    # Prepare everything that can fail at once, before the first long phase.
    batches = as_batches(data, resolver.loaded.proto, options.max_batches)
    data_of_search = split_batches(batches, resolver.loaded, options)
    tuning = _Tuning(resolver, policy, data_of_search, options)
    result = tuning.search()
    for _ in range(MAX_JOINS):
        # Only held-out batches join: those of --validate-on are not for the search.
        if not (result.complete and result.verdict == "fail" and result.held_out and result.validation):
            break
        try:
            if not tuning.join_failing_batches(result):
                break
            later = tuning.search()
        except KeyboardInterrupt:  # in a check: the list that fails on these batches is the best so far
            return replace(result, complete=False)
        if later.edits is not None:
            result = later
            continue
        # The list that fails on these batches stays in the result, for inspection.
        reasons = (*result.reasons, *(f"with these batches in the search: {reason}" for reason in later.reasons))
        result = replace(
            result, reasons=reasons, complete=later.complete, base=later.base, joined=later.joined,
            trials=later.trials, remembered=later.remembered, log=later.log,
        )  # fmt: skip
        break
    return result


class _Tuning:
    """The searches of one call of ``tune``: one, and another one after held-out batches have joined its data.

    ``data``: the data of the next search.
    """

    def __init__(self, resolver: Resolver, policy: Policy, data: SearchData, options: TuneOptions) -> None:
        self.resolver, self.loaded, self.policy, self.data, self.options = (
            resolver, resolver.loaded, policy, data, options,
        )  # fmt: skip
        # Unlike a check, a search reads every batch again and again, so all of them stay in memory.
        self.feeds = list(data.batches)
        self.worker_arguments = options.jobs, options.scheduler, options.executor, most_workers(len(self.feeds))
        workers = executors.count_local_workers(*self.worker_arguments)
        self.segment_bytes = trial_segment_bytes(self.loaded, options, workers)
        self.limits = TrialLimits(options.output_limits, options.max_exception_rate, options.user_judge)
        self.timer = PhaseTimer()
        key = _search_key(self.loaded, policy, self.feeds, self.limits, options)
        self.search_state = SearchState(options.state, key)
        self.log: list[Trial] = []

    def search(self) -> SearchResult:
        """Search and validate."""
        data, options = self.data, self.options
        with self.timer.phase("base check"):
            base = check_base(self.loaded, self.policy, data.batches, options)
            # Trials need the float32 ranges of all batches. The base check lacks some if its mixed model did not run.
            reference = base
            if base.batches != len(self.feeds):
                reference = check_in_float32(self.loaded, self.policy, data.batches, options)
        result = replace(self._run_trials(base, reference, options), joined=data.joined)
        if result.verdict == "pass" and data.validation is None:
            result = replace(result, warnings=(*result.warnings, *warn_not_validated(data, options)))
        elif result.verdict == "pass" and data.validation is not None:
            with self.timer.phase("validation"):  # on data that the search did not see
                result = self._validate(result, data.validation)
        near_limit = describe_near_limit(result.check, result.validation)
        if near_limit and result.verdict == "pass":
            result = replace(result, reasons=(*result.reasons, near_limit))
        return result

    def join_failing_batches(self, result: SearchResult) -> bool:
        """Move the held-out batches on which a result fails to the next search; return False if none fails alone.

        ``result``: that of a search whose edits fail on the held-out batches.
        """
        validation = self.data.validation
        assert validation is not None and result.validation is not None and result.edits is not None
        with self.timer.phase("validation"):
            tuned_policy = read_tuned_policy(self.policy, result.edits)
            is_one = len(validation.batches) == 1
            each = validation.check_each(self.loaded, tuned_policy, self.options)
            self.data = self.data.join([result.validation] if is_one else [*each])
        has_joined = len(self.data.batches) > len(self.feeds)
        self.feeds = list(self.data.batches)
        return has_joined

    def _run_trials(self, base: CheckReport, reference: CheckReport, options: TuneOptions) -> SearchResult:
        """Search, while the workers run. ``reference``: a check with the float32 ranges of all batches."""
        check_options = options.check_options()

        def final_check(edits: EditSet) -> CheckReport:
            with self.timer.phase("final check"):
                tuned_policy = read_tuned_policy(self.policy, edits)
                return run_check(self.loaded, tuned_policy, self.data.batches, check_options)

        with executors.open_workers(*self.worker_arguments) as workers:
            compiler = TrialCompiler(
                self.resolver, self.policy, self.feeds, reference.tensors,
                saturate=check_options.saturate, threads=workers.threads, limits=self.limits,
                segment_bytes=self.segment_bytes, authored_reference=check_options.reference_type == "authored",
            )  # fmt: skip
            try:
                # Each trial makes some of the base lists' low nodes high. These gates serve all such trials.
                compiler.add_gates(NO_EDITS)
                ranking = CandidateRanking(base, compiler.low_type, compiler.costs)
                joined = digest(self.feeds[len(self.feeds) - len(self.data.joined) :]) if self.data.joined else ""
                trials = Trials(compiler, workers, self.search_state, options.progress, joined=joined, log=self.log)
                runner = _SearchRunner(trials, Strategy(trials, ranking), base, self.timer, final_check)
                return runner.run(find_evidence_gaps(reference, options))
            finally:
                compiler.close()

    def _validate(self, result: SearchResult, validation: ValidationData) -> SearchResult:
        """Return the result with the verdict on validation data."""
        assert result.edits is not None, "the search passed"
        tuned_policy = read_tuned_policy(self.policy, result.edits)
        result = replace(result, held_out=validation.held_out)
        try:
            check = validation.check(self.loaded, tuned_policy, self.options)
        except KeyboardInterrupt:
            reason = "interrupted: the list keeps the limits, but was not validated on other data"
            return replace(result, complete=False, verdict="fail", reasons=(reason,))
        reasons = validation.reasons(check)
        if reasons:
            verdict: Verdict = "inconclusive" if check.verdict == "inconclusive" else "fail"
            result = replace(result, verdict=verdict, reasons=reasons)
        return replace(result, validation=check)


def trial_segment_bytes(loaded: LoadedModel, options: TrialOptions, workers: int) -> int | None:
    """Return the most bytes of weights in a segment; None if trials run the model whole.

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
            hint=f"leave out {spell('scheduler')}: on this machine the trials load one segment of the model at a time",
        )
    return segment_bytes


def _search_key(
    loaded: LoadedModel, policy: Policy, feeds: Sequence[Feed], limits: TrialLimits, options: TuneOptions
) -> dict[str, str]:
    """Return everything that the outcomes of trials depend on, by name: digests and texts."""
    require_onnxruntime()
    import onnxruntime

    return {
        "model": content_digest(loaded),
        "data": digest(feeds),
        "lists": policy.digest,
        "type hints": repr(sorted((options.type_hints or {}).items())),
        "limits": f"{limits} {options.overflow_mode}",
        "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
    }


class _CheckedEdits(NamedTuple):
    """The set of edits that a search found, and its check.

    ``edits``: None if no set of edits keeps the limits. ``check``: the final check of the edits. Without edits, the
    check under the base lists, or the last final check if all of them failed. ``failures``: the reasons why the
    search failed, () if it succeeded.
    """

    edits: EditSet | None
    check: CheckReport
    failures: tuple[str, ...] = ()


class _SearchRunner:
    """Searches on one set of batches, and makes the result. ``base``: the check under the base lists."""

    def __init__(
        self,
        trials: Trials,
        strategy: Strategy,
        base: CheckReport,
        timer: PhaseTimer,
        final_check: Callable[[EditSet], CheckReport],
    ) -> None:
        self.trials, self.strategy, self.base, self.timer = trials, strategy, base, timer
        self.compiler, self.final_check = trials.compiler, final_check

    def run(self, evidence_gaps: Sequence[str]) -> SearchResult:
        """Search for the smallest set of edits.

        ``evidence_gaps``: the reasons why too little can be compared. They are facts about the reference, so no list
        can change them.
        """
        if evidence_gaps:
            failed = _CheckedEdits(None, self.base, tuple(evidence_gaps))
            return replace(self._result(failed, try_without=False), verdict="inconclusive")
        if not explain_failed_check(self.base):  # the lists pass as they are
            return self._result(_CheckedEdits(NO_EDITS, self.base))
        try:
            with self.timer.phase("search"):
                in_float32 = self.trials.try_reference()
            if in_float32.passed:
                return self._result(self._search())
            cause = explain_failed_reference(self.compiler.resolver.graph, "data or limits")
            missed = f"the limits are missed with every node in float32 too ({in_float32.why})"
            return self._result(_CheckedEdits(None, self.base, (f"{missed}: {cause}",)))
        except KeyboardInterrupt:
            return self._interrupted_result()

    def _search(self) -> _CheckedEdits:
        """Search and check the edits as written; if the check fails, try earlier sets that passed, and search again.

        A set of edits can pass its trial and fail the check, because a trial computes fewer statistics than a check.
        """
        for _ in range(MAX_SEARCHES):
            with self.timer.phase("search"):
                edits = self.strategy.run()
            if edits is None:
                subject = "no list of op types keeps" if self.strategy.has_lists else "node rules do not keep"
                return _CheckedEdits(None, self.base, (f"{subject} the limits",))
            check = self.final_check(edits)
            reasons = explain_failed_check(check)
            if not reasons:
                return _CheckedEdits(edits, check)
            # From now on trials compute all statistics, so they should agree with the check.
            self.trials.reject(edits, f"final check: {reasons[0]}")
        return _CheckedEdits(None, check, ("the final check contradicts the search", *reasons))

    def _interrupted_result(self) -> SearchResult:
        """Return the best list that passed a trial before Ctrl-C; no check has judged it."""
        best = min(self.trials.passing, key=self.strategy.preference_key, default=None)
        reason = "interrupted: the best list so far, not minimal and not checked"
        if best is None:
            reason = "interrupted before any list kept the limits"
        result = self._result(_CheckedEdits(best, self.base, (reason,)), try_without=False)
        return replace(result, complete=False, check=None)

    def _result(self, found: _CheckedEdits, *, try_without: bool = True) -> SearchResult:
        """Return the result of a search. ``try_without``: run a trial without each edit, to explain the edit."""
        low_share, edits = self.compiler.low_share, found.edits or NO_EDITS
        explained = tuple(self._explain(edit, edits, try_without=try_without) for edit in sorted(edits, key=str))
        # Of the final check, only the warning that nothing is low can be new: the base check gives the others.
        warnings = [*self.base.warnings, *(item for item in found.check.warnings if item == NOTHING_LOW)]
        if uncounted := describe_uncounted(self.compiler.costs):
            warnings.append(warning("ML618", f"the share of matrix and convolution work {uncounted}"))
        log = self.trials.log
        remembered = sum(trial.remembered for trial in log)
        is_minimal = all(item.without != NOT_NEEDED for item in explained)
        verdict: Verdict = "pass"
        reasons = found.failures or ("the lists keep every limit",)
        if found.failures:
            verdict = "fail"
        elif found.check.passes_without_low:
            verdict, reasons = found.check.verdict, found.check.reasons
        return SearchResult(
            model=self.compiler.resolver.loaded.name,
            verdict=verdict,
            complete=True,
            minimal=try_without and found.edits is not None and is_minimal,
            reasons=reasons,
            base=self.base,
            edits=found.edits,
            explained=explained,
            low_share={"base": low_share(NO_EDITS), "tuned": low_share(edits)},
            trials=len(log) - remembered,
            remembered=remembered,
            check=found.check,
            log=tuple(trial.to_json() for trial in log),
            warnings=tuple(dict.fromkeys(warnings)),
            seconds=self.timer.seconds,
        )

    def _explain(self, edit: Edit, edits: EditSet, *, try_without: bool) -> ExplainedEdit:
        """Return one of the edits with its explanation. ``try_without``: run a trial without it."""
        other_edits, without = edits - {edit}, ""
        if try_without:
            outcome = self.trials.try_edits(other_edits)
            without = NOT_NEEDED if outcome.passed else outcome.why
        why = self.strategy.ranking.explain(self.strategy.candidates.get(edit, Candidate(edit, ())))
        # One edit can make other nodes low: those that follow its node. The symmetric difference counts both.
        changed_nodes = len(self.compiler.low_nodes(edits) ^ self.compiler.low_nodes(other_edits))
        share, share_without = self.compiler.low_share(edits), self.compiler.low_share(other_edits)
        cost = share_without - share if share is not None and share_without is not None else None
        return ExplainedEdit(edit, why, changed_nodes, cost, without)
