"""Masks that leave the range of the low type (Rules S4.34 to S4.37)."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import mixlist
from tests.support.attention import attention
from tests.support.builders import customize, keep, model, policy
from tests.support.mask_cases import (
    PRODUCT,
    WHERE,
    WHITE,
    WHITE_WITH_SOFTMAX,
    initializer_values,
    outcomes_under_protection,
)
from tests.support.resolver_cases import decide_nodes, find_precisions, resolve_text
from tests.support.rewriter_cases import case


# --- a softmax in high precision ---
def test_the_nodes_between_a_mask_and_a_high_softmax_stay_as_authored() -> None:
    """Rule S4.35: A mask before a float32 softmax stays as authored."""
    outcomes = outcomes_under_protection(PRODUCT, white=WHITE, black=["Softmax"], constants="ieee")
    assert (outcomes["scores"], outcomes["mul"], outcomes["add"], outcomes["softmax"]) == (
        "float16",
        "mask",
        "mask",
        "float32",
    )
    without = find_precisions(PRODUCT, white=WHITE, black=["Softmax"], constants="ieee")
    assert (without["mul"], without["add"]) == ("float16", "float16")


def test_the_zeros_of_a_triangle_count_in_a_factor() -> None:
    """Rule S4.35: the causal mask ``(1 - tril(ones)) * -1e9`` is not zero everywhere."""
    text = PRODUCT.replace("int64[4,4] mask", "int64[2] square").replace(
        "f = Cast<to=1>(mask)", "e = Expand(one, square) f = Trilu<upper = 0>(e)"
    )
    outcomes = outcomes_under_protection(text, white=WHITE, black=["Softmax"], constants="ieee")
    assert (outcomes["mul"], outcomes["add"]) == ("mask", "mask")


def test_the_reason_names_the_mask_and_the_softmax() -> None:
    """Rule S4.33: Every decision carries its reason."""
    decisions = decide_nodes(PRODUCT, white=WHITE, black=["Softmax"], protect=["masks"])
    assert decisions["add"].reason == (
        "white by library test (Add), but a mask of magnitude 1e+09 (constant 'c') passes through it on the way "
        "to Softmax 'softmax': it stays float32 (S4.35)"
    )


@pytest.mark.parametrize("constant", ["-65504", "-50000", "-49530"])
def test_a_mask_counts_with_the_scores_that_are_added(constant: str) -> None:
    """Rule S4.37: float16 holds -65504, but not -65504 - 16000."""
    text = PRODUCT.replace("-1e9", constant)
    outcomes = outcomes_under_protection(text, white=WHITE, black=["Softmax"])
    assert (outcomes["add"], outcomes["mul"]) == ("mask", "float16")
    assert (
        outcomes_under_protection(WHERE.replace("-1e9", constant), white=WHITE, black=["Softmax"])["where"] == "float16"
    )


@pytest.mark.parametrize(("constant", "mode"), [("-49504", "mixed_float16"), ("-1e9", "mixed_bfloat16")])
def test_a_mask_in_range_changes_nothing(constant: str, mode: str) -> None:
    text = PRODUCT.replace("-1e9", constant)
    settings = {"white": WHITE, "black": ["Softmax"], "mode": mode}
    assert outcomes_under_protection(text, **settings) == find_precisions(text, **settings)


def test_the_lowest_float32_is_out_of_the_range_of_bfloat16() -> None:
    text = PRODUCT.replace("-1e9", "-3.4028235e38")
    assert outcomes_under_protection(text, white=WHITE, black=["Softmax"], mode="mixed_bfloat16")["add"] == "mask"


def test_an_infinity_of_the_author_is_no_mask() -> None:
    """Rule S4.36: Infinities of the author stay."""
    infinite = model(WHERE)
    infinite.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(-np.inf, np.float32), "c"))
    result = case(infinite, white=[*WHITE, "Softmax"], protect=["masks"])
    assert result.low == {"scores", "where", "softmax"}
    assert initializer_values(result) == {"c": -np.inf}
    filled = model(
        WHERE.replace("bool[4,4] b", "bool[4,4] b, int64[2] d")
        .replace("[where]", "e = ConstantOfShape<value=float[1] {1}>(d) [where]")
        .replace("Where(b, c,", "Where(b, e,")
    )
    filled.graph.node[1].attribute[0].t.CopyFrom(numpy_helper.from_array(np.array([-np.inf], np.float32)))
    plan = mixlist.resolve(filled, policy(white=WHITE_WITH_SOFTMAX, protect=["masks"]))
    assert {decision.rule for decision in plan.nodes} == {"white", "readers"}


# --- a softmax in low precision ---


@pytest.mark.parametrize("treatment", ["keep", "ieee", "clamp"])
@pytest.mark.parametrize(
    ("mode", "limit"), [("mixed_float16", -32752.0), ("mixed_bfloat16", -1.6947657e38), ("fp16", -32752.0)]
)
def test_the_constant_becomes_half_the_lowest_value(treatment: str, mode: str, limit: float) -> None:
    """Rule S4.36: A mask before a low-precision softmax becomes half the lowest value."""
    text = PRODUCT.replace("-1e9", "-3.4028235e38")
    result = case(text, white=WHITE_WITH_SOFTMAX, protect=["masks"], constants=treatment, mode=mode)
    assert {"mul", "add", "softmax"} <= result.low
    assert initializer_values(result)["c"] == pytest.approx(limit)


def test_the_constant_is_reduced_where_its_reader_is_high() -> None:
    """A black Mul stays float32; its output, which the low Add reads, is in range."""
    result = case(PRODUCT, white=["MatMul", "Add", "Softmax"], black=["Mul"], protect=["masks"])
    assert {"add", "softmax"} <= result.low and "mul" not in result.low
    assert result.initializers()["c"] == "float32"
    (report,) = mixlist.rewrite(result.before, result.plan).constants
    assert (report.name, report.masked, report.max_abs) == ("c", 1, 1e9)
    assert "constant 'c' of a mask is reduced to magnitude 32752 (S4.36)" in result.nodes["mul"].reason


def test_other_readers_of_the_constant_keep_it() -> None:
    """Rule S7.6: A constant exists once per type that is read."""
    text = WHERE.replace("=> (float[4,4] y)", "=> (float[4,4] y, float[4,4] z)")
    text = text.replace(" }", " [other] z = Max(x, c) }")
    result = case(text, white=WHITE_WITH_SOFTMAX, protect=["masks"])
    assert initializer_values(result) == {"c": -1e9, "c_mask_float16": -32752.0}
    assert result.nodes["other"].precision == "float32"


def test_masks_that_are_added_share_half_the_lowest_value() -> None:
    """Rule S4.36: two masks that are added have the sum -32752."""
    text = PRODUCT.replace("[softmax]", "[again] t = Add(a, m) [softmax]").replace("Softmax(a)", "Softmax(t)")
    result = case(text, white=WHITE_WITH_SOFTMAX, protect=["masks"])
    assert initializer_values(result)["c"] == -16376.0
    assert "again" in result.low


# As transformers asks where a causal mask and an attention mask leave a score alone.
COMPARED = (
    PRODUCT.replace("=> (float[4,4] y)", "=> (float[4,4] y, bool[4,4] z)")
    .replace("float one = {1.0}", "float one = {1.0}, float nil = {0.0}")
    .replace("[out]", "n = Identity(m) w = Add(n, f) z = Equal(w, nil) [out]")
)
REDUCED = {
    "a factor that Where makes": PRODUCT.replace("inv = Sub(one, f)", "inv = Where(b, one, nil)")
    .replace("int64[4,4] mask", "bool[4,4] b, int64[4,4] mask")
    .replace("float one = {1.0}", "float one = {1.0}, float nil = {0.0}"),
    "a factor of a factor": PRODUCT.replace("[mul] m = Mul(inv, c)", "g = Mul(inv, f) [mul] m = Mul(g, c)"),
    "a Cast to float32": PRODUCT.replace("[softmax]", "t = Cast<to=1>(a) [softmax]").replace(
        "Softmax(a)", "Softmax(t)"
    ),
    "a shape": PRODUCT.replace("=> (float[4,4] y)", "=> (float[4,4] y, int64[2] z)").replace(
        "[out]", "z = Shape(m) [out]"
    ),
    "a comparison with zero": COMPARED,
    "a comparison with zero that is read for its shape": COMPARED.replace("z = Eq", "q = Shape(n) z = Eq"),
    "three masks": PRODUCT.replace("[softmax]", "t = Add(a, m) u = Add(t, m) [softmax]").replace(
        "Softmax(a)", "Softmax(u)"
    ),
    "a Concat of masks": PRODUCT.replace("m = Mul(inv, c)", "h = Mul(inv, c) m = Concat<axis=0>(h)"),
}


@pytest.mark.parametrize("name", REDUCED)
def test_a_mask_with_a_constant_is_reduced(name: str) -> None:
    """Rule S4.36: A mask before a low-precision softmax becomes half the lowest value."""
    result = case(REDUCED[name], white=WHITE_WITH_SOFTMAX, protect=["masks"], black=["Sub"])
    assert {"scores", "add", "softmax"} <= result.low
    assert initializer_values(result)["c"] == {"three masks": np.float16(-65504 / 6)}.get(name, -32752.0)


UNREDUCED = {
    "a comparison with one": COMPARED.replace("Equal(w, nil)", "Equal(w, one)"),
    "a comparison of a smaller mask": COMPARED.replace("[add]", "r = Mul(m, part) [add]")
    .replace("Add(n, f)", "Add(r, f)")
    .replace("float nil = {0.0}", "float nil = {0.0}, float part = {0.1}"),
    "a comparison of two masks": COMPARED.replace("w = Add(n, f)", "w = Add(d, f)").replace(
        "[add]", "d = Add(m, m) [add]"
    ),
    "a comparison beside three masks": COMPARED.replace("[softmax]", "t = Add(a, m) u = Add(t, m) [softmax]").replace(
        "Softmax(a)", "Softmax(u)"
    ),
    "a sum that is also an output": COMPARED.replace("bool[4,4] z)", "bool[4,4] z, float[4,4] w)"),
    "a factor that may be a score": PRODUCT.replace("Mul(inv, c)", "Mul(k, c)"),
    "a graph output": PRODUCT.replace("=> (float[4,4] y)", "=> (float[4,4] y, float[4,4] m)"),
    "another reader": PRODUCT.replace("=> (float[4,4] y)", "=> (float[4,4] y, float[4,4] z)").replace(
        "[out]", "[neg] z = Neg(m) [out]"
    ),
    "a filled tensor that is read elsewhere": WHERE.replace("bool[4,4] b", "bool[4,4] b, int64[2] d")
    .replace("[where]", "[fill] e = ConstantOfShape<value=float[1] {-1e9}>(d) [where]")
    .replace("Where(b, c,", "Where(b, e,")
    .replace("=> (float[4,4] y)", "=> (float[4,4] y, float[4,4] z)")
    .replace("[softmax]", "[neg] z = Neg(e) [softmax]"),
    "four masks": PRODUCT.replace("[softmax]", "t = Add(a, m) u = Add(t, m) v = Add(u, m) [softmax]").replace(
        "Softmax(a)", "Softmax(v)"
    ),
    "scores that are scaled up": PRODUCT.replace("[softmax]", "t = Mul(a, three) [softmax]")
    .replace("Softmax(a)", "Softmax(t)")
    .replace("float one = {1.0}", "float one = {1.0}, float three = {3.0}"),
    "a filled tensor that is authored in float16": WHERE.replace("bool[4,4] b", "bool[4,4] b, int64[2] d")
    .replace("[where]", "e = ConstantOfShape<value=float16[1] {-60000}>(d) f = Cast<to=1>(e) t = Add(f, f) [where]")
    .replace("Where(b, c,", "Where(b, t,"),
    "a default of an input": WHERE.replace("bool[4,4] b)", "bool[4,4] b, float c)"),
}


@pytest.mark.parametrize("cause", UNREDUCED)
def test_a_mask_without_a_constant_to_reduce_keeps_its_readers_high(cause: str) -> None:
    """Rule S4.36: A mask that cannot be reduced keeps its readers, the softmax included, in high precision."""
    decisions = decide_nodes(UNREDUCED[cause], white=WHITE_WITH_SOFTMAX, protect=["masks"])
    name = "where" if "where" in decisions else "add"
    assert (decisions[name].rule, decisions["softmax"].rule, decisions["scores"].precision) == (
        "mask",
        "mask",
        "float16",
    )
    assert "S4.36" in decisions["softmax"].reason


@pytest.mark.parametrize("product", ["Mul(add, f)", "Mul(f, add)", "Mul(add, k)"])
@pytest.mark.parametrize(("low", "softmax"), [([], "float32"), (["Softmax"], "mask")])
def test_a_product_of_masks_is_out_of_range(product: str, low: list[str], softmax: str) -> None:
    """Rule S4.36: a mask that another mask scales has no constant to reduce."""
    text = f"""g (float[4] x, bool[4] b, float k) => (float[4] y) <float zero = {{0}}, float c = {{-20000}},
      float f = {{-60000}}, float k = {{-2e4}}> {{
      w = Where(b, zero, c) [add] add = Add(x, w) [product] m = {product} [softmax] y = Softmax(m) }}"""
    lists = {"white": ["Add", "Mul", "Where", *low], "black": [] if low else ["Softmax"]}
    outcomes = outcomes_under_protection(text, constants="clamp", **lists)
    assert (outcomes["add"], outcomes["product"], outcomes["softmax"]) == ("float16", "mask", softmax)


@pytest.mark.parametrize(("constant", "expected"), [("-60000", "mask"), ("-1e5", "float16")])
def test_a_mask_goes_through_a_cast_that_keeps_it_finite(constant: str, expected: str) -> None:
    """Rule S4.35: the mask alone decides whether the author's Cast makes it infinite; the scores do not count."""
    text = PRODUCT.replace("-1e9", constant).replace("Softmax(a)", "Softmax(e)")
    text = text.replace("[softmax]", "d = Cast<to=10>(a) e = Cast<to=1>(d) [softmax]")
    assert outcomes_under_protection(text, white=WHITE, black=["Softmax"], constants="ieee")["add"] == expected


