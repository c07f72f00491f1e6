"""The rewriter adds the fewest Casts: on every small graph, no smaller set of Casts is valid.

The graphs have white, black and gray nodes, and Casts of the user: all graphs of one node, and fixed samples of
those of two and three nodes, with branches and with a loop. MIXLIST_EXAMPLES is the size of a sample (48 by default),
and MIXLIST_EXHAUSTIVE replaces the samples by all graphs.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator

import onnx
import pytest

from tests.support.builders import apply, model, policy
from tests.support.minimal_casts import CastProblem
from tests.support.scopes import View, is_marked_cast

RULES = policy(white=["Exp"], black=["Log"])
EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "48"))


def count_added_casts(result: onnx.ModelProto) -> int:
    """Return the number of Casts that mixlist added."""
    return sum(is_marked_cast(node) for scope in View(result).scopes() for node in scope.nodes)


def assert_fewest(text: str) -> None:
    """Assert that no smaller set of Casts is valid for the plan, and that the enumerator accepts one of that size."""
    before = model(text)
    after = apply(before, RULES)
    count = count_added_casts(after)
    problem = CastProblem(before, after)
    assert problem.minimum_size(count + 1) == count, f"{count} Casts in\n{onnx.printer.to_text(after)}\nfor\n{text}"


def bodies(values: list[str], size: int) -> Iterator[list[str]]:
    """Yield every way to add ``size`` nodes to these values."""
    if size == 0:
        yield []
        return
    name = f"n{size}"
    for x in values:
        for op in ("Exp({0})", "Log({0})", "Neg({0})", "Cast<to=1>({0})"):
            for later_lines in bodies([*values, name], size - 1):
                yield [f"{name} = {op.format(x)}", *later_lines]
        for y in values:
            for later_lines in bodies([*values, name], size - 1):
                yield [f"{name} = Add({x}, {y})", *later_lines]


def graphs(size: int) -> list[str]:
    """Return every graph of ``size`` nodes that read an input, a float16 input behind a Cast, or a constant."""
    texts = []
    for body in bodies(["x", "k", "c"], size):
        names = [line.split(" = ")[0] for line in body]
        outputs = ", ".join(f"float[4] {n}" for n in names if not any(f"{n})" in b or f"({n}," in b for b in body))
        for low in ("", "d = Cast<to=10>(x)"):
            head = f"g (float[4] x, float16[4] h) => ({outputs}{', float16[4] d' if low else ''})"
            texts.append(f"{head} <float[4] k = {{1,2,3,4}}> {{ c = Cast<to=1>(h) {low} {' '.join(body)} }}")
    return texts


BRANCHES = ["Exp({0})", "Log({0})", "Neg({0})", "Add({0}, k)"]


def graphs_with_branches() -> list[str]:
    """Return graphs with an If whose branches capture a value."""
    parts = itertools.product(
        *(("Exp(x)", "Log(x)", "Neg(x)"), "axk", BRANCHES, BRANCHES, ("Neg(z)", "Exp(z)", "Add(a, z)"))
    )
    return [
        f"""g (float[4] x, bool f) => (float[4] y) <float[4] k = {{1,2,3,4}}> {{
          a = {outer}
          z = If(f) <then_branch = t () => (float[4] p) {{ p = {then_op.format(source)} }},
                     else_branch = e () => (float[4] q) {{ q = {else_op.format(source)} }}>
          y = {after} }}"""
        for outer, source, then_op, else_op, after in parts
    ]


def graphs_with_a_loop() -> list[str]:
    steps = ("Exp(s)", "Log(s)", "Neg(s)", "Add(s, a)", "Add(a, s)", "Add(x, s)")
    parts = itertools.product(("Exp(x)", "Log(x)"), "axk", steps, ("Exp(a)", "Log(s)", "Neg(t)"))
    return [
        f"""g (float[4] x, int64 m) => (float[4] y, float[M,4] w) <float[4] k = {{1,2,3,4}}, bool go = {{1}}> {{
          a = {outer}
          z, v = Loop(m, go, {start}) <
            body = b (int64 i, bool c, float[4] s) => (bool c, float[4] t, float[4] u)
            {{ t = {step} u = {extra} }}>
          y = Neg(z) w = Exp(v) }}"""
        for outer, start, step, extra in parts
    ]


@pytest.mark.parametrize(
    "make",
    [lambda: graphs(1), lambda: graphs(2), lambda: graphs(3), graphs_with_branches, graphs_with_a_loop],
    ids=["one node", "two nodes", "three nodes", "branches", "loop"],
)
def test_no_smaller_set_of_casts_is_valid(make: Callable[[], list[str]]) -> None:
    """Rule S7.4: A Cast follows its producer, once."""
    texts = make()
    if "MIXLIST_EXHAUSTIVE" not in os.environ:
        texts = random.Random(0).sample(texts, min(EXAMPLES, len(texts)))
    for text in texts:
        assert_fewest(text)


def test_the_enumerator_needs_fewer_casts_than_a_result_with_a_duplicate() -> None:
    before = model("g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }")
    after = model(
        """g (float[4] x) => (float[4] y) {
          [mixlist] p = Cast<to=10>(x) [mixlist] q = Cast<to=10>(x) a = Exp(p) b = Exp(q) c = Add(a, b)
          [mixlist] y = Cast<to=1>(c) }"""
    )
    assert count_added_casts(after) == 3
    assert CastProblem(before, after).minimum_size(3) == 2
