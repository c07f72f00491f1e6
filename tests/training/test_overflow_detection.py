"""Tests of exceptions in any node, and of a training on an accelerator that saturates (Rule S10.25)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixlist.errors import UsageError
from mixlist.training import Settings, train
from mixlist.training.options import TrainOptions
from mixlist.training.step_graph import load_step_graph
from mixlist.training.step_session import make_mixed_session
from tests.support.builders import policy
from tests.support.training_network import HIGH, LOW, classifier, clusters, mixed

# The hidden values times 50,000 overflow in float16. A Clip makes them finite again, and no gradient passes there.
CLAMPED = {
    "[relu] h = Relu (pre)": """
        bottom = Constant <value = float {-60000}> ()
        many = Constant <value = float {50000}> ()
        top = Constant <value = float {60000}> ()
        [huge] huge = Mul (pre, many)
        [clip] kept = Clip (huge, bottom, top)
        [small] tiny = Div (kept, many)
        [relu] h = Relu (pre)
        [joined] seen = Add (tiny, h)
    """,
    "MatMul (h, w2)": "MatMul (seen, w2)",
}
ASCEND = {"scaler": "npu", "scaler_parameters": {"init_loss_scale": 64.0, "incr_every_n_steps": 100}}
LISTS = policy(white=(*LOW, "Mul", "Clip"), black=[name for name in HIGH if name != "Mul"])


def clamped_step() -> Any:
    """A classifier whose hidden values overflow and are clamped afterwards."""
    return classifier(replace=CLAMPED)


def run(step: Any, **options: Any) -> Any:
    return train(step, LISTS, clusters(), epochs=4, **{**ASCEND, **options})


def test_an_overflow_that_a_clip_hides_is_an_exception_of_the_npu_scalers() -> None:
    report = run(clamped_step(), trace_overflow=True)
    assert (report.verdict, report.overflow_detection, report.exception_rate) == ("fail", "any-node", 1.0)
    assert not report.bad  # the gradients are finite
    assert run(clamped_step(), overflow_detection="gradients").exception_rate == 0


def test_a_clamped_value_is_an_exception_where_the_accelerator_saturates() -> None:
    """Whatever the scaler is: nothing infinite reaches the gradients."""
    options: dict[str, Any] = {"scaler": "torch", "scaler_parameters": {"init_scale": 64.0}}
    report = run(clamped_step(), overflow_mode="saturate", trace_overflow=True, **options)
    assert (report.overflow_mode, report.overflow_detection) == ("saturate", "any-node")
    assert (report.verdict, report.exception_rate) == ("fail", 1.0)
    assert [(finding.name, finding.kind) for finding in report.offenders] == [("huge", "saturated")]
    assert run(clamped_step(), overflow_mode="saturate", overflow_detection="gradients", **options).exception_rate == 0


@pytest.mark.parametrize("mode", ["inf", "saturate"])
def test_a_benign_network_has_no_exception_in_any_node(mode: str) -> None:
    report = train(classifier(), mixed(), clusters(), epochs=8, overflow_mode=mode, **ASCEND)
    assert (report.verdict, report.overflow_detection, report.exception_rate) == ("pass", "any-node", 0)


@pytest.mark.parametrize("mode", ["inf", "saturate"])
def test_what_float32_overflows_as_well_is_no_exception_of_a_node(mode: str) -> None:
    session = make_mixed_session(load_step_graph(classifier()), mixed(), TrainOptions(scaler="npu", overflow_mode=mode))
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {
        "w1": rng.standard_normal((4, 16), np.float32),
        "b1": np.zeros(16, np.float32),
        "w2": rng.standard_normal((16, 3), np.float32),
        "b2": np.zeros(3, np.float32),
        "x": rng.standard_normal((8, 4), np.float32),
        "y": np.zeros(8, np.int64),
    }
    assert not session.step(feed, 1.0).overflows
    assert session.step({**feed, "x": feed["x"] * 1e5}, 1.0).overflows  # the conversion of x
    infinite = {**feed, "b2": np.full(3, np.inf, np.float32), "w2": np.full((16, 3), np.inf, np.float32)}
    assert not session.step({**infinite, "x": 0 * feed["x"]}, 1.0).overflows
    session.close()


def test_the_batches_of_a_step_share_one_exception() -> None:
    report = run(clamped_step(), optimizer=Settings(accumulate=2), batch_size=16)
    assert report.exception_rate == 1 and report.runs[0].mixed.exceptions == list(range(report.steps))


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(UsageError, match="overflow detection 'nodes' is not known"):
        TrainOptions(overflow_detection="nodes")
    with pytest.raises(UsageError, match="overflow mode 'clamp' is not known"):
        TrainOptions(overflow_mode="clamp")
