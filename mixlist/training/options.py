"""Declare the options of ``train``.

To add an option to ``train``: declare it here, as a field of ``TrainOptions``, and read it in ``training/run.py`` or
``training/verdict.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixlist.checker.limits import DEFAULT_RATE_LIMIT
from mixlist.checker.options import OVERFLOW_MODES, OverflowMode
from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.progress import ProgressCallback
from mixlist.training.scalers import SCALERS, make_scaler

OVERFLOW_DETECTIONS = ("gradients", "any-node")
DIRECTIONS = ("higher", "lower")
# The lists of a training, unless it has a library: those of torch.autocast.
AUTOCAST_LISTS: dict[str, Any] = {"ops_info": "pytorch", "gray_policy": "promote"}
LISTS_NOTE = "lists: {ops_info}, gray policy {gray_policy}"  # the note of a report about its lists, without edits


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of ``train``. Raises UsageError for values that no training can have.

    ``scaler_parameters``: those of the loss scaler, by the names of its framework. ``progress``: is called with a
    Progress after each step.
    """

    loss_scaler: str = option(
        "torch",
        "The framework whose rule scales the loss: torch is dynamic and starts at 65536.",
        choices=tuple(SCALERS),
    )
    scaler_parameters: Mapping[str, object] | None = None
    runs: int = option(4, "The number of seeds; each is trained three times.", "integer", bounds=(1, None))
    first_seed: int = option(0, "The first seed.", "integer", bounds=(0, None))
    float32: bool = option(
        True,
        "Train in float32 too, and compare with it; --no-float32 where memory or hardware cannot.",
        "flag",
        flag="--float32/--no-float32",
    )
    metric: str | None = option(
        None, "The metric, if the function returns several.  [default: the only one]", metavar="NAME", group="limits"
    )
    better: str | None = option(
        None,
        "Whether more or less of the metric is better."
        "  [default: lower for a name with a word such as loss or mse, else higher]",
        choices=DIRECTIONS,
        group="limits",
    )
    tolerance: float = option(
        0.005, "How much worse than in float32 the metric may be.", "number", bounds=(0, None), group="limits"
    )
    max_exception_rate: float = option(
        DEFAULT_RATE_LIMIT,
        "Fail if certainly at least this share of the steps has an exception of the network's own.",
        "number",
        bounds=(0, 1),
        group="limits",
    )
    overflow_mode: OverflowMode | None = option(
        None,
        "The result of the accelerator for a value out of range: infinity, or the largest finite value."
        "  [default: saturate for the npu scalers with the library of the Ascend 910, else inf]",
        choices=OVERFLOW_MODES,
    )
    overflow_detection: str | None = option(
        None,
        "What makes a step an exception: a gradient that is not finite, or also an overflow in any operator."
        "  [default: any-node for the npu scalers and with --overflow-mode saturate, else gradients]",
        choices=OVERFLOW_DETECTIONS,
    )
    tensorboard: str | Path | None = option(
        None,
        "Write loss, scale, exceptions and headroom by step for TensorBoard into this folder.",
        "output folder",
        group="output",
    )
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        # The bounds and choices of ``option`` hold for the command line. A Python caller can pass any value.
        for value, choices, name in (
            (self.overflow_mode, (None, *OVERFLOW_MODES), "overflow mode"),
            (self.overflow_detection, (None, *OVERFLOW_DETECTIONS), "overflow detection"),
            (self.better, (None, *DIRECTIONS), "value of better"),
        ):
            if value not in choices:
                hint = f"use {' or '.join(choice for choice in choices if choice)}"
                raise UsageError(f"the {name} {value!r} is not known", hint=hint)
        if self.runs < 1:
            raise UsageError("runs must be at least 1")
        make_scaler(self.loss_scaler, **(self.scaler_parameters or {}))  # raises for wrong parameters

    def for_library(self, name: str) -> TrainOptions:
        """Return the options with the overflow mode and detection of the chip whose library has this name.

        The Atlas training series (ascend910) saturates. Atlas A2 and A3 (ascend910b, ascend910_93) and newer chips give
        infinity and NaN. With the ``npu`` scalers, an overflow in any operator makes a step an exception, as in
        Ascend's float status, and so it does where values saturate, which leaves no infinity for the gradients. That is
        a rounding that makes an infinity of a finite value, or clamps it; a mask is none: negative values that overflow
        where softmax reads them, or in a tensor without a gradient.
        """
        reads_status = SCALERS[self.loss_scaler].READS_FLOAT_STATUS
        is_910 = re.search(r"ascend910(?![a-z0-9_])", name.lower()) is not None
        mode: OverflowMode = self.overflow_mode or ("saturate" if is_910 and reads_status else "inf")
        detection = "any-node" if reads_status or mode == "saturate" else "gradients"
        return replace(self, overflow_mode=mode, overflow_detection=self.overflow_detection or detection)
