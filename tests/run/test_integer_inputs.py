"""The range of random integers follows from the uses of the input in the graph."""

from __future__ import annotations

import pytest

from mixlist.run.integer_inputs import MOST_POSITIONS, IntegerRange, find_integer_ranges
from tests.support.builders import model

ZEROS = ", ".join(["0"] * 40)
CONSTANTS = f"""<float[10, 4] table = {{{ZEROS}}}, int64 zero = {{0}}, int64 one = {{1}}, int64 five = {{5}},
float fone = {{1}}, float k = {{0.5}}, int64[1] depth = {{6}}, int64[2] edges = {{0, 1}}, float f255 = {{255}},
int64[1] axis = {{1}}, uint8 u = {{0}}>"""


def find_range(body: str, kind: str = "int64[N, L]", shape: tuple[int, ...] = (2, 16)) -> IntegerRange | None:
    """Return the range of the input ``i`` of a graph with these nodes; ``x`` and ``f`` are inputs of floats."""
    text = f"g ({kind} i, float[N, 4] x, float[L, 3] f) => (float o) {CONSTANTS} {{ {body} o = Identity (k) }}"
    return find_integer_ranges(model(text), {"i": shape, "x": (2, 4), "f": (16, 3)}).get("i")


@pytest.mark.parametrize(
    ("body", "low", "high", "reason"),
    [
        ("[t] a = Gather (table, i)", 0, 9, "Gather t picks from 10"),
        ("[t] a = Gather<axis = 1> (table, i)", 0, 3, "Gather t picks from 4"),
        ("[t] a = Gather (f, i)", 0, 15, "Gather t picks from 16"),  # a size of the data
        ("r = Transpose<perm = [1, 0]> (table) [t] a = Gather (r, i)", 0, 3, "Gather t picks from 4"),
        ("c = Unsqueeze (i, axis) s = Cast<to = 6> (c) [t] a = Gather (table, s)", 0, 9, "Gather t picks from 10"),
        ("[t] a = GatherElements<axis = 1> (x, i)", 0, 3, "GatherElements t picks from 4"),
        ("[h] a = OneHot (i, depth, edges)", 0, 5, "OneHot h has depth 6"),
        # Several tables: the smallest one decides.
        ("a = Gather (table, i) [t] b = Gather<axis = 1> (table, i)", 0, 3, "Gather t picks from 4"),
        # A comparison has both outcomes.
        ("[q] a = Equal (i, one)", 0, 1, "Equal q compares them with 1"),
        ("[q] a = Equal (i, zero)", 0, 1, "Equal q compares them with 0"),
        ("[q] a = Greater (i, zero)", 0, 1, "Greater q compares them with 0"),
        ("[q] a = Less (i, five)", 4, 5, "Less q compares them with 5"),
        ("[q] a = Less (five, i)", 5, 6, "Less q compares them with 5"),
        ("a = Equal (i, one) [q] b = Equal (i, five)", 0, 5, "Equal q compares them with 5"),
        ("c = Cast<to = 1> (i) [q] a = Equal (c, fone)", 0, 1, "Equal q compares them with 1"),
        # Lengths, or indices along a Range: at least one comparison is true.
        ("n = Size (f) r = Range (zero, n, one) v = Unsqueeze (i, axis) [q] a = Less (r, v)", 1, 48,
         "Less q compares them with 0 to 47"),
        ("n = Size (f) r = Range (zero, n, one) v = Unsqueeze (i, axis) [q] a = Equal (r, v)", 0, 47,
         "Equal q compares them with 0 to 47"),
        # Flags.
        ("[b] a = Cast<to = 9> (i)", 0, 1, "Cast b makes bools of them"),
        ("c = Cast<to = 1> (i) [s] a = Sub (fone, c)", 0, 1, "Sub s subtracts them from 1"),
        # Positions, which have no table.
        ("c = Cast<to = 1> (i) m = Mul (c, k) [r] a = Sin (m)", 0, 4095, "they are positions, which reach Sin r"),
        ("j = Add (i, five) c = Cast<to = 1> (j) [r] a = Cos (c)", 0, 4095, "they are positions, which reach Cos r"),
        # A table wins over a position, and a position over a comparison.
        ("c = Cast<to = 1> (i) a = Sin (c) [t] b = Gather (table, i)", 0, 9, "Gather t picks from 10"),
        ("c = Cast<to = 1> (i) [r] a = Sin (c) e = Equal (i, one)", 0, 4095, "they are positions, which reach Sin r"),
    ],
)  # fmt: skip
def test_a_use_bounds_the_integers(body: str, low: int, high: int, reason: str) -> None:
    """Random integers have the range that the graph shows."""
    kind = "int64[N]" if "Unsqueeze (i" in body else "int64[N, L]"
    assert find_range(body, kind, (2,) if kind == "int64[N]" else (2, 16)) == IntegerRange(low, high, reason)


