"""The values of a mask are distinguished from other large values and infinities, by the sign of the constant.

Rules S8.5, S8.11 and S8.12. The cases differ in one number or sign; many of them have the same ranges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from tests.support.builders import model, policy

INF = np.inf
HEAD = "g (float[1,3] x, float[1,3] f) => (float[1,3] y) <float zero = {0}, float one = {1}, float k = {MASK}> {"
FACTOR = "b = Less(f, zero) c = Cast<to=1>(b) "
FORMS = {
    "times a factor": FACTOR + "[m] m = Mul(c, k) [t] t = Add(m, x) [y] y = Softmax(t) }",
    "times a factor less one": FACTOR + "[o] o = Sub(c, one) [m] m = Mul(o, k) [t] t = Add(m, x) [y] y = Softmax(t) }",
    "chosen": FACTOR + "[m] m = Where(b, k, zero) [t] t = Add(m, x) [y] y = Softmax(t) }",
    "subtracted": FACTOR + "[m] m = Where(b, k, zero) [t] t = Sub(x, m) [y] y = Softmax(t) }",
    "in place of scores": FACTOR + "[t] t = Where(b, k, x) [y] y = Softmax(t) }",
    "expanded": "s = Shape(x) [e] e = Expand(k, s) [m] m = Mul(f, e) [t] t = Add(m, x) [y] y = Softmax(t) }",
    "times an input": "[m] m = Mul(f, k) [t] t = Add(m, x) [y] y = Softmax(t) }",
    "times a mask": FACTOR + "[w] w = Where(b, k, x) [m] m = Mul(w, k) [t] t = Add(m, x) [y] y = Softmax(t) }",
}


def kind_of_sum(
    form: str, mask: float, *rows: list[float], factor: tuple[float, ...] = (-1, 1, 1), **options: Any
) -> str:
    """Return the worst kind of finding of the sum of scores and mask in the last batch, ``nothing`` for none."""
    text = HEAD.replace("MASK", f"{mask:g}") + FORMS[form]
    feeds = [{"x": np.array([row], np.float32), "f": np.array([factor], np.float32)} for row in rows]
    lists = policy(white=["Add", "Sub", "Where"], black=["Mul", "Less", "Softmax"], constants="ieee")
    report = mixlist.check(model(text), lists, feeds, **options)
    found_kinds = [n.kind for n in report.nodes if n.name == "t" and not n.input and len(rows) - 1 in n.batches]
    return found_kinds[0] if found_kinds else "nothing"


@pytest.mark.parametrize(
    ("form", "mask"),
    [
        *(("times a factor", -size) for size in (7e4, 1e5, 1e9)),
        *(("times a factor less one", size) for size in (7e4, 1e9)),
        *(("chosen", -size) for size in (7e4, 131040, 1e9)),
        *(("subtracted", size) for size in (1e5, 1e9)),
        *(("in place of scores", -size) for size in (1e5, 1e9)),
    ],
)
def test_every_form_of_a_mask_is_intended(form: str, mask: float) -> None:
    factor = (1.0, -1.0, -1.0) if form == "times a factor less one" else (-1.0, 1.0, 1.0)
    assert kind_of_sum(form, mask, [1.0, 2.0, 3.0], factor=factor) == "intended"


@pytest.mark.parametrize("form", ["times an input", "expanded"])
def test_a_factor_from_an_input_makes_a_mask_if_it_is_at_most_1(form: str) -> None:
    assert kind_of_sum(form, -1e9, [1.0, 2.0, 3.0], factor=(1.0, 0.0, 0.0)) == "intended"
    assert kind_of_sum(form, -1e9, [1.0, 2.0, 3.0], factor=(2.0, 0.0, 0.0)) == "overflow"


def test_a_mask_times_a_mask_is_no_mask() -> None:
    """The scores that are joined to the first mask are multiplied, too."""
    assert kind_of_sum("times a mask", -20000, [10.0, 2.0, 3.0], factor=(1, 1, 1)) == "overflow"


@pytest.mark.parametrize(("score", "kind"), [(3e9, "saturated"), (-3e9, "saturated"), (-60000.0, "intended")])
def test_a_saturated_score_does_not_belong_to_the_mask(score: float, kind: str) -> None:
    """A score of the opposite sign does not, and a score of half of the constant makes the mask unproven."""
    assert kind_of_sum("chosen", -2e5, [score] * 3, overflow_mode="saturate") == kind


@pytest.mark.parametrize("form", ["chosen", "in place of scores"])
def test_a_small_mask_needs_scores_in_range_in_each_batch(form: str) -> None:
    small_scores, large_scores = [1.0, 2.0, 3.0], [1.0, 9e4, 3.0]
    assert kind_of_sum(form, -7e4, large_scores, small_scores) == "intended"
    assert kind_of_sum(form, -7e4, small_scores, large_scores) == "overflow"
    assert kind_of_sum(form, -7e4, small_scores, [1.0, 2.0, np.nan]) == "overflow"


@pytest.mark.parametrize("infinity", [INF, -INF])
@pytest.mark.parametrize("mask", [-1e9, -3.4e38])
def test_an_infinity_of_the_data_leaves_a_mask_intended(mask: float, infinity: float) -> None:
    assert kind_of_sum("chosen", mask, [1.0, 2.0, infinity]) == "preexisting"
    assert kind_of_sum("chosen", mask, [1.0, 7e4, infinity]) == "overflow"


def test_an_infinity_of_the_opposite_sign_is_an_overflow() -> None:
    """A converted score is infinite, so its sum with a mask that was reduced (Rule S4.36) is infinite too."""
    text = """g (float[1,1] x) => (float[1,1] y) <float k = {-1e9}, float seven = {7}, float one = {1}> {
      b = Less(x, seven) f = Cast<to=1>(b) i = Sub(one, f) m = Mul(i, k) [t] t = Add(m, x) [y] y = Softmax(t) }"""
    feed = {"x": np.array([[83200]], np.float32)}  # -999916800 in float32
    report = mixlist.check(model(text), policy(mode="fp16", protect=("masks",)), [feed])
    assert {(n.name, n.input, n.kind) for n in report.nodes if n.name in "ty"} == {
        ("t", "x", "overflow"),
        ("t", "", "overflow"),
        ("y", "", "propagated"),
    }


def test_a_mask_that_a_float32_node_adds_is_intended() -> None:
    """The mask is infinite in the low Where, and therefore in the float32 sum too."""
    text = HEAD.replace("MASK", "-1e9") + FORMS["chosen"]
    feed = {"x": np.array([[1, 2, 3]], np.float32), "f": np.array([[-1, 1, 1]], np.float32)}
    lists = policy(white=["Where"], black=["Add", "Less", "Softmax"], constants="ieee")
    report = mixlist.check(model(text), lists, [feed])
    assert {n.name: n.kind for n in report.nodes} == {"m": "intended", "t": "intended"}
    assert report.verdict == "pass"


@pytest.mark.parametrize(
    ("values", "kind"),
    [([-3.4e38, 1.0], "intended"), ([-3.4e38, 1.9e38], "overflow"), ([-3.4e38, 9e36], "intended")],
)
@pytest.mark.parametrize("op", ["Tanh", "Neg"])
def test_values_that_bfloat16_holds_decide_the_side_of_masks_too(op: str, values: list[float], kind: str) -> None:
    """Rule S8.11: all values of at least 1e37 count for the sides, also those that bfloat16 holds."""
    text = f"g (float[2] x) => (float[2] y) {{ [h] h = Identity(x) [n] y = {op}(h) }}"
    lists = policy(white=[op], black=["Identity"], mode="mixed_bfloat16")
    report = mixlist.check(model(text), lists, [{"x": np.array(values, np.float32)}])
    assert {n.kind for n in report.nodes if n.input} == {kind}
