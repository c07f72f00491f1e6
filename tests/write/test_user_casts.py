"""Casts of the user, models that were authored in a low type, both low types in one model, and names in use."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from tests.support.builders import customize
from tests.support.rewriter_cases import Case, case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}


def input_names(result: Case, name: str) -> list[str]:
    """Return the names that a node of the rewritten model reads."""
    return list(next(n for n in result.after.graph.node if n.name == name).input)


# --- Casts of the user that mixlist reuses ---


@pytest.mark.parametrize("order", ["[c] z = Cast<to=10>(x) [w] w = Exp(x)", "[w] w = Exp(x) [c] z = Cast<to=10>(x)"])
def test_a_user_cast_of_the_same_tensor_is_reused_and_moved_forward_if_needed(order: str) -> None:
    """Rule S7.5: No Cast that another tensor replaces."""
    result = case(f"g (float[4] x) => (float[4] y, float16[4] z) {{ {order} [l] y = Log(w) }}", feeds=X, **LISTS)
    assert result.casts == ["w>float32"]
    assert input_names(result, "w") == ["z"]
    assert [n.op_type for n in result.after.graph.node] == ["Cast", "Exp", "Cast", "Log"]


def test_a_user_cast_serves_readers_in_bodies() -> None:
    text = """g (float[4] x, bool c) => (float[4] y, float16[4] h) { [l] l = Log(x)
      [i] y = If(c) <then_branch = t () => (float[4] p) { [a] p = Exp(l) },
                     else_branch = e () => (float[4] q) { [b] q = Exp(l) }> [c] h = Cast<to=10>(l) }"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.casts == [">y"]
    assert [n.name for n in result.after.graph.node if not n.name.startswith("Cast_")] == ["l", "c", "i"]


def test_a_user_cast_in_a_branch_is_reused_only_if_it_serves_all_readers() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {{ [l] l = Log(x)
      [i] y = If(c) <then_branch = t () => (float[4] p) {{
          [h] h = Cast<to=10>(l) [n] n = Neg(h) [d] d = Cast<to=1>(n) [a] a = Exp(l) [s] p = Add(d, a) }},
        else_branch = e () => (float[4] q) {{ [b] q = {0}(l) }}> }}"""
    alone = case(text.format("Log"), feeds={**X, "c": True}, **LISTS)
    assert alone.casts == ["i/then_branch: p>float32"]  # Exp reads h, Add reads n and a
    both = case(text.format("Exp"), feeds={**X, "c": True}, **LISTS)
    assert both.casts == [">y", "l>float16"]  # one Cast outside serves both branches; the user's Cast stays
    assert both.scope("i/then_branch").nodes[0].input[0] == "l"


def test_a_user_cast_before_its_readers_does_not_move() -> None:
    text = "g (float[4] x) => (float[4] y, float16[4] z) { [l] y = Log(x) [c] z = Cast<to=10>(x) [w] w = Exp(x) }"
    result = case(text, feeds=X, **LISTS)
    assert not result.casts and input_names(result, "w") == ["z"]
    assert [n.name for n in result.after.graph.node] == ["l", "c", "w"]


def test_a_user_cast_in_a_branch_moves_before_a_reader_in_this_branch() -> None:
    """Rule S7.5: the order in the branch counts, not that of the nodes around it."""
    text = """g (float[4] x, bool c) => (float[4] y) {
      [i] y = If(c) <then_branch = t () => (float[4] p) {
          [l] l = Log(x) [w] w = Exp(l) [h] h = Cast<to=10>(l) [n] n = Cast<to=1>(h) [a] a = Add(w, n) [p] p = Log(a) },
        else_branch = e () => (float[4] q) { [q] q = Log(x) }> }"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    nodes = result.scope("i/then_branch").nodes
    assert [n.name for n in nodes if not n.name.startswith("Cast_")] == ["l", "h", "w", "a", "p"]


def test_the_output_of_a_branch_reads_a_user_cast() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
      [i] y = If(c) <then_branch = t () => (float[4] p) { [w] p = Exp(x) [h] h = Cast<to=1>(p) },
        else_branch = e () => (float[4] q) { [q] q = Log(x) }> }"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.casts == ["x>float16"]
    assert [n.name for n in result.scope("i/then_branch").nodes if not n.name.startswith("Cast_")] == ["w", "h"]