@pytest.mark.parametrize(
    "body",
    [
        "a = Identity (i)",
        "a = CumSum (i, zero)",
        "s = Mul (i, five) a = Gather (table, s)",  # the indices are other numbers
        "s = Add (i, five) a = Gather (table, s)",
        "c = Cast<to = 1> (i) a = Exp (c)",
        "s = Mod (i, five) a = Equal (s, one)",
        "n = ReduceMax<keepdims = 0> (i) e = Equal (i, n)",  # a comparison with data
    ],
)
def test_other_uses_do_not_bound_the_integers(body: str) -> None:
    assert find_range(body) is None


def test_a_scalar_position() -> None:
    result = find_range("c = Cast<to = 1> (i) p = Mul (c, k) [t] a = Sin (p)", "int64", ())
    assert result is not None
    assert (result.smallest, result.largest) == (0, MOST_POSITIONS - 1)


def test_a_long_sequence_has_more_positions() -> None:
    wide = find_range("c = Cast<to = 1> (i) [r] a = Sin (c)", shape=(2, 9000))
    assert wide == IntegerRange(0, 8999, "they are positions, which reach Sin r")


@pytest.mark.parametrize(("kind", "bounds"), [("uint8[N, L]", (0, 255)), ("int8[N, L]", (-128, 127))])
def test_bytes_that_become_floats_are_numbers(kind: str, bounds: tuple[int, int]) -> None:
    name = kind.partition("[")[0]
    expected = IntegerRange(*bounds, f"Cast c makes floats of all that {name} holds")
    assert find_range("[c] c = Cast<to = 1> (i) d = Div (c, f255)", kind) == expected
    assert find_range("[b] b = Cast<to = 9> (i)", kind) == IntegerRange(0, 1, "Cast b makes bools of them")
    quantized = find_range(
        "[q] q = DequantizeLinear (i, k, u)" if name == "uint8" else "[q] q = DequantizeLinear (i, k)", kind
    )
    assert quantized == IntegerRange(*bounds, f"DequantizeLinear q makes floats of all that {name} holds")


def test_uses_in_bodies() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64[N] i, int64[N] k, bool go) => (float[N] y, float[M, N] w)
    <float[3] t = {1, 2, 3}, float[5] u = {1, 2, 3, 4, 5}, int64 steps = {2}> {
      y = If (go) <then_branch = a () => (float[N] p) { [t] p = Gather (t, i) },
                   else_branch = b () => (float[N] q) { q = Gather (u, i) }>
      s, w = Loop (steps, go, k) <body = l (int64 n, bool c, int64[N] s) => (bool d, int64[N] e, float[N] r) {
        d = Identity (c) e = Identity (s) [r] r = Gather (t, s) }> }"""
    ranges = find_integer_ranges(model(text), {"i": (4,), "k": (4,), "go": ()})
    assert ranges == {
        "i": IntegerRange(0, 2, "Gather If_0/then_branch/t picks from 3"),
        "k": IntegerRange(0, 2, "Gather Loop_0/body/r picks from 3"),
    }


def test_lengths_of_a_recurrent_layer() -> None:
    text = """g (float[T, N, 2] x, int32[N] n, float[1, 8, 2] w, float[1, 8, 2] r) => (float[T, 1, N, 2] y) {
      [rnn] y = LSTM<hidden_size = 2> (x, w, r, , n) }"""
    ranges = find_integer_ranges(model(text), {"x": (12, 3, 2), "n": (3,), "w": (1, 8, 2), "r": (1, 8, 2)})
    assert ranges == {"n": IntegerRange(1, 12, "LSTM rnn takes lengths up to 12")}


def test_labels_of_a_loss() -> None:
    text = """g (float[N, 7] scores, int64[N] labels) => (float loss) {
      [loss] loss = SoftmaxCrossEntropyLoss (scores, labels) }"""
    ranges = find_integer_ranges(model(text), {"scores": (4, 7), "labels": (4,)})
    assert ranges == {"labels": IntegerRange(0, 6, "SoftmaxCrossEntropyLoss loss picks from 7")}
