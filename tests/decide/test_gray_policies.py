"""Gray nodes follow upstream, and the three other gray policies (Rules S4.6, S4.8, S4.15 to S4.24)."""

from __future__ import annotations

import pytest

from tests.support.resolver_cases import decide_node, decide_nodes, find_precisions, resolve_text

LOW = "float16"
HIGH = "float32"


# --- the gray policy ascend ---
PAIR = """g (float[4] x) => (float[4] y) <float[4] k = {{1,2,3,4}}> {{
  [w] low = Exp(x) [b] high = Log(x) [n] y = Add({0}) }}"""


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [("low, high", LOW), ("high, low", HIGH), ("k, low", LOW), ("k, high", HIGH), ("low, k", LOW), ("x, low", HIGH)],
)
def test_gray_follows_its_first_float_input_that_is_no_constant(inputs: str, expected: str) -> None:
    """Rule S4.6: Gray nodes follow upstream."""
    assert decide_node(PAIR.format(inputs), "n", white=["Exp"], black=["Log"]).precision == expected


def test_a_gray_node_that_reads_only_constants_keeps_its_type() -> None:
    """Rule S4.6: Gray nodes follow upstream."""
    decision = decide_node(PAIR.format("k, k"), "n", white=["Exp"])
    assert (decision.precision, decision.changed) == (HIGH, False)


def test_a_graph_input_is_a_producer_with_its_declared_type() -> None:
    text = "g (float16[4] x, float[4] z) => (float16[4] y, float[4] w) { [a] y = Relu(x) [b] w = Relu(z) }"
    assert find_precisions(text) == {"a": LOW, "b": HIGH}


def test_follows_names_the_producer_and_the_node_that_decided() -> None:
    text = "g (float[4] x) => (float[4] y) { [w] a = Exp(x) [r] b = Relu(a) [t] c = Tanh(b) [n] y = Neg(c) }"
    decisions = decide_nodes(text, white=["Exp"])
    assert decisions["n"].follows == ("t", "w")
    assert {decisions["r"].follows[0], decisions["r"].follows[-1]} == {"w"}
    assert decisions["w"].follows == ()
    assert [d.rule for d in decisions.values()] == ["white", "follow", "follow", "follow"]


def test_gray_reads_the_type_of_the_output_that_it_consumes() -> None:
    text = """g (float[2,4] x, float[4] s) => (float[2,1] y) {
      [n] a, b = LayerNormalization(x, s) [r] y = Relu(b) }"""
    assert find_precisions(text, white=["LayerNormalization"]) == {"n": LOW, "r": HIGH}


@pytest.mark.parametrize("inputs", ["x, d", "d, x"])
def test_a_gray_node_that_follows_a_double_keeps_its_types(inputs: str) -> None:
    """Rule S4.9: Lists act on float32. So the schema, which admits a double here, refuses nothing."""
    output = "double" if inputs == "d, x" else "float"
    text = f"g (float[4] x, double[4] d) => ({output}[4] y) {{ [n] y = Pow({inputs}) }}"
    decision = decide_node(text, "n", gray_policy="promote")
    assert (decision.precision, decision.rule, decision.changed) == (HIGH, "follow", False)


def test_a_gray_node_that_cannot_have_the_followed_type_keeps_its_type() -> None:
    text = """<ir_version: 8, opset_import: ["" : 9]>
    g (float[2,3,4,4] x) => (float[2,3,4,4] y) {
      [w] a = Relu(x) [n] b = MeanVarianceNormalization(a) [r] y = Neg(b) }"""
    decisions = decide_nodes(text, white=["Relu"])
    assert [(d.precision, d.rule) for d in decisions.values()] == [(LOW, "white"), (HIGH, "schema"), (HIGH, "follow")]


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        ("k = Constant<value=float[4] {1,2,3,4}>()", LOW),
        ("j = Constant<value=float[4] {1,2,3,4}>() k = Neg(j)", LOW),
        ("k = RandomNormal<shape=[4]>()", HIGH),
        ("j = Constant<value=float[4] {1,2,3,4}>() k = RandomNormalLike(j)", HIGH),
        ("s = Shape(i) k = ConstantOfShape<value=float[1] {1}>(s)", LOW),
        ("s = Shape(x) k = ConstantOfShape<value=float[1] {1}>(s)", LOW),  # unbound (Rule S4.46)
        ("k = Neg(x)", HIGH),
    ],
)
def test_a_computed_constant_is_recognized(constant: str, expected: str) -> None:
    """Rule S4.15: A constant is an initializer, or is computed from constants."""
    text = f"""g (float[4] x) => (float[4] y) <float[4] i = {{1,2,3,4}}> {{
      [w] low = Exp(x) {constant} [n] y = Add(k, low) }}"""
    assert decide_node(text, "n", white=["Exp"]).precision == expected


