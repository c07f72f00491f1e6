"""Rewritten quantized models of the corpus keep all integer kernels of ONNX Runtime's CPU provider (Rule S4.41).

``onnxruntime.quantization`` makes the models, as its users do: first ``quant_pre_process``, then ``quantize_static``.
``make campaign`` does so with five models at three opsets, per tensor and per channel, and takes a model that was
shipped quantized; the tests take one model. ``tests/test_integer_kernels.py`` has small graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static

import mixlist
from tests.support.integer_kernels import count_integer_kernels

from .conftest import CAMPAIGN, Corpus
from .feeds import feeds

MODELS = ["light_resnet50", "nudenet_320n", "paraphrase_minilm_l3", "ppocr4_rec", "u2netp"]
ALL_CASES = [*product(MODELS, (17, 19, 21), (False, True))]
CASES = ALL_CASES if CAMPAIGN else [("paraphrase_minilm_l3", 21, True)]
IR_VERSIONS = {17: 8, 19: 9, 21: 10}

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download


class _Batches(CalibrationDataReader):
    """The batches from which the scales are computed."""

    def __init__(self, model_id: str) -> None:
        self._batches: Iterator[Any] = iter(feeds(model_id)[:1])

    def get_next(self) -> Any:
        return next(self._batches, None)


def quantize(path: Path, model_id: str, opset: int, per_channel: bool, folder: Path) -> onnx.ModelProto:
    """Return the model at an opset, quantized to uint8 activations and int8 weights."""
    model = onnx.load(path)
    model.ir_version = max(model.ir_version, IR_VERSIONS[opset])
    model = onnx.version_converter.convert_version(model, opset)
    # Some old files list their weights as inputs; the quantizer takes such weights for data.
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    prepared, quantized = folder / "prepared.onnx", folder / "quantized.onnx"
    onnx.save(model, prepared)
    quant_pre_process(prepared, prepared, skip_symbolic_shape=True)
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    batches = _Batches(model_id)
    quantize_static(prepared, quantized, batches, quant_format=QuantFormat.QDQ, per_channel=per_channel, **types)
    return onnx.load(quantized)


def assert_keeps_kernels(model: onnx.ModelProto, folder: Path) -> None:
    before = count_integer_kernels(model, folder)
    mixed = mixlist.rewrite(model, mixlist.resolve(model, mixlist.load_policy())).model
    assert count_integer_kernels(mixed, folder) == before
    # Without the protection kernels are lost, so the counts above say something.
    unprotected = mixlist.rewrite(model, mixlist.resolve(model, mixlist.load_policy(protect="none"))).model
    assert count_integer_kernels(unprotected, folder).total() < before.total()


@pytest.mark.parametrize(("model_id", "opset", "per_channel"), CASES)
def test_a_quantized_model_keeps_its_integer_kernels(
    model_id: str, opset: int, per_channel: bool, corpus: Corpus, tmp_path: Path
) -> None:
    """Rule S4.41: A quantized unit stays as authored."""
    assert_keeps_kernels(quantize(corpus.path(model_id), model_id, opset, per_channel, tmp_path), tmp_path)


@pytest.mark.skipif(not CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it")
def test_a_model_whose_products_are_all_quantized_stays_as_it_is(corpus: Corpus) -> None:
    """Rule S4.41: every product is in a quantized unit."""
    plan = mixlist.resolve(corpus.path("smart_turn_v3_2"), mixlist.load_policy())
    white = Counter((n.op_type, n.rule) for n in plan.nodes if n.list == "white" and n.rule != "no-float")
    assert white == {("MatMul", "quantized"): 34, ("Gemm", "quantized"): 3, ("Conv", "quantized"): 2}
    assert mixlist.plan_for_target(plan, "tensorrt").low_nodes == ()


@pytest.mark.skipif(not CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it")
def test_a_model_that_was_shipped_quantized_keeps_its_integer_kernels(corpus: Corpus, tmp_path: Path) -> None:
    """Rule S4.41: A quantized unit stays as authored."""
    assert_keeps_kernels(onnx.load(corpus.path("smart_turn_v3_2")), tmp_path)
