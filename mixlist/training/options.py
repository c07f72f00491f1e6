"""Declare the options of ``train``.

To add an option to ``train``: declare it here, as a field of ``TrainOptions`` (of ``optimizers.Settings`` if it belongs
to the optimizer), and read it in ``training/job.py`` or ``training/run.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mixlist.checker.exception_rate import DEFAULT_RATE_LIMIT
from mixlist.checker.options import OverflowModeOption
from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.progress import ProgressCallback
from mixlist.training.scalers import SCALERS

if TYPE_CHECKING:
    from mixlist.training.optimizers import Settings

DEFAULT_EPOCHS = 10  # the length of a training if neither steps nor epochs are given
OVERFLOW_DETECTIONS = ("gradients", "any-node")
DRAWN = "drawn"  # the value of ``init`` for initial values that each seed draws anew
ArraySource: TypeAlias = Mapping[str, object] | str | os.PathLike[str]  # arrays by name, or the path of a .npz file
DataSource: TypeAlias = ArraySource | Iterable[Mapping[str, object]]  # or whole batches, each with arrays by name


@dataclass(frozen=True, kw_only=True)
class TrainOptions(OverflowModeOption):
    """The options of ``train``. Raises UsageError for values that no training can have.

    - ``eval_data``: samples for the metric, in the same form as ``data``. Without it, the metric uses ``data``.
    - ``steps`` or ``epochs``: the length of each training; give at most one.
    - ``init``: initial values of parameters and buffers by name; the others are drawn from the seed. "drawn" draws all
      that the module can draw. Without it, every seed starts from the values next to the step graph, if there are any.
    - ``runs``, ``seed``: the number of seeds, and the first one. Each seed is trained three times: in float32, as its
      twin, and mixed.
    - ``planned_steps``: the length of the training that is planned. Its rate of exceptions is projected and judged.
    - ``scaler``: a key of ``scalers.SCALERS``. ``scaler_parameters``: its parameters, by the names of its framework.
    - ``overflow_detection``: what makes a step an exception, one of OVERFLOW_DETECTIONS; None for the default.
    - ``trace_overflow``: take the earliest step with an exception, and find the nodes in it that overflow first.
    - ``tune``: search the initial scale of the scaler and its growth interval.
    - ``state``: the path of a state file. A training that was killed continues from it with the same numbers.
    - ``threads``: the threads of each session; None for the default of ONNX Runtime. Python callers only.
    - ``progress``: is called with a Progress after each step.
    """

    eval_data: DataSource | None = option(
        None, "Samples for the metric, in the same form.  [default: those of --data]", "input file"
    )
    batch_size: int = option(32, "The number of samples in a batch.", "integer", minimum=1)
    steps: int | None = option(None, "The length of each training in batches.", "integer", minimum=1)
    epochs: int | None = option(
        None, f"The length of each training in epochs.  [default: {DEFAULT_EPOCHS}]", "integer", minimum=1
    )
    optimizer: Settings | None = None
    init: ArraySource | None = option(
        None,
        "A .npz file of initial values by parameter; others are drawn from the seed. drawn: draw all."
        "  [default: MODEL.init.npz next to the model, else drawn]",
        "input file",
    )
    runs: int = option(3, "The number of seeds; each is trained three times.", "integer", minimum=1)
    seed: int = option(0, "The first seed.", "integer", minimum=0)
    metric: str | None = option(
        None,
        "The output whose mean is the metric.  [default: accuracy of the output logits against the input y, or loss]",
        metavar="OUTPUT",
    )
    scaler: str = option(
        "torch",
        "The framework whose rule scales the loss: torch is dynamic and starts at 65536.",
        flag="--loss-scaler",
        choices=tuple(SCALERS),
    )
    scaler_parameters: Mapping[str, object] | None = None
    advance_on_skip: bool = option(
        False, "Count a skipped step for the learning rate and Adam's bias correction, as Keras does.", "flag"
    )
    overflow_detection: str | None = option(
        None,
        "What makes a step an exception: a gradient that is not finite, or also an overflow in any node."
        "  [default: any-node for the npu scalers and with --overflow-mode saturate, else gradients]",
        choices=OVERFLOW_DETECTIONS,
    )
    max_exception_rate: float = option(
        DEFAULT_RATE_LIMIT,
        "Fail if more than this share of the steps after the start-up has an exception.",
        "number",
        minimum=0,
        maximum=1,
    )
    planned_steps: int | None = option(
        None, "Also judge the rate of exceptions in a training of this length, start-up included.", "integer", minimum=1
    )
    tolerance: float = option(0.005, "How much worse than in float32 the metric may be.", "number", minimum=0)
    trace_overflow: bool = option(False, "Find the nodes that overflow first, and lists that keep them high.", "flag")
    tune: bool = option(
        False, "Search the scaler's initial scale and its growth interval.", "flag", flag="--tune-scale"
    )
    threads: int | None = None
    state: str | os.PathLike[str] | None = option(
        None,
        "Keep the state in this file; a training that was killed continues from it with the same numbers.",
        "output file",
        flag="--resume --state",
    )
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        self.check_overflow_mode()
        if self.overflow_detection not in (None, *OVERFLOW_DETECTIONS):
            raise UsageError(
                f"overflow detection {self.overflow_detection!r} is not known", hint="use gradients or any-node"
            )
        if self.steps is not None and self.epochs is not None:
            raise UsageError("steps and epochs both give the length of a training", hint="give one of them")
        if self.tune and self.scaler in SCALERS and not SCALERS[self.scaler].INITIAL_SCALE_PARAMETER:
            raise UsageError(
                f"there is nothing to search: the loss scaler {self.scaler} has no scale", hint="leave out --tune-scale"
            )
        # The bounds of ``option`` hold for the command line. A Python caller can pass any number.
        counts = [count for count in (self.runs, self.batch_size, self.steps, self.epochs) if count is not None]
        if min(counts) < 1:
            raise UsageError("runs, batch size, steps and epochs must be at least 1")

    @property
    def emulated(self) -> bool:
        """Return True if the mixed step is emulated in float32. No GPU saturates (Rule S8.2)."""
        return self.provider == "cpu" or self.saturate

    @property
    def examines_every_node(self) -> bool:
        """Return True if an overflow in any node makes a step an exception (Rule S10.25)."""
        if self.overflow_detection is not None:
            return self.overflow_detection == "any-node"
        # A clamped value leaves no infinity that could reach the gradients.
        return self.saturate or (self.scaler in SCALERS and SCALERS[self.scaler].READS_FLOAT_STATUS)
