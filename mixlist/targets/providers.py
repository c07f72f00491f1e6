"""The execution providers of ONNX Runtime that mixlist knows, by their short names."""

from __future__ import annotations

from dataclasses import dataclass

from mixlist.option_fields import option

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, kw_only=True)
class ProviderOption:
    """The option of all commands that run models. ``provider``: one of ``PROVIDERS``."""

    provider: str = option("cpu", "What runs the models.", choices=tuple(PROVIDERS))


def available_providers() -> tuple[str, ...]:
    """The providers of the installed ONNX Runtime that mixlist knows: ``cpu``, and ``cuda`` where there is one."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return tuple(name for name, full in PROVIDERS.items() if full in available)
