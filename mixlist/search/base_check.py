"""Check a model under the lists that a search starts from: whether a search is needed, and what it must know."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mixlist.checker.result import CheckReport
from mixlist.checker.run import run_check
from mixlist.errors import ModelError
from mixlist.lists.policy import NEW_MODES, Policy
from mixlist.run.feeds import Batches
from mixlist.search.trial_verdict import TrialLimits, explain_failed_check
from mixlist.search.tune_options import Objective, TuneOptions

if TYPE_CHECKING:
    from mixlist.model.load import LoadedModel


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
