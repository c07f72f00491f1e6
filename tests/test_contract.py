"""The checks of tests/support/contract.py: each check refuses a result that breaks its point."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from tests.support.builders import model
from tests.support.contract import check_contract, check_idempotent

BEFORE = """g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
  a = Add(x, w)
  b = Relu(a)
  k = Constant<value_float=2.0>()
  y = If(c) <then_branch = t () => (float[N,4] p) { p = Mul(b, k) },
             else_branch = e () => (float[N,4] q) { q = Mul(b, w) }>
}"""
AFTER = """g (float[N,4] x, bool c) => (float[N,4] y)
  <float[4] w = {1,2,3,4}, float16[4] w_low = {1,2,3,4}> {
  [mixlist] x_low = Cast<to=10>(x)
  a = Add(x_low, w_low)
  b = Relu(a)
  [mixlist] b_high = Cast<to=1>(b)
  k = Constant<value_float=2.0>()
  y = If(c) <then_branch = t () => (float[N,4] p) { p = Mul(b_high, k) },
             else_branch = e () => (float[N,4] q) { q = Mul(b_high, w) }>
}"""

# A text in AFTER, its replacement, and the message that check_contract must raise.
BREAKS = {
    "type of an output": ("=> (float[N,4] y)\n", "=> (float[M,4] y)\n", "point 2"),
    "cast in the branch": (
        "p = Mul(b_high, k)",
        "[mixlist] b_two = Cast<to=1>(b) p = Mul(b_two, k)",
        "is outside the scope",
    ),
    "same cast twice": ("k = Const", "[mixlist] x_two = Cast<to=10>(x) k = Const", "2 times"),
    "cast of an initializer": ("q = Mul(b_high, w)", "q = Mul(b_high, w_two)", "could have been converted"),
    "chain": ("k = Const", "[mixlist] b_low = Cast<to=10>(b_high) k = Const", "itself a Cast"),
    "unused cast": ("k = Const", "[mixlist] a_high = Cast<to=1>(a) k = Const", "nothing reads"),
    "useless cast": ("k = Const", "[mixlist] a_low = Cast<to=10>(a) k = Const", "has already"),
    "an unmarked cast": ("[mixlist] b_high", "b_high", "nodes became"),
    "constant changed": ("float[4] w = {1,2,3,4}", "float[4] w = {1,2,3,5}", "point 7"),
    "conversion changed": ("w_low = {1,2,3,4}", "w_low = {1,2,3,5}", "point 7"),
    "attribute changed": ("<value_float=2.0>", "<value_float=2.5>", "point 7"),
    "left over": ("b_high, w)", "b_high, k)", "left over"),
    "node dropped": ("b = Relu(a)\n  [mixlist] b_high = Cast<to=1>(b)", "[mixlist] b_high = Cast<to=1>(a)", "is gone"),
    "name of another tensor": ("b_high", "q", "not unique|point 1"),
    "name used twice": ("x_low", "b_high", "point 1|point 3"),
    "value_info": ("w_low = {1,2,3,4}>", "w_low = {1,2,3,4}, float[N,4] a>", "contradicts|refuses"),
    "missing value_info": ("w_low = {1,2,3,4}>", "w_low = {1,2,3,4}, float[4] gone>", "missing tensor"),
}


def broken(old: str, new: str) -> onnx.ModelProto:
    """Return AFTER with a replacement that breaks a point, without the checks of ONNX."""
    assert old in AFTER
    text = AFTER.replace(old, new)
    if "w_two" in text:
        text = text.replace("  k = Const", "  [mixlist] w_two = Cast<to=1>(w_low)\n  k = Const")
    return model(text, check=False)


def test_an_unchanged_model_and_a_correct_result_pass() -> None:
    check_contract(model(BEFORE), model(BEFORE))
    check_contract(model(BEFORE), model(AFTER))


@pytest.mark.parametrize("name", BREAKS)
def test_a_result_that_breaks_a_point_is_refused(name: str) -> None:
    old, new, message = BREAKS[name]
    with pytest.raises(AssertionError, match=message):
        check_contract(model(BEFORE), broken(old, new), runtime=False)


def _unsort(m: onnx.ModelProto) -> None:
    nodes = list(m.graph.node)
    del m.graph.node[:]
    m.graph.node.extend([nodes[2], nodes[0], nodes[1], *nodes[3:]])


EDITS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "unsorted": (_unsort, "point 1|point 3"),
    "metadata": (lambda m: m.metadata_props.add(key="other", value="1"), "metadata"),
    "opset": (lambda m: m.opset_import.add(domain="com.microsoft", version=1), "opset"),
    "ir": (lambda m: setattr(m, "ir_version", 9), "ir_version"),
    "node name": (lambda m: setattr(m.graph.node[1], "name", "new"), "called"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_result_with_a_wrong_edit_is_refused(name: str) -> None:
    edit, message = EDITS[name]
    after = model(AFTER)
    edit(after)
    with pytest.raises(AssertionError, match=message):
        check_contract(model(BEFORE), after, runtime=False)


def test_metadata_of_mixlist_is_allowed() -> None:
    after = model(AFTER)
    after.metadata_props.add(key="pkg.mixlist.policy", value="digest")
    check_contract(model(BEFORE), after)


def test_a_result_that_changes_when_applied_again_is_refused() -> None:
    with pytest.raises(AssertionError, match="applying twice"):
        check_idempotent(model(AFTER), lambda m: model(BEFORE))


def test_a_cast_that_undoes_an_exact_user_cast_is_refused() -> None:
    before = model("""g (float16[4] x) => (float[4] y) { a = Cast<to=1>(x) y = Relu(a) }""")
    after = model(
        """g (float16[4] x) => (float[4] y) {
          a = Cast<to=1>(x) [mixlist] b = Cast<to=10>(a) c = Relu(b) [mixlist] y = Cast<to=1>(c) }"""
    )
    with pytest.raises(AssertionError, match="which is exact"):
        check_contract(before, after)


def test_a_second_cast_like_that_of_the_user_is_refused() -> None:
    before = model("""g (float[4] x) => (float[4] y, float16[4] z) { z = Cast<to=10>(x) y = Relu(x) }""")
    after = model(
        """g (float[4] x) => (float[4] y, float16[4] z) {
          z = Cast<to=10>(x) [mixlist] b = Cast<to=10>(x) c = Relu(b) [mixlist] y = Cast<to=1>(c) }"""
    )
    with pytest.raises(AssertionError, match="in addition to the user's Cast"):
        check_contract(before, after)


def test_a_low_island_in_a_float64_model_is_refused() -> None:
    before = model("""g (double[4] x) => (double[4] y) { a = Relu(x) y = Neg(a) }""")
    after = model(
        """g (double[4] x) => (double[4] y) {
          [mixlist] b = Cast<to=10>(x) a = Relu(b) [mixlist] c = Cast<to=11>(a) y = Neg(c) }"""
    )
    with pytest.raises(AssertionError, match="point 5"):
        check_contract(before, after)
