"""The options of ``convert``, ``tune`` and ``repair``.

To add an option, declare it here: as a field of ``ConvertOptions``, ``TuneOptions`` or ``RepairOptions``, or of
``SearchOptions`` if ``tune`` and ``repair`` take it. Read it in ``convert.py``, ``tune.py`` or ``repair.py``. An option
that ``check`` has too is declared in ``checker/options.py``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Literal, get_args

from mixlist.checker.limits import Limits
from mixlist.checker.options import CheckOptions, JudgingOptions
from mixlist.errors import UsageError
from mixlist.lists.policy import InterfaceOptions
from mixlist.option_fields import option
from mixlist.option_spelling import spell
from mixlist.progress import ProgressCallback
from mixlist.targets.providers import TargetName


@dataclass(frozen=True, kw_only=True)
class TrialOptions(JudgingOptions):
    """The options of a search on data. ``progress`` is called with a Progress after each trial.

    ``reference_type``: that of ``check``.
    """

    progress: ProgressCallback | None = None
    reference_type: str = "authored"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segment_bytes is not None and self.runs_whole:
            hint = f"leave out {spell('segment_bytes')}, or {spell('scheduler')}"
            raise UsageError("segments cannot run on a cluster", hint=hint)

    @property
    def runs_whole(self) -> bool:
        """Return True if workers may be on other machines, which cannot read the files of this one."""
        return self.scheduler is not None or self.executor is not None

    @property
    def output_limits(self) -> Limits:
        """Return the limits of the outputs."""
        return self.limits or Limits()

    def check_options(self) -> CheckOptions:
        """Return the options of the checks before and after the search."""
        return CheckOptions(
            provider=self.provider,
            overflow_mode=self.overflow_mode,
            max_batches=self.max_batches,
            max_exception_rate=self.max_exception_rate,
            max_ignored=self.max_ignored,
            limits=self.output_limits,
            judge=self.judge,
            judge_limits=self.judge_limits,
            type_hints=self.type_hints,
            segment_bytes=self.segment_bytes,
            reference_type=self.reference_type,
        )


LowType = Literal["float16", "bfloat16"]
LOW_TYPE_NAMES: tuple[LowType, ...] = get_args(LowType)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(TrialOptions, InterfaceOptions):
    """The options of ``convert``.

    ``low_type``: the low type of the result, None for that of the policy. ``target``: the program that runs the result:
    ``cpu``, ``cuda``, ``tensorrt``, ``webgpu``, ``dml``, or the path of a table; None for any program.
    """

    low_type: LowType | None = option(
        None,
        "The low type.  [default: float16]",
        flag="--type",
        choices=LOW_TYPE_NAMES,
    )
    target: TargetName | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low_type is not None and self.low_type not in LOW_TYPE_NAMES:
            raise UsageError(f"unknown low type {self.low_type!r}", hint="use float16 or bfloat16")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(TrialOptions):
    """The options of ``tune`` and ``repair``.

    ``validate_on``: data for a last check, which the search does not see. ``state``: a file that stores the outcomes of
    trials.
    """

    validate_on: object = option(
        None,
        "Data for a last check, which the search does not see. Can be given more than once.",
        "input file",
        metavar="PATH",
        repeatable=True,
        group="data",
    )
    state: str | os.PathLike[str] | None = option(
        None, "Store the trials in this file; a search that was stopped continues from it.", "appended file"
    )


@dataclass(frozen=True, kw_only=True)
class TuneOptions(SearchOptions):
    """The options of ``tune``.

    ``holdout``: without ``validate_on``, and with four batches or more, the last quarter of the batches is held out for
    the last check; those that fail join the search.
    """

    holdout: bool = option(
        True,
        "Keep the last quarter of the batches out of the search, for a last check, if there are at least four batches."
        " No effect with --validate-on.  [default: held out]",
        "flag",
        flag="--holdout/--no-holdout",
        group="data",
    )


@dataclass(frozen=True, kw_only=True)
class RepairOptions(SearchOptions, InterfaceOptions):
    """The options of ``repair``. All others are options of ``tune``.

    ``clip``: replace a group of raised nodes by one Clip where the outputs keep their limits with it.
    """

    clip: bool = option(
        False,
        "Replace a group of raised nodes by one Clip, at half of the largest number of the low type, where the outputs"
        " keep their limits with it.",
        "flag",
    )

    def tune_options(self) -> TuneOptions:
        """Return the options of the search for the nodes to raise.

        No batch is held out: a rare overflow may be in any batch, and a repair that did not see it is of no use.
        """
        shared = {shared_field.name: getattr(self, shared_field.name) for shared_field in fields(SearchOptions)}
        return TuneOptions(**{**shared, "reference_type": "float32"}, holdout=False)
