"""Nodes without a choice, node rules, shapes, white, black and constants (Rules S4.1 to S4.7, S6.3 to S6.9)."""

from __future__ import annotations

import pytest

from mixlist.errors import MixlistError
from tests.support.builders import customize, keep
from tests.support.package import NodeRule
from tests.support.resolver_cases import decide_node, decide_nodes, find_precisions, resolve_text

UNARY = "g (float[4] x) => (float[4] y) { [n] y = Relu(x) }"
CHAIN = "g (float[4] x) => (float[4] y) { [a] h = Exp(x) [b] i = Relu(h) [c] y = Neg(i) }"


# --- nodes without a float slot that may vary ---
def test_a_node_without_floats_has_no_precision() -> None:
    """Rule S4.1: Nodes with nothing to vary have no precision."""
    decision = decide_node("g (int64[4] x) => (int64[4] y) { [n] y = Add(x, x) }", "n", white=["Add"])
    assert (decision.precision, decision.rule, decision.changed) == ("none", "no-float", False)
    assert dict(decision.outputs) == {"y": "int64"}


def test_a_double_node_has_no_precision() -> None:
    """Rule S4.1: Nodes with nothing to vary have no precision."""
    decision = decide_node("g (double[4] x) => (double[4] y) { [n] y = Relu(x) }", "n", white=["Relu"])
    assert (decision.precision, dict(decision.outputs)) == ("none", {"y": "float64"})


@pytest.mark.parametrize("settings", [{"white": ["Cast"]}, {"black": ["Cast"]}, {}, {"mode": "mixed_bfloat16"}])
def test_a_cast_keeps_its_output_type(settings: dict[str, object]) -> None:
    """Rule S4.13: A fixed output type is kept."""
    text = "g (int64[4] x) => (float[4] y) { [n] a = Cast<to=1>(x) [r] y = Relu(a) }"
    decision = decide_node(text, "n", **settings)
    assert (decision.changed, decision.rule, dict(decision.outputs)) == (False, "cast", {"a": "float32"})


@pytest.mark.parametrize(
    "node",
    [
        "ConstantOfShape(s)",
        "ConstantOfShape<value=float[1] {1}>(s)",
        "RandomNormal<shape=[4]>()",
        "RandomUniform<shape=[4], dtype=1>()",
    ],
)
def test_an_output_type_that_an_attribute_or_its_default_gives_is_kept(node: str) -> None:
    """Rule S4.13: A fixed output type is kept."""
    text = f"g (int64[1] s) => (float[K] y) {{ [n] a = {node} [r] y = Relu(a) }}"
    op = node.split("<")[0].split("(")[0]
    decisions = decide_nodes(text, white=[op])
    assert not decisions["n"].changed
    assert dict(decisions["n"].outputs) == {"a": "float32"}
    assert decisions["r"].precision == "float32"


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "EyeLike"])
def test_an_operator_without_its_type_attribute_is_ordinary(op: str) -> None:
    text = f"g (float[4,4] x) => (float[4,4] y) {{ [h] a = Exp(x) [n] b = {op}(a) [r] y = Relu(b) }}"
    assert find_precisions(text, white=["Exp"]) == {"h": "float16", "n": "float16", "r": "float16"}
    fixed = text.replace(f"{op}(", f"{op}<dtype=1>(")
    decisions = decide_nodes(fixed, white=["Exp", op])
    assert (dict(decisions["n"].outputs), decisions["r"].precision) == ({"b": "float32"}, "float32")


@pytest.mark.parametrize(
    "text",
    [
        "g (int64[4] x) => (int64[4] y) { [n] y = Add(x, x) }",
        "g (int64[4] x) => (float[4] y) { [n] y = Cast<to=1>(x) }",
    ],
)
def test_a_node_rule_for_a_node_without_choice_is_an_error(text: str) -> None:
    """Rule S6.8: A rule for a node with nothing to vary is an error."""
    with pytest.raises(MixlistError, match="n"):
        resolve_text(text, rules=(customize("n", ["float16"], ["float16"]),))


