"""Judge a result on validation data: data that the search did not see (Rules S9.10 and S9.14).

Validation data is the data of ``--validate-on`` or, without that option, the last quarter of the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mixlist.checker.label_accuracy import Labels
from mixlist.checker.result import CheckReport
from mixlist.checker.run import run_check
from mixlist.diagnostics import Diagnostic, warning
from mixlist.lists.policy import Policy
from mixlist.model.load import LoadedModel
from mixlist.run.feeds import Batches, as_batches
from mixlist.search.options import TuneOptions
from mixlist.search.trial_verdict import TrialLimits, explain_failed_check

LEAST_BATCHES = 4  # with fewer batches none is held out
HELD_OUT_DIVISOR = 4  # one batch of every four is held out


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
