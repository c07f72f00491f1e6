"""Sequences and optionals: all elements have one type, and no Cast converts a container."""

from __future__ import annotations

import pytest

from tests.support.rewriter_cases import case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}
HEAD18 = '<ir_version: 8, opset_import: ["" : 18]>'
FIRST = "[a] a = SequenceAt(t, i) [n] y = Neg(a)"


def test_one_low_element_first_makes_the_sequence_low() -> None:
    text = f"""g (float[4] x, float[4] u) => (float[4] y) <int64 i = {{0}}> {{
      [w] w = Exp(x) [s] t = SequenceConstruct(w, u) {FIRST} }}"""
    result = case(text, feeds={**X, "u": [1, 2, 3, 4]}, **LISTS)
    assert result.low == {"w", "s", "a", "n"}
    assert result.reads("s") == ["float16", "float16"]
    assert result.casts == [">y", "u>float16", "x>float16"]


def test_a_black_operator_makes_the_sequence_high() -> None:
    text = f"""g (float[4] x) => (float[4] y) <int64 i = {{0}}> {{
      [w] w = Exp(x) [s] s = SequenceConstruct(w) [c] t = SequenceInsert(s, w) {FIRST} }}"""
    result = case(text, white=["Exp"], black=["SequenceInsert"], feeds=X)
    assert result.low == {"w"}
    assert result.reads("s") == ["float32"]
    assert result.casts == ["w>float32", "x>float16"]
    assert result.nodes["s"].rule == "control-flow"


@pytest.mark.parametrize(("dtype", "attribute"), [("float32", ""), ("float16", "<dtype=10>")])
def test_the_dtype_of_an_empty_sequence_stays(dtype: str, attribute: str) -> None:
    inner = "w" if dtype == "float32" else "h"
    text = f"""g (float[4] x) => (float[4] y) <int64 i = {{0}}> {{
      [w] w = Exp(x) [h] h = Cast<to=10>(x) [e] s = SequenceEmpty{attribute}() [c] t = SequenceInsert(s, {inner})
      [a] a = SequenceAt(t, i) [d] d = Cast<to=1>(a) [l] y = Log(d) }}"""
    result = case(text, feeds=X, **LISTS)
    assert result.nodes["c"].outputs == {"t": f"seq({dtype})"}
    assert result.reads("c")[1] == dtype
    assert result.nodes["e"].precision in (dtype, "none") and not result.nodes["e"].changed


def test_sequences_as_graph_input_and_output_keep_their_types() -> None:
    text = """g (seq(float[4]) s, float[4] x) => (seq(float[4]) t, float[4] y) <int64 i = {0}> {
      [w] w = Exp(x) [a] a = SequenceAt(s, i) [b] y = Exp(a) [c] t = SequenceConstruct(w, y) }"""
    for keep_io_types in (True, False):  # a sequence keeps its type under both
        result = case(text, options={"keep_io_types": keep_io_types}, **LISTS)
        assert result.low == {"w", "b"}
        assert result.reads("c") == ["float32", "float32"]
        assert result.nodes["a"].outputs == {"a": "float32"}


def test_split_to_sequence_and_concat_from_sequence() -> None:
    text = """g (float[4] x) => (float[N] y) <int64 i = {0}, int64 one = {1}> {
      [w] w = Exp(x) [s] s = SplitToSequence(w, one) [c] y = ConcatFromSequence<axis=0, new_axis=0>(s) }"""
    result = case(text, feeds=X, runtime=False, **LISTS)
    assert result.low == {"w", "s", "c"}
    assert result.casts == [">y", "x>float16"]


def test_a_node_that_reads_only_the_length_of_a_sequence_needs_no_cast() -> None:
    text = (
        """g (float[4] x) => (int64 y) { [w] w = Exp(x) [s] s = SequenceConstruct(w, w) [l] y = SequenceLength(s) }"""
    )
    result = case(text, feeds=X, **LISTS)
    assert result.low >= {"w", "s"} and result.casts == ["x>float16"]


