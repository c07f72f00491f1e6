"""The models of the corpus, written for TensorRT, keep the type rules of its parser."""

from __future__ import annotations

from typing import Any

import pytest

import mixlist
from mixlist.targets.model_check import check_model
from mixlist.targets.target import load_target
from mixlist.targets.target_plan import find_low_nodes, keep_nodes_for_target
from mixlist.write import rewrite_in_place
from tests.support.package import load_model

from .conftest import CAMPAIGN, SELECTED

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download
# CI takes a decoder-like model with control flow, a detector, a quantized model and one with an old opset.
MODELS = SELECTED if CAMPAIGN else ["magika", "silero_vad_v6", "ddddocr_common_old", "ppocr4_rec"]
LOW_TYPES = ["mixed_float16", "mixed_bfloat16"] if CAMPAIGN else ["mixed_float16"]
# Operators of these models, as their authors wrote them, that the list of TensorRT 10.15 lacks.
MISSING = {
    "ddddocr_common_old": {
        "DynamicQuantizeLinear",
        "ConvInteger",
        "MatMulInteger",
        "com.microsoft::DynamicQuantizeLSTM",
    },
    "hibari_tts": {"CumSum in int64", "DynamicQuantizeLinear", "MatMulInteger"},
    "smart_turn_v3_2": {"DequantizeLinear in uint8", "DequantizeLinear in int32"},
}


@pytest.mark.parametrize("mode", LOW_TYPES)
@pytest.mark.parametrize("model_id", MODELS)
def test_the_written_model_keeps_the_type_rules(model_id: str, mode: str, corpus: Any, tmp_path: Any) -> None:
    target = load_target("tensorrt")
    plan = mixlist.resolve(corpus.path(model_id), mixlist.load_policy(precision_mode_v2=mode))
    kept, plan = keep_nodes_for_target(plan, target)
    assert all(node.has_kernel for node in find_low_nodes(plan, target))
    out = tmp_path / "mixed.onnx"
    rewrite_in_place(plan).save(out)
    check = check_model(load_model(out), target)
    assert check.broken_rules == ()
    operators = {f"{m.operator} in {m.type}" if m.type else m.operator for m in check.missing}
    assert operators == MISSING.get(model_id, set())
    assert all(node.otherwise == "refusal" for node in kept)
