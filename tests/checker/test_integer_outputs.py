"""Test the limits of integer outputs: ids, quantities, and what follows an order (Rules S8.17, S8.34, S8.38)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.checker.integer_outputs import find_id_outputs, find_quantity_outputs
from mixlist.model.build import build_graph
from tests.support.builders import policy

HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
RNG = np.random.default_rng(0)
# The part after ``h``, which is float[4, 8], up to the integer output ``y``; and whether ``y`` holds quantities.
PARTS = {
    "QuantizeLinear": ("y = QuantizeLinear(h, scale, zero)", "uint8[4,8]", True),
    "QuantizeLinear and movers": (
        "q = QuantizeLinear(h, scale, zero)\n t = Transpose(q)\n y = Reshape(t, shape)",
        "uint8[32]",
        True,
    ),
    "a Cast of a float": ("y = Cast <to = 6> (h)", "int32[4,8]", True),
    "a Cast of a rounded float": ("r = Round(h)\n c = Clip(r, low, high)\n y = Cast <to = 2> (c)", "uint8[4,8]", True),
    "two Casts": ("i = Cast <to = 7> (h)\n y = Cast <to = 6> (i)", "int32[4,8]", True),
    "a Gather from quantities": ("i = Cast <to = 7> (h)\n y = Gather <axis = 1> (i, index)", "int64[4,2]", True),
    "ArgMax": ("y = ArgMax <axis = 1> (h)", "int64[4,1]", False),
    "a Cast of ArgMax": ("i = ArgMax <axis = 1> (h)\n y = Cast <to = 6> (i)", "int32[4,1]", False),
    "ArgMax through floats": (
        "i = ArgMax <axis = 1> (h)\n f = Cast <to = 1> (i)\n y = Cast <to = 6> (f)",
        "int32[4,1]",
        False,
    ),
    "a Cast of a comparison": ("b = Greater(h, low)\n y = Cast <to = 6> (b)", "int32[4,8]", False),
    "a comparison": ("y = Greater(h, low)", "bool[4,8]", False),
    "the indices of TopK": ("v, y = TopK(h, three)", "int64[4,3]", False),
    "the values of TopK": ("i = Cast <to = 7> (h)\n y, n = TopK(i, three)", "int64[4,3]", True),
    "a part of quantities": (
        "i = Cast <to = 7> (h)\n p, y = Split <axis = 1> (i)",
        "int64[4,4]",
        True,
    ),
    "a part of ids through floats": (
        "i = ArgMax <axis = 0> (h)\n f = Cast <to = 1> (i)\n p, q = Split <axis = 1> (f)\n y = Cast <to = 6> (q)",
        "int32[1,4]",
        False,
    ),
    "a Cast of an input": ("y = Cast <to = 6> (x)", "int32[4,8]", False),
    "a Cast of what an input chooses": (
        "m = ReduceMax <axes = [1]> (x)\n n = Neg(m)\n y = Cast <to = 6> (n)",
        "int32[4,1]",
        False,
    ),
    "NonZero": ("y = NonZero(h)", "int64[2,N]", False),
    "a sign": ("s = Sign(h)\n y = Cast <to = 6> (s)", "int32[4,8]", False),
    "arithmetic": ("i = Cast <to = 7> (h)\n y = Add(i, i)", "int64[4,8]", False),
    "an id beside a quantity": (
        "i = Cast <to = 7> (h)\n a = ArgMax <axis = 1> (h)\n y = Concat <axis = 1> (i, a)",
        "int64[4,9]",
        False,
    ),
    "a constant": ("y = Identity(index)", "int64[2]", False),
}


def build(part: str, output: str) -> onnx.ModelProto:
    weights = "<float scale = {0.1}, uint8 zero = {128}, int64[1] shape = {32}, int64[2] index = {0, 3}, "
    weights += "float low = {0}, float high = {255}, int64[1] three = {3}>"
    text = f"{HEAD}g (float[4, 8] x, float[8, 8] w) => ({output} y) {weights} {{ h = MatMul(x, w)\n {part} }}"
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("name", PARTS)
def test_quantities_and_ids(name: str) -> None:
    """Rule S8.34."""
    part, output, is_quantity = PARTS[name]
    assert (find_quantity_outputs(build_graph(build(part, output))) == {"y"}) == is_quantity


def test_argmax_that_is_wrong_in_every_element_fails() -> None:
    """Rule S8.17: the numbers of classes are near, and the cosine says nothing about ids."""
    part = "f = Add(h, big)\n y = ArgMax <axis = 1> (f)"
    model = build(part, "int64[4,1]")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(30000, np.float32), "big"))
    x = RNG.uniform(0.1, 1, (4, 8)).astype(np.float32)
    w = np.linspace(0.1, 1, 8, dtype=np.float32) * np.ones((8, 8), np.float32)
    report = mixlist.check(model, policy(white=["Add"]), [{"x": x, "w": w}])
    (output,) = report.outputs
    assert output.mismatches == 1 and not output.quantity
    assert report.verdict == "fail" and output.failed_limits == ("mismatch",)
    relaxed = mixlist.check(model, policy(white=["Add"]), [{"x": x, "w": w}], limits=mixlist.Limits(mismatch=1))
    assert relaxed.verdict == "pass"


def test_quantities_that_are_one_step_off_pass() -> None:
    part, output, _ = PARTS["a Cast of a float"]
    x, w = RNG.uniform(100, 200, (4, 8)).astype(np.float32), np.eye(8, dtype=np.float32) * 9.5
    report = mixlist.check(build(part, output), policy(white=["MatMul"]), [{"x": x, "w": w}])
    assert report.verdict == "pass"
    assert report.outputs[0].quantity and report.outputs[0].mismatches is not None
    assert report.outputs[0].mismatches > 0.01


# Of 8 classes the scores of two are nearly equal after ``far``; ``b`` has the boxes, and ``k`` tells what to keep.
CHOOSE = """g (float[4, 8] x, float[4, 4] b, bool[4] k) => (float[A, B] y) <
    float far = {30000}, float one = {1}, float[1] zero = {0}, int64[2] column = {4, 1}, int64[4] image = {1, 1, 2, 2},
    int64[2] flat = {1, 16}, float[4] scales = {1, 1, 2, 2}, int64[1] last = {1}, int64[1] start = {0},
    int64[1] stop = {4}, int64[4] rows = {3, 2, 1, 0}
