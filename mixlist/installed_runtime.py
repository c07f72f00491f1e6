"""Decide whether the packages of an extra are installed: ONNX Runtime; PyTorch, scipy and TensorBoard for training."""

from __future__ import annotations

from importlib.util import find_spec

from mixlist.errors import UsageError


def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed; do not import it, because the import takes a fifth of a second."""
    spec = find_spec("onnxruntime")
    # Removing a package can leave its empty folder behind, which Python takes for a package without a file.
    return spec is not None and spec.origin is not None


def require_onnxruntime() -> None:
    """Raise UsageError with the command that installs ONNX Runtime if it is missing.

    mixlist does not depend on ONNX Runtime: the packages onnxruntime and onnxruntime-gpu write the same files, so a
    dependency on one would destroy the other (docs/installation.md).
    """
    if not has_onnxruntime():
        raise UsageError(
            "ONNX Runtime is not installed, and mixlist needs it to run a model",
            hint="pip install onnxruntime, or onnxruntime-gpu for a GPU of NVIDIA",
        )


def require_scipy() -> None:
    """Raise UsageError with the command that installs scipy if it is missing: its quantiles judge a training."""
    if find_spec("scipy") is None:
        raise UsageError("scipy is not installed, and mixlist needs it to judge a training", hint="pip install scipy")


def require_torch() -> None:
    """Raise UsageError with the command that installs PyTorch if it is missing: ``train`` judges a PyTorch loop."""
    if find_spec("torch") is None:
        raise UsageError("PyTorch is not installed, and mixlist needs it to train", hint="pip install torch scipy")


def require_tensorboard() -> None:
    """Raise UsageError with the command that installs TensorBoard if it is missing: PyTorch needs it for its files."""
    if find_spec("tensorboard") is None:
        raise UsageError(
            "TensorBoard is not installed, and PyTorch needs it for its files", hint="pip install tensorboard"
        )
