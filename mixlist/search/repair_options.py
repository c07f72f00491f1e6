"""The options of ``repair``.

To add an option, declare it here as a field of ``RepairOptions``, and read it in ``repairer/run.py``. An option that
``tune`` has too is declared in ``tuner/options.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.search.tune_options import SearchOptions, TuneOptions


@dataclass(frozen=True, kw_only=True)
class RepairOptions(SearchOptions):
    """The options of ``repair``. All others are options of ``tune``.

    ``clip``: replace a group of raised nodes by one Clip where the outputs keep their limits with it.
    """

    clip: bool = option(
        False,
        "Replace a group of raised nodes by one Clip, at half of the largest number of the low type, where the outputs"
        " keep their limits with it.",
        "flag",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip and self.labels is not None:
            raise UsageError("a Clip is judged by the errors of the outputs", hint="leave --labels out, or --clip")

    def tune_options(self) -> TuneOptions:
        """Return the options of the search for the nodes to raise.

        No batch is held out: a rare overflow may be in any batch, and a repair that did not see it is of no use.
        """
        shared = {shared_field.name: getattr(self, shared_field.name) for shared_field in fields(SearchOptions)}
        return TuneOptions(**shared, objective="min-edits", node_rules=True, holdout=False)
