"""Casts of the user's model, low-authored models, both low types at once, and names that are taken already."""

from __future__ import annotations

import onnx
import pytest

from tests.support.rewriter_cases import Case, case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}


def sources(found: Case, name: str) -> list[str]:
    """The names that a node of the result reads."""
    return list(next(n for n in found.after.graph.node if n.name == name).input)


# --- a user's Cast that does what is needed ---


@pytest.mark.parametrize("order", ["[c] z = Cast<to=10>(x) [w] w = Exp(x)", "[w] w = Exp(x) [c] z = Cast<to=10>(x)"])
def test_a_user_cast_of_the_same_tensor_is_used_and_moved_up_if_it_comes_later(order: str) -> None:
    """Rule S7.5: No Cast that another tensor replaces."""
    result = case(f"g (float[4] x) => (float[4] y, float16[4] z) {{ {order} [l] y = Log(w) }}", feeds=X, **LISTS)
    assert result.casts == ["w>float32"]
    assert sources(result, "w") == ["z"]
    assert [n.op_type for n in result.after.graph.node] == ["Cast", "Exp", "Cast", "Log"]


def test_a_user_cast_outside_serves_readers_in_subgraphs() -> None:
    text = """g (float[4] x, bool c) => (float[4] y, float16[4] h) { [l] l = Log(x)
      [i] y = If(c) <then_branch = t () => (float[4] p) { [a] p = Exp(l) },
                     else_branch = e () => (float[4] q) { [b] q = Exp(l) }> [c] h = Cast<to=10>(l) }"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.casts == [">y"]
    assert [n.name for n in result.after.graph.node if not n.name.startswith("Cast_")] == ["l", "c", "i"]


def test_a_user_cast_in_a_branch_serves_that_branch_only_where_it_serves_all() -> None:
    one = """g (float[4] x, bool c) => (float[4] y) {{ [l] l = Log(x)
      [i] y = If(c) <then_branch = t () => (float[4] p) {{
          [h] h = Cast<to=10>(l) [n] n = Neg(h) [d] d = Cast<to=1>(n) [a] a = Exp(l) [s] p = Add(d, a) }},
        else_branch = e () => (float[4] q) {{ [b] q = {0}(l) }}> }}"""
    alone = case(one.format("Log"), feeds={**X, "c": True}, **LISTS)
    assert alone.casts == ["i/then_branch: p>float32"]  # Exp reads h, Add reads n and a
    both = case(one.format("Exp"), feeds={**X, "c": True}, **LISTS)
    assert both.casts == [">y", "l>float16"]  # one Cast outside serves both; the user's own stays as it was
    assert both.scope("i/then_branch").nodes[0].input[0] == "l"


def test_a_user_cast_that_is_an_output_is_no_cast_of_ours() -> None:
    result = case("g (float[4] x) => (float16[4] y) { [w] w = Exp(x) [c] y = Cast<to=10>(w) }", **LISTS)
    assert result.casts == ["x>float16"] and result.reads("c") == ["float16"]  # it stays, though it does nothing now


# --- looking through ---


def test_an_exact_cast_is_looked_through_and_stays() -> None:
    text = """g (float16[4] x) => (float[4] y, float[4] z) { [c] c = Cast<to=1>(x) [n] y = Neg(c) [l] z = Log(c) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"n"} and sources(result, "n") == ["x"] and sources(result, "l") == ["c"]
    assert result.casts == [">y"]


def test_a_black_cast_is_not_looked_through() -> None:
    text = "g (float16[4] x) => (float[4] y) { [c] c = Cast<to=1>(x) [n] y = Neg(c) }"
    result = case(text, white=["Exp"], black=["Cast"], feeds=X)
    assert not result.low and not result.casts
    white = case(
        "g (float16[4] x) => (float[4] y) { [c] c = Cast<to=1>(x) [n] y = Neg(c) }", white=["Neg"], black=["Cast"]
    )
    assert white.casts == [">y", "c>float16"]  # it only keeps mixlist from looking; the white node is low


def test_only_one_cast_is_looked_through() -> None:
    """x -> float32 -> float16 -> float32 -> Neg: the last Cast reads a float16, so that is what Neg sees."""
    text = """g (float[4] x) => (float[4] y) { [a] a = Cast<to=10>(x) [b] b = Cast<to=1>(a) [l] l = Log(b)
      [c] c = Cast<to=10>(l) [d] d = Cast<to=1>(c) [e] e = Cast<to=1>(d) [n] y = Neg(e) }"""
    result = case(text, feeds=X, **LISTS)
    assert not result.low - {"a", "c"}  # e casts a float32: Neg follows that
    assert not result.casts


def test_a_rounding_pair_keeps_rounding() -> None:
    """The white node behind it is fed the rounded number; both Casts stay in the file. Rule S7.7."""
    text = (
        "g (float[4] x) => (float[4] y) { [l] l = Log(x) [a] a = Cast<to=10>(l) [b] b = Cast<to=1>(a) [w] y = Exp(b) }"
    )
    result = case(text, feeds=X, **LISTS)
    assert sources(result, "w") == ["a"] and result.casts == [">y"]
    assert {"a", "b"} <= {n.name for n in result.after.graph.node}


