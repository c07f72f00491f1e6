"""Types that operators fix or choose, slot by slot, as the schema at the model's opset has them."""

from __future__ import annotations

import pytest

from tests.support.rewriter_cases import case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}


def opset(version: int) -> str:
    """Return the header of a model with an IR version that fits the opset."""
    return f'<ir_version: {3 if version < 9 else 8 if version < 19 else 10}, opset_import: ["" : {version}]>'


# --- slots of one type only ---


def test_an_input_that_only_takes_float32_gets_a_cast_of_a_low_value() -> None:
    text = """g (float[1,1,2,2] x, float[4] r) => (float[1,1,N,M] y) {
      [w] w = Exp(x) [s] s = Exp(r) [z] y = Resize(w, , s) }"""
    result = case(text, runtime=False, **LISTS)
    assert result.low == {"w", "s", "z"}
    assert result.reads("z") == ["float16", "", "float32"]
    assert result.casts == [">y", "r>float16", "s>float32", "x>float16"]


def test_a_constant_in_a_slot_of_float32_stays() -> None:
    text = (
        "g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] s = {1,1,2,2}> { [w] w = Exp(x) [z] y = Resize(w, , s) }"
    )
    result = case(text, **LISTS)
    assert result.initializers() == {"s": "float32"} and result.low == {"w", "z"}


def test_an_output_that_is_always_float32_stays() -> None:
    """A gray node that reads the Mean of LayerNormalization follows its type, not the precision of the node."""
    text = """g (float[2,4] x, float[4] s) => (float[2,4] y, float[2,1] n) {
      [w] w = Exp(x) [l] y, m = LayerNormalization(w, s) [n] n = Neg(m) }"""
    result = case(text, **LISTS)
    assert result.low == {"w", "l"}
    assert result.makes("l") == ["float16", "float32"]
    assert result.casts == [">y", "s>float16", "x>float16"]


@pytest.mark.parametrize("stash", ["float32", "bfloat16"])
def test_stash_type_fixes_the_type_of_its_output(stash: str) -> None:
    """The second output has the type that stash_type names, under every list."""
    number = {"float32": 1, "bfloat16": 16}[stash]
    text = f"""g (float[2,4] x, float[4] s) => (float[2,4] y, {stash.removesuffix("32")}[2,1] m) {{
      [w] w = Exp(x) [l] y, m = LayerNormalization<stash_type={number}>(w, s) }}"""
    result = case(text, check=False, runtime=False, **LISTS)
    assert result.nodes["l"].outputs["m"] == stash
    assert "l" in result.low


def test_an_operator_that_only_takes_float32_keeps_float32() -> None:
    text = """g (float[1,4,4] b, float[1,1,4] s) => (int64[N,3] y) <int64 m = {3}, float iou = {0.5}> {
      [w] w = Exp(b) [n] y = NonMaxSuppression(w, s, m, iou) }"""
    result = case(text, **LISTS)
    assert result.low == {"w"}
    assert result.casts == ["b>float16", "w>float32"]
    assert result.nodes["n"].rule == "no-float"


def test_the_reason_of_a_white_operator_that_only_takes_float32() -> None:
    text = (
        """g (float[4] x) => (uint8[4] y, float s, uint8 z) { [w] w = Exp(x) [d] y, s, z = DynamicQuantizeLinear(w) }"""
    )
    result = case(text, white=["Exp", "DynamicQuantizeLinear"], feeds=X)
    assert result.nodes["d"].precision in ("none", "float32") and "float" in result.nodes["d"].reason
    assert result.casts == ["w>float32", "x>float16"]


# --- several float type parameters ---


def test_batch_normalization_has_three_type_parameters_from_opset_15_on() -> None:
    main = """g (float[1,2,4] x, float[2] m) => (float[1,2,4] y)
      <float[2] s = {1,1}, float[2] b = {0,0}, float[2] v = {100000.0,1}> {
      [w] w = Exp(x) [n] y = BatchNormalization(w, s, b, m, v) }"""
    old, new = (case(opset(version) + main, **LISTS) for version in (9, 17))
    assert old.nodes["n"].rule == "constant"  # the variance does not fit, and all slots go together
    assert old.casts == ["w>float32", "x>float16"]
    assert new.nodes["n"].rule == "constant"  # mean and variance go together, and the mean is no constant
    assert new.casts == ["w>float32", "x>float16"]


def test_a_type_parameter_that_only_constants_have_stays_high_alone() -> None:
    main = """g (float[1,2,4] x) => (float[1,2,4] y) <float[2] s = {1,1}, float[2] b = {0,0}, float[2] m = {0,0},
      float[2] v = {100000.0,1}> { [w] w = Exp(x) [n] y = BatchNormalization(w, s, b, m, v) }"""
    result = case(opset(17) + main, **LISTS)
    assert result.low == {"w", "n"}
    assert result.reads("n") == ["float16", "float16", "float16", "float32", "float32"]
    assert result.casts == [">y", "x>float16"]
    assert "slot keeps its authored type" in result.nodes["n"].reason


