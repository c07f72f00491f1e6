"""If, Loop and Scan: a value that enters or leaves a body has one type, and a Cast is in the scope of its tensor."""

from __future__ import annotations

import pytest

from tests.support.rewriter_cases import case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}


# --- If ---

IF = """g (float[4] x, bool c) => (float[4] y) {{
  [w] w = Exp(x)
  [i] z = If(c) <then_branch = t () => (float[4] p) {{ {0} }}, else_branch = e () => (float[4] q) {{ {1} }}>
  [n] y = Neg(z) }}"""


def test_branches_that_decide_differently_make_a_high_output_cast_in_the_low_branch() -> None:
    result = case(IF.format("[a] p = Exp(x)", "[b] q = Log(x)"), feeds={**X, "c": True}, **LISTS)
    assert result.low == {"w", "i/then_branch/a"}
    assert result.casts == ["i/then_branch: p>float32", "x>float16"]  # one Cast of x serves both scopes
    assert result.makes("i") == ["float32"]


def test_branches_that_agree_on_low_make_a_low_output() -> None:
    result = case(IF.format("[a] p = Exp(x)", "[b] q = Relu(w)"), feeds={**X, "c": False}, **LISTS)
    assert result.low == {"w", "i/then_branch/a", "i/else_branch/b", "n"}
    assert result.casts == [">y", "x>float16"]


def test_a_captured_value_that_both_sides_read_is_cast_once_in_its_own_scope() -> None:
    result = case(IF.format("[a] p = Relu(w)", "[b] q = Log(w)"), feeds={**X, "c": True}, **LISTS)
    assert result.casts == ["i/then_branch: p>float32", "w>float32", "x>float16"]
    assert result.reads("i/then_branch/a") == ["float16"]
    assert result.reads("i/else_branch/b") == ["float32"]


@pytest.mark.parametrize("kind", ["initializer", "constant"])
def test_branches_that_read_only_outer_constants(kind: str) -> None:
    start = "<float[4] k = {1,2,3,4}> {" if kind == "initializer" else "{ k = Constant<value=float[4] {1,2,3,4}>()"
    text = f"""g (float[4] x, bool c) => (float[4] y) {start}
      [i] z = If(c) <then_branch = t () => (float[4] p) {{ [a] p = Exp(k) }},
                     else_branch = e () => (float[4] q) {{ [b] q = Exp(k) }}> [n] y = Add(z, x) }}"""
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.low == {"i/then_branch/a", "i/else_branch/b", "n"}
    assert result.casts == [">y", "x>float16"]  # k itself is converted
    assert result.reads("i/then_branch/a") == ["float16"]


@pytest.mark.parametrize("body", ["p = Constant<value=float[4] {1,2,3,4}>()", "[k] k = Identity(o) p = Relu(k)"])
def test_a_branch_that_yields_a_constant_yields_its_authored_type(body: str) -> None:
    text = IF.format(body, "[b] q = Exp(x)").replace("{\n  [w]", "<float[4] o = {1,2,3,4}> {\n  [w]", 1)
    result = case(text, feeds={**X, "c": True}, **LISTS)
    assert result.casts == ["i/else_branch: q>float32", "x>float16"]
    assert result.makes("i") == ["float32"] and "n" not in result.low


def test_the_same_names_in_two_branches_stay_apart() -> None:
    text = IF.format("a = Exp(x) [t] p = Log(a)", "a = Log(x) [e] q = Exp(a)")
    result = case(text, feeds={**X, "c": True}, **LISTS)
    casts = {c.split(">")[0] for c in result.casts if "branch" in c}
    assert casts == {"i/then_branch: a", "i/else_branch: a", "i/else_branch: q"}
    cast_names = [n for s in result.view.scopes() for n in s.producers if n.startswith("a_")]
    assert len(cast_names) == len(set(cast_names)) == 2  # a_float32 in one branch, a_float16 in the other


