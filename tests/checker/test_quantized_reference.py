"""A quantized model that differs from itself by more than the limits, and one that does not."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from mixlist import Limits
from tests.support.builders import model, policy
from tests.support.workers import DIE, patch_workers

# Products of 0.1 and 0.1, rounded to multiples of 0.02: every second one is halfway between two of them.
QUANTIZED = """g (float[1, 1] x) => (float[1, 64] y)
  <float sx = {0.1}, float sw = {0.1}, float sy = {0.02}, int8 z = {0}, int8[1, 64] k = {WEIGHTS}> {
    [q] q = QuantizeLinear(x, sx, z) [d] d = DequantizeLinear(q, sx, z)
    [w] w = DequantizeLinear(k, sw, z) [m] p = MatMul(d, w)
    [r] r = QuantizeLinear(p, sy, z) [y] y = DequantizeLinear(r, sy, z) }"""
ONE = {"x": np.full((1, 1), 0.1, np.float32)}
LOW = policy(white=["MatMul"])


def _check(step: int, batches: int = 1) -> mixlist.CheckReport:
    text = QUANTIZED.replace("WEIGHTS", ", ".join(str(1 + at * step % 127) for at in range(64)))
    return mixlist.check(model(text), LOW, [ONE] * batches, limits=Limits(max_abs=1e-3), layerwise=False)


def test_the_report_says_that_a_quantized_model_differs_from_itself() -> None:
    report = _check(2)
    assert report.verdict == "fail"
    (sentence,) = report.advice
    assert sentence.startswith("the quantized model differs from itself: with ONNX Runtime's optimizations,")
    assert "output 'y' misses max_abs 0.02 (limit 0.001)" in sentence


def test_another_failure_of_a_quantized_model_has_no_such_sentence() -> None:
    """All products are multiples of 0.02. What the low Mul behind them rounds misses the limit."""
    text = QUANTIZED.replace("WEIGHTS", ", ".join(str(2 * at) for at in range(64)))
    text = text.replace("] y = Deq", "] e = Deq").replace("r, sy, z) }", "r, sy, z) [s] y = Mul(e, sx) }")
    report = mixlist.check(model(text), policy(white=["Mul"]), [ONE], limits=Limits(max_abs=1e-6), layerwise=False)
    assert (report.verdict, report.advice) == ("fail", ())


@pytest.mark.parametrize("batches", [1, 25])
def test_the_reference_of_a_quantized_model_is_computed_as_onnx_defines_it(batches: int) -> None:
    """Whatever the number of batches: ONNX Runtime optimizes other models from 20 batches on."""
    assert _check(2, batches).outputs == _check(2).outputs


def test_a_crash_of_the_optimized_model_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_workers(
        monkeypatch,
        "load = local_session.LocalSession.open.__func__\n"
        "local_session.LocalSession.open = classmethod(lambda kind, model, options, folder:"
        f" load(kind, model, options=options, folder=folder) if options.lean else ({DIE})())",
    )
    report = _check(2)
    assert (report.verdict, report.advice) == ("fail", ())
    assert "ML606" not in {item.code for item in report.warnings}