def test_only_nodes_between_a_mask_and_a_softmax_are_kept() -> None:
    """Rule S4.35: the Cast makes -2e5 infinite, so that it is no mask; -50000 is one for the other softmax."""
    text = """g (float[4] x, bool[4] b) => (float[4] y, float[4] z) <float c = {-50000}, float d = {-1e5},
      float n = {0}, float two = {2}> { [kept] a = Add(x, c) y = Softmax(a) w = Where(b, n, d) [twice] m = Mul(w, two)
      [sum] t = Add(a, m) e = Cast<to=10>(t) f = Cast<to=1>(e) z = Softmax(f) }"""
    outcomes = outcomes_under_protection(text, white=["Add", "Mul"], black=["Softmax", "Where"], constants="ieee")
    assert {name: outcomes[name] for name in ("kept", "twice", "sum")} == {
        "kept": "mask",
        "twice": "float16",
        "sum": "float16",
    }


@pytest.mark.parametrize("divided", ["Div(x, c)", "Div(x, m)"])
def test_a_large_divisor_is_no_mask(divided: str) -> None:
    text = f"""g (float[4] x, int64[4] mask, bool[4] b) => (float[4] y, float[4] z) <float c = {{-1e9}}> {{
      f = Cast<to=1>(mask) m = Mul(f, c) [div] d = {divided} [first] y = Softmax(d)
      [where] w = Where(b, x, c) [second] z = Softmax(w) }}"""
    decisions = decide_nodes(text, white=["Div", "Where", "Softmax"], constants="ieee", protect=["masks"])
    assert {decisions[name].precision for name in ("div", "first", "where", "second")} == {"float16"}
    assert "reduced" in decisions["where"].reason and "reduced" not in decisions["div"].reason