def test_a_shadowed_loop_input_means_the_state() -> None:
    text = """g (float[4] s, int64 m) => (float[4] y) <bool go = {1}> { [o] a = Exp(s)
      [l] z = Loop(m, go, a) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
         { d = Identity(c) [t] t = Log(s) }> [n] y = Add(z, s) }"""
    result = case(text, check=False, runtime=False, **LISTS)
    assert result.casts == ["a>float32", "s>float16"]
    assert result.low == {"o"}


def test_branches_agree_on_an_output_without_a_name() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { [w] w = Exp(x)
      [i] , y = If(c) <then_branch = t () => (float[4] p, float[4] q) { [a] p = Log(w) [b] q = Relu(w) },
                       else_branch = e () => (float[4] r, float[4] s) { [d] r = Relu(w) [f] s = Relu(w) }> }"""
    result = case(text, check=False, runtime=False, **LISTS)
    assert result.makes("i") == ["", "float16"]
    assert result.casts == [">y", "i/else_branch: r>float32", "w>float32", "x>float16"]


# --- Loop ---

LOOP = """g (float[4] x, int64 m) => (float[4] y) <bool go = {{1}}, float[4] k = {{0,0,0,0}}> {{
  [w] w = Exp(x) [b] b = Log(x)
  [l] z = Loop(m, go, {0}) <body = body (int64 i, bool c, float[4] s) => (bool d, float[4] t)
    {{ d = Identity(c) {1} }}>
  [o] y = Neg(z) }}"""
RUN = {**X, "m": 2}


def test_a_low_state_is_low_before_in_and_after_the_loop() -> None:
    result = case(LOOP.format("w", "[n] t = Sqrt(s)"), feeds=RUN, **LISTS)
    assert result.low == {"w", "l/body/n", "o"}
    assert result.casts == [">y", "x>float16"]


def test_a_high_step_makes_the_state_high_at_the_start_too() -> None:
    result = case(LOOP.format("w", "[n] t = Log(s)"), feeds={**X, "m": 1}, **LISTS)
    assert result.low == {"w"}
    assert result.casts == ["w>float32", "x>float16"]


def test_a_low_step_after_a_high_start_is_cast_in_the_body() -> None:
    result = case(LOOP.format("b", "[n] t = Exp(s)"), feeds={**X, "m": 1}, **LISTS)
    assert result.low == {"w", "l/body/n"}
    assert result.casts == ["l/body: s>float16", "l/body: t>float32", "x>float16"]


@pytest.mark.parametrize("start", ["k", "f"])
def test_a_constant_start_does_not_vote_and_is_converted(start: str) -> None:
    text = LOOP.format(start, "[n] t = Exp(s)").replace("[b] b = Log(x)", "f = Constant<value=float[4] {0,0,0,0}>()")
    result = case(text, feeds={**X, "m": 2}, **LISTS)
    assert result.low == {"w", "l/body/n", "o"}
    assert result.casts == [">y", "x>float16"]
    assert result.reads("l")[2] == "float16"


def test_a_constant_start_without_a_vote_stays_as_authored() -> None:
    result = case(LOOP.format("k", "[n] t = Relu(s)"), feeds=RUN, **LISTS)
    assert result.low == {"w"} and result.casts == ["x>float16"]


def test_a_body_that_passes_its_state_through() -> None:
    text = LOOP.replace("float[4] t)", "float[4] s)").format("w", "")
    result = case(text, feeds=RUN, **LISTS)
    assert result.low == {"w", "o"}
    assert result.casts == [">y", "x>float16"]


def test_a_scan_output_of_a_loop_is_decided_apart_from_its_state() -> None:
    text = """g (float[4] x, int64 m) => (float[4] y, float[N,4] z) <bool go = {1}> {
      [l] a, z = Loop(m, go, x) <body = body (int64 i, bool c, float[4] s) => (bool d, float[4] t, float[4] u)
        { d = Identity(c) [t] t = Sqrt(s) [u] u = Exp(s) }> [o] y = Neg(a) }"""
    result = case(text, feeds=RUN, **LISTS)
    assert result.low == {"l/body/u"}
    assert result.casts == [">z", "l/body: s>float16"]
    assert result.makes("l") == ["float32", "float16"]


def test_states_that_swap_have_one_type() -> None:
    text = """g (float[4] x) => (float[4] y) <int64 m = {3}, bool go = {1}> { [w] w = Exp(x)
      [l] a, b = Loop(m, go, w, x) <body = body (int64 i, bool c, float[4] s, float[4] t) =>
         (bool d, float[4] t, float[4] s) { d = Identity(c) }> [o] y = Add(a, b) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.casts == ["w>float32", "x>float16"]
    assert result.makes("l") == ["float32", "float32"]


def test_a_while_loop_without_a_trip_count() -> None:
    text = """g (float[4] x) => (float[4] y) <bool go = {1}, float lim = {100.0}> { [w] w = Exp(x)
      [l] y = Loop("", go, w) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
        { [a] t = Add(s, s) [r] q = ReduceMax<keepdims=0>(t) [d] d = Less(q, lim) }> }"""
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "l/body/a", "l/body/r", "l/body/d"}
    assert result.casts == [">y", "x>float16"]
    assert result.initializers()["lim"] == "float16"  # only the body reads it, as low


