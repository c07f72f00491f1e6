"""Whole trainings: what passes, what fails and why, what to change; and interruptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.lists.policy import Policy
from mixlist.training import Settings, train
from mixlist.tuner.output_files import read_tuned_policy
from tests.support.builders import model
from tests.support.training_network import all_low, classifier, clusters, mixed, squares

LR = Settings(lr=0.01)


def run(model: Any = None, rules: Policy | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {
        "eval_data": clusters(120, seed=1), "batch_size": 16, "epochs": 5, "optimizer": LR, **options,
    }  # fmt: skip
    return train(model or classifier(), rules or mixed(), given.pop("data", clusters()), **given)


def test_a_network_that_qualifies() -> None:
    found = run()
    assert (found.verdict, found.exception_rate, found.complete) == ("pass", 0.0, True)
    assert [r.seed for r in found.runs] == [0, 1, 2]
    assert found.steps == 75
    for one in found.runs:
        assert len(one.float32.loss) == len(one.mixed.loss) == len(one.mixed.scale) == 75
        assert one.float32.loss[0] != one.mixed.loss[0]
        assert one.float32.loss[0] == pytest.approx(one.mixed.loss[0], rel=1e-2)
        assert one.float32.metric > 0.95
    assert found.underflow.zero == 0
    assert found.metric == "accuracy"
    json.dumps(found.to_json(), allow_nan=False)


def test_both_trainings_see_the_same_batches_and_start() -> None:
    """Under lists that keep everything high, both are the same to the bit. Rule S10.1."""
    high = mixlist.load_policy(precision_mode_v2="origin")
    found = run(rules=high, scaler="none")
    for one in found.runs:
        assert one.float32.loss == one.mixed.loss
        assert one.float32.metric == one.mixed.metric


def test_first_values_and_seeds() -> None:
    rng = np.random.default_rng(5)
    init = {"w1": rng.normal(size=(4, 16)), "b1": np.zeros(16), "w2": rng.normal(size=(16, 3)), "b2": np.zeros(3)}
    found = run(init=init, epochs=1, batch_size=240)
    assert len({one.float32.loss[0] for one in found.runs}) <= 3
    assert max(one.float32.loss[0] for one in found.runs) == pytest.approx(found.runs[0].float32.loss[0], rel=1e-5)
    drawn = run(epochs=1, batch_size=240)
    assert len({round(one.float32.loss[0], 3) for one in drawn.runs}) == 3
    assert [r.seed for r in run(epochs=1, seed=7).runs] == [7, 8, 9]
    assert run(epochs=1, seed=1).runs[0].mixed == run(epochs=1).runs[1].mixed


def test_a_far_too_large_fixed_scale() -> None:
    found = run(scaler="fixed", scaler_parameters={"loss_scale": 2.0**30}, trace_overflow=True)
    assert found.verdict == "fail"
    assert found.exception_rate == 1
    assert "225 of 225 steps have an exception: 100.00%, the limit is 0.50%" in found.reasons
    assert any("every step was skipped" in reason for reason in found.reasons)
    assert {"w1", "w2", "b1"} <= set(found.bad)
    assert found.trace_scale == 2.0**30
    assert {node.name for node in found.offenders} <= {"of_w2", "gh"}
    assert found.offenders
    assert found.suggestion == ""


def small(scale: float) -> Any:
    """The loss made small, as a mean over many pixels would be: its gradients are tiny."""
    return classifier(replace={"[gz] gz = Div (ds, n)": f"factor = Constant <value_float = {scale}> () "
                                                       "dd = Div (ds, n) [gz] gz = Mul (dd, factor)"})  # fmt: skip


def test_gradients_that_underflow_without_a_scaler() -> None:
    lost = run(small(1e-7), scaler="none", optimizer=Settings("sgd", lr=1e6))
    assert lost.verdict == "fail"
    assert lost.underflow.zero > 0.5
    assert lost.underflow.zero == lost.underflow.zero_unscaled
    assert any("accuracy is" in reason for reason in lost.reasons)
    kept = run(small(1e-7), scaler="fixed", scaler_parameters={"loss_scale": 2.0**24},
               optimizer=Settings("sgd", lr=1e6))  # fmt: skip
    assert kept.verdict == "pass"
    assert kept.underflow.zero < 0.01
    assert kept.underflow.zero_unscaled > 0.5


def test_subnormal_gradients_are_those_held_low() -> None:
    """The gradient of b2 is summed in float32: small as it is, it has all its digits."""
    found = run(small(1e-5), scaler="none", optimizer=Settings("sgd", lr=1e3), epochs=2)
    assert found.underflow.subnormal_unscaled > 0.3
    only = run(small(1e-5), rules=mixlist.load_policy(precision_mode_v2="origin"), scaler="none",
               optimizer=Settings("sgd", lr=1e3), epochs=2)  # fmt: skip
    assert only.underflow.subnormal_unscaled == pytest.approx(0, abs=0.01)
    assert only.underflow.zero_unscaled == 0


def test_tune_scale_finds_a_scale_that_works() -> None:
    """Rule S10.18: Advice names the scale or the lists."""
    failed = run(small(1e-7), scaler="fixed", scaler_parameters={"loss_scale": 2.0**44}, tune=True,
                 optimizer=Settings("sgd", lr=1e6))  # fmt: skip
    assert failed.verdict == "fail"
    assert [t.parameters["loss_scale"] for t in failed.scale_trials] == [
        2.0**k for k in (0, 4, 8, 10, 12, 14, 16, 20, 24)
    ]
    assert failed.scale_choice["loss_scale"] >= 2.0**20
    found = run(small(1e-7), scaler="fixed", scaler_parameters=failed.scale_choice, optimizer=Settings("sgd", lr=1e6))
    assert found.verdict == "pass"


def test_tune_scale_finds_a_growth_that_does_not_overflow() -> None:
    found = run(rules=all_low(), scaler="torch", scaler_parameters={"growth_interval": 5}, epochs=15, tune=True)
    assert found.verdict == "fail"
    assert set(found.scale_choice) == {"init_scale", "growth_interval"}
    again = run(rules=all_low(), scaler="torch", scaler_parameters=found.scale_choice, epochs=15)
    assert again.exception_rate < found.exception_rate / 3


def planted() -> Any:
    """The hidden layer's sum of squares leaves float16's range, and a division brings it back."""
    return classifier(replace={"[out] c = MatMul (h, w2)": "big = Constant <value_float = 1000.0> () "
                               "[blow] hb = Mul (h, big) [energy] hh = Mul (hb, hb) [root] hs = Sqrt (hh) "
                               "[back] hd = Div (hs, big) [out] c = MatMul (hd, w2)"})  # fmt: skip


def low_everywhere() -> Policy:
    return mixlist.load_policy(ops_info="mindspore-o3")


def test_a_planted_overflow_is_refused_named_and_cured() -> None:
    """Rule S10.18: Advice names the scale or the lists."""
    found = run(planted(), low_everywhere(), trace_overflow=True, scaler_parameters={"init_scale": 1024.0})
    assert found.verdict == "fail"
    assert found.exception_rate == 1
    assert found.trace_scale == 1
    assert {node.name for node in found.offenders} == {"energy"}
    assert found.offenders[0].kind == "overflow"
    cured = read_tuned_policy(low_everywhere(), found.suggestion, "")
    assert cured.lists.list_of("Mul") == "black"
    again = run(planted(), cured, scaler_parameters={"init_scale": 1024.0})
    assert again.exception_rate == 0
    assert again.verdict == "pass", again.reasons


def test_what_float32_cannot_train_either_is_nothing_to_compare_with() -> None:
    """Rule S10.19: A float32 run must be something to compare with."""
    found = run(optimizer=Settings("sgd", lr=1e30), epochs=3)
    assert found.verdict == "inconclusive"
    assert len(found.reasons) == 3
    assert all("training in float32" in reason for reason in found.reasons)


def test_mindspore_ending_a_training_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from mixlist.training.scalers import DynamicLossScaleManager

    monkeypatch.setattr(DynamicLossScaleManager, "MAX_BAD_STEPS", 5)
    data = {"x": np.zeros((40, 2), np.float32), "t": np.full((40, 2), 1e5, np.float32)}
    found = train(squares(), all_low(), data, batch_size=4, epochs=5, scaler="mindspore", tune=True)
    assert found.verdict == "fail"
    assert any("was ended: more than 5 steps in a row" in reason for reason in found.reasons)
    assert all(trial.exceptions for trial in found.scale_trials)


class Stop:
    """Ctrl-C after so many steps."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, _: object) -> None:
        self.count -= 1
        if not self.count:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("count", "runs", "mixed_steps"), [(10, 1, 0), (85, 1, 10), (160, 2, 0), (240, 2, 15)])
