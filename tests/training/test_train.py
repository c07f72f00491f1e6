"""Tests of ``train`` as a whole: verdicts and their reasons, advice, warnings, and interruptions."""

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
from mixlist.tuner.output_texts import read_tuned_policy
from tests.support.builders import model
from tests.support.open_sessions import record_open_sessions
from tests.support.training_network import all_low, classifier, clusters, mixed, squares

LR = Settings(lr=0.01)


def run(model: Any = None, policy: Policy | None = None, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "eval_data": clusters(120, seed=1), "batch_size": 16, "epochs": 5, "optimizer": LR, **changes,
    }  # fmt: skip
    return train(model or classifier(), policy or mixed(), options.pop("data", clusters()), **options)


def test_a_network_that_passes() -> None:
    report = run()
    assert (report.verdict, report.exception_rate, report.complete) == ("pass", 0.0, True)
    assert [seed_run.seed for seed_run in report.runs] == [0, 1, 2]
    assert report.steps == 75
    for seed_run in report.runs:
        assert len(seed_run.float32.loss) == len(seed_run.mixed.loss) == len(seed_run.mixed.scale) == 75
        assert seed_run.float32.loss[0] != seed_run.mixed.loss[0]
        assert seed_run.float32.loss[0] == pytest.approx(seed_run.mixed.loss[0], rel=1e-2)
        assert seed_run.float32.metric > 0.95
    assert report.underflow.zero == 0
    assert report.metric == "accuracy"
    json.dumps(report.to_json(), allow_nan=False)


def test_both_trainings_have_the_same_batches_and_initial_values() -> None:
    """Train under lists that keep all nodes high: both trainings are equal, bit for bit. Rule S10.1."""
    all_high = mixlist.load_policy(precision_mode_v2="origin")
    report = run(policy=all_high, scaler="none")
    for seed_run in report.runs:
        assert seed_run.float32.loss == seed_run.mixed.loss
        assert seed_run.float32.metric == seed_run.mixed.metric


def test_initial_values_and_seeds() -> None:
    rng = np.random.default_rng(5)
    init = {"w1": rng.normal(size=(4, 16)), "b1": np.zeros(16), "w2": rng.normal(size=(16, 3)), "b2": np.zeros(3)}
    report = run(init=init, epochs=1, batch_size=240)
    assert len({seed_run.float32.loss[0] for seed_run in report.runs}) <= 3
    assert max(seed_run.float32.loss[0] for seed_run in report.runs) == pytest.approx(
        report.runs[0].float32.loss[0], rel=1e-5
    )
    drawn = run(epochs=1, batch_size=240)
    assert len({round(seed_run.float32.loss[0], 3) for seed_run in drawn.runs}) == 3
    assert [seed_run.seed for seed_run in run(epochs=1, seed=7).runs] == [7, 8, 9]
    assert run(epochs=1, seed=1).runs[0].mixed == run(epochs=1).runs[1].mixed


def test_a_fixed_scale_that_is_too_large_fails() -> None:
    report = run(scaler="fixed", scaler_parameters={"loss_scale": 2.0**30}, trace_overflow=True)
    assert report.verdict == "fail"
    assert report.exception_rate == 1
    assert "225 of 225 steps have an exception: 100.00%, the limit is 0.50%" in report.reasons
    assert any("every step was skipped" in reason for reason in report.reasons)
    assert {"w1", "w2", "b1"} <= set(report.bad)
    assert report.trace_scale == 2.0**30
    assert {node.name for node in report.offenders} <= {"of_w2", "gh"}
    assert report.offenders
    assert report.suggestion == ""


def with_small_loss(factor: float) -> Any:
    """Return the classifier with its loss multiplied by a factor, as a mean over many pixels is small."""
    return classifier(replace={"[gz] gz = Div (ds, n)": f"factor = Constant <value_float = {factor}> () "
                                                       "dd = Div (ds, n) [gz] gz = Mul (dd, factor)"})  # fmt: skip