def test_casts_from_integers_and_doubles_are_producers() -> None:
    text = """g (float[4] x, int64[4] i, double[4] d) => (float[4] y, float[4] z) {
      [a] a = Cast<to=1>(i) [r] r = Relu(a) [b] b = Cast<to=1>(d) [s] s = Relu(b)
      [w] w = Exp(r) [t] y = Add(w, s) [l] z = Log(s) }"""
    result = case(text, feeds={**X, "i": [1, 2, 1, 2], "d": [0, 1, 2, 1]}, **LISTS)
    assert result.low == {"w", "t"} and result.casts == [">y", "r>float16", "s>float16"]


def test_casts_in_a_double_island_stay() -> None:
    """Rule S7.7: Casts of the user stay, and so do float64 and integers."""
    text = """g (float[4] x) => (float[4] y) { [w] w = Exp(x) [a] a = Cast<to=11>(w) [e] e = Exp(a) [l] l = Log(e)
      [b] b = Cast<to=1>(l) [n] y = Neg(b) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w"} and result.casts == ["x>float16"]
    assert result.makes("e") == ["float64"] and result.reads("a") == ["float16"]


def test_a_user_cast_of_a_constant_keeps_its_rounding() -> None:
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1,2,3,4}> {
      [w] w = Exp(x) [u] u = Add(w, k) [c] c = Cast<to=7>(k) [d] d = Cast<to=1>(c) [a] y = Add(u, d) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.initializers() == {"k": "float32", "k_float16": "float16"}
    assert result.reads("c") == ["float32"]


# --- low-authored and mixed models ---


HALF = """g (float16[4] x) => (float16[4] y) <float16[4] k = {1,2,3,4}> {
  [w] w = Exp(x) [a] a = Add(w, k) [l] y = Log(a) }"""


def test_a_model_in_float16_stays_in_float16() -> None:
    for settings in (LISTS, {"mode": "fp16"}, {"mode": "origin"}, {"mode": "allow_fp32_to_fp16"}):
        result = case(HALF, **settings)
        assert not result.casts and result.after.graph.node == result.before.graph.node


def test_a_model_in_float16_is_raised() -> None:
    result = case(HALF, mode="cube_fp16in_fp32out")
    assert result.casts == [">y", "x>float32"] and result.initializers() == {"k": "float32"}
    free = case(HALF, mode="cube_fp16in_fp32out", options={"keep_io_types": False})
    assert free.casts == ["x>float32"]  # an input becomes low or stays


def test_the_other_low_type_is_an_island() -> None:
    """Rule S4.9: Lists act on float32."""
    text = """g (bfloat16[4] b, float[4] x) => (float[4] y) {
      [e] e = Exp(b) [c] c = Cast<to=1>(e) [w] w = Exp(x) [a] y = Add(w, c) }"""
    result = case(text, runtime=False, **LISTS)
    assert result.makes("e") == ["bfloat16"]
    assert result.low == {"w", "a"} and result.casts == [">y", "c>float16", "x>float16"]


def test_gray_does_not_become_the_other_low_type() -> None:
    """Pow has two type parameters: its exponent stays float32 behind a bfloat16 base. Rule S4.9."""
    text = "g (bfloat16[4] b, float[4] p) => (bfloat16[4] y) { [n] y = Pow(b, p) }"
    result = case(text, runtime=False, **LISTS)
    assert result.reads("n") == ["bfloat16", "float32"] and not result.casts


# --- names ---


def test_names_that_are_taken_in_this_scope_or_another() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { [w] w = Exp(x) [r] x_float16 = Relu(x)
      [i] z = If(c) <then_branch = t () => (float[4] p) { [a] x_float16_2 = Relu(x) [b] p = Exp(x_float16_2) },
                     else_branch = e () => (float[4] q) { [d] q = Exp(w) }> [n] y = Add(z, x_float16) }"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    made = [n.output[0] for n in result.after.graph.node if n.op_type == "Cast" and n.input[0] == "x"]
    assert made == ["x_float16_3"]


def test_outputs_whose_inner_names_would_collide() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] y_float16) { [a] y = Exp(x) [b] y_float16 = Exp(y) }"
    result = case(text, feeds=X, **LISTS)
    assert result.casts == [">y", ">y_float16", "x>float16"]
    assert len({o for n in result.after.graph.node for o in n.output}) == 5


def test_node_names_that_are_taken() -> None:
    result = case(
        "g (float[4] x) => (float[4] y) { [Cast_x_float16] w = Exp(x) [Cast_y] y = Relu(w) }", feeds=X, **LISTS
    )
    names = [n.name for n in result.after.graph.node]
    assert len(set(names)) == 4 and {"Cast_x_float16", "Cast_y"} < set(names)


def test_a_constant_whose_copy_has_a_taken_name() -> None:
    text = """g (float[4] x) => (float[4] y, float[4] z) <float[4] k = {1,2,3,4}, float[4] k_float16 = {5,6,7,8}> {
      [w] w = Exp(x) [a] a = Add(w, k) [b] y = Add(a, k_float16) [c] c = Sub(x, k) [d] z = Sub(c, k_float16) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.initializers() == {
        "k": "float32",
        "k_float16": "float32",
        "k_float16_2": "float16",
        "k_float16_float16": "float16",
    }


def test_a_model_without_any_cast_to_make_is_the_same_but_for_its_stamp() -> None:
    result = case("g (float[4] x) => (float[4] y) { [a] a = Relu(x) [b] y = Log(a) }", **LISTS)
    bare = onnx.ModelProto()
    bare.CopyFrom(result.after)
    del bare.metadata_props[:]
    assert bare == result.before
    assert sorted(p.key for p in result.after.metadata_props) == ["pkg.mixlist.policy", "pkg.mixlist.version"]