def test_a_cast_of_a_custom_domain_is_not_reused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[4] x) => (float[4] y, float16[4] z) {
      [c] z = my.Cast<to=10>(x) [w] w = Exp(x) [l] y = Log(w) }"""
    assert case(text, **LISTS).casts == ["w>float32", "x>float16"]


def test_a_user_cast_that_makes_an_output_is_kept() -> None:
    result = case("g (float[4] x) => (float16[4] y) { [w] w = Exp(x) [c] y = Cast<to=10>(w) }", **LISTS)
    assert result.casts == ["x>float16"] and result.reads("c") == [
        "float16"
    ]  # it stays, although it converts nothing now


# --- looking through ---


def test_a_cast_from_the_low_type_is_looked_through_and_stays() -> None:
    text = """g (float16[4] x) => (float[4] y, float[4] z) { [c] c = Cast<to=1>(x) [n] y = Neg(c) [l] z = Log(c) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"n"} and input_names(result, "n") == ["x"] and input_names(result, "l") == ["c"]
    assert result.casts == [">y"]


def test_a_reader_that_a_rule_makes_float32_does_not_look_through_a_cast_to_bfloat16() -> None:
    """Rule S4.17: the input of the Cast is float16, so only a float16 reader can read it."""
    text = "g (float16[4] x) => (bfloat16[4] y) { [c] c = Cast<to=16>(x) [n] y = Neg(c) }"
    high = case(text, **LISTS, rules=(customize("n", ["float32"], ["float32"]),))
    assert high.casts == [">y", "c>float32"]
    low = case(text, **LISTS, rules=(customize("n", ["float16"], ["float16"]),))
    assert low.casts == [">y"] and input_names(low, "n") == ["x"]


def test_a_black_cast_is_not_looked_through() -> None:
    text = "g (float16[4] x) => (float[4] y) { [c] c = Cast<to=1>(x) [n] y = Neg(c) }"
    result = case(text, white=["Exp"], black=["Cast"], feeds=X)
    assert not result.low and not result.casts
    white = case(
        "g (float16[4] x) => (float[4] y) { [c] c = Cast<to=1>(x) [n] y = Neg(c) }", white=["Neg"], black=["Cast"]
    )
    assert white.casts == [">y", "c>float16"]  # black only means that readers do not look through it


