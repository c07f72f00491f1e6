"""The options of ``repair``.

To add an option, declare it here as a field of ``RepairOptions``, and read it in ``repairer/run.py``. An option that
``tune`` has too is declared in ``tuner/options.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from mixlist.tuner.options import SearchOptions, TuneOptions


@dataclass(frozen=True, kw_only=True)
class RepairOptions(SearchOptions):
    """The options of ``repair``. All of them are options of ``tune``."""

    def tune_options(self) -> TuneOptions:
        """Return the options of the search for the nodes to raise.

        No batch is held out: a rare overflow may be in any batch, and a repair that did not see it is of no use.
        """
        shared = {shared_field.name: getattr(self, shared_field.name) for shared_field in fields(SearchOptions)}
        return TuneOptions(**shared, objective="min-edits", node_rules=True, holdout=False)
