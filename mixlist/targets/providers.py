"""The execution providers of ONNX Runtime that mixlist knows, by their short names."""

from __future__ import annotations

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def providers() -> tuple[str, ...]:
    """The providers of the installed ONNX Runtime that mixlist knows: ``cpu``, and ``cuda`` where there is one."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return tuple(name for name, full in PROVIDERS.items() if full in available)