SMALLER = """g (float[4] x, bool[4] b, bool[4] u) => (float[4] y) <float k = {-1e5}, float t = {T}> {
  [smaller] j = OP(k, t) [where] w = Where(b, x, j) [softmax] y = Softmax(w) }"""


@pytest.mark.parametrize("smaller", [("Mul", "0.5"), ("Div", "2"), ("Div", "20000")])
def test_a_constant_that_becomes_smaller_on_its_way_is_still_out_of_range(smaller: tuple[str, str]) -> None:
    """Rules S4.35, S4.36: the reader of the constant is kept, or reads a reduced constant."""
    text = SMALLER.replace("OP", smaller[0]).replace("{T}", f"{{{smaller[1]}}}").replace("20000", "1e4")
    lists = {"white": ["Mul", "Div"], "constants": "ieee"}
    assert outcomes_under_protection(text, black=["Softmax", "Where"], **lists)["smaller"] == "mask"
    result = case(text, protect=["masks"], white=["Mul", "Div", "Where", "Softmax"], constants="ieee")
    assert {"smaller", "where", "softmax"} <= result.low
    assert initializer_values(result)["k"] == -32752.0


def test_every_node_that_computes_a_mask_is_kept() -> None:
    """Rule S4.36: -125000 and -250000 do not fit; no constant of the model is large."""
    text = """g (float[4] x, bool[4] b) => (float[4] y) <float base = {-50}, float three = {3}> {
      [power] k = Pow(base, three) [twice] j = Sum(k, k) [where] w = Where(b, x, j) [softmax] y = Softmax(w) }"""
    outcomes = outcomes_under_protection(text, white=["Pow", "Sum", "Where", "Softmax"], constants="ieee")
    assert outcomes == dict.fromkeys(("power", "twice", "where", "softmax"), "mask")


