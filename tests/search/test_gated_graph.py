"""Compare the gated graph with the emulation of the rewritten model, bit by bit: random graphs, policies and edits.

Both run without graph optimizations on one thread, so that each node computes the same from the same inputs. The only
models that are left out are those that ONNX Runtime does not load (two nodes with one name).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mixlist import Policy
from mixlist.search import gated_graph
from tests.support.builders import model, policy
from tests.support.gate_comparison import (
    PROFILE,
    GateComparison,
    draw_edits,
    is_loadable,
    models_and_policies,
)
from tests.support.graphs import Case


@PROFILE
@given(models_and_policies(), st.booleans(), st.sampled_from([1.0, 1.0, 300.0, 1e5]), st.data())
def test_the_gated_graph_rounds_as_the_emulation_does(
    problem: tuple[Case, Policy], saturate: bool, scale: float, data: st.DataObject
) -> None:
    case, rules = problem
    assume("duplicate node name" not in case.features and is_loadable(case.model))
    feed = {n: v * np.asarray(scale, v.dtype) if v.dtype == np.float32 else v for n, v in case.feeds().items()}
    comparison = GateComparison(case.model, rules, feed, saturate)
    try:
        comparison.compare(frozenset())
        comparison.compare_reference()
        black, nodes, lowering = comparison.candidates(), comparison.nodes(), comparison.lowering_candidates()
        for _ in range(2):
            comparison.compare(draw_edits(data, black))
            comparison.compare(draw_edits(data, (*black, *nodes)))
        assert comparison.builds == 1, "edits that keep nodes high need no new graph"
        comparison.compare(draw_edits(data, lowering))
    finally:
        comparison.close()


# --- single cases that random models found, or do not contain ---

X = {"x": np.array([[0.1, -2.3, 700.7, 3.0]], np.float32), "c": np.array(True)}


def compare_all(text: str | onnx.ModelProto, feed: Mapping[str, Any] = X, **lists: Any) -> GateComparison:
    """Compare with each single edit, with all of them, with none, and with every node low.

    Compare the graph of trials in segments too, with every constant as a large weight; return the other graph.
    """
    proto = model(text) if isinstance(text, str) else text
    initializers = {tensor.name for tensor in proto.graph.initializer}
    feed = {i.name: feed[i.name] for i in proto.graph.input if i.name not in initializers}
    with mock.patch.object(gated_graph, "SMALL_CONSTANT", 0):
        compare_edits(GateComparison(proto, policy(**lists), feed, segment_bytes=1))
    return compare_edits(GateComparison(proto, policy(**lists), feed))


def compare_edits(comparison: GateComparison) -> GateComparison:
    """Compare with each single edit, with all of them, with none, and with every node low."""
    try:
        comparison.compare(frozenset())
        comparison.compare_reference()
        candidates = (*comparison.candidates(), *comparison.nodes())
        for candidate in candidates:
            comparison.compare(frozenset([candidate.edit]))
        comparison.compare(frozenset(candidate.edit for candidate in candidates))
        assert comparison.builds == 1
        comparison.compare(frozenset(candidate.edit for candidate in comparison.lowering_candidates()))
    finally:
        comparison.close()
    return comparison


def test_inputs_that_are_low_already_are_not_rounded_again() -> None:
    """Under the base lists only the first node rounds its inputs. Behind a high node another gate rounds them."""
    comparison = GateComparison(
        model("g (float[1,4] x) => (float[1,4] y) { [a] a = Mul(x, x) [b] b = Exp(a) [n] y = Sqrt(b) }"),
        policy(white=["Mul", "Exp", "Sqrt"]),
        {"x": X["x"]},
    )
    try:
        for edits, inputs in (
            (frozenset[Any](), {"a": (10, 10), "b": (0,), "n": (0,)}),
            (None, {"b": (10,), "n": (0,)}),
        ):
            chosen_edits = (
                frozenset(candidate.edit for candidate in comparison.nodes() if candidate.nodes[0].name == "a")
                if edits is None
                else edits
            )
            flags = comparison.compiler.build_flags(chosen_edits)
            gated = comparison.compiler.gated_graph
            assert gated is not None
            on = np.unpackbits(np.frombuffer(flags, np.uint8), count=len(gated.gates)).astype(bool)
            rounded = {
                point.node.name: rounding.inputs
                for (point, rounding), is_on in zip(gated.gates, on, strict=True)
                if is_on
            }
            assert rounded == inputs
            comparison.compare(chosen_edits)
    finally:
        comparison.close()


def opset(number: int) -> str:
    return f'<ir_version: {4 if number < 12 else 8}, opset_import: ["" : {number}]> '


@pytest.mark.parametrize("number", [11, 12, 13, 17, 21])
def test_sequences(number: int) -> None:
    """An If may yield sequences only from opset 16 on."""
    compare_all(
        opset(number)
        + """g (float[1,4] x) => (float[1,4] y, float[2,4] z) <int64 one = {1}> { [a] a = Mul(x, x)
      [s] s = SequenceConstruct(a, x) [t] y = SequenceAt(s, one) [j] j = ConcatFromSequence<axis = 0>(s)
      [n] z = Neg(j) }""",
        white=["Mul", "SequenceConstruct", "Neg"],
    )


@pytest.mark.parametrize("number", [9, 10, 11, 13, 18, 21])
def test_branches_at_every_opset(number: int) -> None:
    compare_all(
        opset(number)
        + """g (float[1,4] x, bool c) => (float[1,4] y) <float[1,4] k = {0.1,0.2,0.3,0.4}> { [a] a = Mul(x, k)
      [i] i = If(c) <then_branch = t () => (float[1,4] p) { [b] q = Exp(k) [d] p = Add(a, q) },
                     else_branch = e () => (float[1,4] r) { [e] r = Neg(a) }> [f] y = Mul(i, k) }""",
        white=["Mul", "Exp", "Add"],
    )


def test_the_name_of_an_unnamed_node_stays_when_a_gate_replaces_its_neighbor() -> None:
    """The unnamed Mul is Mul_1 because another node has the name Mul_0, also after that node became an If."""
    compare_all(
        "g (float[1,4] x) => (float[1,4] y) { [Mul_0] a = Mul(x, x) [] b = Mul(a, x) [n] y = Exp(b) }", white=["Mul"]
    )


@pytest.mark.parametrize("declared", ["float16", "float"])
def test_graph_outputs_keep_their_types(declared: str) -> None:
    """A graph output that is declared float16 is rounded, although a rule keeps its node in float32."""
    kind = 10 if declared == "float16" else 1
    compare_all(
        f"g (float[1,4] x) => ({declared}[1,4] y, {declared}[1,4] y) {{ [m] m = Mul(x, x) [h] h = Cast<to={kind}>(m)"
        " [a] y = Add(h, h) }",
        white=["Mul", "Add"],
    )


def test_a_model_authored_in_float16() -> None:
    feed = {"x": X["x"].astype(np.float16)}
    text = """g (float16[1,4] x) => (float16[1,4] y) <float16[1,4] k = {1,2,3,4}, float[1,4] w = {0.1,0.2,0.3,0.4}>
      { [m] m = Mul(x, k) [h] h = Cast<to=1>(m) [s] s = Mul(h, w) [l] l = Cast<to=10>(s) [a] y = Add(l, m) }"""
    for mode in ("mixed_float16", "mixed_bfloat16"):
        compare_all(text, feed, white=["Mul", "Add"], mode=mode)


@pytest.mark.parametrize("constants", ["keep", "ieee", "clamp"])
@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
def test_constants_of_every_kind(constants: str, mode: str) -> None:
    """Initializers in and out of range, and Constant nodes with each attribute."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y, float[1,4] z)
      <float[4] k = {0.1,1e6,1e-9,-70000}, float e = {1e-9}> {
      [v] v = Constant<value_float=0.1>() [f] f = Constant<value_floats=[0.1,0.2,0.3,0.4]>()
      [t] t = Constant<value = float[4] {0.1,0.2,0.3,1e5}>() [i] i = Constant<value_int=2>() [j] j = Cast<to=1>(i)
      [a] a = Mul(x, v) [b] b = Mul(a, f) [d] d = Mul(b, t) [g] g = Mul(d, k) [h] h = Add(g, e) [y] y = Add(h, j)
      [z] z = Mul(a, t) }"""
    compare_all(text, white=["Mul", "Add"], constants=constants, mode=mode)


def test_large_constants_are_rounded_once() -> None:
    """A weight that the main graph and two branches read is rounded once.

    Its numbers make all sums exact, because ONNX Runtime sums in another order if the weight is in an outer graph.
    """
    numbers = ",".join(str(1 + i / 2**12) for i in range(2048))
    comparison = compare_all(
        f"""g (float[1,4] x, bool c) => (float[1,512] y)
      <float[4,512] w = {{{numbers}}}> {{ [a] a = MatMul(x, w)
      [i] b = If(c) <then_branch = t () => (float[1,512] p) {{ [b] p = MatMul(x, w) }},
                     else_branch = e () => (float[1,512] q) {{ [d] q = MatMul(x, w) }}> [s] y = Add(a, b) }}""",
        white=["MatMul", "Add"],
    )
    assert comparison.compiler.gated_graph is not None
    weights = [t.name for t in comparison.compiler.gated_graph.proto.graph.initializer if list(t.dims) == [4, 512]]
    assert weights == ["w", "w_float16"]


@pytest.mark.parametrize(("ir_version", "inputs"), [(3, ["x"]), (8, ["x", "w"])])
def test_initializers_that_are_inputs_are_constants_before_ir_version_4(ir_version: int, inputs: list[str]) -> None:
    """From version 4 on a feed may replace an initializer that is an input, and ONNX Runtime folds no such constant."""
    text = "g (float[1,4] x) => (float[1,4] y) <float[4] w = {0.1,1e6,1e-9,-7e4}> { [a] a = Mul(x, w) [y] y = Neg(a) }"
    proto = model(f'<ir_version: {ir_version}, opset_import: ["" : 8]> {text}', check=False)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4]))
    comparison = compare_all(proto, white=["Mul", "Neg"])
    assert comparison.compiler.gated_graph is not None
    assert [graph_input.name for graph_input in comparison.compiler.gated_graph.proto.graph.input] == inputs


def test_loops_and_scans() -> None:
    feed = {"x": X["x"], "n": np.array(3)}
    compare_all(
        """g (float[1,4] x, int64 n) => (float[1,4] y, float[k,1,4] all, float[1,4] s, float[1,4] t)
      <bool go = {1}, float h = {0.3}> { [m] m = Mul(x, h)
      [l] y, all = Loop(n, go, m) <body = b (int64 i, bool c, float[1,4] s) => (bool c, float[1,4] t, float[1,4] u) {
         [g] t = Mul(s, h) [u] u = Exp(m) }>
      [z] s, t = Scan<num_scan_inputs=1, body = d (float[1,4] p, float[4] q) => (float[1,4] r, float[4] w) {
         [a] r = Add(p, q) [b] w = Neg(q) }>(y, x) }""",
        feed,
        white=["Mul", "Exp", "Add"],
    )


LOOP = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y)
  <float[4] w = {0.1,0.3,1e6,1e-9}, float[4] v = {0.1,0.2,0.3,0.4}, int64 n = {3}, bool go = {1}> {
  [l] y, a, b, c = Loop(n, go, x, w, v, x) <body = body
    (int64 i, bool on, float[1,4] s, float[4] k, float[4] m, float[1,4] z)
    => (bool more, float[1,4] t, float[4] k, float[4] o, float[1,4] z) {
      [more] more = Identity(on) [p] p = Mul(s, k) [q] q = Mul(p, m) [o] o = Add(m, m) [t] t = Mul(q, z) }> }"""


