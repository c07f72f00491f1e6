"""In a large graph, small tensors are outputs of the graph, and numpy computes their ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, note, reject, settings

import mixlist
from mixlist.checker import model_pair
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