def test_an_overridable_initializer_counts_as_a_constant() -> None:
    """Rule S4.16: An initializer that is also an input is a constant with a fixed type."""
    text = "g (float[4] x, float[4] k = {1,2,3,4}) => (float[4] y) { [w] low = Exp(x) [n] y = Add(k, low) }"
    assert decide_node(text, "n", white=["Exp"]).precision == LOW


def test_a_body_that_captures_only_constants_yields_a_constant() -> None:
    """Rule S4.15: A constant is an initializer, or is computed from constants."""
    text = """g (float[4] x) => (float[4] y) <float[4] j = {1,2,3,4}, bool c = {1}> {
      [w] low = Exp(x)
      k = If(c) <then_branch = t () => (float[4] p) { p = Neg(j) }, else_branch = e () => (float[4] q) { q = Abs(j) }>
      [n] y = Add(k, low) }"""
    assert decide_node(text, "n", white=["Exp"]).precision == LOW
    assert decide_node(text.replace("Neg(j)", "Neg(x)"), "n", white=["Exp"]).precision == HIGH


# --- looking through a Cast ---
def precision_behind_cast(source: str, cast: str, **settings: object) -> str:
    """Return the precision of a gray Relu that reads a graph input through Casts of the user."""
    text = f"g ({source}[4] x) => (float[4] y) {{ {cast} [n] y = Relu(a) }}"
    return decide_node(text, "n", **settings).precision


def test_one_user_cast_from_the_low_type_is_looked_through() -> None:
    """Rule S4.17: One Cast from the low type is looked through."""
    assert precision_behind_cast("float16", "a = Cast<to=1>(x)") == LOW
    assert precision_behind_cast("bfloat16", "a = Cast<to=1>(x)", mode="mixed_bfloat16") == "bfloat16"


def test_a_black_cast_is_not_looked_through() -> None:
    """Rule S4.17: One Cast from the low type is looked through."""
    assert precision_behind_cast("float16", "a = Cast<to=1>(x)", black=["Cast"]) == HIGH


@pytest.mark.parametrize(
    ("source", "cast"),
    [
        ("int64", "a = Cast<to=1>(x)"),
        ("double", "a = Cast<to=1>(x)"),
        ("bool", "a = Cast<to=1>(x)"),
        ("float16", "b = Cast<to=11>(x) a = Cast<to=1>(b)"),
        ("float", "a = Cast<to=1>(x)"),  # follows x, which is float32 (Rule S4.48)
    ],
)
def test_any_other_cast_is_a_producer_with_its_own_type(source: str, cast: str) -> None:
    """Rule S4.17: One Cast from the low type is looked through."""
    assert precision_behind_cast(source, cast) == HIGH


def test_an_idle_cast_is_looked_through_unless_cast_is_black() -> None:
    """Rule S4.48: A Cast from float32 to float32 is looked through."""
    text = "b = Cast<to=1>(x) a = Cast<to=1>(b)"
    assert precision_behind_cast("float16", text) == LOW
    assert precision_behind_cast("float16", text, black=["Cast"]) == HIGH


def test_looking_through_names_the_source_as_producer() -> None:
    text = """g (float[4] x) => (float[4] y) {
      [d] h = Cast<to=10>(x) [r] i = Neg(h) [u] a = Cast<to=1>(i) [n] y = Relu(a) }"""
    decisions = decide_nodes(text)
    assert (decisions["n"].precision, decisions["n"].follows[0]) == (LOW, "r")


def test_a_cast_of_a_node_that_becomes_low_is_looked_through() -> None:
    """The source of the Cast is decided to be low, not authored in the low type."""
    text = "g (float[4] x) => (float[4] y) { [w] h = Exp(x) [u] a = Cast<to=1>(h) [n] y = Relu(a) }"
    decisions = decide_nodes(text, white=["Exp"])
    assert (decisions["w"].precision, decisions["n"].precision) == (LOW, LOW)