def test_integer_and_double_states_are_left_alone() -> None:
    text = """g (float[4] x, double[4] e, int64 m) => (float[4] y, double[4] f, int64 n)
      <bool go = {1}, int64 one = {1}> {
      [w] w = Exp(x)
      [l] y, f, n = Loop(m, go, w, e, one) <body = b (int64 i, bool c, float[4] s, double[4] p, int64 q) =>
        (bool d, float[4] t, double[4] r, int64 u)
        { d = Identity(c) [a] t = Relu(s) [b] r = Exp(p) [v] u = Add(q, one) }> }"""
    result = case(text, feeds={**RUN, "e": [0.0, 0.1, 0.2, 0.3]}, **LISTS)
    assert result.makes("l") == ["float16", "float64", "int64"]
    assert result.low == {"w", "l/body/a"}


# --- nested ---


def test_an_if_in_a_loop_in_an_if() -> None:
    text = """g (float[4] x, bool c, int64 m) => (float[4] y) <bool go = {1}> { [w] w = Exp(x)
      [i] z = If(c) <then_branch = t () => (float[4] p) {
          [l] p = Loop(m, go, w) <body = b (int64 k, bool cc, float[4] s) => (bool d, float[4] u) { d = Identity(cc)
            [j] u = If(c) <then_branch = tt () => (float[4] a) { [a] a = Sqrt(s) },
                           else_branch = ee () => (float[4] e) { [e] e = Relu(w) }> }> },
        else_branch = f () => (float[4] q) { [q] q = Log(w) }> [n] y = Neg(z) }"""
    result = case(text, feeds={**RUN, "c": True}, **LISTS)
    inner = "i/then_branch/l/body/j"
    assert result.low == {"w", f"{inner}/then_branch/a", f"{inner}/else_branch/e"}
    assert result.casts == ["i/then_branch: p>float32", "w>float32", "x>float16"]
    assert result.makes("i/then_branch/l") == ["float16"]


def test_nested_loops_are_solved_together() -> None:
    text = """g (float[4] x, int64 m) => (float[4] y) <bool go = {{1}}, float[4] k = {{0,0,0,0}}> {{
      [l] z = Loop(m, go, k) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {{ d = Identity(c)
        [r] r = Exp(s)
        [h] t = Loop(m, go, r) <body = bb (int64 ii, bool cc, float[4] ss) => (bool dd, float[4] tt)
          {{ dd = Identity(cc) [u] tt = {0}(ss) }}> }}> [o] y = Neg(z) }}"""
    low = case(text.format("Exp"), feeds={"x": [0] * 4, "m": 1}, **LISTS)
    assert low.low == {"l/body/r", "l/body/h/body/u", "o"} and low.casts == [">y"]
    high = case(text.format("Log"), feeds={"x": [0] * 4, "m": 1}, **LISTS)
    assert high.low == {"l/body/r"}
    assert high.casts == ["l/body: r>float32", "l/body: s>float16"]