def test_gradients_that_underflow_without_a_scaler() -> None:
    unscaled = run(with_small_loss(1e-7), scaler="none", optimizer=Settings("sgd", lr=1e6))
    assert unscaled.verdict == "fail"
    assert unscaled.underflow.zero > 0.5
    assert unscaled.underflow.zero == unscaled.underflow.zero_unscaled
    assert any("accuracy is" in reason for reason in unscaled.reasons)
    scaled = run(with_small_loss(1e-7), scaler="fixed", scaler_parameters={"loss_scale": 2.0**24},
               optimizer=Settings("sgd", lr=1e6))  # fmt: skip
    assert scaled.verdict == "pass"
    assert scaled.underflow.zero < 0.01
    assert scaled.underflow.zero_unscaled > 0.5


def test_small_gradients_of_float32_nodes_are_not_subnormal() -> None:
    """Check the gradient of b2, which is summed in float32: it is small, but keeps all its digits."""
    report = run(with_small_loss(1e-5), scaler="none", optimizer=Settings("sgd", lr=1e3), epochs=2)
    assert report.underflow.subnormal_unscaled > 0.3
    float32_only = run(with_small_loss(1e-5), policy=mixlist.load_policy(precision_mode_v2="origin"), scaler="none",
               optimizer=Settings("sgd", lr=1e3), epochs=2)  # fmt: skip
    assert float32_only.underflow.subnormal_unscaled == pytest.approx(0, abs=0.01)
    assert float32_only.underflow.zero_unscaled == 0


def test_tune_scale_finds_a_scale_that_works() -> None:
    """Rule S10.18: Advice names the scale or the lists."""
    tuned = run(with_small_loss(1e-7), scaler="fixed", scaler_parameters={"loss_scale": 2.0**44}, tune=True,
                 optimizer=Settings("sgd", lr=1e6))  # fmt: skip
    assert tuned.verdict == "fail"
    assert [tuning_run.parameters["loss_scale"] for tuning_run in tuned.scale_trials] == [
        2.0**exponent for exponent in (0, 4, 8, 10, 12, 14, 16, 20, 24, 24)
    ]
    assert tuned.scale_choice["loss_scale"] >= 2.0**20
    report = run(
        with_small_loss(1e-7), scaler="fixed", scaler_parameters=tuned.scale_choice, optimizer=Settings("sgd", lr=1e6)
    )
    assert report.verdict == "pass"


def test_tune_scale_finds_a_growth_interval_with_fewer_exceptions() -> None:
    report = run(policy=all_low(), scaler="torch", scaler_parameters={"growth_interval": 5}, epochs=30, tune=True)
    assert report.verdict == "fail"
    assert set(report.scale_choice) == {"init_scale", "growth_interval"}
    with_choice = run(policy=all_low(), scaler="torch", scaler_parameters=report.scale_choice, epochs=30)
    assert with_choice.verdict == "pass", with_choice.reasons


def test_tune_scale_counts_the_exceptions_of_later_growth() -> None:
    """Rule S10.18: no training of 150 steps shows what an interval of 100 or 149 costs in a longer one."""
    report = run(epochs=10, tune=True, runs=1)
    assert {trial.parameters.get("growth_interval") for trial in report.scale_trials[9:]} == {100}
    assert all(trial.projected_rate > 0.005 for trial in report.scale_trials[9:])
    assert report.scale_choice == {}


def test_a_scaler_without_a_scale_has_nothing_to_search() -> None:
    """Rule S10.18."""
    with pytest.raises(UsageError, match="there is nothing to search: the loss scaler none has no scale"):
        run(scaler="none", tune=True)


def test_tune_scale_recommends_what_keeps_the_limit_to_the_end() -> None:
    """Rule S10.18: the sample comes in step 50, and its gradient overflows with scales that pass 40 steps."""
    data = clusters(800)
    data["x"][0] *= -300
    options = {"data": data, "batch_size": 8, "epochs": 1, "runs": 1, "max_exception_rate": 0.001, "scaler": "fixed"}
    report = run(policy=all_low(), scaler_parameters={"loss_scale": 2.0**14}, tune=True, **options)
    assert report.runs[0].mixed.exceptions == [50]
    assert [(t.parameters["loss_scale"], t.exceptions, t.steps) for t in report.scale_trials[9:]] == [
        (2.0**14, 1, 51), (2.0**12, 1, 51), (2.0**10, 1, 51), (2.0**8, 0, 100)
    ]  # fmt: skip
    assert report.scale_choice == {"loss_scale": 2.0**8}


