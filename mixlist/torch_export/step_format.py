"""Name the inputs, outputs and metadata of a training-step graph, for those who write it and those who read it."""

from __future__ import annotations

LOSS, LOSS_SCALE = "loss", "loss_scale"
GRADIENT_PREFIX, STATE_PREFIX = "grad.", "state."  # + the input whose gradient, or whose next value, an output is
RANDOM_PREFIX = "random."  # + a number: an input that export_step makes for random numbers
INIT_KEY_PREFIX = "pkg.mixlist.init."  # + a parameter or buffer: metadata that says how to draw its first value
RANDOM_KEY_PREFIX = "pkg.mixlist.random."  # + an input: metadata that says how to draw it in each step


def is_reserved(name: str) -> bool:
    """Return whether a name has a meaning of its own in every step graph."""
    return name in (LOSS, LOSS_SCALE) or name.startswith((GRADIENT_PREFIX, STATE_PREFIX, RANDOM_PREFIX))