@pytest.mark.parametrize("rules", [keep("n"), keep("Add", by_type=True)])
def test_keep_dtype_for_a_node_without_choice_warns(rules: tuple[NodeRule, ...]) -> None:
    """Rule S6.9: keep_dtype on a node with nothing to vary warns."""
    plan = resolve_text("g (int64[4] x) => (int64[4] y) { [n] y = Add(x, x) }", rules=rules)
    (warning,) = plan.warnings
    assert (warning.code, warning.severity, warning.line) == ("ML306", "warning", 1)
    assert "Add" in warning.message and "does nothing" in warning.message
    assert plan.nodes[0].rule == "no-float"


def test_a_type_that_no_node_has_is_an_error_of_customize_dtypes() -> None:
    """Rule S6.6: A rule without a node warns or fails."""
    with pytest.raises(MixlistError, match=r"'Conv' is not in the model\n"):
        resolve_text(UNARY, rules=(customize("Conv", ["float16"], [], by_type=True),))


# --- node rules ---
@pytest.mark.parametrize("settings", [{"white": ["Relu"]}, {"mode": "fp16"}])
def test_keep_dtype_wins_over_lists_and_modes(settings: dict[str, object]) -> None:
    """Rule S4.2: A node rule wins."""
    decision = decide_node(UNARY, "n", rules=keep("n"), **settings)
    assert (decision.precision, decision.rule) == ("float32", "node-rule")
    assert "keep.cfg:1" in decision.reason


def test_customize_dtypes_lowers_a_black_node() -> None:
    """Rule S4.2: A node rule wins."""
    decision = decide_node(UNARY, "n", black=["Relu"], rules=(customize("n", ["float16"], ["float16"]),))
    assert (decision.precision, decision.rule, dict(decision.outputs)) == ("float16", "node-rule", {"y": "float16"})
    assert "custom.cfg:1" in decision.reason


def test_a_blank_entry_of_customize_dtypes_asks_for_no_type() -> None:
    text = "g (float[4] x) => (float[4] y) { [h] a = Exp(x) [n] y = Pow(a, x) }"
    decision = decide_node(text, "n", rules=(customize("n", [None, "float32"], ["float16"]),))
    assert (decision.precision, dict(decision.outputs)) == ("float16", {"y": "float16"})


def test_rules_by_name_come_first_then_rules_by_type_then_keep_dtype() -> None:
    """Rule S6.3: The first rule that names a node decides."""
    by_name = customize("n", ["float16"], ["float16"])
    by_type = customize("Relu", ["float32"], ["float32"], by_type=True)
    assert decide_node(UNARY, "n", rules=(by_name, by_type, *keep("n"))).precision == "float16"
    assert decide_node(UNARY, "n", mode="fp16", rules=(by_type, *keep("n"))).precision == "float32"
    low_by_type = customize("Relu", ["float16"], ["float16"], by_type=True)
    assert decide_node(UNARY, "n", rules=(low_by_type, *keep("n"))).precision == "float16"


def test_the_first_rule_for_a_name_wins() -> None:
    """Rule S6.3: The first rule that names a node decides."""
    rules = (customize("n", ["float16"], ["float16"]), customize("n", ["float32"], ["float32"]))
    assert decide_node(UNARY, "n", rules=rules).precision == "float16"


def test_a_rule_that_the_schema_refuses_is_an_error() -> None:
    """Rule S6.7: A rule that the schema refuses is an error."""
    with pytest.raises(MixlistError, match="n"):
        resolve_text(UNARY, rules=(customize("n", ["float16"], ["float32"]),))


def test_one_keep_dtype_file_serves_many_models() -> None:
    """Rule S6.6: A rule without a node warns or fails. A misspelled op type of the model still fails."""
    (warning,) = resolve_text(UNARY, rules=keep("Tanh", by_type=True)).warnings
    assert (warning.code, warning.severity) == ("ML307", "warning")
    assert warning.message == "op type 'Tanh' is not in the model: the rule does nothing"
    with pytest.raises(MixlistError, match="'Softmx' is not in the model"):
        resolve_text("g (float[4] x) => (float[4] y) { y = Softmax(x) }", rules=keep("Softmx", by_type=True))


