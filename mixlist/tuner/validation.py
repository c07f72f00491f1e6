"""Judge a result on data that the search did not see (Rules S9.10 and S9.14).

The data is that of ``--validate-on`` or, without it, the last quarter of the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mixlist.checker.label_accuracy import Labels
from mixlist.checker.result import CheckReport
from mixlist.checker.run import run_check
from mixlist.diagnostics import Diagnostic, warning
from mixlist.graph.load import LoadedModel
from mixlist.lists.policy import Policy
from mixlist.runtime.feeds import Batches, as_batches
from mixlist.tuner.options import TuneOptions
from mixlist.tuner.trial_verdict import Goal, check_reasons

LEAST = 4  # batches from which some are held out
PART = 4  # one batch in so many is held out


@dataclass(frozen=True)
class Validation:
    """The data of the last check.

    ``held_out``: the names of the batches that were taken from the search's, () where the data was given. ``labels``:
    those of the data, None for none.
    """

    batches: Batches
    held_out: tuple[str, ...] = ()
    labels: Labels | None = None

    def check(self, loaded: LoadedModel, tuned: Policy, options: TuneOptions) -> CheckReport:
        """Check a result on all of the data."""
        return run_check(loaded, tuned, self.batches, replace(options.of_check(), labels=self.labels, steps=None))

    def reasons(self, report: CheckReport, goal: Goal) -> tuple[str, ...]:
        """Return why the check of a result fails, () where it passes."""
        where = "the batches that were held out" if self.held_out else "the data of --validate-on"
        return tuple(f"on {where}: {reason}" for reason in check_reasons(report, goal))


def split_batches(batches: Batches, loaded: LoadedModel, options: TuneOptions) -> tuple[Batches, Validation | None]:
    """Return the batches of the search, and the data of the validation: None where there is none."""
    count = min(len(batches), options.steps or len(batches))
    kept = count // PART if count >= LEAST and options.holdout else 0
    if options.validate_on is not None:
        return batches.select(range(count)), Validation(as_batches(options.validate_on, loaded.proto))
    search = batches.select(range(count - kept))
    held_out = batches.select(range(count - kept, count))
    return search, Validation(held_out, held_out.names()) if kept else None


def warn_not_validated(search: Sequence[object], options: TuneOptions) -> tuple[Diagnostic, ...]:
    """Return the warning that nothing was held out because there are too few batches; () where that was asked for."""
    if not options.holdout or options.validate_on is not None or len(search) >= LEAST:
        return ()
    count = "is 1" if len(search) == 1 else f"are {len(search)}"
    message = f"the list was not validated: there {count}, and a quarter of the batches is held out from {LEAST} on"
    return (warning("ML611", message, hint="give more data, or other data with --validate-on"),)