def test_the_statistics_of_batch_normalization_have_the_type_of_their_inputs() -> None:
    text = """g (float[1,2,4] x, float[2] s, float[2] b, float[2] m, float[2] v) =>
      (float[1,2,4] y, float[2] rm, float[2] rv) {
      [w] w = Exp(x) [n] y, rm, rv = BatchNormalization<training_mode=1>(w, s, b, m, v) }"""
    result = case(text, **LISTS)
    assert result.makes("n") == ["float16"] * 3
    assert result.casts == [">rm", ">rv", ">y", *(f"{v}>float16" for v in "bmsvx")]


@pytest.mark.parametrize(("exponent", "read"), [("float", "float16"), ("int64", "int64"), ("double", "float64")])
def test_the_exponent_of_pow_has_a_type_of_its_own(exponent: str, read: str) -> None:
    text = f"g (float[4] x, {exponent}[4] p) => (float[4] y) {{ [w] w = Exp(x) [n] y = Pow(w, p) }}"
    result = case(text, feeds={**X, "p": [1, 2, 1, 2]}, **LISTS)
    assert result.low == {"w", "n"}
    assert result.reads("n") == ["float16", read]


def test_grid_sample_takes_its_grid_in_any_float() -> None:
    text = "g (float[1,1,2,2] x, float[1,2,2,2] q) => (float[1,1,2,2] y) { [w] w = Exp(x) [n] y = GridSample(w, q) }"
    result = case(opset(16) + text, **LISTS)
    assert result.low == {"w", "n"} and result.casts == [">y", "q>float16", "x>float16"]


# --- types by attribute ---


@pytest.mark.parametrize("attribute", ["", "<value=float[1] {1}>"])
def test_constant_of_shape_keeps_its_type(attribute: str) -> None:
    text = f"""g (int64[1] n, float[4] x) => (float[N] y) {{
      [z] z = ConstantOfShape{attribute}(n) [e] a = Exp(z) [r] y = Relu(z) }}"""
    result = case(text, white=["Exp", "ConstantOfShape"], feeds={"n": [4], **X})
    assert result.nodes["z"].rule == "cast" and result.makes("z") == ["float32"]
    assert result.low == {"e"} and result.casts == ["z>float16"]


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_range_takes_no_low_type_at_opset_17(low: str) -> None:
    text = "g (float a, float b, float c) => (float[N] y) { [w] w = Exp(a) [r] r = Range(w, b, c) [n] y = Neg(r) }"
    result = case(text, mode=f"mixed_{low}", feeds={"a": 0, "b": 5, "c": 1} if low == "float16" else None, **LISTS)
    assert result.low == {"w"} and result.casts == [f"a>{low}", "w>float32"]
    assert result.nodes["r"].rule == "schema"


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_a_generator_has_the_type_of_its_attribute(op: str) -> None:
    text = f"""g (float[4] x) => (float[4] y, float16[4] z) {{
      [a] a = {op}<shape=[4]>() [b] z = {op}<shape=[4], dtype=10>() [w] w = Exp(x) [n] y = Add(a, w) }}"""
    result = case(text, white=["Exp", op])
    assert (result.makes("a"), result.makes("b")) == (["float32"], ["float16"])
    assert result.nodes["a"].rule == result.nodes["b"].rule == "cast"
    assert result.low - {"b"} == {"w"} and result.casts == ["w>float32", "x>float16"]


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "EyeLike"])
def test_a_like_operator_follows_its_input_without_a_dtype(op: str) -> None:
    text = f"""g (float[4,4] x) => (float[4,4] y, float[4,4] z) {{
      [w] w = Exp(x) [f] y = {op}(w) [d] z = {op}<dtype=1>(w) }}"""
    result = case(text, **LISTS)
    assert result.low == {"w", "f"} and result.casts == [">y", "x>float16"]
    assert result.reads("d") == ["float16"]  # it reads every type


@pytest.mark.parametrize(("text", "output_type"), [("Multinomial(w)", "int32"), ("Bernoulli<dtype=1>(w)", "float32")])
def test_an_operator_that_fixes_its_output_type_reads_its_authored_types(text: str, output_type: str) -> None:
    """A node with a dtype, as an attribute or by default, never follows a list."""
    head = "g (float[4,4] x) => (" + ("int32[4,1]" if output_type == "int32" else "float[4,4]")
    result = case(f"{head} y) {{ [w] w = Exp(x) [m] y = {text} }}", white=["Exp", "Multinomial", "Bernoulli"])
    assert result.nodes["m"].rule == "cast" and result.makes("m") == [output_type]
    assert result.casts == ["w>float32", "x>float16"]


def test_bernoulli_without_a_dtype_follows_its_input() -> None:
    result = case("g (float[4,4] x) => (float[4,4] y) { [w] w = Exp(x) [m] y = Bernoulli(w) }", **LISTS)
    assert result.low == {"w", "m"}