# --- the gray policy between ---
BETWEEN = {"white": ["Exp"], "black": ["Log"], "gray_policy": "between"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Exp(x) [n] b = Relu(a) y = Exp(b)", LOW),
        ("a = Exp(x) [n] y = Relu(a)", HIGH),
        ("[n] b = Relu(x) y = Exp(b)", HIGH),
        ("a = Log(x) [n] b = Relu(a) y = Exp(b)", HIGH),
        ("a = Exp(x) [n] b = Relu(a) y = Log(b)", HIGH),
        ("a = Exp(x) [n] b = Relu(a) c = Neg(b) y = Exp(c)", LOW),
        ("a = Exp(x) c = Neg(a) [n] b = Relu(c) y = Exp(b)", LOW),
        ("a = Exp(x) k = Log(x) c = Neg(k) [n] b = Add(a, c) y = Exp(b)", HIGH),
        ("a = Exp(x) [n] b = Add(x, a) y = Exp(b)", LOW),
        ("a = Exp(x) [n] b = Relu(a) p = Log(b) q = Exp(b) y = Add(p, q)", LOW),
        ("a = Exp(x) d = Cast<to=1>(a) [n] b = Relu(d) y = Exp(b)", HIGH),
        ("a = Exp(x) [n] b = Relu(a) d = Cast<to=1>(b) y = Exp(d)", HIGH),
        ("a = Log(x) d = Cast<to=1>(a) e = Exp(x) [n] b = Add(d, e) y = Exp(b)", LOW),
        ("a = Exp(x) k = Log(x) [n] b = Relu(a) c = Add(b, k) y = Exp(c)", HIGH),
        ("a = Exp(x) [n] b = Relu(a) c = MeanVarianceNormalization<axes = [0]>(b) y = Exp(c)", HIGH),
        ("a = Log(x) c = MeanVarianceNormalization<axes = [0]>(a) e = Exp(x) [n] b = Add(c, e) y = Exp(b)", HIGH),
    ],
)
def test_between_needs_white_on_both_sides_and_no_black_before(body: str, expected: str) -> None:
    """Rule S4.22: between: low precision only between white nodes."""
    assert decide_node(f"g (float[4] x) => (float[4] y) {{ {body} }}", "n", **BETWEEN).precision == expected


def test_a_white_node_that_cannot_be_low_precision_ends_a_path() -> None:
    """Rule S4.22: between: low precision only between white nodes."""
    text = "g (float[4] x) => (float[4] y) { a = Exp(x) [n] b = Relu(a) y = MeanVarianceNormalization<axes = [0]>(b) }"
    lists = {**BETWEEN, "white": ["Exp", "MeanVarianceNormalization"]}
    assert decide_node(text, "n", **lists).precision == HIGH


@pytest.mark.parametrize(
    ("white", "black", "protect", "expected"),
    [
        (["Exp", "Sin"], [], (), LOW),
        (["Exp", "Sin"], [], ("positions",), HIGH),
        (["Exp", "Neg"], ["Sin"], ("positions",), HIGH),
        (["Exp", "Neg"], [], ("positions",), LOW),
    ],
)
def test_a_kept_position_ends_a_path_unless_it_is_black(
    white: list[str], black: list[str], protect: tuple[str, ...], expected: str
) -> None:
    """Rule S4.22: white and gray nodes that S4.38 keeps end a path; a black one reaches forward."""
    text = """g (int64[4] i, float[4] x) => (float[4] y) {
      p = Cast<to = 1>(i) s = Sin(p) a = Neg(x) [n] r = Add(s, a) y = Exp(r) }"""
    settings = {"white": white, "black": black, "protect": protect, "gray_policy": "between"}
    assert decide_node(text, "n", **settings).precision == expected


# --- the gray policy promote ---
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Exp(x) b = Log(x) [n] y = Add(a, b)", HIGH),
        ("a = Exp(x) b = Exp(x) [n] y = Add(a, b)", LOW),
        ("a = Exp(x) [n] y = Add(k, a)", LOW),
        ("a = Exp(x) [n] y = Add(a, x)", HIGH),
        ("[n] y = Add(k, k)", HIGH),
    ],
)
def test_promote_takes_the_widest(body: str, expected: str) -> None:
    """Rule S4.24: promote: the widest input decides."""
    text = f"g (float[4] x) => (float[4] y) <float[4] k = {{1,2,3,4}}> {{ {body} }}"
    assert decide_node(text, "n", white=["Exp"], black=["Log"], gray_policy="promote").precision == expected


# --- reports ---
def test_a_gray_policy_is_named_in_the_result() -> None:
    """Rule S4.8: The gray policy says how gray behaves."""
    report = resolve_text("g (float[4] x) => (float[4] y) { [n] y = Relu(x) }", gray_policy="promote").to_json()
    assert report["gray_policy"] == "promote"
