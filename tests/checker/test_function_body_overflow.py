"""Overflow inside an operator whose output is finite is reported and never fails a check (Rule S8.13)."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from tests.support.builders import model, policy
from tests.support.open_sessions import record_open_sessions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[n] y = LayerNormalization(x, one)", 1000.0),
        ("[n] y = Softplus(x)", 12.0),
        ("[n] y = ReduceLogSumExp<keepdims=1>(x)", 12.0),
        ("[n] y = ReduceL2<keepdims=1>(x)", 1000.0),
    ],
)
def test_a_function_body_that_overflows_is_an_internal_risk(text: str, value: float) -> None:
    """Rule S8.13: internal-risk."""
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[1,4] x) => (float[1,M] y) '
    graph = f"{head}<float[4] one = {{1,1,1,1}}> {{ {text} }}"
    lists = {"white": ["LayerNormalization", "Softplus", "ReduceLogSumExp", "ReduceL2"]}
    feed = {"x": np.array([[value, -value, value / 2, 0.0]], np.float32)}
    report = mixlist.check(model(graph), policy(**lists), [feed])
    assert [(n.name, n.kind, n.first) for n in report.nodes] == [("n", "internal-risk", False)]
    assert report.nodes[0].max_abs_fp32 > 65504 and report.exception_rate == 0
    small_report = mixlist.check(model(graph), policy(**lists), [{"x": feed["x"] / 100}])
    assert small_report.nodes == ()


@pytest.mark.parametrize(
    "step",
    ["function_body_overflow.islice", "counting_sessions.finding_value_count", "layerwise._Sums",
     "magnitudes_without_nan._magnitude"],
)  # fmt: skip
def test_an_error_leaves_no_session_open(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[1,4] x) => (float[1,4] y, float[1,4] r) '
    graph = f"{head}<float[4] one = {{1,1,1,1}}> {{ y = LayerNormalization(x, one) s = Mul(x, x) r = Sub(s, s) }}"
    open_sessions = record_open_sessions(monkeypatch)

    def fail(*_: object) -> None:
        assert len(open_sessions) > 2
        raise KeyboardInterrupt

    monkeypatch.setattr(f"mixlist.checker.{step}", fail)
    lists = policy(white=["LayerNormalization", "Mul", "Sub"])
    with pytest.raises(KeyboardInterrupt):
        mixlist.check(model(graph), lists, [{"x": np.array([[1000, -1000, 500, 0.0]], np.float32)}], layerwise=True)
    assert not open_sessions


@pytest.mark.parametrize("scores", [[60000.0, -60000.0, 1.0], [12.0, 1.0, -65504.0]])
def test_softmax_has_no_internal_risk_because_it_subtracts_the_largest_score(scores: list[float]) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[1,3] x) => (float[1,3] y) { [n] y = Softmax(x) }'
    feed = {"x": np.array([scores], np.float32)}
    assert mixlist.check(model(text), policy(white=["Softmax"]), [feed]).nodes == ()


def test_high_nodes_have_no_internal_risk() -> None:
    text = "g (float[1,4] x) => (float[1,4] y) <float[4] one = {1,1,1,1}> { [n] y = LayerNormalization(x, one) }"
    report = mixlist.check(model(text), policy(black=["LayerNormalization"]), [{"x": np.full((1, 4), 1e3, np.float32)}])
    assert report.nodes == ()