> {
    s = Add(x, far)
    i = ArgMax <axis = 1, keepdims = 0> (s)
    f = Cast <to = 1> (i)
"""
IDS_AS_FLOATS = {
    "a Cast": "y = Unsqueeze(f, last)",
    "ArgMin": "m = Neg(s) n = ArgMin <axis = 1, keepdims = 0> (m) a = Cast <to = 1> (n) y = Unsqueeze(a, last)",
    "an addition": "a = Add(f, one) y = Unsqueeze(a, last)",
    "a subtraction": "a = Sub(f, one) y = Unsqueeze(a, last)",
    "an addition of a size": "q = Size(b) n = Cast <to = 1> (q) a = Add(f, n) y = Unsqueeze(a, last)",
    "Round and Floor": "r = Round(f) a = Floor(r) y = Unsqueeze(a, last)",
    "a product with a mask": "m = Cast <to = 1> (k) a = Mul(f, m) y = Unsqueeze(a, last)",
    "a product with an expanded mask": (
        "m = Cast <to = 1> (k) e = Expand(m, stop) a = Mul(f, e) y = Unsqueeze(a, last)"
    ),
    "a Where": "a = Where(k, f, zero) y = Unsqueeze(a, last)",
    "a nearest Resize": (
        'r = Reshape(f, image) t = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",'
        ' nearest_mode = "floor"> (r, , scales) y = Reshape(t, flat)'
    ),
    "a joined output": "c = Reshape(f, column) w = Mul(b, one) y = Concat <axis = 1> (w, c)".replace("column", "wide"),
    "a joined output in another order": (
        "c = Reshape(f, wide) j = Concat <axis = -1> (c, b) g = Gather <axis = 0> (j, rows) y = Slice(g, start, stop)"
    ),
}


def choose(part: str) -> onnx.ModelProto:
    text = CHOOSE.replace("int64[2] column = {4, 1}", "int64[2] wide = {4, 1}")
    return onnx.parser.parse_model(f"{HEAD}{text} {part} }}")


@pytest.mark.parametrize("part", IDS_AS_FLOATS)
def test_ids_that_pass_through_floats_stay_ids(part: str) -> None:
    """Rule S8.34: half of the classes are the next class, which is a small error for quantities."""
    x = np.zeros((4, 8), np.float32)
    x[:, 6], x[:2, 7], x[2:, 7] = 160, 161, 320  # 161 and 160 are one number beside 30000
    feed = {"x": x, "b": RNG.uniform(200, 500, (4, 4)).astype(np.float32), "k": np.ones(4, bool)}
    report = mixlist.check(choose(IDS_AS_FLOATS[part]), policy(white=["Add", "Mul"], black=["Round"]), [feed])
    (output,) = report.outputs
    assert report.verdict == "fail" and output.failed_limits == ("mismatch",), report.reasons
    assert output.mismatches == 0.5
    columns = {"a joined output": (4,), "a joined output in another order": (0,)}
    assert output.id_columns == columns.get(part, ())
    right = mixlist.check(choose(IDS_AS_FLOATS[part]), policy(white=["Mul"]), [feed])
    assert all(o.passed and o.mismatches == 0 for o in right.outputs)


@pytest.mark.parametrize(
    "part",
    [
        "a = Mul(f, far) y = Unsqueeze(a, last)",  # a place in a picture
        "m = ReduceMax <axes = [1], keepdims = 0> (x) a = Add(f, m) y = Unsqueeze(a, last)",
        'r = Reshape(f, image) t = Resize <mode = "linear"> (r, , scales) y = Reshape(t, flat)',
        "a = Div(f, far) y = Unsqueeze(a, last)",
        "n = Neg(b) y = Concat <axis = 1> (b, n)",
    ],
)
def test_what_is_computed_of_ids_is_a_quantity(part: str) -> None:
    """Rule S8.34."""
    assert find_id_outputs(build_graph(choose(part))) == {}


def test_columns_behind_one_of_unknown_size_are_not_known() -> None:
    network = choose("c = Reshape(f, wide) y = Concat <axis = 1> (b, c)")
    network.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "W"
    assert find_id_outputs(build_graph(network)) == {}


# --- Rule S8.38 ---

# Scores of which float16 makes many pairs equal, boxes that follow their order, and sums that do not.
TOP = """
g (float[1, 64] x, float[1, 64, 4] boxes) => (int64[1, 16] ids, float[1, 16] scores, float[1, 16, 4] chosen) <
    int64[1] k = {16}, int64[1] last = {2}, int64[3] wide = {1, 1, 4}, float one = {1}
> {
    [score] s = Mul(x, one)
    [top] v, i = TopK <sorted = 1> (s, k)
    [ids] ids = Identity(i)
    [scores] scores = Identity(v)
    wide_ids = Unsqueeze(i, last)
    all_ids = Expand(wide_ids, wide)
    [box] b = Mul(boxes, one)
    [gather] chosen = GatherElements <axis = 1> (b, all_ids)
}
"""


def top_batch(distance: float) -> dict[str, np.ndarray]:
    """Return scores from 1 to 2 of which each two differ by the distance, and boxes of up to 500."""
    pairs, sides = np.divmod(np.arange(64, dtype=np.float32), 2)
    scores = (1 + pairs / 32 + distance * sides)[None].astype(np.float32)
    return {"x": scores, "boxes": RNG.uniform(0, 500, (1, 64, 4)).astype(np.float32)}


def test_another_order_of_nearly_equal_values_is_told_and_passes() -> None:
    """Outputs that follow the order of the TopK are judged in the order of the reference."""
    model = onnx.parser.parse_model(HEAD + TOP)
    batches = [top_batch(1 / 64), top_batch(2e-4)]
    report = mixlist.check(model, policy(white=["Mul"]), batches)
    assert report.verdict == "pass", report.reasons
    (change,) = report.order_changes
    assert (change.name, change.op_type, change.batches, change.total) == ("top", "TopK", (1,), 32)
    assert set(change.outputs) == {"ids", "chosen"} and 0 < change.places <= 16
    assert change.gap == pytest.approx(2e-4, rel=0.01)
    assert change.relative_gap == pytest.approx(change.gap / (31 / 32 + 2e-4), rel=0.01)
    assert any("follow the order of top (TopK)" in reason for reason in report.reasons)
    assert report.outputs[0].mismatches == 0
    assert report.to_json()["order_changes"][0]["places"] == change.places


def test_indices_that_are_outputs_themselves_are_told_and_pass() -> None:
    text = "g (float[1, 64] x, float one) => (float[1, 16] v, int64[1, 16] i) <int64[1] k = {16}> "
    model = onnx.parser.parse_model(HEAD + text + "{ s = Mul(x, one)\n [top] v, i = TopK(s, k) }")
    batch = {"x": top_batch(2e-4)["x"], "one": np.array(1, np.float32)}
    report = mixlist.check(model, policy(white=["Mul", "TopK"]), [batch])
    assert report.verdict == "pass", report.reasons
    assert [change.outputs for change in report.order_changes] == [("i",)]


def test_an_error_behind_the_order_still_fails() -> None:
    """The boxes are wrong in the reference's order, too: the order explains the ids alone."""
    model = onnx.parser.parse_model(HEAD + TOP.replace("b = Mul(boxes, one)", "w = Add(boxes, far)\n b = Sub(w, far)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(60000, np.float32), "far"))
    report = mixlist.check(model, policy(white=["Mul", "Add", "Sub"]), [top_batch(2e-4)])
    assert report.verdict == "fail"
    assert [(o.name, o.passed) for o in report.outputs] == [("ids", True), ("scores", True), ("chosen", False)]


def test_values_that_are_far_apart_fail() -> None:
    """The scores became one value, so the order says nothing: neither they nor what they order is excused."""
    model = onnx.parser.parse_model(HEAD + TOP.replace("s = Mul(x, one)", "w = Add(x, far)\n s = Sub(w, far)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(30000, np.float32), "far"))
    report = mixlist.check(model, policy(white=["Add", "Sub"]), [top_batch(1 / 64)])
    assert report.verdict == "fail" and report.order_changes == ()
    assert [output.name for output in report.outputs if not output.passed] == ["ids", "scores", "chosen"]


@pytest.mark.parametrize(("gap", "expected"), [(0.02, "pass"), (0.0201, "fail")])
def test_nearly_equal_is_within_two_percent(gap: float, expected: str) -> None:
    """Values that float16 makes equal after a sum: the first one is chosen, and the second one is larger."""
    text = """
    g (float[1, 3] x) => (int64[1, 1] i) <int64[1] k = {1}, float far = {4096}> {
        a = Add(x, far)
        s = Sub(a, far)
        v, i = TopK(s, k)
    }
    """
    batch = {"x": np.array([[50 - 50 * gap, 50, 0]], np.float32)}
    report = mixlist.check(onnx.parser.parse_model(HEAD + text), policy(white=["Add", "Sub"]), [batch])
    assert report.verdict == expected and bool(report.order_changes) == (expected == "pass")


# float16 moves what is nearer than 1 to 2048 onto it. A comparison then chooses other elements for a TopK.
COUNTED = """
g (float[N] x) => (float y) <float far = {2048}, int64[1] one = {1}, int64[1] zero = {0}, int64[1] all = {-1}> {
    positive = Abs(x)
    moved = Add(x, far)
    is_chosen = Greater(moved, far)
    HOW
    ordered = Gather(positive, i)
    y = ReduceSum<keepdims = 0>(ordered)
}
"""
BY_COUNT = "as_number = Cast<to = 7>(is_chosen) n = ReduceSum(as_number, zero) k = Max(n, one) v, i = TopK(positive, k)"
BY_NONZERO = "z = NonZero(is_chosen) places = Reshape(z, all) s = Gather(positive, places) v, i = TopK(s, one)"


@pytest.mark.parametrize(("compare", "lost"), [("Greater", 0.5), ("GreaterOrEqual", -0.5)])
@pytest.mark.parametrize("how", [BY_COUNT, BY_NONZERO])
def test_an_order_of_other_elements_excuses_nothing(how: str, compare: str, lost: float) -> None:
    """k, or what NonZero hands to the TopK, depends on low values: 40 elements in one model, 100 in the other."""
    model = onnx.parser.parse_model(HEAD + COUNTED.replace("HOW", how).replace("Greater", compare))
    x = np.concatenate([np.full(30, lost), 2 + 2 * np.arange(40), np.full(30, lost)]).astype(np.float32)
    report = mixlist.check(model, policy(white=["Add"]), [{"x": x}])
    assert (report.verdict, report.order_changes) == ("fail", ())


@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("offset", [0.0, 2000.0])
def test_a_common_offset_of_the_scores_excuses_no_order(mode: str, offset: float) -> None:
    """2 % of the largest magnitude would let nearly all of these scores change places."""
    text = "g (float[1, 150] x, float one) => (int64[1, 150] i) <int64[1] k = {150}> "
    text += "{ s = Mul(x, one)\n v, i = TopK(s, k) }"
    scores = offset + RNG.uniform(0.998 if offset == 0 else 0, 1, (1, 150)).astype(np.float32)
    batch = {"x": scores, "one": np.array(1, np.float32)}
    lists = policy(white=["Mul", "TopK"], mode=mode)
    report = mixlist.check(onnx.parser.parse_model(HEAD + text), lists, [batch])
    (output,) = report.outputs
    assert report.verdict == "fail" and output.mismatches is not None and output.mismatches > 0.5
    assert report.order_changes == ()


def test_another_number_of_chosen_values_fails() -> None:
    """The number of values that TopK chooses depends on low values: 2049 is 2048 in float16."""
    text = """g (float[1, 3000] x, float[1] t) => (int64[1, K] i) <int64[1] zero = {0}, float one = {1}> {
        r = ReduceSum <keepdims = 0> (t) k = Cast <to = 7> (r) n = Unsqueeze(k, zero)
        s = Mul(x, one) v, i = TopK(s, n) }"""
    feed = {"x": RNG.permutation(3000)[None].astype(np.float32), "t": np.array([2049], np.float32)}
    report = mixlist.check(onnx.parser.parse_model(HEAD + text), policy(white=["ReduceSum", "Mul"]), [feed])
    assert report.verdict == "fail" and report.order_changes == ()


def test_values_that_the_reference_does_not_have_fail() -> None:
    """NonZero gives TopK another number of elements in each model."""
    text = """g (float[64] x, float one) => (int64[2] i) <int64[1] k = {2}, int64[1] zero = {0}> {
        s = Mul(x, one) z = NonZero(s) f = Cast <to = 1> (z) q = Squeeze(f, zero) v, i = TopK(q, k) }"""
    x = np.concatenate([np.ones(8), np.full(48, 1e-9), np.ones(8)]).astype(np.float32)
    for one in (np.float32(1), np.float32(1e-3)):
        feed = {"x": x, "one": np.array(one)}
        report = mixlist.check(onnx.parser.parse_model(HEAD + text), policy(white=["Mul"]), [feed])
        assert report.verdict == "fail" and report.order_changes == ()


SUPPRESSION = """
g (float[1, 64, 4] boxes, float[1, 1, 64] x) => (float[N, 4] chosen, int64[N, 3] ids) <
    int64[1] most = {64}, float[1] overlap = {0.5}, float[1] threshold = {0.0}, float one = {1},
    int64 column = {2}, int64[1] first = {0}
> {
    [score] s = Mul(x, one)
    [box] b = Mul(boxes, one)
    [nms] selected = NonMaxSuppression(b, s, most, overlap, threshold)
    [ids] ids = Identity(selected)
    [column] places = Gather <axis = 1> (selected, column)
    [flat] rows = Squeeze(b, first)
    [gather] chosen = Gather <axis = 0> (rows, places)
}
"""


def test_boxes_in_another_order_are_told_and_pass() -> None:
    """Boxes far from one another: NonMaxSuppression keeps all, in the order of their scores."""
    corner = RNG.permutation(64).astype(np.float32)[:, None] * np.array([10, 10, 10, 10], np.float32)
    boxes = (corner + np.array([0, 0, 5, 5], np.float32))[None]
    scores = (0.5 + 1e-4 * np.arange(64, dtype=np.float32))[None, None]
    model = onnx.parser.parse_model(HEAD + SUPPRESSION)
    report = mixlist.check(model, policy(white=["Mul"]), [{"boxes": boxes, "x": scores}])
    assert report.verdict == "pass", report.reasons
    (change,) = report.order_changes
    assert (change.name, change.op_type, change.total) == ("nms", "NonMaxSuppression", 64)
    assert set(change.outputs) == {"chosen", "ids"} and 0 < change.gap < 1e-3
