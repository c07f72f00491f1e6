"""Run models in tests: on ONNX Runtime's CPU provider, and in onnx.reference, which rounds every low-precision node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx


def ort_session(model: onnx.ModelProto, *, optimize: bool = True) -> Any:
    """Return a session on the CPU provider; raise the errors of ONNX Runtime."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_ort(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, optimize: bool = False) -> list[np.ndarray]:
    """The outputs as ONNX Runtime computes them, float16 nodes mostly in float32."""
    return list(ort_session(model, optimize=optimize).run(None, dict(feeds)))


def run_reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs as onnx.reference computes them: every node in the types of the model."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def largest_difference(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> list[float]:
    """The largest absolute difference per output; shapes and types have to agree."""
    result = []
    for want, got in zip(expected, actual, strict=True):
        assert want.dtype == got.dtype, f"type {got.dtype} instead of {want.dtype}"
        assert want.shape == got.shape, f"shape {got.shape} instead of {want.shape}"
        gap = np.abs(np.asarray(want, np.float64) - np.asarray(got, np.float64))
        result.append(float(gap.max(initial=0.0)) if not np.isnan(gap).any() else float("nan"))
    return result
