"""Count the integer kernels with which ONNX Runtime's CPU provider computes a quantized model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime

# Names of integer operators without `QLinear` or `Integer` in them.
_INTEGER_OPERATORS = {"QGemm", "QAttention", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits"}


def count_integer_kernels(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """Return the number of integer operators in the optimized graph, by op type.

    ``folder`` gets the optimized model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Beyond this level come layouts of one machine's CPU, which a saved model should not have.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    op_types = (node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)
    return Counter(op for op in op_types if "QLinear" in op or "Integer" in op or op in _INTEGER_OPERATORS)