def test_a_rule_by_name_that_matches_no_node_warns() -> None:
    """Rule S6.6: A rule without a node warns or fails."""
    warnings = resolve_text(UNARY, rules=keep("nobody")).warnings
    assert any("nobody" in w.message for w in warnings)


NAMED = """g (float[4] x, bool c) => (float[4] y, float[4] z) {
  [n] y = Relu(x)
  [if] z = If(c) <then_branch = t () => (float[4] p) { [n] p = Relu(x) },
                  else_branch = e () => (float[4] q) { [m] q = Relu(x) }>
}"""


def test_a_name_matches_in_every_scope_and_a_scope_narrows_it() -> None:
    """Rule S6.4: A name matches in every scope."""
    all_scopes = find_precisions(NAMED, white=["Relu"], rules=keep("n"))
    assert all_scopes["n"] == all_scopes["if/then_branch/n"] == "float32"
    assert all_scopes["if/else_branch/m"] == "float16"
    one_scope = find_precisions(NAMED, white=["Relu"], rules=keep("if/then_branch/n"))
    assert (one_scope["n"], one_scope["if/then_branch/n"]) == ("float16", "float32")


def test_a_name_may_hold_wildcards() -> None:
    """Rule S6.4: A name matches in every scope."""
    text = 'g (float[4] x) => (float[4] y) { ["/a/Relu"] h = Relu(x) ["/b/Relu"] i = Relu(h) ["/ab"] y = Relu(i) }'
    precision_of = find_precisions(text, white=["Relu"], rules=keep("/?/*"))
    assert list(precision_of.values()) == ["float32", "float32", "float16"]


def test_many_wildcards_match_in_linear_time() -> None:
    """Rule S6.4: A name matches in every scope. A regular expression that tries every place would run for hours."""
    name = "/".join(["layer[0]"] * 200)
    text = f'g (float[4] x) => (float[4] y) {{ ["{name}"] h = Relu(x) ["{name}/fc"] y = Relu(h) }}'
    precision_of = find_precisions(text, white=["Relu"], rules=keep("**/**/**/**/**/**[0]/**/?c"))
    assert list(precision_of.values()) == ["float16", "float32"]


def test_a_name_that_two_nodes_of_a_scope_share_is_an_error() -> None:
    """Rule S6.4: A name matches in every scope."""
    with pytest.raises(MixlistError, match="twin"):
        resolve_text("g (float[4] x) => (float[4] y) { [twin] h = Relu(x) [twin] y = Relu(h) }", rules=keep("twin"))


# --- shape arithmetic ---
SHAPES = """g (float[N,4] x) => (float[N,4] y, float[1] r) {
  [s] s = Shape<start=0, end=1>(x)
  [f] f = Cast<to=1>(s)
  [k] k = Constant<value=float[1] {1000}>()
  [m] m = Mul(f, k)
  [q] r = Sqrt(m)
  [d] y = Div(x, r)
}"""


@pytest.mark.parametrize("settings", [{"white": ["Mul", "Sqrt", "Div"]}, {"mode": "fp16"}])
def test_shape_arithmetic_stays_as_authored_in_every_mode(settings: dict[str, object]) -> None:
    """Rule S4.3: Shape arithmetic stays as authored."""
    decisions = decide_nodes(SHAPES, **settings)
    assert {name: decisions[name].precision for name in ("m", "q", "d")} == {
        "m": "float32",
        "q": "float32",
        "d": "float16",
    }
    assert {decisions["m"].rule, decisions["q"].rule} == {"shape"}


def test_arithmetic_with_data_is_no_shape_arithmetic() -> None:
    """Rule S4.3: Shape arithmetic stays as authored."""
    text = """g (float[N,4] x) => (float[N,4] y) {
      s = Size(x) f = Cast<to=1>(s) [m] y = Mul(x, f) }"""
    assert decide_node(text, "m", white=["Mul"]).precision == "float16"


