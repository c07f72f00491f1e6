"""Verdicts of outputs that TopK or NonMaxSuppression gives in another order (Rule S8.38)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from tests.support.builders import apply, model, policy

LOW = policy(white=["Mul", "Add", "Sub"])
TOP = (
    "g (float[4] x) => (int64[K] y) <int64[1] k = {2}, float one = {1}> {"
    " [s] s = Mul(x, one) [top] v, i = TopK(s, k) y = Neg(i) }"
)
# float16 has steps of 0.0005 from 0.5 to 1, so both pairs are equal there, and the lower index comes first.
PAIRS = np.array([0.6, 0.6003, 0.7, 0.7001], np.float32)


def check(network: onnx.ModelProto, *feeds: dict[str, Any], **options: Any) -> mixlist.CheckReport:
    return mixlist.check(network, LOW, list(feeds), **options)


def test_the_batches_of_a_node_add_up() -> None:
    """The largest gap counts, in whichever batch it is; a batch without a change is not named."""
    near, far, same = PAIRS, PAIRS[[0, 1, 2, 3]] + np.array([0, 0, 0, 0.0001], np.float32), PAIRS[[3, 2, 1, 0]]
    for batches, changed in (([near, same, far], (0, 2)), ([far, near], (0, 1))):
        report = check(model(TOP), *({"x": x} for x in batches))
        assert report.verdict == "pass"
        (change,) = report.order_changes
        assert (change.batches, change.total, change.places) == (changed, 2 * len(batches), 4)
        assert change.gap == pytest.approx(0.0002, rel=0.01)
        assert change.relative_gap == pytest.approx(0.0002 / 0.1002, rel=0.01)


def test_the_order_along_another_axis() -> None:
    """The spread is that of a column: 2 % of the spread of all values would excuse both columns."""
    text = TOP.replace("[4] x", "[4,2] x").replace("[K] y", "[K,2] y").replace("TopK(", "TopK<axis = 0>(")
    report = check(model(text), {"x": np.stack([PAIRS, PAIRS[::-1]], 1)})
    (change,) = report.order_changes
    assert (report.verdict, change.places, change.total) == ("pass", 2, 4)
    report = check(model(text), {"x": np.stack([PAIRS, [0.7, 0.7001, 0.7, 0.7001]], 1).astype(np.float32)})
    assert (report.verdict, report.order_changes) == ("fail", ())


@pytest.mark.parametrize("axis", [0, 1])
def test_the_values_of_the_reference_order_are_those_of_the_mixed_model(axis: int) -> None:
    """The output multiplies each index by its value, so that it needs both in the order of the reference."""
    text = TOP.replace("[4] x", "[A,B] x").replace("int64[K] y", "float[C,D] y")
    text = text.replace("y = Neg(i)", "f = Cast<to = 1>(i) y = Mul(f, v)")
    text = text.replace("TopK(", "TopK<axis = 0>(") if axis == 0 else text
    report = check(model(text), {"x": np.stack([PAIRS, PAIRS[[2, 3, 0, 1]]], 1 - axis)})
    assert (report.verdict, [change.places for change in report.order_changes]) == ("pass", [4])


def test_a_masked_score_does_not_widen_the_spread() -> None:
    text = TOP.replace("k = {2}", "k = {4}").replace("[4] x", "[5] x")
    report = check(model(text), {"x": np.insert(PAIRS, 2, -np.inf)})
    (change,) = report.order_changes
    assert report.verdict == "pass" and change.gap == pytest.approx(0.0003, rel=0.01)
    assert change.relative_gap == pytest.approx(0.0003 / 0.1001, rel=0.01)


def test_equal_scores_of_the_reference_are_nearly_equal() -> None:
    """Both products are 6147 in float32; float16 makes 6144 of the first one and 6148 of the second one."""
    text = TOP.replace("float[4] x", "float[2] x, float[2] z").replace("Mul(x, one)", "Mul(x, z)")
    report = check(model(text), {"x": np.array([2049, 6147], np.float32), "z": np.array([3, 1], np.float32)})
    (change,) = report.order_changes
    assert (report.verdict, change.places, change.gap, change.relative_gap) == ("pass", 2, 0, 0)


@pytest.mark.parametrize(
    ("k", "x"),
    [
        # 2049 is 2048 in float16: two values are chosen, not three.
        ("d = Sub(m, base) c = Cast<to = 7>(d) k = Reshape(c, one_k) e = Identity(s)", PAIRS),
        # 0.50004 is 0.5: the values without the last one are ordered, and those at changed places are nearly equal.
        (
            "b = Greater(s, half) e = Compress(s, b) k = Identity(two)",
            np.array([0.6, 0.7, 0.7001, 0.50004], np.float32),
        ),
    ],
    ids=["k", "elements"],
)
def test_another_number_of_values_is_not_excused(k: str, x: Any) -> None:
    text = (
        "g (float[4] x, float z) => (int64[N] y) <int64[1] one_k = {1}, int64[1] two = {2}, float one = {1},"
        " float base = {2046}, float half = {0.5}> { s = Mul(x, one) m = Mul(z, one) K [top] v, i = TopK(e, k)"
        " y = Neg(i) }"
    )
    report = check(model(text.replace("K [top]", f"{k} [top]")), {"x": x, "z": np.float32(2049)})
    assert (report.verdict, report.order_changes) == ("fail", ())


def test_scores_that_are_all_equal_have_one_order() -> None:
    report = check(model(TOP), {"x": np.full(4, 0.7, np.float32)})
    assert (report.verdict, report.order_changes) == ("pass", ())


@pytest.mark.parametrize(
    "text",
    [
        # The ordered values must be a tensor of the main graph, and the opset must have GatherElements.
        TOP.replace("TopK(s, k)", "TopK(s, k)").replace("g (", '<ir_version: 5, opset_import: ["" : 10]> g (', 1),
        "g (float[4] x, bool c) => (int64[2] y) <int64[1] k = {2}, float one = {1}> { s = Mul(x, one)"
        " i = If(c) <then_branch = t () => (int64[2] j) { v, j = TopK(s, k) },"
        " else_branch = e () => (int64[2] m) { w, m = TopK<largest = 0>(s, k) }> y = Neg(i) }",
    ],
    ids=["opset 10", "body"],
)
def test_where_no_order_can_be_given_nothing_is_excused(text: str) -> None:
    network = model(text)
    names = {value.name for value in network.graph.input}
    feed = {name: array for name, array in {"x": PAIRS, "c": np.array(True)}.items() if name in names}
    report = check(network, feed)
    assert (report.verdict, report.order_changes) == ("fail", ())


@pytest.mark.parametrize("how", ["another name", "another operator"])
def test_a_mixed_model_without_the_node_excuses_nothing(how: str) -> None:
    network = model(TOP)
    mixed = apply(network, LOW)
    top = next(node for node in mixed.graph.node if node.op_type == "TopK")
    reader = next(node for node in mixed.graph.node if node.op_type == "Neg")
    top.output[1] = "other"
    if how == "another name":
        reader.input[0] = "other"
    else:
        mixed.graph.node.insert(len(mixed.graph.node) - 1, onnx.helper.make_node("Abs", ["other"], ["i"]))
    report = check(network, {"x": PAIRS}, mixed_model=mixed)
    assert (report.verdict, report.order_changes) == ("fail", ())


def test_an_order_of_a_graph_input_is_not_replayed() -> None:
    """The boxes are a graph input, which both models have already."""
    report = suppressed([0.8001, 0.8004, 0.5, 0.6, 0.1, 0.2], 6, 0.0, boxes="boxes")
    assert (report.verdict, report.order_changes) == ("fail", ())


def test_each_output_depends_on_the_orders_in_front_of_it() -> None:
    """The order of far values in front of one output excuses nothing there, and says nothing about the other one."""
    text = (
        "g (float[4] x, float[4] w) => (int64[2] y, int64[2] z) <int64[1] k = {2}, float one = {1}> { s = Mul(x, one)"
        " t = Mul(w, one) [near] v, i = TopK(s, k) [far] u, j = TopK(t, k) a = Abs(x) [same] p, q = TopK(a, k)"
        " y = Add(i, q) z = Neg(j) }"
    )
    far = np.array([0.7, 0.70001, 0.7, 0.70001], np.float32)
    report = check(model(text), {"x": PAIRS, "w": far})
    assert [(o.name, o.passed) for o in report.outputs] == [("y", True), ("z", False)]
    assert [(change.name, change.outputs) for change in report.order_changes] == [("near", ("y",))]


def test_opset_11_has_the_operator_that_gives_an_order() -> None:
    report = check(model(f'<ir_version: 6, opset_import: ["" : 11]> {TOP}'), {"x": PAIRS})
    assert (report.verdict, len(report.order_changes)) == ("pass", 1)


def test_an_output_in_front_of_the_order_is_not_excused() -> None:
    """The first output fails by itself; the second one only by its order."""
    text = (
        "g (float[4] x, float[4] z) => (float[4] a, int64[2] y) <int64[1] k = {2}, float one = {1},"
        " float big = {6e4}> { [p] p = Add(z, big) a = Sub(p, big) s = Mul(x, one) [top] v, i = TopK(s, k) y = Neg(i) }"
    )
    report = check(model(text), {"x": PAIRS, "z": np.array([1, 2, 3, 4], np.float32)})
    assert report.verdict == "fail"
    assert [(o.name, o.passed) for o in report.outputs] == [("a", False), ("y", True)]
    assert [change.outputs for change in report.order_changes] == [("y",)]


def test_a_branch_reads_the_order() -> None:
    """An output is behind the order also if a branch of an If reads it."""
    text = (
        "g (float[4] x, bool c) => (int64[2] y) <int64[1] k = {2}, float one = {1}> { s = Mul(x, one)"
        " [top] v, i = TopK(s, k) y = If(c) <then_branch = t () => (int64[2] p) { p = Neg(i) },"
        " else_branch = e () => (int64[2] q) { q = Abs(i) }> }"
    )
    report = check(model(text), {"x": PAIRS, "c": np.array(True)})
    assert report.verdict == "pass"
    assert [change.outputs for change in report.order_changes] == [("y",)]


def test_a_batch_of_nan_does_not_count() -> None:
    report = check(model(TOP), {"x": np.full(4, np.nan, np.float32)}, {"x": PAIRS})
    (change,) = report.order_changes
    assert (change.batches, change.total) == ((1,), 2)


# --- NonMaxSuppression ---

BOXES = (np.arange(6, dtype=np.float32)[:, None] * 10 + np.array([0, 0, 5, 5], np.float32))[None]
SUPPRESSION = """
g (float[1, 6, 4] boxes, float[1, 1, 6] x) => (float[N, 4] y) <
    int64[1] most = {MOST}, float[1] overlap = {0.5}, float[1] threshold = {THRESHOLD}, float one = {1},
    float far = {128}, int64 column = {2}, int64[1] first = {0}