def test_one_cast_and_the_idle_ones_behind_it_are_looked_through() -> None:
    """Rule S4.48: the last Cast does nothing, so Neg follows the float16 that the Cast before it reads."""
    text = """g (float[4] x) => (float[4] y) { [a] a = Cast<to=10>(x) [b] b = Cast<to=1>(a) [l] l = Log(b)
      [c] c = Cast<to=10>(l) [d] d = Cast<to=1>(c) [e] e = Cast<to=1>(d) [n] y = Neg(e) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.low - {"a"} == {"c", "n"} and input_names(result, "n") == ["c"]
    assert result.casts == [">y"] and not {"d", "e"} & {node.name for node in result.after.graph.node}


def test_a_rounding_pair_keeps_rounding() -> None:
    """Rule S7.7: the white node behind the pair reads the rounded number; the Cast that nothing reads now goes."""
    text = (
        "g (float[4] x) => (float[4] y) { [l] l = Log(x) [a] a = Cast<to=10>(l) [b] b = Cast<to=1>(a) [w] y = Exp(b) }"
    )
    result = case(text, feeds=X, **LISTS)
    assert input_names(result, "w") == ["a"] and result.casts == [">y"]
    assert {n.name for n in result.after.graph.node if n.op_type == "Cast"} == {"a", "Cast_y"}


def test_casts_from_integers_and_doubles_are_producers() -> None:
    """With lists of a framework; those of ONNX do not follow a Cast of integers (Rule S4.46)."""
    text = """g (float[4] x, int64[4] i, double[4] d) => (float[4] y, float[4] z) {
      [a] a = Cast<to=1>(i) [r] r = Relu(a) [b] b = Cast<to=1>(d) [s] s = Relu(b)
      [w] w = Exp(r) [t] y = Add(w, s) [l] z = Log(s) }"""
    result = case(text, feeds={**X, "i": [1, 2, 1, 2], "d": [0, 1, 2, 1]}, **LISTS, gray_policy="promote")
    assert result.low == {"w"} and result.casts == ["r>float16", "w>float32"]
    result = case(text, feeds={**X, "i": [1, 2, 1, 2], "d": [0, 1, 2, 1]}, **LISTS)
    assert result.low == {"a", "r", "w", "t"} and result.casts == [">y", "s>float16"]


def test_casts_to_and_from_float64_stay() -> None:
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


# --- models that were authored in a low type ---


HALF = """g (float16[4] x) => (float16[4] y) <float16[4] k = {1,2,3,4}> {
  [w] w = Exp(x) [a] a = Add(w, k) [l] y = Log(a) }"""


def test_a_model_in_float16_stays_in_float16() -> None:
    for settings in (LISTS, {"mode": "fp16"}, {"mode": "origin"}, {"mode": "allow_fp32_to_fp16"}):
        result = case(HALF, **settings)
        assert not result.casts and result.after.graph.node == result.before.graph.node


def test_a_model_in_float16_is_raised() -> None:
    result = case(HALF, mode="cube_fp16in_fp32out")
    assert result.casts == [">y", "x>float32"] and result.initializers() == {"k": "float32"}
    free = case(HALF, mode="cube_fp16in_fp32out", options={"io": "float32"})
    assert free.casts == []
    graph = free.after.graph
    assert {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)} == {TensorProto.FLOAT}


def test_nodes_of_the_other_low_type_stay() -> None:
    """Rule S4.9: Lists act on float32."""
    text = """g (bfloat16[4] b, float[4] x) => (float[4] y) {
      [e] e = Exp(b) [c] c = Cast<to=1>(e) [w] w = Exp(x) [a] y = Add(w, c) }"""
    result = case(text, runtime=False, **LISTS)
    assert result.makes("e") == ["bfloat16"]
    assert result.low == {"w", "a"} and result.casts == [">y", "c>float16", "x>float16"]


def test_gray_does_not_become_the_other_low_type() -> None:
    """Rule S4.9: Pow has two type parameters, and its exponent stays float32 next to a bfloat16 base."""
    text = "g (bfloat16[4] b, float[4] p) => (bfloat16[4] y) { [n] y = Pow(b, p) }"
    result = case(text, runtime=False, **LISTS)
    assert result.reads("n") == ["bfloat16", "float32"] and not result.casts


# --- names ---


def test_new_tensors_get_names_that_no_scope_uses() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { [w] w = Exp(x) [r] x_float16 = Relu(x)
      [i] z = If(c) <then_branch = t () => (float[4] p) { [a] x_float16_2 = Relu(x) [b] p = Exp(x_float16_2) },
                     else_branch = e () => (float[4] q) { [d] q = Exp(w) }> [n] y = Add(z, x_float16) }"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    cast_names = [n.output[0] for n in result.after.graph.node if n.op_type == "Cast" and n.input[0] == "x"]
    assert cast_names == ["x_float16_3"]


def test_outputs_whose_inner_names_would_collide() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] y_float16) { [a] y = Exp(x) [b] y_float16 = Exp(y) }"
    result = case(text, feeds=X, **LISTS)
    assert result.casts == [">y", ">y_float16", "x>float16"]
    assert len({o for n in result.after.graph.node for o in n.output}) == 5


def test_new_nodes_get_names_that_no_node_has() -> None:
    result = case(
        "g (float[4] x) => (float[4] y) { [Cast_x_float16] w = Exp(x) [Cast_y] y = Relu(w) }", feeds=X, **LISTS
    )
    names = [n.name for n in result.after.graph.node]
    assert len(set(names)) == 4 and {"Cast_x_float16", "Cast_y"} < set(names)


def test_copies_of_constants_get_names_that_no_tensor_has() -> None:
    text = """g (float[4] x) => (float[4] y, float[4] z) <float[4] k = {1,2,3,4}, float[4] k_float16 = {5,6,7,8}> {
      [w] w = Exp(x) [a] a = Add(w, k) [b] y = Add(a, k_float16) [c] c = Sub(x, k) [d] z = Sub(c, k_float16) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.initializers() == {
        "k": "float32",
        "k_float16": "float32",
        "k_float16_2": "float16",
        "k_float16_float16": "float16",
    }


def test_a_model_without_changes_stays_as_it_is() -> None:
    """Rule S7.11: it holds no digest, because nothing in it is the work of a policy."""
    result = case("g (float[4] x) => (float[4] y) { [a] a = Relu(x) [b] y = Log(a) }", **LISTS)
    assert result.after == result.before