# --- white nodes ---
def test_a_white_node_is_low_and_its_decision_says_so() -> None:
    """Rules S3.2, S4.4."""
    decision = decide_node(UNARY, "n", white=["Relu"])
    assert (decision.list, decision.precision, decision.rule, decision.changed) == ("white", "float16", "white", True)
    assert dict(decision.outputs) == {"y": "float16"}
    assert decide_node(UNARY, "n", white=["Relu"], mode="mixed_bfloat16").precision == "bfloat16"


@pytest.mark.parametrize(
    ("opset", "op", "mode"),
    [
        (9, "MeanVarianceNormalization", "mixed_float16"),
        (12, "Relu", "mixed_bfloat16"),
        (17, "Softsign", "mixed_bfloat16"),
    ],
)
def test_a_white_node_that_schema_or_inference_refuses_keeps_its_type(opset: int, op: str, mode: str) -> None:
    """Rule S4.4: White nodes are in the low type on every slot that can be."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    text = f"{head} g (float[2,3,4,4] x) => (float[2,3,4,4] y) {{ [n] y = {op}(x) }}"
    decision = decide_node(text, "n", white=[op], mode=mode)
    assert (decision.list, decision.precision, decision.rule) == ("white", "float32", "schema")
    assert not decision.changed


@pytest.mark.parametrize(
    ("text", "mode", "opset"),
    [
        ("(bfloat16[4] b, float16[4] x) => (bfloat16[4] y) { [n] y = Pow(b, x) }", "mixed_float16", 17),
        ("(bfloat16[4] x, float r) => (bfloat16[4] y) { [n] y = Dropout(x, r) }", "mixed_bfloat16", 17),
        ("(bfloat16[4] x) => (bfloat16[4] y) { [n] y = com.microsoft.Gelu(x) }", "mixed_bfloat16", 12),
    ],
)
def test_a_white_node_whose_data_cannot_change_is_not_refused(text: str, mode: str, opset: int) -> None:
    """Rules S4.4, S4.9: nothing is to change, or only a ratio that stays float32.

    At opset 12, no Cast makes bfloat16, and no standard operator takes it.
    """
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    decision = decide_node(f"{head} g {text}", "n", white=["Pow", "Dropout", "com.microsoft::Gelu"], mode=mode)
    assert (decision.precision, decision.rule, decision.changed) == ("bfloat16", "white", False)


def test_a_white_node_keeps_the_slots_of_the_other_low_type() -> None:
    """Rule S4.9: Lists act on float32."""
    text = "g (bfloat16[4] b, float[4] x) => (bfloat16[4] y) { [n] y = Pow(b, x) }"
    decision = decide_node(text, "n", white=["Pow"])
    assert (decision.changed, dict(decision.outputs)) == (True, {"y": "bfloat16"})


def test_an_output_that_is_left_out_changes_no_other_output() -> None:
    """Rule S4.4: the output that has a reader is in the low type."""
    text = """g (float[2,4] x, float[4] s) => (float[2,4] y, float[2,1] d) {
      [n] a, , d = LayerNormalization(x, s) [r] y = Relu(a) }"""
    decisions = decide_nodes(text, white=["LayerNormalization"])
    assert dict(decisions["n"].outputs) == {"a": "float16", "d": "float32"}
    assert decisions["r"].precision == "float16"


def test_the_output_of_a_custom_operator_has_its_declared_type() -> None:
    """Rule S4.14."""
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[4] x) => (float[4] y) <float[4] h> { [c] h = own.Op(x) [r] y = Relu(h) }"""
    decisions = decide_nodes(text)
    assert (decisions["c"].rule, dict(decisions["c"].outputs)) == ("schema", {"h": "float32"})
    assert decisions["r"].precision == "float32"


