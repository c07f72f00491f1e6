"""Constants that only Casts of the user read (Rule S7.6): models that were exported under autocast."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support.builders import apply, model, policy

CONV = "[c] h = Cast<to = 10>(x) [cw] w16 = Cast<to = 10>(w) [m] m = MatMul(h, w16) [o] y = Cast<to = 1>(m)"
W = "float[2,2] w = {1.0001, 70000, -3, 1e-9}"


def graph(nodes: str, weights: str = W, outputs: str = "float[2,2] y", head: str = "") -> onnx.ModelProto:
    """Return a model with the input x."""
    return model(f"{head}g (float[2,2] x) => ({outputs}) <{weights}> {{ {nodes} }}")


def weight(network: onnx.ModelProto, name: str = "w") -> np.ndarray:
    """Return an initializer."""
    return next(numpy_helper.to_array(tensor) for tensor in network.graph.initializer if tensor.name == name)


def op_types(network: onnx.ModelProto) -> list[str]:
    """Return the op types of the main graph."""
    return [node.op_type for node in network.graph.node]


def test_the_weight_is_stored_as_the_cast_makes_it() -> None:
    """The Cast makes 70000 infinite, and so does the conversion."""
    network = graph(CONV)
    mixed = apply(network, policy(black=["MatMul"]))
    assert op_types(mixed) == ["Cast", "MatMul", "Cast"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(weight(mixed), weight(network).astype(np.float16))
    assert weight(mixed).dtype == np.float16
    feed = {"x": np.array([[1, 0], [0, 2]], np.float32)}
    with np.errstate(all="ignore"):
        expected, actual = (ReferenceEvaluator(m).run(None, feed)[0] for m in (network, mixed))
    np.testing.assert_array_equal(actual, expected)
    assert apply(mixed, policy(black=["MatMul"])) == mixed


def test_two_casts_and_a_body_read_one_weight() -> None:
    nodes = (
        "[c] c = Cast<to = 16>(w) [d] d = Cast<to = 16>(w) [a] a = Add(c, d) [s] s = ReduceSum<keepdims = 0>(x)"
        " [b] b = Cast<to = 9>(s) [i] i = If (b) <then_branch = t () => (bfloat16[2,2] p) { [p] p = Neg(c) },"
        " else_branch = e () => (bfloat16[2,2] q) { [q] q = Neg(a) }> [o] y = Cast<to = 1>(i)"
    )
    mixed = apply(graph(nodes), policy())
    assert weight(mixed).dtype == ml_dtypes.bfloat16
    assert op_types(mixed) == ["Add", "ReduceSum", "Cast", "If", "Cast"]


@pytest.mark.parametrize(
    ("nodes", "weights", "outputs"),
    [
        # Another reader needs float32.
        (f"{CONV} [z] z = Neg(w)", W, "float[2,2] y, float[2,2] z"),
        # The Casts make two types.
        (f"{CONV} [z] z = Cast<to = 16>(w)", W, "float[2,2] y, bfloat16[2,2] z"),
        # The constant, or the Cast, is an output of the graph.
        (CONV, W, "float[2,2] y, float[2,2] w"),
        (CONV, W, "float[2,2] y, float16[2,2] w16"),
        # The type is not low, or the constant is not float32.
        ("[c] w64 = Cast<to = 11>(w) [h] h = Cast<to = 11>(x) [m] m = MatMul(h, w64) [o] y = Cast<to = 1>(m)", W, ""),
        (CONV, "double[2,2] w = {1, 2, 3, 4}", ""),
    ],
)
def test_what_another_reader_needs_stays(nodes: str, weights: str, outputs: str) -> None:
    network = graph(nodes, weights, outputs or "float[2,2] y")
    mixed = apply(network, policy(black=["MatMul", "Neg"]))
    np.testing.assert_array_equal(weight(mixed), weight(network))
    assert weight(mixed).dtype == weight(network).dtype
    assert op_types(mixed) == op_types(network)


def test_a_float32_reader_of_the_cast_keeps_the_rounding() -> None:
    """Under force_fp32 the MatMul reads float32, but the rounded weight."""
    network = graph(CONV)
    mixed = apply(network, policy(mode="cube_fp16in_fp32out"))
    assert weight(mixed).dtype == np.float32


@pytest.mark.parametrize(("weights", "dtype"), [(W, np.float32), ("float[2,2] w = {1.0001, 7, -3, 1}", np.float16)])
@pytest.mark.parametrize("space", ["onnx", "ascend"])
def test_a_clamp_changes_no_cast(weights: str, dtype: type, space: str) -> None:
    mixed = apply(graph(CONV, weights), policy(black=["MatMul", "MatMulV2"], constants="clamp", space=space))
    assert weight(mixed).dtype == dtype


def test_an_input_with_a_default_stays() -> None:
    text = f"g (float[2,2] x, float[2,2] w) => (float[2,2] y) <{W}> {{ {CONV} }}"
    assert op_types(apply(model(text), policy(black=["MatMul"]))) == ["Cast", "Cast", "MatMul", "Cast"]