def test_a_value_captured_through_two_bodies_is_cast_where_it_is_defined() -> None:
    text = """g (float[4] x, bool c, int64 m) => (float[4] y) <bool go = {1}> { [b] b = Log(x)
      [l] y = Loop(m, go, x) <body = bo (int64 i, bool cc, float[4] s) => (bool d, float[4] t) { d = Identity(cc)
        [i] t = If(c) <then_branch = t1 () => (float[4] p) { [a] a = Exp(b) [e] p = Log(a) },
                       else_branch = e1 () => (float[4] q) { [f] q = Exp(b) }> }> }"""
    result = case(text, feeds={**RUN, "c": True}, **LISTS)
    branch = "l/body/i/then_branch"
    assert result.casts == ["b>float16", "l/body/i/else_branch: q>float32", f"{branch}: a>float32"]


@pytest.mark.parametrize("depth", [10, 30])
def test_deeply_nested_branches(depth: int) -> None:
    inner = f"[e] p{depth} = Exp(x)"
    for k in range(depth, 0, -1):
        else_branch = f"else_branch = e{k} () => (float[4] q{k}) {{ q{k} = Exp(x) }}"
        inner = f"[i] p{k - 1} = If(c) <then_branch = t{k} () => (float[4] p{k}) {{ {inner} }}, {else_branch}>"
    text = f"g (float[4] x, bool c) => (float[4] y) {{ {inner} [n] y = Relu(p0) }}"
    result = case(text, check=False, runtime=depth < 20, **LISTS)
    assert len(result.low) == depth + 2
    assert result.casts == [">y", "x>float16"]


# --- Scan ---

SCAN = """g (float[3,4] x, float[4] u) => (float[4] y, float[3,4] z) {{ [w] w = Exp(u)
  [s] a, z = Scan<num_scan_inputs=1, body = body (float[4] s, float[4] r) => (float[4] t, float[4] v)
    {{ [m] t = {0} [n] v = {1} }}>(w, x) [o] y = Relu(a) }}"""
SCANNED = {"x": [[0.1] * 4, [0.2] * 4, [0.3] * 4], "u": [0.0, 0.1, 0.2, 0.3]}


def test_a_scan_with_a_low_state_over_a_high_input() -> None:
    result = case(SCAN.format("Add(s, r)", "Identity(r)"), feeds=SCANNED, **LISTS)
    assert result.low == {"w", "s/body/m", "o"}
    assert result.casts == [
        ">y",
        "s/body: r>float16",
        "u>float16",
    ]  # the slice is cast in the body, not the whole tensor outside
    assert result.makes("s") == ["float16", "float32"]


def test_a_scan_over_a_low_input() -> None:
    text = SCAN.format("Add(r, s)", "Exp(r)").replace("(w, x)", "(u, lo)").replace("[w]", "[lo] lo = Exp(x) [w]")
    result = case(text, feeds=SCANNED, **LISTS)
    assert result.low == {"w", "lo", "s/body/m", "s/body/n"}
    assert result.casts == [">z", "s/body: s>float16", "s/body: t>float32", "u>float16", "x>float16"]


def test_the_scan_of_opset_8_has_a_batch_and_may_have_lengths() -> None:
    text = """<ir_version: 3, opset_import: ["" : 8]>
      g (int64[2] n, float[2,4] i, float[2,3,4] x) => (float[2,4] y, float[2,3,4] z) {{ [w] w = Exp(i)
        [s] y, z = Scan<num_scan_inputs=1, body = body (float[4] s, float[4] r) => (float[4] t, float[4] v)
          {{ [m] t = Add(s, r) [k] v = Identity(r) }}>({0}, w, x) }}"""
    for lengths in ("", "n"):
        result = case(text.format(lengths), **LISTS)
        assert result.low == {"w", "s/body/m"}
        assert result.casts == [">y", "i>float16", "s/body: r>float16"]
