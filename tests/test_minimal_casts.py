"""The rewriter adds the fewest Casts: on every small graph, no smaller set of Casts is valid.

All graphs of one and two nodes, and (unless MIXLIST_EXHAUSTIVE is set, which takes all) a fixed sample of
those of three; then small graphs with a subgraph. White, black and gray nodes and the user's own Casts.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import onnx
import pytest

from tests.support.builders import apply, model, policy
from tests.support.minimal_casts import Problem
from tests.support.scopes import View, is_marked_cast

RULES = policy(white=["Exp"], black=["Log"])
SAMPLE = None if "MIXLIST_EXHAUSTIVE" in os.environ else 300


def added(result: onnx.ModelProto) -> int:
    """How many Casts mixlist added."""
    return sum(is_marked_cast(node) for scope in View(result).scopes() for node in scope.nodes)


def assert_fewest(text: str) -> None:
    """No smaller set of Casts makes the plan valid; the enumerator accepts one of that size."""
    before = model(text)
    after = apply(before, RULES)
    count = added(after)
    problem = Problem(before, after)
    assert problem.fewest(count + 1) == count, f"{count} Casts in\n{onnx.printer.to_text(after)}\nfor\n{text}"


def bodies(values: list[str], size: int) -> Iterator[list[str]]:
    """Every way to add ``size`` nodes to the values there are."""
    if size == 0:
        yield []
        return
    name = f"n{size}"
    for x in values:
        for op in ("Exp({0})", "Log({0})", "Neg({0})", "Cast<to=1>({0})"):
            for rest in bodies([*values, name], size - 1):
                yield [f"{name} = {op.format(x)}", *rest]
        for y in values:
            for rest in bodies([*values, name], size - 1):
                yield [f"{name} = Add({x}, {y})", *rest]


def graphs(size: int) -> list[str]:
    """Every graph of that many nodes over an input, a float16 input behind a Cast, and a constant."""
    found = []
    for body in bodies(["x", "k", "c"], size):
        names = [line.split(" = ")[0] for line in body]
        outputs = ", ".join(f"float[4] {n}" for n in names if not any(f"{n})" in b or f"({n}," in b for b in body))
        for low in ("", "d = Cast<to=10>(x)"):
            head = f"g (float[4] x, float16[4] h) => ({outputs}{', float16[4] d' if low else ''})"
            found.append(f"{head} <float[4] k = {{1,2,3,4}}> {{ c = Cast<to=1>(h) {low} {' '.join(body)} }}")
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_graph_of_up_to_three_nodes_can_do_with_fewer(size: int) -> None:
    """Rule S7.4: A Cast follows its producer, once."""
    everything = graphs(size)
    chosen = everything if size < 2 or SAMPLE is None else random.Random(size).sample(everything, SAMPLE)
    for text in chosen:
        assert_fewest(text)


BRANCHES = ["Exp({0})", "Log({0})", "Neg({0})", "Add({0}, k)"]


@pytest.mark.parametrize("outer", ["Exp(x)", "Log(x)", "Neg(x)"])
@pytest.mark.parametrize("source", ["a", "x", "k"])
def test_branches_that_capture(outer: str, source: str) -> None:
    for then in BRANCHES:
        for other in BRANCHES:
            for after in ("Neg(z)", "Exp(z)", "Add(a, z)"):
                assert_fewest(
                    f"""g (float[4] x, bool f) => (float[4] y) <float[4] k = {{1,2,3,4}}> {{
                      a = {outer}
                      z = If(f) <then_branch = t () => (float[4] p) {{ p = {then.format(source)} }},
                                 else_branch = e () => (float[4] q) {{ q = {other.format(source)} }}>
                      y = {after} }}"""
                )


@pytest.mark.parametrize("start", ["a", "x", "k"])
@pytest.mark.parametrize("step", ["Exp(s)", "Log(s)", "Neg(s)", "Add(s, a)", "Add(a, s)", "Add(x, s)"])
def test_loops(start: str, step: str) -> None:
    for outer in ("Exp(x)", "Log(x)"):
        for extra in ("Exp(a)", "Log(s)", "Neg(t)"):
            assert_fewest(
                f"""g (float[4] x, int64 m) => (float[4] y, float[M,4] w) <float[4] k = {{1,2,3,4}}, bool go = {{1}}> {{
                  a = {outer}
                  z, v = Loop(m, go, {start}) <
                    body = b (int64 i, bool c, float[4] s) => (bool c, float[4] t, float[4] u)
                    {{ t = {step} u = {extra} }}>
                  y = Neg(z) w = Exp(v) }}"""
            )


def test_the_enumerator_sees_a_cast_too_many() -> None:
    before = model("g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }")
    after = model(
        """g (float[4] x) => (float[4] y) {
          [mixlist] p = Cast<to=10>(x) [mixlist] q = Cast<to=10>(x) a = Exp(p) b = Exp(q) c = Add(a, b)
          [mixlist] y = Cast<to=1>(c) }"""
    )
    assert added(after) == 3
    assert Problem(before, after).fewest(3) == 2
