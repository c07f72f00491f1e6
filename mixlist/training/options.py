"""The options of ``train``.

To add an option to ``train``: declare it here, as a field of ``TrainOptions`` (of ``optimizers.Settings`` if it belongs
to the optimizer), and read it in ``training/run.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mixlist.checker.exception_rate import DEFAULT_RATE_LIMIT
from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.progress import ProgressCallback
from mixlist.targets.providers import ProviderOption
from mixlist.training.scalers import SCALERS

if TYPE_CHECKING:
    from mixlist.training.optimizers import Settings

EPOCHS = 10  # if neither steps nor epochs are given
Source: TypeAlias = Mapping[str, object] | str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ProviderOption):
    """The options of ``train``.

    ``eval_data``: arrays or a file as ``data``; without it the metric is taken on ``data``. Give ``steps`` or
    ``epochs``. ``init``: first values of parameters and buffers by name; others are drawn from the seed. ``runs``
    seeds from ``seed`` on, each trained twice. ``scaler``: one of ``scalers.SCALERS``, with parameters under its
    framework's own names. ``trace_overflow`` looks for the nodes that overflow first at the first bad step; ``tune``
    searches the scaler's first scale and growth. ``state``: a file; a training that was killed goes on from it to the
    same numbers. ``progress`` gets a Progress after each step.
    """

    eval_data: Source | None = option(
        None, "Samples for the metric, in the same form.  [default: those of --data]", "input file"
    )
    batch_size: int = option(32, "Samples of a batch.", "integer", minimum=1)
    steps: int | None = option(None, "Batches of each training.", "integer", minimum=1)
    epochs: int | None = option(None, f"Or its length in epochs.  [default: {EPOCHS}]", "integer", minimum=1)
    optimizer: Settings | None = None
    init: Source | None = option(
        None, "A .npz file of first values by parameter; others are drawn from the seed.", "input file"
    )
    runs: int = option(3, "Seeds; each is trained twice.", "integer", minimum=1)
    seed: int = option(0, "The first seed.", "integer", minimum=0)
    metric: str | None = option(
        None,
        "The output whose mean is judged.  [default: accuracy of the output logits against the input y, or loss]",
        metavar="OUTPUT",
    )
    scaler: str = option(
        "torch",
        "Whose rule scales the loss: torch is dynamic and starts at 65536.",
        flag="--loss-scaler",
        choices=tuple(SCALERS),
    )
    scaler_parameters: Mapping[str, object] | None = None
    advance_on_skip: bool = option(
        False, "A skipped step counts: the learning rate and Adam's correction go on, as in Keras.", "flag"
    )
    max_exception_rate: float = option(
        DEFAULT_RATE_LIMIT,
        "Share of steps with an exception from which the verdict is fail.",
        "number",
        minimum=0,
        maximum=1,
    )
    tolerance: float = option(0.005, "How much worse than in float32 the metric may be.", "number", minimum=0)
    trace_overflow: bool = option(
        False, "Find the nodes that overflow first, and the lists that keep them high.", "flag"
    )
    tune: bool = option(False, "Search the scaler's first scale and its growth.", "flag", flag="--tune-scale")
    threads: int | None = None
    state: str | os.PathLike[str] | None = option(
        None,
        "Keep the state in this file; a training that was killed goes on from it to the same numbers.",
        "output file",
        flag="--resume --state",
    )
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise UsageError("steps and epochs are two lengths", hint="give one of them")
        given = [each for each in (self.runs, self.batch_size, self.steps, self.epochs) if each is not None]
        if min(given) < 1:
            raise UsageError("runs, batch size, steps and epochs are at least 1")