SCATTERS = {
    "elements": "ScatterElements<axis=0, reduction=REDUCTION>(x, at, k)",
    "slices": "ScatterND<reduction=REDUCTION>(x, places, k)",
}


@pytest.mark.parametrize("scatter", SCATTERS)
@pytest.mark.parametrize("reduction", ["add", "mul", "none", "min", "max"])
@pytest.mark.parametrize("low", [True, False])
def test_a_scatter_that_adds_may_add_any_number_of_masks(scatter: str, reduction: str, low: bool) -> None:
    """Rules S4.35, S4.36: the node may write one place several times."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
      g (float[4] x, int64[4] at, int64[4,1] places) => (float[4] y) <float[4] k = {{-30000, 0, 0, 0}}> {{
      [scatter] a = {SCATTERS[scatter].replace("REDUCTION", f'"{reduction}"')} [softmax] y = Softmax(a) }}"""
    lists = {"white": ["ScatterElements", "ScatterND", *(["Softmax"] if low else [])]}
    outcomes = outcomes_under_protection(text, black=[] if low else ["Softmax"], **lists)
    if reduction in ("add", "mul"):
        assert (outcomes["scatter"], outcomes["softmax"]) == ("mask", "mask" if low else "float32")
    else:
        assert (outcomes["scatter"], outcomes["softmax"]) == ("float16", "float16" if low else "float32")


