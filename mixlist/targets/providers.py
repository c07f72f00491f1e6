"""The execution providers of ONNX Runtime that mixlist can use, by their short names."""

from __future__ import annotations

from dataclasses import dataclass

from mixlist.installed_runtime import require_onnxruntime
from mixlist.option_fields import option

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, kw_only=True)
class ProviderOption:
    """The option ``provider`` of all commands that run models: a key of ``PROVIDERS``."""

    provider: str = option("cpu", "The execution provider that runs the models.", choices=tuple(PROVIDERS))


def available_providers() -> tuple[str, ...]:
    """Return the short names of the providers in the installed ONNX Runtime: ``cpu``, and ``cuda`` if it has CUDA.

    Raises UsageError if ONNX Runtime is not installed.
    """
    require_onnxruntime()
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return tuple(short_name for short_name, name in PROVIDERS.items() if name in available)
