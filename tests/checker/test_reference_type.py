"""The reference: as the author wrote the model, or in float32 (``--reference-type``)."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor


def test_a_float32_node_beyond_float32_is_preexisting() -> None:
    """Values on both sides, so that they are no mask."""
    feed = {"x": np.array([1e20, -2e20], np.float32), "z": np.array([1e5, 1.0], np.float32)}
    text = "g (float[2] x, float[2] z) => (float[2] y, float[2] r) { a = Abs(x) [m] y = Mul(x, a) [r] r = Relu(z) }"
    report = mixlist.check(model(text), policy(white=["Relu"]), [feed])
    assert {(finding.name, finding.kind) for finding in report.nodes} == {("m", "preexisting"), ("r", "overflow")}


# The float16 part of ``x``, and the rest, which float32 holds.
SPLIT = """g (float[4] x) => (float[4] y) <float k = {1000}> {
  h = Cast<to = 10>(x) c = Cast<to = 1>(h) lo = Sub(x, c) y = Mul(lo, k) }"""


def test_the_reference_has_the_casts_of_the_author() -> None:
    """Rule S8.1: a low Sub loses the rest whole, and nothing is lost where no node is lowered."""
    feed = {"x": np.array([1.0003, 1.2004, 1.7777, 1.9001], np.float32)}
    high = mixlist.check(model(SPLIT), policy(mode="origin"), [feed])
    assert high.verdict == "inconclusive" and high.outputs[0].normalized_error == 0
    assert high.reasons == (
        "every limit is kept, because the lists change nothing",
        "reference_type='float32' of check compares the model with its form in float32",
    )
    assert mixlist.check(model(SPLIT), policy(white=["Mul"]), [feed]).verdict == "pass"
    low = mixlist.check(model(SPLIT), policy(white=["Sub", "Mul"]), [feed])
    assert low.verdict == "fail" and low.outputs[0].normalized_error == 1
    in_float32 = mixlist.check(model(SPLIT), policy(mode="origin"), [feed], reference_type="float32")
    assert in_float32.verdict == "fail"  # without the Casts, nothing is left of the rest


def test_a_pass_says_that_the_given_model_is_low_already() -> None:
    """Rule S8.39: three nodes are the author's, and the lists make [r] low, too."""
    text = """g (float16[2] x, float[2] z) => (float16[2] y, float[2] r) {
      [a] a = Mul(x, x) [b] b = Add(a, x) [y] y = Neg(b) [r] r = Relu(z) }"""
    feed = {"x": np.ones(2, np.float16), "z": np.ones(2, np.float32)}

    def is_said(white: list[str], lines: str = text, **options: str) -> bool:
        report = mixlist.check(model(lines), policy(white=white), [feed], **options)  # type: ignore[arg-type]
        assert report.verdict == "pass"
        return "the given model is in low precision already, and is the reference" in report.reasons

    assert is_said(["Relu"])
    assert not is_said(["Relu"], reference_type="float32")
    few = text.replace("[a] a = Mul(x, x) [b] b = Add(a, x) [y] y = Neg(b)", "[y] y = Neg(x)")
    assert not is_said(["Relu"], few)


def test_a_search_compares_with_the_casts_of_the_author() -> None:
    """Rule S8.1: the trials have the reference of the checks."""
    feed = {"x": np.array([1.0003, 1.2004, 1.7777, 1.9001], np.float32)}
    report = mixlist.tune(model(SPLIT), policy(white=["Sub", "Mul"]), [feed], executor=InProcessExecutor())
    assert (report.verdict, [edit.op for edit in report.edits]) == ("pass", ["Sub"])


@pytest.mark.parametrize("reference_type", ["authored", "float32"])
def test_a_float16_node_of_the_author_that_overflows(reference_type: str) -> None:
    """Rules S8.1, S8.40: no list changes it, and the float32 form shows it."""
    text = """g (float[2] x) => (float[2] y, float[2] z) {
      h = Cast<to = 10>(x) [m] m = Mul(h, h) y = Cast<to = 1>(m) [n] z = Mul(x, x) }"""
    feed = {"x": np.array([300, 1], np.float32)}
    lists, black = policy(white=[], black=["Mul"]), {"reference_type": reference_type}
    report = mixlist.check(model(text), lists, [feed], **black)  # type: ignore[arg-type]
    assert report.verdict == ("inconclusive" if reference_type == "authored" else "fail")
    assert next(node for node in report.nodes if node.name == "m").kind == (
        "preexisting" if reference_type == "authored" else "overflow"
    )


def test_an_unknown_reference_type_is_refused() -> None:
    with pytest.raises(UsageError, match="reference type 'float16' is not known"):
        mixlist.check(model(SPLIT), policy(), [], reference_type="float16")


def test_a_mixed_model_that_is_given_has_its_own_low_type() -> None:
    source = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    lists = policy(white=["Relu"], mode="mixed_bfloat16")
    mixed = mixlist.rewrite(source, mixlist.resolve(source, lists)).model
    feed = {"x": np.array([1, 2], np.float32)}
    assert mixlist.check(source, policy(), [feed], mixed_model=mixed).precision == "bfloat16"


@pytest.mark.parametrize(("outside", "inside"), [("float16", "float"), ("float", "float16"), ("bfloat16", "float")])
def test_a_mixed_model_may_have_another_interface(outside: str, inside: str) -> None:
    """Rule S7.3: The batches are in the types of the original, as ``apply --io`` writes the other one."""
    original = model(f"g ({outside}[2] x) => ({outside}[2] y) {{ y = Relu(x) }}")
    mixed = mixlist.rewrite(original, mixlist.resolve(original, policy(mode="fp16"), io="low")).model
    if inside == "float":
        plan = mixlist.resolve(original, policy(mode="origin"), io="float32")
        mixed = mixlist.rewrite(original, plan).model
    report = mixlist.check(original, policy(), [{"x": np.array([1, 2], np.float32)}], mixed_model=mixed)
    assert report.outputs[0].passed and report.outputs[0].max_abs_error == 0