FACTORS = {
    "Sub(f, less)": 2.0,
    "Sub(g, f)": 2.0,
    "Add(f, f)": 2.0,
    "Sub(two, f)": 2.0,
    "Neg(f)": 1.0,
    "Div(f, half)": 2.0,
    "Div(one, h)": 1.0,
    "Where(b, two, f)": 2.0,
    "Min(f, two)": 1.0,
    "Max(f, two)": 2.0,
    "Mul(g, two)": 2.0,
    "Cast<to=1>(d)": 1.0,
    "Mul(f, half)": 0.5,
}


@pytest.mark.parametrize("factor", FACTORS)
def test_a_computed_factor_counts_with_its_largest_magnitude(factor: str) -> None:
    """Rule S4.36: integers and booleans count as 0 or 1."""
    text = PRODUCT.replace(
        "float one = {1.0}", "float one = {1}, float two = {2}, float half = {0.5}, float less = {-1}"
    )
    text = text.replace("int64[4,4] mask", "int64[4,4] mask, bool[4,4] b")
    text = text.replace("[sub]", f"g = Sub(f, f) h = Add(f, one) d = Cast<to=11>(f) t = {factor} [sub]")
    result = case(text.replace("Mul(inv, c)", "Mul(t, c)"), white=WHITE_WITH_SOFTMAX, protect=["masks"])
    assert {"add", "softmax"} <= result.low
    assert initializer_values(result)["c"] == -32752.0 / max(FACTORS[factor], 1.0)