def test_ctrl_c_gives_what_there_is(count: int, runs: int, mixed_steps: int) -> None:
    """Rule S10.17: Verdict of train."""
    found = run(progress=Stop(count))
    assert (found.verdict, found.complete) == ("fail", False)
    assert found.reasons[0] == f"interrupted after {runs - 1} of 3 runs"
    assert len(found.runs) == runs
    assert len(found.runs[-1].mixed.loss) == mixed_steps
    assert found.runs[-1].mixed.metric is None
    whole = run()
    assert found.runs[-1].mixed.loss == whole.runs[runs - 1].mixed.loss[:mixed_steps]
    assert found.runs[:-1] == whole.runs[: runs - 1]
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("what", ["advise_on_overflow", "tune_scale"])
def test_ctrl_c_behind_the_trainings_keeps_their_report(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"mixlist.training.run.{what}", stopped)
    found = run(scaler_parameters={"init_scale": 2.0**30}, trace_overflow=True, tune=True)
    assert (found.verdict, found.complete, len(found.runs)) == ("fail", False, 3)
    assert found.reasons[0].startswith("interrupted before")
    assert "steps have an exception" in found.reasons[1]


def test_a_scale_beyond_float32_is_a_bad_step() -> None:
    found = run(scaler_parameters={"init_scale": 1e300}, epochs=1, trace_overflow=True)
    assert found.exception_rate == 1
    json.dumps(found.to_json(), allow_nan=False)


