"""In a large graph, small tensors are outputs of the graph, and numpy computes their ranges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, reject, settings
from onnx.parser import parse_model

import mixlist
from mixlist.checker import model_pair, value_counts
from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.observer import Observer
from tests.checker.test_reference_verdict import EXAMPLES, PROFILE, compare_with_reference
from tests.support.builders import model, policy
from tests.support.exact_graphs import Case, cases
from tests.support.exact_operators import Ambiguous

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N] x, bool c) => (float[N] y, float[N] z) {
  [m] h = Mul(x, x) [i] z = Identity(h)
  [b] y = If(c) <then_branch = t () => (float[N] a) { [n] a = Neg(h) },
                 else_branch = e () => (float[N] b) { [p] b = Add(h, h) }> }"""
LISTS = policy(white=["Mul", "Neg", "Identity"], black=["Add"])


@pytest.fixture
def observers(monkeypatch: pytest.MonkeyPatch) -> list[Observer]:
    """Every graph is a large one; return the observers that have whole tensors."""
    monkeypatch.setattr(model_pair, "_LARGE_GRAPH", 0)
    opened: list[Observer] = []
    init = Observer.__init__

    def record(observer: Observer, *args: object, **keywords: object) -> None:
        init(observer, *args, **keywords)  # type: ignore[arg-type]
        if observer.instrumented.whole_outputs:
            opened.append(observer)

    monkeypatch.setattr(Observer, "__init__", record)
    return opened


def feeds(*rows: list[float]) -> list[dict[str, object]]:
    return [{"x": np.array(row, np.float32), "c": np.array(taken)} for row in rows for taken in (True, False)]


def test_the_report_is_that_of_probes(observers: list[Observer], monkeypatch: pytest.MonkeyPatch) -> None:
    data = feeds([300.0, -1.0, 0.0], [1e-9, 1e-5, 1.0], [math.inf, 1.0, 2.0], [], [7.0])
    whole = mixlist.check(model(TEXT), LISTS, data, per_tensor=True)
    assert len(observers) == 2  # those of the reference and of the mixed model
    monkeypatch.setattr(model_pair, "_LARGE_GRAPH", math.inf)
    probed = mixlist.check(model(TEXT), LISTS, data, per_tensor=True)
    assert len(observers) == 2
    assert (whole.nodes, whole.tensors, whole.outputs) == (probed.nodes, probed.tensors, probed.outputs)
    assert (whole.verdict, whole.exception_rate) == (probed.verdict, probed.exception_rate)


def test_a_nan_hides_no_other_value_of_a_whole_tensor(observers: list[Observer]) -> None:
    report = mixlist.check(model(TEXT), LISTS, feeds([math.nan, 300.0, -1.0, math.nan]), per_tensor=True)
    assert observers
    tensor = next(tensor for tensor in report.tensors if tensor.tensor == "h")
    assert (tensor.minimum, tensor.maximum, tensor.nan) == (1.0, 9e4, True)


def test_a_large_tensor_has_a_probe(observers: list[Observer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_pair, "_MOST_WHOLE_ELEMENTS", 3)
    for size in (3, 4):
        observers.clear()
        mixlist.check(model(TEXT), LISTS, feeds([1.0] * size))
        assert len(observers) == (2 if size == 3 else 0)


@settings(PROFILE, max_examples=EXAMPLES // 2)
@given(case=cases())
def test_every_verdict_with_whole_tensors_agrees_with_the_reference(case: Case) -> None:
    note(repr(case))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_pair, "_LARGE_GRAPH", 0)
        try:
            compare_with_reference(case)
        except Ambiguous:
            reject()


@pytest.mark.parametrize("mode", ["inf", "saturate"])
@pytest.mark.parametrize("full_statistics", [False, True])
def test_numpy_counts_as_the_graph_does(mode: str, full_statistics: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x, float[N] v) => (float[N] y, float[N] z, float[N] w) {
      [m] h = Mul(x, x) [c] d = Mul(v, v) [i] z = Identity(h) [s] y = Sub(h, d) [t] w = Tanh(v) }"""
    rows = [[300.0, -1.0, 1e-9, 2e-4, -0.0], [math.nan, 300.0, -2.0, 190.0, 0.0], [math.inf, 7e4, 1.0, 0.0, 2.0]]
    data = [{"x": np.array(row, np.float32), "v": np.array(row[::-1], np.float32) * 300} for row in rows]
    lists = policy(white=["Mul", "Sub", "Tanh"])
    reports = []
    for most_elements in (value_counts._MOST_ELEMENTS, 0):
        monkeypatch.setattr(value_counts, "_MOST_ELEMENTS", most_elements)
        sessions = record_whole_sessions(monkeypatch)
        reports.append(mixlist.check(model(text), lists, data, overflow_mode=mode, full_statistics=full_statistics))
        assert bool(sessions) == bool(most_elements)
    assert reports[0].nodes == reports[1].nodes and any(finding.count for finding in reports[0].nodes)
    assert reports[0].tensors == reports[1].tensors


def test_an_input_with_a_default_is_counted_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed may lack it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {0.5, 1e-9}> { [m] h = Mul(x, x) [d] y = Mul(h, w) }"""
    sessions = record_whole_sessions(monkeypatch)
    feed = {"x": np.array([300.0, 1.0], np.float32)}
    report = mixlist.check(parse_model(text), policy(white=["Mul"]), [feed], full_statistics=True)
    assert [(f.name, f.input, f.kind, f.count) for f in report.nodes if f.first] == [("m", "", "overflow", 1)]
    assert not sessions


def record_whole_sessions(monkeypatch: pytest.MonkeyPatch) -> list[Observer]:
    """Return the observers, from now on, that return whole tensors to be counted."""
    opened: list[Observer] = []
    open_tensors = CheckSessions.open_tensors

    def record(sessions: CheckSessions, *args: Any) -> Observer | None:
        observer = open_tensors(sessions, *args)
        if observer is not None:
            opened.append(observer)
        return observer

    monkeypatch.setattr(CheckSessions, "open_tensors", record)
    return opened