def test_a_sequence_has_the_element_type_that_it_was_authored_in() -> None:
    """Rule S4.29: Sequences and optionals keep their types."""
    text = """g (float16[4] x) => (float16[8] y) {
      [s] s = SequenceConstruct(x, x) [n] y = ConcatFromSequence<axis=0>(s) }"""
    assert dict(decide_node(text, "s").outputs) == {"s": "seq(float16)"}


NORMS = """g (float[2,4] x, float[4] s) => (float[2,4] y, float[2,1] m) {
  [n] a, b = LayerNormalization(x, s) [f] y = Relu(a) [g] m = Relu(b) }"""


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_slot_that_only_allows_float32_stays_float32(low: str) -> None:
    """Rule S4.11: A slot can be low precision only if schema and inference agree."""
    decisions = decide_nodes(NORMS, white=["LayerNormalization"], mode=f"mixed_{low}")
    assert dict(decisions["n"].outputs) == {"a": low, "b": "float32"}
    assert (decisions["n"].precision, decisions["f"].precision, decisions["g"].precision) == (low, low, "float32")


def test_all_type_parameters_of_a_white_node_become_low() -> None:
    """Rule S4.11: A slot can be low precision only if schema and inference agree."""
    text = """g (float[2,3,4] x, float[3] s, float[3] m) => (float[2,3,4] y) {
      [n] y = BatchNormalization(x, s, s, m, m) }"""
    assert dict(decide_node(text, "n", white=["BatchNormalization"]).outputs) == {"y": "float16"}


@pytest.mark.parametrize(("opset", "expected"), [(12, "float32"), (13, "bfloat16")])
def test_bfloat16_needs_a_cast_that_makes_it(opset: int, expected: str) -> None:
    """Rule S4.11: A slot can be low precision only if schema and inference agree."""
    text = f"""<ir_version: 7, opset_import: ["" : {opset}, "com.microsoft" : 1]>
      g (float[4] x) => (float[4] y) {{ [n] y = com.microsoft.QuickGelu(x) }}"""
    assert decide_node(text, "n", white=["QuickGelu"], mode="mixed_bfloat16").precision == expected


# --- black nodes ---
def test_black_keeps_the_authored_type_which_need_not_be_float32() -> None:
    """Rule S4.5: Black nodes keep the authored type."""
    text = "g (float16[4] x, float[4] z) => (float16[4] y, float[4] w) { [n] y = Relu(x) [m] w = Relu(z) }"
    decisions = decide_nodes(text, black=["Relu"])
    assert [(d.precision, d.rule, d.changed) for d in decisions.values()] == [
        ("float16", "black", False),
        ("float32", "black", False),
    ]


# --- constants out of range ---
def with_constant(value: str, mode: str = "mixed_float16", constants: str = "keep") -> tuple[str, str]:
    """Precision and rule of a white Add of a scalar constant."""
    text = f"g (float[4] x) => (float[4] y) <float k = {{{value}}}> {{ [n] y = Add(x, k) }}"
    decision = decide_node(text, "n", white=["Add"], mode=mode, constants=constants)
    return decision.precision, decision.rule


@pytest.mark.parametrize("value", ["65504", "65519", "-65519", "0", "-0.0", "0.0000001", "1"])
def test_a_constant_that_the_low_type_holds_is_converted(value: str) -> None:
    assert with_constant(value) == ("float16", "white")


@pytest.mark.parametrize("value", ["65520", "-65520", "1000000", "0.00000001", "-0.00000001"])
def test_a_constant_that_overflows_or_becomes_zero_keeps_the_node_high(value: str) -> None:
    """Rule S4.7: Constants out of range keep the authored type."""
    assert with_constant(value) == ("float32", "constant")
    assert with_constant(value, constants="ieee") == ("float16", "white")
    assert with_constant(value, constants="clamp") == ("float16", "white")


def test_the_range_of_the_low_type_counts() -> None:
    assert with_constant("1000000", "mixed_bfloat16") == ("bfloat16", "white")
    assert with_constant("340000000000000000000000000000000000000", "mixed_bfloat16") == ("float32", "constant")


