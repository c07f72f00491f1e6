"""The options of ``bench``.

To add an option to ``bench``: declare it here, as a field of ``BenchOptions``, and read it in ``benchmark/run.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.progress import ProgressCallback
from mixlist.targets.providers import ProviderOption


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ProviderOption):
    """The options of ``bench``.

    ``rounds``: the number of timed rounds; each has one turn of each model (``benchmark/run.py`` explains turns).
    ``threads``: the threads within an operator; None for ONNX Runtime's own choice. ``progress``: called with a
    Progress after each round.
    """

    rounds: int = option(
        30, "Timed rounds; in each round, both models run one after the other.", "integer", bounds=(1, None)
    )
    threads: int | None = option(
        None, "Threads within an operator.  [default: ONNX Runtime's choice]", "integer", bounds=(1, None)
    )
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        # The command line checks this too. A caller of the Python API gets the error here.
        if self.rounds < 1:
            raise UsageError("bench needs at least one round")
