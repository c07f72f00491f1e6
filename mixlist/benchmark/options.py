"""The options of ``bench``.

To add an option to ``bench``: declare it here, as a field of ``BenchOptions``, and read it in ``benchmark/run.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.progress import ProgressCallback
from mixlist.targets.providers import ProviderOption

# The least and the largest number of rounds without ``--rounds``. With 15 simulated rounds on a loaded machine, the
# interval of 95 % holds the true ratio in 95 % of the cases, with 10 in 92 %.
DEFAULT_ROUNDS = range(15, 31)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ProviderOption):
    """The options of ``bench``.

    ``rounds``: the number of timed rounds; each has one turn of each model (``benchmark/run.py`` explains turns). None
    for 30, or for slow models as few as 15, so that a bench takes about a minute where it can. ``threads``: the threads
    within an operator; None for ONNX Runtime's own choice. ``progress``: called with a Progress after each round.
    """

    rounds: int | None = option(
        None,
        "Timed rounds; in each round, both models run one after the other.  [default: 30; of slow models fewer, at"
        " least 15]",
        "integer",
        bounds=(1, None),
    )
    threads: int | None = option(
        None, "Threads within an operator.  [default: ONNX Runtime's choice]", "integer", bounds=(1, None)
    )
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        # The command line checks this too. A caller of the Python API gets the error here.
        if self.rounds is not None and self.rounds < 1:
            raise UsageError("bench needs at least one round")

    @property
    def most_batches(self) -> int:
        """Return the number of batches that are timed at most: a round times one batch."""
        return self.rounds or DEFAULT_ROUNDS[0]