def test_some_values_that_become_zero_keep_no_node() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] k = {0.00000001, 1}> { [n] y = Add(x, k) }"
    assert decide_node(text, "n", white=["Add"]).precision == "float16"


def test_an_infinite_constant_is_no_overflow() -> None:
    import numpy as np
    from onnx import numpy_helper

    import mixlist
    from tests.support.builders import model, policy

    m = model("g (float[2] x) => (float[2] y) <float[2] k = {1, 1}> { [n] y = Min(x, k) }")
    infinite = numpy_helper.from_array(np.array([np.inf, -np.inf], np.float32), "k")
    m.graph.initializer[0].CopyFrom(infinite)
    assert mixlist.resolve(m, policy(white=["Min"])).nodes[0].precision == "float16"


def test_a_constant_keeps_a_gray_node_high_and_its_readers_follow() -> None:
    text = """g (float[4] x) => (float[4] y) <float k = {1000000}> {
      [w] a = Exp(x) [g] b = Min(a, k) [s] y = Relu(b) }"""
    decisions = decide_nodes(text, white=["Exp"])
    assert [(d.precision, d.rule) for d in decisions.values()] == [
        ("float16", "white"),
        ("float32", "constant"),
        ("float32", "follow"),
    ]


def test_only_the_slot_stays_high_if_it_has_its_own_type_parameter() -> None:
    """Rule S4.7: Constants out of range keep the authored type."""
    text = "g (float[4] x) => (float[4] y) <float k = {1000000}> { [n] y = Pow(x, k) }"
    decision = decide_node(text, "n", white=["Pow"])
    assert (decision.precision, dict(decision.outputs)) == ("float16", {"y": "float16"})


@pytest.mark.parametrize(
    ("scale", "bias", "expected"),
    [("big", "one", ("float16", "white")), ("one", "big", ("float16", "white")), ("s", "big", ("float32", "constant"))],
)
def test_slots_of_one_type_parameter_stay_high_together(scale: str, bias: str, expected: tuple[str, str]) -> None:
    """Rule S4.7: scale and bias of BatchNormalization share a type parameter, which no output has."""
    text = f"""g (float[2,3,4] x, float[3] s) => (float[2,3,4] y)
      <float[3] big = {{1, 1, 1000000}}, float[3] one = {{1, 2, 1}}> {{
      [n] y = BatchNormalization(x, {scale}, {bias}, s, s) }}"""
    decision = decide_node(text, "n", white=["BatchNormalization"])
    assert (decision.precision, decision.rule) == expected


def test_a_constant_base_out_of_range_keeps_pow_high() -> None:
    """Rule S4.7: the output of Pow shares the type parameter of its base."""
    text = "g (float[4] x) => (float[4] y) <float k = {1000000}> { [n] y = Pow(k, x) }"
    decision = decide_node(text, "n", white=["Pow"])
    assert (decision.precision, decision.rule, dict(decision.outputs)) == ("float32", "constant", {"y": "float32"})


def test_a_node_whose_only_float_slots_read_constants_out_of_range_stays_high() -> None:
    """Rule S4.7: a comparison has no float output that could be low precision without its inputs."""
    text = "g (bool[1] x) => (bool[1] y) <float k = {1000000}, float l = {2}> { [n] c = Less(k, l) y = And(c, x) }"
    decision = decide_node(text, "n", white=["Less"])
    assert (decision.precision, decision.rule) == ("float32", "constant")


def test_a_slot_that_the_schema_keeps_high_does_not_round_its_constant() -> None:
    """Rule S4.7: at opset 13, the exponent of Pow cannot be bfloat16, so its constant is no reason for its type."""
    text = """<ir_version: 8, opset_import: ["" : 13]>
      g (float[4] x) => (float[4] y) <float k = {340000000000000000000000000000000000000}> { [n] y = Pow(x, k) }"""
    decision = decide_node(text, "n", white=["Pow"], mode="mixed_bfloat16")
    assert (decision.precision, decision.rule) == ("bfloat16", "white")
    assert "constant" not in decision.reason


