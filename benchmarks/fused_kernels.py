#!/usr/bin/env python3
"""Count the fused kernels of a model after ONNX Runtime's two optimizers.

    python benchmarks/fused_kernels.py MODEL.onnx [TYPE]

Fusions look for patterns of nodes, and a Cast inside a pattern hides it. So the number of fused kernels shows whether a
mixed model can still be optimized. Prints one JSON object for each optimizer, each as soon as it is known, because ONNX
Runtime's CPU provider crashes on some float16 models:

- ``transformers``: ``onnxruntime.transformers.optimizer`` in Python with its fusions for the model type TYPE, without
  those of ONNX Runtime. Left out without a TYPE.
- ``extended``: ONNX Runtime's CPU provider with its extended optimizations. It computes most float16 nodes in float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FUSED = (
    "Attention",
    "BiasGelu",
    "EmbedLayerNormalization",
    "FastGelu",
    "Gelu",
    "GroupNorm",
    "GroupQueryAttention",
    "LayerNormalization",
    "MultiHeadAttention",
    "QuickGelu",
    "RotaryEmbedding",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
# The type of ONNX Runtime's optimizer for each model that has one, by the model's name. The types of gpt2 and t5 fail:
# the former on a Gemm without a bias, the latter on a float16 table of positions. "bert" has most of their fusions.
MODEL_TYPES = {
    "bert": "bert",
    "clip": "clip",
    "deberta": "bert",
    "gpt2": "bert",
    "llama": "gpt2",  # as ONNX Runtime's own script for these networks has it
    "llama_cache": "gpt2",
    "llama_genai": "gpt2",
    "mpnet": "bert",
    "paraphrase_minilm_l3": "bert",
    "rxnmap": "bert",
    "swin": "swin",
    "t5": "bert",
    "trocr_decoder": "bart",
    "unet": "unet",
    "vae_decoder": "vae",
    "vit": "vit",
    "wav2vec2": "bert",
    "whisper": "bart",
    "whisper_decoder": "bart",
}


def count_fused(nodes: Iterable[Any]) -> dict[str, Any]:
    """Return the number of nodes, and that of each fused kernel."""
    counts = Counter(node.op_type for node in nodes)
    return {
        "nodes": counts.total() - counts["Constant"],
        "casts": counts["Cast"],
        "fused": {op_type: counts[op_type] for op_type in FUSED if counts[op_type]},
    }


def optimize_in_python(path: str, model_type: str) -> dict[str, Any]:
    """Return the figures after the optimizer in Python."""
    from onnxruntime.transformers.optimizer import optimize_model

    return count_fused(optimize_model(path, model_type=model_type, num_heads=0, hidden_size=0, opt_level=0).nodes())


def optimize_in_session(path: str) -> dict[str, Any]:
    """Return the figures after the extended optimizations of ONNX Runtime's CPU provider."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return count_fused(onnx.load(options.optimized_model_filepath, load_external_data=False).graph.node)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        try:
            print(json.dumps({"transformers": optimize_in_python(*sys.argv[1:3])}), flush=True)
        except Exception as error:  # the optimizer fails on graphs that it does not expect
            print(f"transformers: {error}", file=sys.stderr)
    print(json.dumps({"extended": optimize_in_session(sys.argv[1])}), flush=True)