def test_tune_scale_recommends_nothing_if_every_scale_overflows() -> None:
    """Rule S10.18."""
    report = run(with_overflow(), mindspore_o3(), epochs=4, runs=1, tune=True)
    assert len(report.scale_trials) == 18
    assert report.scale_choice == {}


def with_overflow() -> Any:
    """Return the classifier with squares of the hidden layer that exceed the float16 range, and a division behind."""
    return classifier(replace={"[out] c = MatMul (h, w2)": "big = Constant <value_float = 1000.0> () "
                               "[blow] hb = Mul (h, big) [energy] hh = Mul (hb, hb) [root] hs = Sqrt (hh) "
                               "[back] hd = Div (hs, big) [out] c = MatMul (hd, w2)"})  # fmt: skip


def mindspore_o3() -> Policy:
    return mixlist.load_policy(ops_info="mindspore-o3")


def test_the_suggested_list_prevents_an_overflow() -> None:
    """Rule S10.18: Advice names the scale or the lists."""
    report = run(with_overflow(), mindspore_o3(), trace_overflow=True, scaler_parameters={"init_scale": 1024.0})
    assert report.verdict == "fail"
    assert report.exception_rate == 1
    assert report.trace_scale == 1
    assert {node.name for node in report.offenders} == {"energy"}
    assert report.offenders[0].kind == "overflow"
    suggested_policy = read_tuned_policy(mindspore_o3(), report.suggestion, "")
    assert suggested_policy.lists.list_of("Mul") == "black"
    with_suggestion = run(with_overflow(), suggested_policy, scaler_parameters={"init_scale": 1024.0})
    assert with_suggestion.exception_rate == 0
    assert with_suggestion.verdict == "pass", with_suggestion.reasons


def test_a_network_that_float32_cannot_train_is_inconclusive() -> None:
    """Rule S10.19: A float32 run must be something to compare with."""
    report = run(optimizer=Settings("sgd", lr=1e30), epochs=3)
    assert report.verdict == "inconclusive"
    assert len(report.reasons) == 3
    assert all("training in float32" in reason for reason in report.reasons)


def test_the_end_of_a_training_by_mindspore_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from mixlist.training.scalers import DynamicLossScaleManager

    monkeypatch.setattr(DynamicLossScaleManager, "MAX_BAD_STEPS", 5)
    data = {"x": np.zeros((40, 2), np.float32), "t": np.full((40, 2), 1e5, np.float32)}
    report = train(squares(), all_low(), data, batch_size=4, epochs=5, scaler="mindspore", tune=True)
    assert report.verdict == "fail"
    assert any("was ended: more than 5 steps in a row" in reason for reason in report.reasons)
    assert all(trial.exceptions for trial in report.scale_trials)


class Stop:
    """A progress callback that presses Ctrl-C at a step, counted from 1."""

    def __init__(self, step: int) -> None:
        self.steps_left = step

    def __call__(self, _: object) -> None:
        self.steps_left -= 1
        if not self.steps_left:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("step", "runs", "mixed_steps"), [(10, 1, 0), (160, 1, 10), (235, 2, 0), (390, 2, 15)])
def test_ctrl_c_gives_a_report_of_the_steps_so_far(step: int, runs: int, mixed_steps: int) -> None:
    """Rule S10.17: Verdict of train."""
    report = run(progress=Stop(step))
    assert (report.verdict, report.complete) == ("fail", False)
    assert report.reasons[0] == f"interrupted after {runs - 1} of 3 runs"
    assert len(report.runs) == runs
    assert len(report.runs[-1].mixed.loss) == mixed_steps
    assert report.runs[-1].mixed.metric is None
    uninterrupted = run()
    assert report.runs[-1].mixed.loss == uninterrupted.runs[runs - 1].mixed.loss[:mixed_steps]
    assert report.runs[:-1] == uninterrupted.runs[: runs - 1]
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize("function", ["advise_on_overflow", "tune_scale"])
def test_ctrl_c_after_the_trainings_keeps_their_report(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"mixlist.training.run.{function}", interrupt)
    report = run(scaler_parameters={"init_scale": 2.0**30}, trace_overflow=True, tune=True)
    assert (report.verdict, report.complete, len(report.runs)) == ("fail", False, 3)
    assert report.reasons[0].startswith("interrupted before")
    assert report.start_up_rate > 0


