"""Random nodes draw the same numbers in both models of a check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from tests.support.builders import apply, model, policy

NETWORKS = {
    "like": "g (float[4,8] x) => (float[4,8] y) { e = RandomNormalLike(x) [a] y = Add(x, e) }",
    "dropout": "g (float[4,8] x) => (float[4,8] y)"
    " <float r = {0.5}, bool t = {1}> { d = Dropout(x, r, t) [a] y = Add(x, d) }",
    "body": "g (float[4,8] x, bool c) => (float[4,8] y) { z = If (c) <"
    "then_branch = t () => (float[4,8] p) { e = RandomUniformLike(x) p = Mul(x, e) },"
    " else_branch = e () => (float[4,8] q) { q = Neg(x) }> [a] y = Add(z, x) }",
    "two": "g (float[4,8] x) => (float[4,8] y) {"
    " e = RandomNormalLike(x) f = RandomNormalLike(x) d = Sub(e, f) [a] y = Add(x, d) }",
}


@pytest.mark.parametrize("text", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("options", [{}, {"segment_bytes": 1}], ids=["whole", "segments"])
def test_a_random_node_is_no_error_of_the_low_type(text: str, options: dict[str, Any]) -> None:
    network, rules = model(text), policy(white=["Add"])
    feed = {"x": np.full((4, 8), 2.001, np.float32), "c": np.array(True)}
    names = {value.name for value in network.graph.input}
    feeds = [{name: array for name, array in feed.items() if name in names}] * 3
    report = mixlist.check(network, rules, feeds, **options)
    assert report.verdict == "pass"
    (output,) = report.outputs
    assert output.max_abs_error > 0  # the numbers are rounded, so there is something to compare
    # The nodes keep no seed in the model, and a file is compared in the same way.
    mixed = apply(network, rules)
    assert all(a.name != "seed" for node in mixed.graph.node for a in node.attribute)
    assert mixlist.check(network, rules, feeds, mixed_model=mixed, **options).verdict == "pass"


def test_a_seed_of_the_author_stays() -> None:
    network = model("g (float[4,8] x) => (float[4,8] y) { e = RandomNormalLike<seed = 3.0>(x) [a] y = Add(x, e) }")
    feed = {"x": np.ones((4, 8), np.float32)}
    assert mixlist.check(network, policy(white=["Add"]), [feed]).verdict == "pass"


@pytest.mark.parametrize("attributes", ["shape = [4]", "shape = [4], seed = 3.0"])
def test_a_search_names_the_random_node_that_no_trial_repeats(attributes: str) -> None:
    nodes = f"[r] r = RandomNormal<{attributes}>() [a] a = Mul(x, r) [y] y = Mul(a, r)"
    network = model(f"g (float[4] x) => (float[4] y) {{ {nodes} }}")
    report = mixlist.tune(network, policy(white=["Mul"]), [{"x": np.full(4, 1e6, np.float32)}])
    assert report.verdict == "fail"
    assert "r (RandomNormal) draws other numbers in each run, with a seed too; make its output" in report.reasons[0]
