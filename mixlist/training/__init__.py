"""Train step graphs in float32 and in mixed precision, with loss scaling, and judge whether mixed precision works."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixlist.torch_export.export import export_step as export_step
    from mixlist.training.optimizers import Settings as Settings
    from mixlist.training.parameter_groups import ParameterGroup as ParameterGroup
    from mixlist.training.run import train as train
    from mixlist.training.scalers import make_scaler as make_scaler

# The module that defines each public name. A module is imported when its name is first used.
_MODULE_OF = {
    "ParameterGroup": "mixlist.training.parameter_groups",
    "Settings": "mixlist.training.optimizers",
    "export_step": "mixlist.torch_export.export",
    "make_scaler": "mixlist.training.scalers",
    "train": "mixlist.training.run",
}

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
