"""A trial fails if only the converted input of a node overflows, as a check with the same lists does (Rule S8.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.search.tune_result import TuneReport
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor

WEIGHTS = ", ".join(["0.01"] * 16)
FLOAT32 = np.float32


def tune(text: str, feed: dict[str, Any], white: str, black: str = "", **options: Any) -> TuneReport:
    lists = policy(white=white.split(), black=black.split())
    return mixlist.tune(model(text), lists, [feed], executor=InProcessExecutor(), **options)


def edits(report: TuneReport) -> set[str]:
    return {f"{edit.op}: {edit.before} to black" for edit in report.edits}


def has_contradiction(report: TuneReport) -> bool:
    """Return True if the final check failed lists whose trial had passed."""
    return any("final check" in str(trial["why"]) for trial in report.log)


DIVISOR = f"""g (float[1,4] x, float[1,4] d) => (float[1,4] y) <float[4,4] w = {{{WEIGHTS}}}> {{
  [m] m = MatMul(x, w) [v] y = Div(m, d) }}"""
INNER = f"""g (float[1,4] x) => (float[1,4] y, int64[1,1] z) <float[4,4] w = {{{WEIGHTS}}}, float[1] k = {{1000}}> {{
  [m] y = MatMul(x, w) [big] b = Mul(x, k) [v] z = ArgMax<axis=1>(b) }}"""


@pytest.mark.parametrize("mode", ["inf", "saturate"])
def test_a_graph_input_that_a_node_reads_converted(mode: str) -> None:
    """Rule S8.4: the divisor overflows when Div reads it in float16. The quotient is small and finite in both modes."""
    feed = {"x": np.ones((1, 4), FLOAT32), "d": np.array([[1e5, 1e5, 1e5, 1e6]], FLOAT32)}
    report = tune(DIVISOR, feed, "MatMul Div", overflow_mode=mode)
    assert (report.verdict, edits(report)) == ("pass", {"Div: white to black"})
    assert not has_contradiction(report)
    (edit,) = report.edits
    assert edit.why == ("v overflows" if mode == "inf" else "v saturates") and "overflow at v" in edit.without


def test_the_reason_of_an_edit_counts_the_nodes() -> None:
    feed = {"x": np.ones((1, 4), FLOAT32), "d": np.full((1, 4), 1e5, FLOAT32)}
    report = tune(DIVISOR.replace("y = Div(m, d)", "q = Div(m, d) [u] y = Div(q, d)"), feed, "MatMul Div")
    assert [edit.why for edit in report.edits] == ["v overflows (and 1 more)"]


def test_a_float32_tensor_that_a_low_node_reads_converted() -> None:
    """Rule S8.4: the black Mul yields finite float32 values, which overflow when ArgMax reads them in float16."""
    feed = {"x": np.array([[100, 200, 300, 400]], FLOAT32)}
    report = tune(INNER, feed, "MatMul ArgMax", "Mul")
    assert (report.verdict, edits(report)) == ("pass", {"ArgMax: white to black"})
    assert not has_contradiction(report)


def test_a_trial_does_not_fail_because_of_a_mask() -> None:
    """Rules S8.4 and S8.12: the mask value -1e9 may become infinite, scores of 8e4 may not."""
    text = """g (float[1,4] s, bool[1,4] b) => (float[1,4] y) <float k = {-1e9}, float z = {0}> {
      [w] w = Where(b, z, k) [a] a = Add(s, w) [v] y = Softmax(a) }"""
    feed = {"s": np.array([[1, 2, 3, 4]], FLOAT32), "b": np.array([[True, True, False, True]])}
    assert tune(text, feed, "Add Softmax").edits == ()
    feed["s"] = np.array([[1, 2, 8e4, 7e4]], FLOAT32)
    feed["b"][:] = True
    report = tune(text, feed, "Add Softmax")
    assert report.keeps_nothing_low and report.edits and not has_contradiction(report)