@pytest.mark.parametrize("factor", ["Div(one, f)", "Sqrt(f)", "Sub(k, f)", "Div(f, f)"])
def test_a_mask_with_an_unbounded_factor_is_not_reduced(factor: str) -> None:
    """Rule S4.36: the factor may be a score, or infinite."""
    text = PRODUCT.replace("[sub]", f"t = {factor} [sub]").replace("Mul(inv, c)", "Mul(t, c)")
    assert outcomes_under_protection(text, white=WHITE_WITH_SOFTMAX)["softmax"] == "mask"


@pytest.mark.parametrize(("divisor", "softmax"), [("h", "float16"), ("f", "mask"), ("two", "float16")])
def test_a_mask_with_a_divisor_that_may_be_zero_is_not_reduced(divisor: str, softmax: str) -> None:
    """Rule S4.36: a mask with a divisor that may be zero or a score has no constant to reduce."""
    text = PRODUCT.replace("float one = {1.0}", "float one = {1}, float[4] two = {2, 2, 4, 4}")
    text = text.replace("[mul] m = Mul(inv, c)", f"h = Add(f, one) [mul] m = Div(c, {divisor})")
    assert outcomes_under_protection(text, white=[*WHITE_WITH_SOFTMAX, "Div"])["softmax"] == softmax


def test_the_smallest_divisor_counts() -> None:
    """Rule S4.36: -16376 / 0.5 is half the lowest value."""
    text = PRODUCT.replace("float one = {1.0}", "float one = {1}, float[4] parts = {0.5, 1, 1, 1}")
    result = case(text.replace("Mul(inv, c)", "Div(c, parts)"), white=[*WHITE_WITH_SOFTMAX, "Div"], protect=["masks"])
    (mask,) = (numpy_helper.to_array(t) for t in result.after.graph.initializer if t.name == "c")
    assert mask == -16376.0


def test_the_reason_names_the_constants_that_change() -> None:
    """Rule S4.33: Every decision carries its reason."""
    text = PRODUCT.replace("float one = {1.0}", "float one = {1.0}, float k2 = {-10000}")
    text = text.replace("[softmax]", "n = Mul(f, k2) [again] t = Add(a, n) [softmax]").replace(
        "Softmax(a)", "Softmax(t)"
    )
    result = case(text.replace("n = Mul", "[small] n = Mul"), white=WHITE_WITH_SOFTMAX, protect=["masks"])
    assert "constant 'c' of a mask is reduced to magnitude 16376" in result.nodes["mul"].reason
    assert "reduced" not in result.nodes["small"].reason
    assert initializer_values(result)["k2"] == -10000.0


# --- a gray softmax and its mask depend on each other ---
def test_a_gray_softmax_follows_a_node_that_the_mask_leaves_low() -> None:
    """Softmax is low because Add is low, and Add may be low because Softmax is low."""
    assert outcomes_under_protection(PRODUCT, white=WHITE)["softmax"] == "float16"
    assert outcomes_under_protection(PRODUCT, white=["Mul", "MatMul"], black=["Add"])["softmax"] == "float32"


def test_a_group_that_is_kept_later_keeps_no_other_group() -> None:
    """The first softmax follows a black Sub, and is high; the second one follows a white Add.

    The third one has a mask in range, which cannot be reduced, and need not be.
    """
    text = PRODUCT.replace("float c = {-1e9}", "float c = {-1e9}, float big = {1e9}, float small = {-30000}").replace(
        "[scores]",
        "[other] n = Mul(inv, big) [minus] d = Sub(x, n) [high] h = Softmax(d) z = Relu(h)"
        " w = Mul(inv, small) r = Add(x, w) [in_range] t = Softmax(r) [scores]",
    )
    outcomes = outcomes_under_protection(
        text.replace("=> (float[4,4] y)", "=> (float[4,4] y, float[4,4] z, float[4,4] w)"), white=WHITE, black=["Sub"]
    )
    assert {name: outcomes[name] for name in ("other", "high", "mul", "add", "softmax", "in_range")} == {
        "other": "mask",
        "high": "float32",
        "mul": "float16",
        "add": "float16",
        "softmax": "float16",
        "in_range": "float16",
    }


