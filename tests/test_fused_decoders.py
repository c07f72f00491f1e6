"""Graphs of ONNX Runtime's exporter of language models, through every command that takes a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import mixlist
from mixlist import random_batches
from tests.support.evaluation import run_ort
from tests.support.fused_decoders import make_fused_decoder

FUSED = {"GroupQueryAttention", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RotaryEmbedding"}


@pytest.fixture(params=[32, 4], ids=["float32", "int4"])
def bits(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


def make_feeds(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    """Return a first text of four words without a cache, and one word behind a cache of six."""
    sizes: list[dict[str, int]] = [{"past_sequence_length": 0, "sequence_length": 4}, {"past_sequence_length": 6}]
    return [dict(feed) for dims in sizes for feed in random_batches(model, 1, dims=dims)]


@pytest.mark.parametrize("norms", ["float16", "float32"])
def test_lists_decide_and_convert_the_fused_operators(bits: int, norms: str, tmp_path: Path) -> None:
    """The norms follow the table of embeddings, or stay float32 on the black list."""
    model = make_fused_decoder(bits)
    product = "MatMul" if bits == 32 else "MatMulNBits"
    black = [op for op in sorted(FUSED) if op.endswith("Normalization")]
    lists = tmp_path / "lists.json"
    lists.write_text(json.dumps({"black-list": {"to-add": black if norms == "float32" else []}}))
    plan = mixlist.resolve(model, mixlist.load_policy(mixlist=lists))
    precisions = {(node.op_type, node.precision) for node in plan.nodes}
    assert {op for op, _ in precisions} >= {*FUSED, product}
    assert {(product, "float16"), ("GroupQueryAttention", "float16")} <= precisions
    assert {pair for pair in precisions if pair[0] in black} == {(op, norms) for op in black}
    mixed = mixlist.rewrite(model, plan).model
    for feed in make_feeds(model):
        expected, actual = run_ort(model, feed), run_ort(mixed, feed)
        assert [array.shape for array in actual] == [array.shape for array in expected]
        for array, other in zip(expected, actual, strict=True):
            np.testing.assert_allclose(other, array, rtol=0.05, atol=0.05)


def test_a_decoder_passes_the_check(bits: int) -> None:
    model = make_fused_decoder(bits)
    report = mixlist.check(model, mixlist.load_policy(), make_feeds(model))
    assert (report.verdict, report.batches, report.nodes) == ("pass", 2, ())


def test_a_search_raises_the_node_that_overflows(bits: int) -> None:
    """The factor 1e6 stays float32, because float16 cannot hold it; the product behind it needs an edit."""
    model = make_fused_decoder(bits, layers=1, scale=1e6)
    policy = mixlist.load_policy(ops_info="mindspore-o3", constants="keep")
    report = mixlist.tune(model, policy, make_feeds(model), jobs=1)
    assert report.verdict == "pass"
    assert [edit.op for edit in report.edits] == ["Mul"]
