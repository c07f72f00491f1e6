"""The options of ``tune``.

To add an option to ``tune``: declare it here, as a field of ``TuneOptions``, and read it in ``tuner/run.py``. What
``check`` takes too is declared in ``checker/options.py``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from mixlist.checker.accuracy import Limits
from mixlist.checker.options import CheckOptions, JudgingOptions
from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.progress import ProgressCallback

Objective = Literal["min-edits", "max-low", "max-speed"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True, kw_only=True)
class TuneOptions(JudgingOptions):
    """The options of ``tune``.

    ``objective``: ``min-edits`` changes as few op types as it can, ``max-low`` keeps as much matrix and convolution
    work low as it can, ``max-speed`` looks for the least static cost, or on CUDA the shortest time. ``node_rules``:
    single nodes may be kept in float32 too. With ``labels`` the share of right answers may fall by no more than
    ``max_accuracy_loss``, and outputs have no limits but those asked for. ``validate_on``: data of a last check that
    the search does not see; without it the last quarter of four batches or more is held out for that check
    (``holdout``). ``state``: a file that keeps the trials. ``progress`` gets a Progress after each trial.
    """

    objective: Objective = option(
        "min-edits",
        "Fewest edits, most matrix and convolution work in low precision, or least cost.",
        choices=OBJECTIVES,
    )
    node_rules: bool = False
    max_accuracy_loss: float = option(
        0.0, "By how much the share of right answers may fall, with --labels.", "number", minimum=0, maximum=1
    )
    validate_on: object = option(
        None,
        "Data that the search does not see, for a last check. Can be given more than once.",
        "input file",
        metavar="PATH",
        repeatable=True,
    )
    holdout: bool = option(
        True,
        "Whether the last quarter of four batches or more is held out for a last check, where --validate-on names no"
        " other data.  [default: held out]",
        "flag",
        flag="--holdout/--no-holdout",
    )
    state: str | os.PathLike[str] | None = option(
        None, "Keep the trials here; a search that was killed goes on.", "appended file"
    )
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective {self.objective!r}: it is one of {', '.join(OBJECTIVES)}")

    @property
    def output_limits(self) -> Limits:
        """Return the limits of the outputs: with labels only those that are given (Rule S9.3)."""
        return self.limits or default_limits(labelled=self.labels is not None)

    def of_check(self) -> CheckOptions:
        """Return the options of the checks before and after the search."""
        return CheckOptions(
            provider=self.provider,
            overflow_mode=self.overflow_mode,
            steps=self.steps,
            max_exception_rate=self.max_exception_rate,
            max_ignored=self.max_ignored,
            limits=self.output_limits,
            labels=self.labels,
            type_hints=self.type_hints,
            isolate=self.isolate,
        )


def default_limits(*, labelled: bool) -> Limits:
    """Return the limits of outputs where none are asked for."""
    return Limits(normalized=None, cosine=None) if labelled else Limits()