@pytest.mark.parametrize("gray_policy", ["ascend", "promote"])
def test_a_float16_weight_that_a_loop_passes_to_a_cast(gray_policy: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y)
      <float16[4] w = {1,2,3,4}, int64 n = {3}, bool go = {1}> {
      [l] y, a = Loop(n, go, x, w) <body = body (int64 i, bool on, float[1,4] s, float16[4] k)
        => (bool more, float[1,4] t, float16[4] k) {
          [more] more = Identity(on) [ca] c = Cast<to=1>(k) [p] p = Mul(s, c) [t] t = Add(p, c) }> }"""
    compare_all(text, white=["Mul"], gray_policy=gray_policy)


@pytest.mark.parametrize("constants", ["keep", "ieee", "clamp"])
@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16", "fp16"])
def test_a_weight_that_is_converted_before_a_loop(mode: str, constants: str) -> None:
    compare_all(LOOP, white=["Mul", "Add"], mode=mode, constants=constants)


WEIGHTS = "{0.1, -70000, 65519, 1e-9, 3e38, -0.3, 65504, 7e-6}"


@pytest.mark.parametrize("constants", ["keep", "ieee", "clamp"])
@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16", "fp16"])
def test_weights_of_all_magnitudes(mode: str, constants: str) -> None:
    text = f"g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {WEIGHTS}> {{ a = MatMul(x, w) y = Add(a, a) }}"
    compare_all(text, white=["MatMul", "Add"], mode=mode, constants=constants)


@pytest.mark.parametrize("segment_bytes", [None, 1])
@pytest.mark.parametrize(
    "text",
    [
        """g (float[1,4] x) => (float[2,4] y) <float[2,4] m = {0, -3e38, -1e9, 0, -3e38, -3e38, -3e38, -3e38}> {
        a = Mul(x, x) b = Add(a, m) y = Softmax(b) }""",
        """g (float[1,4] x) => (float[1,4] y) <float e = {1e-9}> {
        a = Mul(x, x) b = Max(a, e) y = Div(x, b) }""",
    ],
    ids=["mask", "guard"],
)
def test_constants_of_masks_and_guards(text: str, segment_bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_graph, "SMALL_CONSTANT", 1)
    lists = policy(white=["Mul", "Add", "Softmax", "Max", "Div"], protect=["masks"])
    feed = {"x": np.array([[0.1, -2.3, 7.7, 1e-5]], np.float32)}
    comparison = GateComparison(model(text), lists, feed, segment_bytes=segment_bytes)
    try:
        comparison.compare(frozenset())
        assert comparison.compiler.gated_graph is not None
        assert any(rounding.magnitude_limits for _, rounding in comparison.compiler.gated_graph.gates)
        for candidate in comparison.candidates():
            comparison.compare(frozenset([candidate.edit]))
    finally:
        comparison.close()


def test_unused_outputs_and_inputs_that_are_left_out() -> None:
    compare_all(
        """g (float[1,4] x) => (float[1,2] y, float[1,4] z, float[1,4] d) <float hi = {50.5}, int64[2] h = {2,2}> {
      [s] y, unused = Split<axis = 1>(x, h) [c] z = Clip(x, , hi) [o] d, mask = Dropout(x) }""",
        white=["Split", "Clip", "Dropout"],
    )
    compare_all(
        "g (float[1,4] x) => (float[1,2] v, int64[1,2] i) <int64[1] k = {2}> { [t] v, i = TopK(x, k) }", white=["TopK"]
    )


def test_integers_booleans_and_strings_are_not_rounded() -> None:
    feed = {"x": X["x"], "n": np.array([[1, 2, 3, 4]], np.int64), "s": np.array(["a", "b"]), "d": X["x"].astype(float)}
    compare_all(
        """g (float[1,4] x, int64[1,4] n, string[2] s, double[1,4] d) => (float[1,4] y, string[2] t, int64[1,4] k,
      double[1,4] e) { [m] m = Mul(x, x) [f] f = Cast<to=1>(n) [g] g = Greater(m, f) [w] y = Where(g, m, f)
      [t] t = Identity(s) [k] k = Add(n, n) [e] e = Mul(d, d) }""",
        feed,
        white=["Mul", "Where", "Add", "Identity", "Greater"],
    )
