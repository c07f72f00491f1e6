"""Judge a PyTorch training loop in mixed precision, with the loss scaling of each framework.

- ``run.py`` calls the loop in float32 and in mixed precision, with ``options.py`` (the options of ``train``) and
  ``loop_environment.py`` (seeds, and what would hide operators);
- ``rounding_mode.py`` rounds the operators of a running loop; ``operators.py`` finds the list of each operator;
- ``loop_scaler.py`` is the scaler that the loop gets; ``scalers.py`` has the loss scaling of each framework;
- ``gradient_underflow.py`` counts the gradients that the low type loses, ``headroom.py`` finds how near values come to
  its largest number;
- ``verdict.py`` decides whether mixed precision passes, and ``result.py`` defines the TrainReport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixlist.training.run import train as train
    from mixlist.training.scalers import make_scaler as make_scaler

# The module that defines each public name. A module is imported when its name is first used.
_MODULE_OF = {"make_scaler": "mixlist.training.scalers", "train": "mixlist.training.run"}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mixlist.training' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