> { s = Mul(x, one) b = Mul(boxes, one) [nms] selected = NonMaxSuppression(ORDERED, s, most, overlap, threshold)
    places = Gather <axis = 1> (selected, column) rows = Squeeze(b, first) y = Gather <axis = 0> (rows, places) }
"""


def suppressed(
    scores: list[float], most: int, threshold: float, boxes: str = "b", score: str = "s = Mul(x, one)"
) -> mixlist.CheckReport:
    text = (
        SUPPRESSION.replace("ORDERED", boxes)
        .replace("s = Mul(x, one)", score)
        .replace("MOST", str(most))
        .replace("THRESHOLD", str(threshold))
    )
    return check(model(text), {"boxes": BOXES, "x": np.array([[scores]], np.float32)})


def test_only_boxes_that_one_model_chose_are_compared() -> None:
    """Of the chosen boxes the first two change places, and the third is another one: its scores differ by 0.0001."""
    report = suppressed([0.8001, 0.8004, 0.7, 0.7001, 0.1, 0.2], 3, 0.0)
    (change,) = report.order_changes
    assert (report.verdict, change.places, change.total) == ("pass", 3, 3)
    assert change.gap == pytest.approx(0.0001, rel=0.01)
    assert change.relative_gap == pytest.approx(0.0001 / 0.7004, rel=0.01)


def test_boxes_that_one_model_chose_are_compared_in_the_order_of_their_scores() -> None:
    """Float16 makes 0.7998 of four scores: the reference chooses the last two of these boxes, and float16 the first."""
    (change,) = suppressed([0.79963, 0.7996, 0.79966, 0.79969, 0.1, 0.2], 2, 0.0).order_changes
    assert change.gap == pytest.approx(6e-5, rel=0.01)


def test_scores_that_break_the_limits_excuse_no_order() -> None:
    """The boxes keep the limits, and the sum makes each score a multiple of 1 / 8."""
    report = suppressed([0.8001, 0.8004, 0.5, 0.6, 0.1, 0.2], 6, 0.0, score="f = Add(x, far) s = Sub(f, far)")
    assert (report.verdict, report.order_changes) == ("fail", ())


def test_boxes_at_other_places_are_compared() -> None:
    report = suppressed([0.8001, 0.8004, 0.5, 0.6, 0.1, 0.2], 6, 0.0)
    (change,) = report.order_changes
    assert (report.verdict, change.places, change.total) == ("pass", 2, 6)
    assert change.gap == pytest.approx(0.0003, rel=0.01)


def test_another_number_of_boxes_is_judged_in_the_order_of_the_reference() -> None:
    """0.50004 is 0.5 in float16, which is not above the threshold: only the reference chooses this box."""
    report = suppressed([0.8, 0.50004, 0.7, 0.6, 0.1, 0.2], 6, 0.5)
    (change,) = report.order_changes
    assert (report.verdict, change.places, change.total) == ("pass", 1, 4)
    assert change.gap == 0  # no box is chosen in its place
