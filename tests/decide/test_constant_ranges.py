"""Rule S4.7 behind value movers: a constant is judged by all the constants that are moved into it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from mixlist.decide.constant_ranges import ConstantRange, ConstantRanges, find_origins
from tests.support.builders import apply, model, policy
from tests.support.package import build_graph
from tests.support.resolver_cases import decide_node

# By name of the case, nodes that move k = {1000000, 1, 1, 1} and small = {1, 2, 3, 4} into a constant of 8 elements.
MOVING_NODES = {
    "Concat": "t = Concat<axis=0>(k, small)",
    "Concat, last": "t = Concat<axis=0>(small, k)",
    "Concat of Concat": "c = Concat<axis=0>(k, small) d = Concat<axis=0>(c, c) t = Slice(d, zero, eight)",
    "Concat with a computed constant": "m = Mul(small, small) t = Concat<axis=0>(m, k)",
    "Where": "w = Where(some, k, small) t = Tile(w, two)",
    "Pad": "t = Pad(k, pads)",
    "Pad with a number": "t = Pad(small, pads, million)",
    "GatherElements": "g = GatherElements<axis=0>(k, indices) t = Tile(g, two)",
    "GatherND": "g = GatherND(k, places) t = Tile(g, two)",
    "Compress": "c = Compress<axis=0>(k, some) t = Tile(c, eight)",
    "Split": "a, b = Split<axis=0>(k) t = Tile(a, four)",
    "ReverseSequence": "n = Tile(k, two) u = Unsqueeze(n, zero)"
    " r = ReverseSequence<batch_axis=0, time_axis=1>(u, eight) t = Squeeze(r, zero)",
    "Trilu": "u = Unsqueeze(k, zero) v = Trilu(u) s = Squeeze(v, zero) t = Tile(s, two)",
    "OneHot": "o = OneHot<axis=-1>(three, depth, edges) t = Squeeze(o, zero)",
    "a sequence": "s = SequenceConstruct(small, k) c = SequenceAt(s, last) t = Tile(c, two)",
    "a sequence that is joined": "s = SequenceConstruct(small, k) t = ConcatFromSequence<axis=0>(s)",
}
GRAPH = """g (float[8] x) => (float[8] y) <float[4] k = {{1000000, 1, 1, 1}}, float[4] small = {{1, 2, 3, 4}},
  float million = {{1000000}}, float[2] edges = {{1, 1000000}}, bool[4] some = {{1, 0, 0, 0}}, int64[1] zero = {{0}},
  int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] four = {{4}}, int64[1] eight = {{8}}, int64 depth = {{8}},
  int64 last = {{1}}, int64[2] pads = {{2, 2}}, int64[4] indices = {{0, 1, 2, 3}}, int64[4, 1] places = {{0, 1, 2, 3}}>
{{ {} [a] y = Add(x, t) }}"""


@pytest.mark.parametrize("nodes", MOVING_NODES.values(), ids=MOVING_NODES)
def test_a_moved_constant_out_of_range_keeps_the_reader_high(nodes: str) -> None:
    text = GRAPH.format(nodes)
    decision = decide_node(text, "a", white=["Add"])
    assert (decision.precision, decision.rule) == ("float32", "constant") and "reaches 1e+06" in decision.reason
    original, feed = model(text), {"x": np.arange(8, dtype=np.float32)}
    (expected,) = ReferenceEvaluator(original).run(None, feed)
    (mixed,) = ReferenceEvaluator(apply(original, policy(white=["Add"]))).run(None, feed)
    np.testing.assert_array_equal(mixed, expected)
    assert (
        expected.max() > 65504 and decide_node(text, "a", white=["Add"], mode="mixed_bfloat16").precision == "bfloat16"
    )


@pytest.mark.parametrize(
    ("nodes", "precision"),
    [
        ("t = Expand(e, eight)", "float32"),
        ("r = Reshape(e, one) t = Tile(r, eight)", "float32"),
        ("r = Reshape(e, one) g = GatherND(r, place) t = Expand(g, eight)", "float32"),
        ("r = Reshape(e, one) t = Pad(r, pads)", "float32"),
        ("r = Reshape(e, one) c = Concat<axis=0>(r, r) t = Tile(c, four)", "float32"),
        ("w = Where(some, e, e) t = Tile(w, two)", "float32"),
        ("w = Where(some, e, f) t = Tile(w, two)", "float32"),
        ("w = Where(some, e, large) t = Tile(w, two)", "float16"),
    ],
)
def test_value_movers_keep_the_values_that_become_zero(nodes: str, precision: str) -> None:
    """Rule S4.7: a constant fits if one of its values does not become zero."""
    text = f"""g (float[8] x) => (float[8] y) <float e = {{0.00000001}}, float f = {{0.00000002}},
      float large = {{0.0001}}, int64[1] one = {{1}}, int64[1] two = {{2}},
      int64[1] four = {{4}}, int64[1] eight = {{8}}, int64[1, 1] place = {{0}}, int64[2] pads = {{3, 4}},
      bool[4] some = {{1, 0, 0, 0}}> {{ {nodes} [a] y = Add(x, t) }}"""
    assert decide_node(text, "a", white=["Add"]).precision == precision


def test_ranges_of_computed_and_moved_constants() -> None:
    text = GRAPH.format("m = Mul(small, small) u = Concat<axis=0>(m, small) v = Concat<axis=0>(k, small) t = Max(u, v)")
    values = build_graph(model(text)).root.values
    ranges = ConstantRanges(None)
    assert ranges.range_of(values["m"]) == ConstantRange(16.0, 1.0, 16.0)
    assert ranges.range_of(values["u"]) == ConstantRange(16.0, 1.0, 16.0)
    assert ranges.range_of(values["v"]) == ConstantRange(1e6, 1.0, 1e6)
    assert ranges.range_of(values["y"]) is None


def test_the_range_of_a_partly_unknown_constant() -> None:
    nodes = "r = c.Thing(small) u = Concat<axis=0>(r, small) t = Expand(u, eight)"
    text = f'<ir_version: 8, opset_import: ["" : 17, "c" : 1]> {GRAPH.format(nodes)}'
    constant_range = ConstantRanges(None).range_of(build_graph(model(text, check=False), {"r": 1}).root.values["u"])
    assert constant_range is not None
    assert (constant_range.max_abs, constant_range.single_value) == (4.0, None)
    assert "operator of c" in constant_range.unknown


def test_many_concatenations_are_walked_once() -> None:
    doubled = " ".join(f"c{n + 1} = Concat<axis=1>(c{n}, c{n})" for n in range(40))
    text = f"""g (float[1] x) => (float[1] y) <float[1, 0] c0 = {{}}> {{
      {doubled} r = ReduceSum(c40) [a] y = Add(x, r) }}"""
    constant = build_graph(model(text, check=False)).root.values["c40"]
    assert len(find_origins(constant)) == 1
    without_elements = ConstantRange(0.0, math.inf, -math.inf)
    assert ConstantRanges(None).range_of(constant) == without_elements