def test_without_evaluation_data_the_metric_is_taken_on_the_training_data() -> None:
    found = run(eval_data=None, epochs=1)
    assert any("taken on the training data" in warning.message for warning in found.warnings)
    assert found.runs[0].mixed.metric is not None


def test_other_metrics() -> None:
    assert run(metric="loss", epochs=1).higher is False
    assert run(metric="logits", epochs=1).higher is True
    found = train(squares(), mixed(), {"x": np.ones((8, 2)), "t": np.zeros((8, 2))}, batch_size=4, epochs=4)
    assert (found.metric, found.higher) == ("loss", False)


def test_a_scale_with_an_axis_is_traced_too() -> None:
    """``loss_scale`` may be declared float32[1]."""
    step = classifier()
    next(i for i in step.graph.input if i.name == "loss_scale").type.tensor_type.shape.dim.add().dim_value = 1
    found = run(step, epochs=1, scaler="fixed", scaler_parameters={"loss_scale": 2.0**30}, trace_overflow=True)
    assert found.trace_scale == 2.0**30 and found.offenders


def test_labels_of_no_class_are_refused() -> None:
    """Before the training, and wherever they stand in the data."""
    data = clusters(seed=4)
    data["y"][-1] = 3
    with pytest.raises(UsageError, match=r"the evaluation data: the largest label in 'y' is 3.*3 classes"):
        run(eval_data=data)
    with pytest.raises(UsageError, match="none counts"):
        run(eval_data={**data, "y": np.full_like(data["y"], -1)})


def test_a_training_of_which_nothing_is_low_says_so() -> None:
    origin = mixlist.load_policy(precision_mode_v2="origin")
    assert "ML605" in [warning.code for warning in run(rules=origin, epochs=1).warnings]
    assert "ML605" not in [warning.code for warning in run(epochs=1).warnings]


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_step_graph_may_read_low_precision(low: str, tmp_path: Path) -> None:
    """On the CPU the step computes in float32 what it declares low, and its state holds the batch as it was."""
    cast = model(f"agraph ({low}[N, 2] x) => (float[N, 2] raised) {{ raised = Cast <to = 1> (x) }}").graph
    low_input, float_input = squares(), squares()
    for node in low_input.graph.node:
        node.input[:] = ["raised" if name == "x" else name for name in node.input]
    low_input.graph.node.insert(0, cast.node[0])
    next(i for i in low_input.graph.input if i.name == "x").CopyFrom(cast.input[0])
    rng = np.random.default_rng(0)
    data = {name: rng.integers(-8, 9, (8, 2)).astype(np.float32) for name in ("x", "t")}  # exact in both types
    reports = [
        run(
            step,
            mixed(),
            data=data,
            eval_data=None,
            state=tmp_path / name,
            scaler="fixed",
            scaler_parameters={"loss_scale": 2.0**40},
            trace_overflow=True,
            epochs=2,
            runs=1,
            batch_size=4,
        )
        for step, name in ((float_input, "float.npz"), (low_input, "low.npz"), (low_input, "low.npz"))
    ]
    assert all(report.exception_rate for report in reports)
    curves = [[(pair.float32.loss, pair.mixed.loss) for pair in report.runs] for report in reports]
    assert curves[0] == curves[1] == curves[2]


def test_a_warning_of_the_lists_names_its_severity_once(tmp_path: Path) -> None:
    """Reports write the severity before each warning themselves."""
    lists = tmp_path / "modify.json"
    lists.write_text('{"white-list": {"to-add": ["NoSuchOp"]}}')
    found = run(rules=mixlist.load_policy(mixlist=lists), epochs=1)
    texts = cast("list[str]", found.to_json()["warnings"])
    assert any("ML406" in text for text in texts)
    assert not any("warning ML" in text for text in texts)