MAP = """g (float[4] x, float[4] u) => (float[4] y) <int64 i = {{0}}> {{ [w] w = Exp(x) [v] v = Exp(u)
  [s] s = SequenceConstruct(w, v)
  [m] t = SequenceMap<body = b ({0}) => (float[4] b) {{ {1} }}>(s{2}) [a] a = SequenceAt(t, i) [n] y = Neg(a) }}"""


def test_a_sequence_map_reads_and_makes_sequences_of_different_types() -> None:
    low = case(MAP.format("float[4] e", "[n] b = Relu(e)", ""), runtime=False, **LISTS)
    assert low.low == {"w", "v", "s", "m/body/n", "a", "n"}
    high = case(MAP.format("float[4] e", "[n] b = Log(e)", ""), runtime=False, **LISTS)
    assert high.low == {"w", "v", "s"}
    assert high.casts == ["m/body: e>float32", "u>float16", "x>float16"]
    mixed = case(MAP.format("float[4] e, float[4] f", "[n] b = Add(f, e)", ", x"), runtime=False, **LISTS)
    assert "m/body/n" not in mixed.low
    assert mixed.casts == ["m/body: e>float32", "u>float16", "x>float16"]


CARRIED = """g (float[4] x, int64 m) => (float[4] y) <int64 i = {{0}}, bool go = {{1}}> {{
  [w] w = Exp(x) [s] s = SequenceConstruct(w)
  [l] t = Loop(m, go, s) <body = b (int64 j, bool c, seq(float[4]) p) => (bool d, seq(float[4]) q)
    {{ d = Identity(c) [z] z = {0}(x) [k] q = SequenceInsert(p, z) }}> [a] a = SequenceAt(t, i) [n] y = Neg(a) }}"""


def test_a_sequence_that_a_loop_carries() -> None:
    run = {**X, "m": 2}
    low = case(CARRIED.format("Exp"), feeds=run, **LISTS)
    assert low.low == {"w", "s", "l/body/z", "l/body/k", "a", "n"}
    assert low.casts == [">y", "x>float16"]
    gray = case(CARRIED.format("Log"), feeds=run, **LISTS)
    assert gray.low == {
        "w",
        "s",
        "l/body/k",
        "a",
        "n",
    }  # the sequence is the first input of SequenceInsert, so it decides
    assert gray.casts == [">y", "l/body: z>float16", "x>float16"]
    black = case(CARRIED.format("Exp"), white=["Exp"], black=["SequenceInsert"], feeds=run)
    assert black.low == {"w", "l/body/z"}
    assert black.reads("s") == ["float32"]


