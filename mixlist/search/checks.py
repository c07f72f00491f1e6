"""Check a model before and after a search: under the given lists, in float32, and on validation data.

- The check under the lists that a search starts from says whether a search is needed. Its ranges and errors
  are what the search knows at its start.
- The check in float32 replaces it as the source of float32 ranges if its mixed model did not run on every batch.
- Validation data is data that the search did not see: the data of ``--validate-on`` or, without that option, the last
  quarter of the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mixlist.checker.limits import missing_evidence
from mixlist.checker.result import CheckReport
from mixlist.checker.run import run_check
from mixlist.checker.user_judge import find_missing_evidence
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError
from mixlist.lists.policy import NEW_MODES, Policy
from mixlist.model.graph import Graph
from mixlist.model.load import LoadedModel
from mixlist.model.naming import node_ref
from mixlist.model.value_origins import is_random
from mixlist.option_spelling import spell
from mixlist.run.feeds import Batches, as_batches
from mixlist.search.options import TrialOptions, TuneOptions

LEAST_BATCHES = 4  # with fewer batches none is held out
HELD_OUT_DIVISOR = 4  # one batch of every four is held out


def check_base(loaded: LoadedModel, policy: Policy, batches: Batches, options: TuneOptions) -> CheckReport:
    """Return the check under the base lists. Its nodes are ranked by layerwise errors if a search follows."""
    # The statistics of trials follow from the ranges of all tensors.
    check_options = replace(options.check_options(), layerwise=True, per_tensor=True)
    return run_check(
        loaded,
        policy,
        batches,
        check_options,
        rank_if=lambda report: bool(explain_failed_check(report)) and not find_evidence_gaps(report, options),
    )


def check_in_float32(loaded: LoadedModel, policy: Policy, batches: Batches, options: TrialOptions) -> CheckReport:
    """Return a check of the model against itself, with every node in float32.

    It replaces the base check as the source of float32 ranges. Raises ModelError if the model does not run in float32
    either.
    """
    # This mode makes every node float32 (Rule S3.6), and no rule may make one low again.
    float32_policy = replace(policy, mode=NEW_MODES["cube_fp16in_fp32out"], rules=())
    report = run_check(loaded, float32_policy, batches, replace(options.check_options(), per_tensor=True))
    if not report.batches:
        raise ModelError(f"{loaded.name} cannot be tuned: {report.reasons[0]}")
    return report


def find_evidence_gaps(report: CheckReport, options: TrialOptions) -> tuple[str, ...]:
    """Return why too little can be compared: facts about the reference and the data, which no search can change."""
    return (
        *missing_evidence(report.outputs, options.max_ignored),
        *find_missing_evidence(options.user_judge, report.judge),
    )


def explain_failed_check(report: CheckReport) -> tuple[str, ...]:
    """Return why a check does not keep the limits; () if it does, also if it does so because nothing is low."""
    return () if report.verdict == "pass" or report.passes_without_low else report.reasons


def explain_failed_reference(graph: Graph, wrong: str) -> str:
    """Return why a trial fails that computes every node in float32: random nodes, or else that ``wrong`` is wrong."""
    node = next(filter(is_random, graph.nodes), None)
    if node is None:
        return f"{wrong} are wrong"
    draws = "draws other numbers in each run, with a seed too"
    return f"{node_ref(node)} ({node.op_type}) {draws}; make its output an input of the model"


# --- validation data ---


@dataclass(frozen=True)
class ValidationData:
    """The validation data of one search.

    ``held_out``: the names of the batches that were taken from the data of the search, () with ``--validate-on``.
    """

    batches: Batches
    held_out: tuple[str, ...] = ()

    def check(self, loaded: LoadedModel, tuned_policy: Policy, options: TrialOptions) -> CheckReport:
        """Check a result on all of the validation data; ``--max-batches`` limits only the data of the search."""
        check_options = replace(options.check_options(), max_batches=None)
        return run_check(loaded, tuned_policy, self.batches, check_options)

    def check_each(self, loaded: LoadedModel, tuned_policy: Policy, options: TrialOptions) -> Iterator[CheckReport]:
        """Yield a check of a result on each batch alone."""
        for index in range(len(self.batches)):
            yield ValidationData(self.batches.select([index])).check(loaded, tuned_policy, options)

    def reasons(self, report: CheckReport) -> tuple[str, ...]:
        """Return why the check of a result fails on this data; () if it passes."""
        data = "the batches that were held out" if self.held_out else f"the data of {spell('validate_on')}"
        return tuple(f"on {data}: {reason}" for reason in explain_failed_check(report))


@dataclass(frozen=True)
class SearchData:
    """The data of one search.

    ``joined``: the names of the batches that were held out of an earlier search and failed. They are the last ones of
    ``batches``.
    """

    batches: Batches
    validation: ValidationData | None
    joined: tuple[str, ...] = ()

    def join(self, checks: Sequence[CheckReport]) -> SearchData:
        """Return the data of the next search: the held-out batches that fail alone join the search.

        The rest of them validates its result. If no batch is left, a warning says so.

        ``checks``: those of ``ValidationData.check_each``.
        """
        validation = self.validation
        assert validation is not None, "a held-out batch failed"
        failing, rest = list[int](), list[int]()
        for index, check in enumerate(checks):
            (failing if check.verdict == "fail" else rest).append(index)
        names, held_out = validation.batches.names(), validation.batches.select(rest)
        return SearchData(
            self.batches + validation.batches.select(failing),
            ValidationData(held_out, held_out.names()) if rest else None,
            (*self.joined, *(names[index] for index in failing)),
        )


def split_batches(batches: Batches, loaded: LoadedModel, options: TuneOptions) -> SearchData:
    """Return the batches of the search, and the validation data: None if there is none."""
    count = min(len(batches), options.max_batches or len(batches))
    if options.validate_on is not None:
        validation = ValidationData(as_batches(options.validate_on, loaded.proto))
        return SearchData(batches.select(range(count)), validation)
    if not options.holdout:
        return SearchData(batches.select(range(count)), None)
    return hold_out_batches(batches, count)


def hold_out_batches(batches: Batches, count: int) -> SearchData:
    """Return the first ``count`` batches as data of a search, the last quarter of them held out.

    With less than ``LEAST_BATCHES`` batches, none is held out.
    """
    held_out_count = count // HELD_OUT_DIVISOR if count >= LEAST_BATCHES else 0
    search_batches = batches.select(range(count - held_out_count))
    held_out = batches.select(range(count - held_out_count, count))
    return SearchData(search_batches, ValidationData(held_out, held_out.names()) if held_out_count else None)


def warn_not_validated(data: SearchData, options: TuneOptions) -> tuple[Diagnostic, ...]:
    """Return a warning if no batch was left to validate the result; () if the user turned holding out off."""
    if not options.holdout or data.validation is not None:
        return ()
    count = "is 1 batch" if len(data.batches) == 1 else f"are {len(data.batches)} batches"
    reason = f"there {count}, and a quarter is held out only of {LEAST_BATCHES} batches or more"
    if data.joined:
        reason = "every batch that was held out failed, and joined the search"
    message = f"the list was not validated: {reason}"
    return (warning("ML611", message, hint=f"give more data, or other data with {spell('validate_on')}"),)
