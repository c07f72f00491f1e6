"""The options of ``bench``.

To add an option to ``bench``: declare it here, as a field of ``BenchOptions``, and read it in ``benchmark/run.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.progress import ProgressCallback
from mixlist.targets.providers import ProviderOption

PROFILE_NAMES = ("original", "other")  # the two models, in the names of the profile files


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ProviderOption):
    """The options of ``bench``.

    ``rounds``: the number of timed rounds; each has one turn of each model (``benchmark/run.py`` explains turns).
    ``warmup``: the runs of each batch before the first round. ``transfers``: whether the time of copying inputs to the
    device and outputs back counts. ``threads``: the threads within an operator; None for ONNX Runtime's own choice.
    ``profiles``: a folder for ONNX Runtime's profiles. ``progress``: called with a Progress after each round.
    """

    rounds: int = option(
        30, "Timed rounds; in each round, both models run one after the other.", "integer", bounds=(1, None)
    )
    warmup: int = option(3, "Runs of each batch before the first timed round.", "integer", bounds=(1, None))
    transfers: bool = option(False, "Include the time of copying inputs to the device and outputs back.", "flag")
    threads: int | None = option(
        None, "Threads within an operator.  [default: ONNX Runtime's choice]", "integer", bounds=(1, None)
    )
    profiles: Path | None = option(
        None,
        "Save ONNX Runtime's profiles in this folder.",
        "output folder",
        flag="--profile",
        files=tuple(f"{name}.json" for name in PROFILE_NAMES),
        group="output",
    )
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        # The command line checks this too. A caller of the Python API gets the error here.
        if self.rounds < 1 or self.warmup < 1:
            raise UsageError("bench needs at least one round and one warm-up run")