def test_cast_like_makes_the_type_of_its_second_input() -> None:
    text = """g (float[4] x, int64[4] i) => (float[4] y, int64[4] z) {
      [w] w = Exp(x) [c] c = CastLike(i, w) [n] y = Neg(c) [d] z = CastLike(w, i) }"""
    result = case(text, feeds={**X, "i": [1, 2, 3, 4]}, **LISTS)
    assert result.low >= {"w", "c", "n"}
    assert result.makes("d") == ["int64"] and result.casts == [">y", "x>float16"]


# --- quantization ---

QDQ = """g (float[4] x) => (float[4] y) <float s = {0.5}, uint8 z = {0}> {
  [w] w = Exp(x) [q] q = QuantizeLinear(w, s, z) [d] d = DequantizeLinear(q, s, z) [n] y = Exp(d) }"""

# Exp of these values is a little above a multiple of 0.5, so that every kernel rounds it alike: up to version 1.28,
# ONNX Runtime's CPU kernel of QuantizeLinear cuts the fraction of float16 off.
QUANTIZED_X = {"x": [0.45, 0.93, 1.42, 2.02]}


def test_quantize_linear_is_float32_alone_before_opset_19() -> None:
    result = case(opset(13) + QDQ, feeds=QUANTIZED_X, **LISTS)
    assert result.low == {"w", "n"}
    assert result.casts == [">y", "d>float16", "w>float32", "x>float16"]
    assert result.initializers()["s"] == "float32"


def test_quantize_linear_follows_and_dequantize_linear_has_only_a_constant_from_opset_19() -> None:
    result = case(opset(19) + QDQ, feeds=QUANTIZED_X, **LISTS)
    assert result.low == {"w", "q", "n"}
    assert result.initializers() == {"s": "float32", "z": "uint8", "s_float16": "float16"}
    assert result.casts == [">y", "d>float16", "x>float16"]


def test_white_quantization_has_low_floats() -> None:
    result = case(opset(19) + QDQ, white=["Exp", "QuantizeLinear", "DequantizeLinear"], feeds=QUANTIZED_X)
    assert result.low == {"w", "q", "d", "n"} and result.casts == [">y", "x>float16"]
    assert result.initializers()["s"] == "float16"


def test_output_dtype_fixes_the_type_of_dequantize_linear() -> None:
    result = case(
        opset(23) + QDQ.replace("DequantizeLinear(", "DequantizeLinear<output_dtype=1>("), white=["DequantizeLinear"]
    )
    assert result.nodes["d"].rule == "cast" and result.makes("d") == ["float32"] and not result.casts


# --- optional inputs and outputs that are left out ---


def test_dropout_with_a_mask_without_a_reader() -> None:
    for version in (7, 10, 12, 17):
        result = case(
            opset(version) + "g (float[4] x) => (float[4] y) { [w] w = Exp(x) [d] y, m = Dropout(w) }", **LISTS
        )
        assert result.low == {"w", "d"} and result.casts == [">y", "x>float16"]


def test_dropout_with_a_ratio_that_is_a_constant() -> None:
    text = "g (float[4] x) => (float[4] y, bool[4] m) <float r = {0.5}> { [w] w = Exp(x) [d] y, m = Dropout(w, r) }"
    result = case(text, feeds=X, **LISTS)
    assert result.reads("d") == ["float16", "float16"] and result.makes("d") == ["float16", "bool"]


def test_lstm_without_some_inputs_and_outputs() -> None:
    text = """g (float[3,1,4] x, float[1,8,4] k, float[1,8,2] r, float[1,1,2] h) => (float[3,1,1,2] y, float[1,1,2] c) {
      [w] w = Exp(x) [l] y, , c = LSTM<hidden_size=2>(w, k, r, , , h) }"""
    result = case(text, runtime=False, **LISTS)
    assert result.reads("l") == ["float16", "float16", "float16", "", "", "float16"]
    assert result.makes("l") == ["float16", "", "float16"]


def test_gru_with_its_first_output_unused() -> None:
    text = """g (float[3,1,4] x, float[1,6,4] k, float[1,6,2] r) => (float[1,1,2] y) {
      [w] w = Exp(x) [l] , y = GRU<hidden_size=2>(w, k, r) }"""
    result = case(text, runtime=False, **LISTS)
    assert result.makes("l") == ["", "float16"] and "l" in result.low


def test_clip_with_only_one_bound() -> None:
    text = "g (float[4] x) => (float[4] y) <float hi = {6}> { [w] w = Exp(x) [c] y = Clip(w, , hi) }"
    result = case(text, feeds=X, **LISTS)
    assert result.reads("c") == ["float16", "", "float16"]


def test_a_bound_beyond_float16_keeps_clip_high() -> None:
    text = "g (float[4] x) => (float[4] y) <float hi = {3.4028235e38}> { [w] w = Exp(x) [c] y = Clip(w, , hi) }"
    result = case(text, feeds=X, **LISTS)
    assert result.nodes["c"].rule == "constant" and result.casts == ["w>float32", "x>float16"]
    assert case(text, constants="clamp", **LISTS).low == {"w", "c"}
