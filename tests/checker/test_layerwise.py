"""The layerwise ranking names the nodes that add an error, not those that pass it on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mixlist
from tests.support.builders import model, policy

LISTS = {"white": ["Mul", "Sub", "Relu", "Add"]}


def layer_errors(text: str, *feeds: dict[str, np.ndarray], **lists: object) -> dict[str, float]:
    report = mixlist.check(model(text), policy(**(lists or LISTS)), list(feeds), layerwise=True)
    ranked = [e.normalized_error for e in report.layerwise]
    assert ranked == sorted(ranked, reverse=True)
    return {f"{e.scope}/{e.name}".lstrip("/"): e.normalized_error for e in report.layerwise}


def test_a_cancellation_has_a_large_error_and_its_reader_has_not() -> None:
    text = "g (float[2] x, float[2] z) => (float[2] y) { [a] a = Mul(x, x) [b] b = Sub(a, z) [c] y = Relu(b) }"
    errors = layer_errors(text, {"x": np.array([10.0, 20.0], np.float32), "z": np.array([99.99, 399.9], np.float32)})
    assert list(errors) == ["b", "c", "a"]
    assert errors["b"] > 0.1  # the difference of two rounded numbers that are almost equal
    assert errors["a"] == 0.0  # 100 and 400 are exact
    assert errors["c"] < 2**-11  # it only rounds what it reads, which is exact here


def test_the_error_of_one_rounding_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(2000).astype(np.float32)
    errors = layer_errors("g (float[2000] x) => (float[2000] y) { [r] y = Add(x, x) }", {"x": x})
    rounded = x.astype(np.float16).astype(np.float32)
    expected = np.linalg.norm((rounded + rounded).astype(np.float16).astype(np.float32) - (x + x)) / np.linalg.norm(
        x + x
    )
    assert errors["r"] == pytest.approx(float(expected), rel=1e-4)


def test_nodes_in_branches_are_ranked() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
      [i] y = If(c) <then_branch = t () => (float[2] a) { [n] a = Add(x, x) },
                     else_branch = e () => (float[2] b) { b = Neg(x) }> }"""
    feed = {"x": np.array([0.1, 0.3], np.float32), "c": np.array(True)}
    errors = layer_errors(text, feed)
    assert set(errors) == {"i/then_branch/n"} and all(0 < e < 2**-9 for e in errors.values())


def test_an_overflow_is_an_infinite_error() -> None:
    errors = layer_errors("g (float[1] x) => (float[1] y) { [m] y = Mul(x, x) }", {"x": np.array([300.0], np.float32)})
    assert errors == {"m": np.inf}


@pytest.mark.parametrize("opset", [8, 9, 17])
@pytest.mark.parametrize("nonfinite", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_in_the_reference_do_not_count(nonfinite: float, opset: int) -> None:
    """A value that is not finite in the reference does not count, as in Rule S8.18."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> '
    text = head + "g (float[N] x, float[1] k) => (float[N] y) { [r] r = Relu(x) [a] a = Add(r, k) [b] y = Sub(a, k) }"
    feeds = [{"x": np.array(x, np.float32), "k": np.array([4096], np.float32)} for x in ([0.3, 0.7], [1.9, 2.0])]
    expected = layer_errors(text, *feeds)
    assert list(expected) == ["b", "a", "r"] and expected["b"] > 100 * expected["a"] > 0
    feeds_with_nonfinite = [feeds[0], {"x": np.array([1.9, 2.0, nonfinite], np.float32), "k": feeds[0]["k"]}]
    errors = layer_errors(text, *feeds_with_nonfinite)
    if opset == 8 and not nonfinite < 0:  # without Where the batch is left out; Relu makes 0 of the negative infinity
        expected = layer_errors(text, feeds[0])
    elif nonfinite < 0:
        expected = layer_errors(text, feeds[0], feeds_with_nonfinite[1] | {"x": np.array([1.9, 2.0, 0.0], np.float32)})
    assert errors == pytest.approx(expected)


def test_a_node_without_finite_values_is_not_ranked() -> None:
    text = "g (float[2] x, float[2] z) => (float[2] y, float[2] u) { [a] y = Mul(x, x) [b] u = Mul(z, z) }"
    nonfinite, finite = np.array([np.nan, np.inf], np.float32), np.array([0.1, 0.3], np.float32)
    assert list(layer_errors(text, {"x": nonfinite, "z": finite})) == ["b"]
    assert set(layer_errors(text, {"x": nonfinite, "z": finite}, {"x": finite, "z": finite})) == {"a", "b"}


def test_squares_beyond_float32_do_not_overflow() -> None:
    """The sums are float64 and hold such squares: a value of 1e30 has an ordinary rounding error in bfloat16."""
    text = "g (float[2] x) => (float[2] y) { [a] y = Add(x, x) }"
    report = mixlist.check(
        model(text),
        policy(white=["Add"], mode="mixed_bfloat16"),
        [{"x": np.array([1.003e30, 2e30], np.float32)}],
        layerwise=True,
    )
    assert 0 < report.layerwise[0].normalized_error < 2**-8


def test_a_mask_that_the_mixed_model_reduces_has_no_infinite_error() -> None:
    """bfloat16 rounds the smallest float32 to minus infinity, so the constant is reduced (Rule S4.36)."""
    text = """g (int64[1,4] m, float[1,4] s, float[4,4] w) => (float[1,4] y)
      <float[1] k = {-3.4028234663852886e38}> {
      [cast] c = Cast<to=1>(m) [mm] p = MatMul(s, w) [hide] h = Mul(c, k) [add] a = Add(p, h) [soft] y = Softmax(a) }"""
    feed = {"m": np.array([[0, 0, 1, 1]]), "s": np.array([[0.1, 0.2, 0.3, 0.4]], np.float32)}
    feed["w"] = np.eye(4, dtype=np.float32)
    lists = mixlist.load_policy(precision_mode_v2="mixed_bfloat16")
    report = mixlist.check(model(text), lists, [feed], layerwise=True)
    assert report.exception_rate == 0 and report.outputs[0].passed
    errors = {error.name: error.normalized_error for error in report.layerwise}
    assert "mm" in errors and max(errors.values()) < 0.01, errors


def test_a_reference_whose_opset_has_no_bfloat16_is_not_ranked() -> None:
    """``apply --opset`` writes such a mixed model; the check of it must not fail."""
    text = "<ir_version: 8, opset_import: ['' : OPSET]> g (float[4] x) => (float[4] y) { [a] y = Add(x, x) }".replace(
        "'", '"'
    )
    mixed = text.replace("[a] y = Add(x, x)", "h = Cast<to = 16>(x) [a] s = Add(h, h) y = Cast<to = 1>(s)")
    feed = {"x": np.array([1.01, 2.02, 3.03, 4.04], np.float32)}
    limits = mixlist.Limits(normalized=1e-9)
    for opset, ranked in ((11, False), (13, True)):
        original = onnx.parser.parse_model(text.replace("OPSET", str(opset)))
        given = onnx.parser.parse_model(mixed.replace("OPSET", "14"))
        report = mixlist.check(original, mixlist.load_policy(), [feed], mixed_model=given, limits=limits)
        assert report.verdict == "fail" and bool(report.layerwise) == ranked
        assert any(item.code == "ML606" for item in report.warnings) != ranked
