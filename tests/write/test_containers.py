"""Nodes that read or make sequences or optionals keep their authored types (Rule S4.29)."""

from __future__ import annotations

from typing import Any

import pytest

import mixlist
from mixlist.errors import ListError
from tests.support.builders import customize, model, policy
from tests.support.package import GRAY_POLICIES
from tests.support.rewriter_cases import case

LISTS: dict[str, Any] = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}
HEAD18 = '<ir_version: 8, opset_import: ["" : 18]>'
FIRST = "[a] a = SequenceAt(t, i) [n] y = Neg(a)"
SEQUENCE = f"""g (float[4] x) => (float[4] y) <int64 i = {{0}}> {{
  [w] w = Exp(x) [s] s = SequenceConstruct(w) [c] t = SequenceInsert(s, w) {FIRST} }}"""


@pytest.mark.parametrize("gray_policy", GRAY_POLICIES)
@pytest.mark.parametrize("white", [["Exp"], ["Exp", "SequenceConstruct", "SequenceInsert", "SequenceAt"]])
def test_a_sequence_keeps_its_type_under_every_list_and_policy(gray_policy: Any, white: list[str]) -> None:
    result = case(SEQUENCE, white=white, gray_policy=gray_policy, feeds=X)
    assert result.low == {"w"}
    assert result.casts == ["w>float32", "x>float16"]
    for name in ("s", "c", "a"):
        assert (result.nodes[name].precision, result.nodes[name].rule) == ("float32", "schema")
        assert (
            result.nodes[name].reason
            == "it reads or makes sequences or optionals, so it stays as authored, float32 (S4.29)"
        )


def test_a_node_rule_for_such_a_node_is_an_error() -> None:
    """Rule S6.8: its types cannot vary."""
    rules = policy(**LISTS, rules=(customize("s", ["float16"], ["float16"]),))
    with pytest.raises(ListError, match=r"node s .* has no float type that a rule can choose"):
        mixlist.resolve(model(SEQUENCE), rules)


@pytest.mark.parametrize(("dtype", "attribute"), [("float32", ""), ("float16", "<dtype=10>")])
def test_a_sequence_has_the_type_that_the_model_gives_it(dtype: str, attribute: str) -> None:
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
    for io in ("keep", "low", "float32"):  # a sequence keeps its type under both
        result = case(text, options={"io": io}, **LISTS)
        assert result.low == {"w", "b"}
        assert result.reads("c") == ["float32", "float32"]
        assert result.nodes["a"].outputs == {"a": "float32"}


def test_a_sequence_map_decides_the_nodes_of_its_body() -> None:
    """Its body reads the elements in their authored type, and must yield that type."""
    text = """g (float[4] x) => (float[4] y) <int64 i = {0}> { [w] w = Exp(x) [s] s = SequenceConstruct(w)
      [m] t = SequenceMap<body = b (float[4] e) => (float[4] b) { [n] b = Exp(e) }>(s)
      [a] a = SequenceAt(t, i) [k] y = Neg(a) }"""
    result = case(text, runtime=False, **LISTS)
    assert result.low == {"w", "m/body/n"}
    assert result.casts == ["m/body: b>float32", "m/body: e>float16", "w>float32", "x>float16"]


def test_a_sequence_that_a_loop_carries() -> None:
    text = """g (float[4] x, int64 m) => (float[4] y) <int64 i = {0}, bool go = {1}> {
      [w] w = Exp(x) [s] s = SequenceConstruct(w)
      [l] t = Loop(m, go, s) <body = b (int64 j, bool c, seq(float[4]) p) => (bool d, seq(float[4]) q)
        { d = Identity(c) [z] z = Exp(x) [k] q = SequenceInsert(p, z) }> [a] a = SequenceAt(t, i) [n] y = Neg(a) }"""
    result = case(text, feeds={**X, "m": 2}, **LISTS)
    assert result.low == {"w", "l/body/z"}
    assert result.reads("s") == ["float32"]


def test_branches_yield_sequences_of_one_type() -> None:
    text = f"""g (float[4] x, bool c) => (float[4] y) <int64 i = {{0}}> {{ [w] w = Exp(x)
      [j] t = If(c) <then_branch = b () => (seq(float[4]) p) {{ [p] p = SequenceConstruct(w) }},
                     else_branch = e () => (seq(float[4]) q) {{ [q] q = SequenceEmpty() }}> {FIRST} }}"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.low == {"w"}
    assert result.nodes["j/then_branch/p"].outputs == {"p": "seq(float32)"}


def test_an_optional_keeps_its_type() -> None:
    text = f"""{HEAD18} g (float[4] x) => (float[4] y, bool h) {{
      [w] w = Exp(x) [o] o = Optional(w) [h] h = OptionalHasElement(o) [g] e = OptionalGetElement(o)
      [r] y = Relu(e) }}"""
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w"}
    assert result.casts == ["w>float32", "x>float16"]


def test_an_optional_input_keeps_its_type() -> None:
    text = f"""{HEAD18} g (optional(float[4]) o) => (float[4] y) {{ [g] e = OptionalGetElement(o) [r] y = Exp(e) }}"""
    result = case(text, options={"io": "low"}, **LISTS)
    assert result.low == {"r"}
    assert result.casts == ["e>float16"]


def test_a_custom_operator_reads_sequences_as_authored() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[4] x, float[4] z, int64 i) => (float[4] y) <seq(float[4]) t> {
      [e] e = Exp(x) [s] s = SequenceConstruct(e, z) [custom] t = my.Sort(s) [at] y = SequenceAt(t, i) }"""
    result = case(text, runtime=False, **LISTS)
    assert result.low == {"e"}
