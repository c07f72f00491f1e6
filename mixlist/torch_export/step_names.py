"""Define the names of a training-step graph's inputs, outputs and metadata, for its writer and its readers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

LOSS = "loss"  # output: the unscaled loss
LOSS_SCALE = "loss_scale"  # input: the factor of the loss before the backward pass
GRADIENT_PREFIX = "grad."  # output grad.w: the gradient of the parameter w
STATE_PREFIX = "state."  # output state.m: the value of the buffer m after the step
EVALUATION_PREFIX = "eval."  # output eval.loss: the loss of the module in the mode eval()
RANDOM_PREFIX = "random."  # input random.0: random numbers that export_step lifted out of the graph
INIT_KEY_PREFIX = "pkg.mixlist.init."  # metadata, + a parameter or buffer: the distribution of its initial value
RANDOM_KEY_PREFIX = "pkg.mixlist.random."  # metadata, + an input: the distribution of its values in each step
BATCH_AXIS = "batch"  # the name of the symbolic size of a step that has only one
MOST_SIZES = 8  # symbolic sizes of a step
DynamicAxes: TypeAlias = Mapping[str, Mapping[int, str]]  # by input: the name of the size of each symbolic axis


def is_reserved(name: str) -> bool:
    """Return whether a name has a fixed meaning in every step graph, so that no parameter or metric may have it."""
    return name in (LOSS, LOSS_SCALE) or name.startswith(
        (GRADIENT_PREFIX, STATE_PREFIX, EVALUATION_PREFIX, RANDOM_PREFIX)
    )


def initial_values_path(step_path: str | os.PathLike[str]) -> Path:
    """Return the file next to a step graph that holds the module's own values: step.init.npz of step.onnx."""
    return Path(step_path).with_suffix(".init.npz")