def test_a_scale_above_the_float32_range_is_an_exception() -> None:
    report = run(scaler_parameters={"init_scale": 1e300}, epochs=1, trace_overflow=True)
    assert report.exception_rate == 1
    json.dumps(report.to_json(), allow_nan=False)


def test_without_evaluation_data_the_metric_uses_the_training_data() -> None:
    report = run(eval_data=None, epochs=1)
    assert any("measured on the training data" in warning.message for warning in report.warnings)
    assert report.runs[0].mixed.metric is not None


def test_other_metrics() -> None:
    assert run(metric="loss", epochs=1).higher is False
    assert run(metric="logits", epochs=1).higher is True
    report = train(squares(), mixed(), {"x": np.ones((8, 2)), "t": np.zeros((8, 2))}, batch_size=4, epochs=4)
    assert (report.metric, report.higher) == ("loss", False)


def test_a_loss_scale_of_rank_1_is_traced() -> None:
    """Declare ``loss_scale`` as float32[1], which is allowed."""
    step = classifier()
    next(
        value for value in step.graph.input if value.name == "loss_scale"
    ).type.tensor_type.shape.dim.add().dim_value = 1
    report = run(step, epochs=1, scaler="fixed", scaler_parameters={"loss_scale": 2.0**30}, trace_overflow=True)
    assert report.trace_scale == 2.0**30 and report.offenders


def test_an_error_leaves_no_session_open(monkeypatch: pytest.MonkeyPatch) -> None:
    open_sessions = record_open_sessions(monkeypatch)

    def fail(_: mixlist.Progress) -> None:
        assert len(open_sessions) == 3, "steps in float32 and mixed, and the forward pass in float32"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(progress=fail)
    assert not open_sessions


def test_labels_outside_the_classes_are_refused() -> None:
    """Refuse such a label before the training, even if it is the last one of the data."""
    data = clusters(seed=4)
    data["y"][-1] = 3
    with pytest.raises(UsageError, match=r"the evaluation data: the largest label in 'y' is 3.*3 classes"):
        run(eval_data=data)
    with pytest.raises(UsageError, match="none counts"):
        run(eval_data={**data, "y": np.full_like(data["y"], -1)})


def test_a_training_without_low_nodes_has_a_warning() -> None:
    origin = mixlist.load_policy(precision_mode_v2="origin")
    assert "ML605" in [warning.code for warning in run(policy=origin, epochs=1).warnings]
    assert "ML605" not in [warning.code for warning in run(epochs=1).warnings]


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_step_graph_may_have_low_precision_inputs(low: str, tmp_path: Path) -> None:
    """Compare with a graph that has a float32 input. On the CPU both compute in float32, and a state can be resumed."""
    cast_graph = model(f"agraph ({low}[N, 2] x) => (float[N, 2] raised) {{ raised = Cast <to = 1> (x) }}").graph
    low_input, float_input = squares(), squares()
    for node in low_input.graph.node:
        node.input[:] = ["raised" if name == "x" else name for name in node.input]
    low_input.graph.node.insert(0, cast_graph.node[0])
    next(value for value in low_input.graph.input if value.name == "x").CopyFrom(cast_graph.input[0])
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
    losses = [[(seed_run.float32.loss, seed_run.mixed.loss) for seed_run in report.runs] for report in reports]
    assert losses[0] == losses[1] == losses[2]


def test_a_warning_of_the_lists_names_its_severity_once(tmp_path: Path) -> None:
    """Reports write the severity before each warning themselves."""
    lists = tmp_path / "modify.json"
    lists.write_text('{"white-list": {"to-add": ["NoSuchOp"]}}')
    report = run(policy=mixlist.load_policy(mixlist=lists), epochs=1)
    texts = cast("list[str]", report.to_json()["warnings"])
    assert any("ML406" in text for text in texts)
    assert not any("warning ML" in text for text in texts)


def test_scipy_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixlist.installed_runtime.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="scipy is not installed") as error:
        run()
    assert error.value.hint == "pip install scipy"
