"""Check a model before and after a search: under the given lists, in float32, and on validation data.

- The check under the lists that a search starts from says whether a search is needed (Rule S9.4). Its ranges and errors
  are what the search knows at its start.
- The check in float32 replaces it as the source of float32 ranges if its mixed model did not run on every batch.
- Validation data is data that the search did not see: the data of ``--validate-on`` or, without that option, the last
  quarter of the batches (Rules S9.10 and S9.14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mixlist.checker.label_accuracy import Labels
from mixlist.checker.result import CheckReport
from mixlist.checker.run import run_check
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError
from mixlist.lists.policy import NEW_MODES, Policy
from mixlist.model.load import LoadedModel
from mixlist.run.feeds import Batches, as_batches
from mixlist.search.options import Objective, TuneOptions
from mixlist.search.trial_verdict import TrialLimits

LEAST_BATCHES = 4  # with fewer batches none is held out
HELD_OUT_DIVISOR = 4  # one batch of every four is held out


def check_base(
    loaded: LoadedModel, policy: Policy, batches: Batches, limits: TrialLimits, options: TuneOptions
) -> CheckReport:
    """Return the check under the base lists. Its nodes are ranked by layerwise errors if a search follows."""
    # The statistics of trials follow from the ranges of all tensors.
    check_options = replace(options.check_options(), layerwise=True, per_tensor=True)
    return run_check(
        loaded, policy, batches, check_options, rank_if=lambda report: needs_search(report, limits, options.objective)
    )


def needs_search(base: CheckReport, limits: TrialLimits, objective: Objective) -> bool:
    """Return False if the given lists pass as they are, and no other lists can be better (Rule S9.4)."""
    return objective != "min-edits" or bool(explain_failed_check(base, limits))


def check_in_float32(loaded: LoadedModel, policy: Policy, batches: Batches, options: TuneOptions) -> CheckReport:
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


def explain_failed_check(report: CheckReport, limits: TrialLimits) -> tuple[str, ...]:
    """Return why a check does not keep the limits; () if it does.

    A check reports the task accuracy and has no limit for it. So that limit is applied here.
    """
    reasons = () if report.verdict == "pass" else report.reasons
    if report.task is None:
        return reasons
    labels = report.task.count
    # The report has shares. Their products with the number of labels are whole numbers, except for rounding errors.
    right_before, right_after = (round(share * labels) for share in (report.task.reference, report.task.mixed))
    reason = limits.describe_accuracy_loss(right_before, right_after, labels)
    return (*reasons, reason) if reason else reasons


# --- validation data ---


@dataclass(frozen=True)
class ValidationData:
    """The validation data of one ``tune``.

    ``held_out``: the names of the batches that were taken from the data of the search, () with ``--validate-on``.
    ``labels``: the labels of the validation data, None if there are none.
    """

    batches: Batches
    held_out: tuple[str, ...] = ()
    labels: Labels | None = None

    def check(self, loaded: LoadedModel, tuned_policy: Policy, options: TuneOptions) -> CheckReport:
        """Check a result on all of the validation data; ``--steps`` limits only the data of the search."""
        check_options = replace(options.check_options(), labels=self.labels, steps=None)
        return run_check(loaded, tuned_policy, self.batches, check_options)

    def reasons(self, report: CheckReport, limits: TrialLimits) -> tuple[str, ...]:
        """Return why the check of a result fails on this data; () if it passes."""
        data = "the batches that were held out" if self.held_out else "the data of --validate-on"
        return tuple(f"on {data}: {reason}" for reason in explain_failed_check(report, limits))


def split_batches(batches: Batches, loaded: LoadedModel, options: TuneOptions) -> tuple[Batches, ValidationData | None]:
    """Return the batches of the search, and the validation data: None if there is none."""
    count = min(len(batches), options.steps or len(batches))
    if options.validate_on is not None:
        return batches.select(range(count)), ValidationData(as_batches(options.validate_on, loaded.proto))
    held_out_count = count // HELD_OUT_DIVISOR if count >= LEAST_BATCHES and options.holdout else 0
    search_batches = batches.select(range(count - held_out_count))
    held_out = batches.select(range(count - held_out_count, count))
    return search_batches, ValidationData(held_out, held_out.names()) if held_out_count else None


def warn_not_validated(search_batches: Sequence[object], options: TuneOptions) -> tuple[Diagnostic, ...]:
    """Return a warning if there are too few batches to hold one out; () if the user turned holding out off."""
    if not options.holdout or options.validate_on is not None or len(search_batches) >= LEAST_BATCHES:
        return ()
    count = "is 1 batch" if len(search_batches) == 1 else f"are {len(search_batches)} batches"
    message = (
        f"the list was not validated: there {count}, and a quarter is held out only of {LEAST_BATCHES} batches or more"
    )
    return (warning("ML611", message, hint="give more data, or other data with --validate-on"),)
