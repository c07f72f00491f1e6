"""Attention nodes of ONNX Runtime give the sizes and the lengths of random data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mixlist.errors import UsageError
from mixlist.run.feeds import random_batches
from tests.support.builders import model
from tests.support.evaluation import run_ort
from tests.support.versions import ATTENTION_HAS_WINDOW_CACHES

# One layer of the exporter of language models, with a query that holds key and value, too, and an open size of a head.
LAYER = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
g (int64[batch_size, sequence_length] input_ids, {inputs},
   float[batch_size, 1, {length}, kv_cache_dim] past_key, float[batch_size, 1, {length}, kv_cache_dim] past_value)
=> (float[batch_size, sequence_length, 16] y, float[batch_size, 1, T, kv_cache_dim] present_key,
    float[batch_size, 1, T, kv_cache_dim] present_value)
<float[5, 32] table, float[batch_size, sequence_length, 32] hidden> {{
  hidden = Gather (table, input_ids)
  {nodes}
  y, present_key, present_value = com.microsoft.GroupQueryAttention
    <num_heads = 2, kv_num_heads = 1 {attributes}> (hidden, , , past_key, past_value, last, total)
}}"""
MASK_NODES = """sums = ReduceSum <keepdims = 0> (attention_mask, axis)
  previous = Sub (sums, one)
  last = Cast <to = 6> (previous)
  shape = Shape (attention_mask)
  size = Gather (shape, one)
  total = Cast <to = 6> (size)"""
WINDOW = ", local_window_size = 4, sliding_window_cache = 1"

needs_window_caches = pytest.mark.skipif(
    not ATTENTION_HAS_WINDOW_CACHES, reason="this ONNX Runtime has no sliding_window_cache"
)


def make_layer(
    length: str = "past_sequence_length",
    attributes: str = "",
    inputs: str = "int64[batch_size, total_sequence_length] attention_mask",
    nodes: str = MASK_NODES,
) -> onnx.ModelProto:
    proto = model(LAYER.format(length=length, attributes=attributes, inputs=inputs, nodes=nodes), check=False)
    table = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32)
    arrays = {"table": table, "axis": np.array([1]), "one": np.array(1)}
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return proto


def make_feed(proto: onnx.ModelProto, **dims: int) -> dict[str, np.ndarray]:
    return dict(next(iter(random_batches(proto, 1, dims=dims))))


def test_the_query_gives_the_size_of_a_head() -> None:
    """The query of 32 numbers holds four heads: two of its own, the key and the value."""
    proto = make_layer()
    feed = make_feed(proto, past_sequence_length=6)
    assert feed["past_key"].shape == feed["past_value"].shape == (1, 1, 6, 8)
    assert [array.shape for array in run_ort(proto, feed)] == [(1, 1, 16), (1, 1, 7, 8), (1, 1, 7, 8)]


@needs_window_caches
def test_a_cache_of_window_size_has_room_for_the_window() -> None:
    """All rows that ONNX Runtime returns are those of words: the last rows of the past, and the new one."""
    proto = make_layer("past_sliding_length", WINDOW)
    feed = make_feed(proto, sequence_length=1, total_sequence_length=21)
    assert feed["past_key"].shape == (1, 1, 4, 8) and feed["attention_mask"].shape == (1, 21)
    key = run_ort(proto, feed)[1]
    np.testing.assert_array_equal(key[:, :, :3], feed["past_key"][:, :, 1:])


@pytest.mark.parametrize(
    ("words", "rows"),
    [(21, 3), (3, 4), (7, 6)],
)
def test_a_cache_that_window_or_text_do_not_fill_is_refused(words: int, rows: int) -> None:
    proto = make_layer("past_sliding_length", WINDOW)
    with pytest.raises(UsageError, match=f"'past_key' has {rows} rows for a text of {words} words"):
        make_feed(proto, sequence_length=1, total_sequence_length=words, past_sliding_length=rows)


@pytest.mark.parametrize("shape", ["", "[1]"])
def test_lengths_that_are_inputs_count_the_words(shape: str) -> None:
    proto = make_layer(inputs=f"int32[batch_size] last, int32{shape} total", nodes="")
    batches = random_batches(proto, 1, dims={"past_sequence_length": 6, "sequence_length": 1})
    feed = dict(next(iter(batches)))
    assert feed["last"].tolist() == [6] and feed["total"].reshape(-1).tolist() == [7]
    assert feed["total"].shape == ((1,) if shape else ())
    assert [array.shape for array in run_ort(proto, feed)] == [(1, 1, 16), (1, 1, 7, 8), (1, 1, 7, 8)]
    assert any("reads 6 words from its cache, and 1 new" in w.message for w in batches.warnings)