def test_a_node_rule_for_the_softmax_decides_for_the_mask() -> None:
    """Rule S4.2: A node rule wins."""
    outcomes = outcomes_under_protection(PRODUCT, white=WHITE_WITH_SOFTMAX, rules=keep("softmax"))
    assert (outcomes["add"], outcomes["mul"], outcomes["softmax"]) == ("mask", "mask", "float32")
    low = (customize("add", ["float16", "float16"], ["float16"]),)
    assert outcomes_under_protection(PRODUCT, white=WHITE, black=["Softmax"], rules=low)["add"] == "float16"


def test_one_low_softmax_of_a_shared_mask_decides() -> None:
    """The mask is reduced for both softmaxes: -32752 masks as well in float32."""
    both = attention("product", ["add", "add"], -1e9)
    next(node for node in both.model.graph.node if node.op_type == "Softmax").name = "first"
    plan = mixlist.resolve(both.model, policy(white=WHITE_WITH_SOFTMAX, protect=["masks"], rules=keep("first")))
    assert [d.precision for d in plan.nodes if d.op_type == "Softmax"] == ["float32", "float16"]
    assert {d.precision for d in plan.nodes if d.op_type == "Add"} == {"float16"}
    logarithm = PRODUCT.replace("=> (float[4,4] y)", "=> (float[4,4] y, float[4,4] l)").replace(
        "[softmax]", "[log] l = LogSoftmax(a) [softmax]"
    )
    outcomes = outcomes_under_protection(logarithm, white=WHITE_WITH_SOFTMAX, black=["LogSoftmax"])
    assert (outcomes["add"], outcomes["log"], outcomes["softmax"]) == ("float16", "float32", "float16")


# --- without protection ---
def test_without_protection_a_mask_that_breaks_warns() -> None:
    """Rule S4.34: Protections are part of the policy; libraries of engines warn instead."""
    (warning,) = resolve_text(PRODUCT, white=WHITE, black=["Softmax"]).warnings
    assert warning.code == "ML508"
    assert "magnitude 1e+09 (constant 'c') leaves the range of float16 at add (Add)" in warning.message
    assert resolve_text(PRODUCT, white=["MatMul"], black=["Softmax", "Add"]).warnings == ()
    assert resolve_text(PRODUCT, white=WHITE, black=["Softmax"], protect=["masks"]).warnings == ()


def test_under_an_ascend_library_no_option_of_the_engine_is_advised() -> None:
    white = ["BatchMatMulV2", "BatchMatMul", "Mul", "Add"]
    (warning,) = resolve_text(PRODUCT, white=white, black=["SoftmaxV2"], space="ascend", constants="clamp").warnings
    assert warning.code == "ML508" and "can become NaN" in warning.message
    assert warning.hint == "keep in float32 by keep_dtype=...: add, mul; or export a mask of -1e4"


def test_a_node_rule_that_breaks_a_mask_warns() -> None:
    low = (customize("add", ["float16", "float16"], ["float16"]),)
    (warning,) = resolve_text(PRODUCT, white=WHITE, black=["Softmax"], protect=["masks"], rules=low).warnings
    assert warning.code == "ML508"


def test_a_mask_that_a_branch_captures() -> None:
    text = """g (float[4,4] x, int64[4,4] mask, bool d) => (float[4,4] y) <float c = {-1e9}, float one = {1.0}> {
      f = Cast<to=1>(mask) [sub] i = Sub(one, f) [mul] m = Mul(i, c)
      y = If(d) <then_branch = t () => (float[4,4] p) { [add] a = Add(x, m) [softmax] p = Softmax(a) },
                 else_branch = e () => (float[4,4] q) { [neg] q = Neg(x) }> }"""
    assert outcomes_under_protection(text, white=["Add", "Mul"], black=["Softmax"])["If_0/then_branch/add"] == "mask"
    result = case(text, white=["Add", "Mul", "Softmax"], protect=["masks"])
    assert {"mul", "If_0/then_branch/add", "If_0/then_branch/softmax"} <= result.low