def test_a_reason_names_the_first_constant_out_of_range() -> None:
    """Rule S4.33: Every decision carries its reason."""
    text = "g (float[4] x) => (float[4] y) <float k = {1000000}, float l = {2000000}> { [n] y = Max(x, k, l) }"
    decision = decide_node(text, "n", white=["Max"])
    assert "constant 'k' reaches 1e+06" in decision.reason and "'l'" not in decision.reason


def test_a_constant_output_that_stays_float32_may_be_out_of_range() -> None:
    """Rule S4.20: the third output of LayerNormalization stays float32. Here it is 1e6, and its first output is 0."""
    text = """g (float[2] x) => (float[2] y) <float[2] k = {1, 1}> {
      [n] a, b, c = LayerNormalization<epsilon=0.000000000001>(k, k) [m] d = Mul(a, x) [o] y = Mul(c, d) }"""
    decision = decide_node(text, "n", white=["LayerNormalization"])
    assert (decision.precision, decision.rule) == ("float16", "white")
    assert dict(decision.outputs) == {"a": "float16", "b": "float32", "c": "float32"}


def test_a_constant_node_counts_as_an_initializer_does() -> None:
    for attribute in ("value_float=1000000.0", "value_floats=[1000000.0]", "value=float {1000000}"):
        text = f"g (float[4] x) => (float[4] y) {{ k = Constant<{attribute}>() [n] y = Add(x, k) }}"
        assert decide_node(text, "n", white=["Add"]).rule == "constant"


# --- all decisions ---
def test_a_reason_names_the_library() -> None:
    """Rule S4.33: Every decision carries its reason."""
    decisions = decide_nodes(CHAIN, white=["Exp"], black=["Neg"])
    assert all(d.reason for d in decisions.values())
    assert "library test" in decisions["a"].reason
    assert "library test" in decisions["c"].reason


def test_resolving_changes_nothing() -> None:
    import mixlist
    from tests.support.builders import model, policy

    m = model(CHAIN)
    before = m.SerializeToString(deterministic=True)
    first = mixlist.resolve(m, policy(white=["Exp"])).to_json()
    assert m.SerializeToString(deterministic=True) == before
    assert mixlist.resolve(m, policy(white=["Exp"])).to_json() == first


def test_a_rule_may_repeat_the_type_of_an_integer_slot() -> None:
    """Rule S6.2: the documents want one type for each input."""
    text = "g (float[4] x, int64[2] i) => (float[2] y) { [n] y = Gather(x, i) }"
    rule = customize("n", ["float16", "int64"], ["float16"])
    assert decide_node(text, "n", rules=(rule,)).precision == "float16"
    with pytest.raises(MixlistError, match=r"input 1 of node n \(Gather\) is int64 by its schema, not int32"):
        decide_node(text, "n", rules=(customize("n", ["float16", "int32"], ["float16"]),))


def test_a_rule_for_int8_on_a_float_is_refused() -> None:
    """Rule S6.7: the build of the engine fails too, because no kernel of Relu has these types."""
    with pytest.raises(MixlistError, match="the rule asks for int8 on type parameter T, which is float32"):
        decide_node(UNARY, "n", rules=(customize("n", ["float16"], ["int8"]),))


@pytest.mark.parametrize(("elem", "precision"), [(16, "bfloat16"), (10, "float16")])
def test_origin_shows_the_low_type_of_the_author(elem: int, precision: str) -> None:
    """Rule S3.5: no node changes."""
    text = f"g (float[4] x) => (float[4] y) {{ b = Cast<to = {elem}>(x) [n] c = Neg(b) y = Cast<to = 1>(c) }}"
    plan = resolve_text(text, mode="origin")
    (node,) = [node for node in plan.nodes if node.name == "n"]
    assert (node.precision, node.rule, node.changed) == (precision, "mode", False)
    assert plan.policy.mode.low == precision