def test_branches_whose_sequences_differ_are_both_high() -> None:
    text = f"""g (float[4] x, bool c) => (float[4] y) <int64 i = {{0}}> {{ [w] w = Exp(x)
      [j] t = If(c) <then_branch = b () => (seq(float[4]) p) {{ [p] p = SequenceConstruct(w) }},
                     else_branch = e () => (seq(float[4]) q) {{ z = Log(x) [q] q = SequenceConstruct(z) }}>
      {FIRST} }}"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.low == {"w"}
    assert result.casts == ["w>float32", "x>float16"]
    assert result.nodes["j/then_branch/p"].outputs == {"p": "seq(float32)"}


def test_sequence_operators_do_not_take_bfloat16() -> None:
    text = f"""g (float[4] x) => (float[4] y) <int64 i = {{0}}> {{
      [w] w = Exp(x) [s] t = SequenceConstruct(w) {FIRST} }}"""
    result = case(text, mode="mixed_bfloat16", **LISTS)
    assert result.low == {"w"}
    assert result.casts == ["w>float32", "x>bfloat16"]


@pytest.mark.parametrize(("last", "fits"), [("4", True), ("100000", False)])
def test_a_constant_in_a_sequence_is_converted_if_it_fits(last: str, fits: bool) -> None:
    text = f"""g (float[4] x) => (float[4] y) <int64 i = {{0}}, float[4] k = {{1,2,3,{last}}}> {{
      [w] w = Exp(x) [s] t = SequenceConstruct(w, k) {FIRST} }}"""
    result = case(text, feeds=X, **LISTS)
    assert result.initializers()["k"] == ("float16" if fits else "float32")
    assert result.casts == ([">y", "x>float16"] if fits else ["w>float32", "x>float16"])


# --- optionals ---


def test_an_optional_has_the_type_of_its_content() -> None:
    text = f"""{HEAD18} g (float[4] x) => (float[4] y, bool h) {{
      [w] w = Exp(x) [o] o = Optional(w) [h] h = OptionalHasElement(o) [g] e = OptionalGetElement(o)
      [r] y = Relu(e) }}"""
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "o", "h", "g", "r"}
    assert result.casts == [">y", "x>float16"]


def test_an_optional_of_a_sequence() -> None:
    text = f"""{HEAD18} g (float[4] x) => (float[4] y) <int64 i = {{0}}> {{ [w] w = Exp(x) [s] s = SequenceConstruct(w)
      [o] o = Optional(s) [g] t = OptionalGetElement(o) {FIRST} }}"""
    result = case(text, feeds=X, **LISTS)
    assert result.nodes["o"].outputs == {"o": "optional(seq(float16))"}
    assert result.casts == [">y", "x>float16"]


@pytest.mark.parametrize("empty", ["Optional<type=float[4]>()", "Optional(w)"])
def test_an_optional_whose_type_an_attribute_fixes_stays(empty: str) -> None:
    text = f"""{HEAD18} g (float[4] x, bool c) => (float[4] y) {{ [w] w = Exp(x)
      [i] o = If(c) <then_branch = t () => (optional(float[4]) p) {{ [p] p = Optional(w) }},
                     else_branch = e () => (optional(float[4]) q) {{ [q] q = {empty} }}>
      [g] e = OptionalGetElement(o) [r] y = Relu(e) }}"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    typed = "type" in empty
    assert result.nodes["i"].outputs == {"o": "optional(float32)" if typed else "optional(float16)"}
    assert result.casts == (["w>float32", "x>float16"] if typed else [">y", "x>float16"])


def test_a_branch_that_yields_an_empty_sequence() -> None:
    text = f"""g (float[4] x, bool c) => (float[4] y) <int64 i = {{0}}> {{ [w] w = Exp(x)
      [j] t = If(c) <then_branch = b () => (seq(float[4]) p) {{ [p] p = SequenceConstruct(w) }},
                     else_branch = e () => (seq(float[4]) q) {{ [q] q = SequenceEmpty() }}> {FIRST} }}"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.casts == ["w>float32", "x>float16"]
    assert result.nodes["j/then_branch/p"].rule == "control-flow"


def test_branches_whose_optionals_differ_are_both_high() -> None:
    text = f"""{HEAD18} g (float[4] x, bool c) => (float[4] y) {{ [w] w = Exp(x)
      [i] o = If(c) <then_branch = t () => (optional(float[4]) p) {{ [p] p = Optional(w) }},
                     else_branch = e () => (optional(float[4]) q) {{ z = Log(x) [q] q = Optional(z) }}>
      [g] e = OptionalGetElement(o) [r] y = Relu(e) }}"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.low == {"w"}
    assert result.casts == ["w>float32", "x>float16"]


def test_an_optional_input_keeps_its_type() -> None:
    text = f"""{HEAD18} g (optional(float[4]) o) => (float[4] y) {{ [g] e = OptionalGetElement(o) [r] y = Exp(e) }}"""
    result = case(text, options={"keep_io_types": False}, **LISTS)
    assert result.low == {"r"}
    assert result.casts == ["e>float16"]
