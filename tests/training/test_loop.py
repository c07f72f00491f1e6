"""Tests of single trainings: skipped and repeated steps, the order of batches, random inputs, initial values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixlist.errors import ModelError
from mixlist.training.dataset import BatchOrder, Dataset
from mixlist.training.loop import Training, all_finite
from mixlist.training.optimizers import Settings
from mixlist.training.random_values import draw_initial_value, draw_random_inputs, neutral_random_inputs
from mixlist.training.scalers import ScalerError, make_scaler
from mixlist.training.step_graph import Parameter, load_step_graph
from mixlist.training.step_session import make_float32_session
from tests.support.training_network import noisy, samples

from .test_reference import make_training

ADAM = Settings("adam", lr=0.1, schedule="linear")


@pytest.mark.parametrize("advance", [False, True])
def test_a_skipped_step_advances_the_learning_rate_only_on_request(advance: bool) -> None:
    """Check the learning rate and Adam's step count of each update, with and without --advance-on-skip. Rule S10.4."""
    training = make_training("torch", ADAM, parameters={"init_scale": 2.0**22}, steps=20, advance_on_skip=advance)
    updates: list[tuple[float, int]] = []  # learning rate, and Adam's step count
    apply = training.optimizer.apply

    def record_update(parameters: Any, gradient: Any, rate: float) -> None:
        apply(parameters, gradient, rate)
        updates.append((rate, training.optimizer.updates))

    training.optimizer.apply = record_update
    training.run(20)
    applied_steps = [step for step in range(20) if step not in training.history.skipped]
    assert 2 < len(applied_steps) < 18
    counts = applied_steps if advance else range(len(applied_steps))
    assert updates == [(pytest.approx(0.1 * (1 - count / 20)), count + 1) for count in counts]
    assert training.global_step == (20 if advance else len(applied_steps))


def test_a_scaler_without_overflow_check_applies_bad_steps() -> None:
    parameters = {"loss_scale": 2.0**40, "enable_overflow_check": False}
    training = make_training("fixed", parameters=parameters, steps=3)
    training.run(3)
    assert training.history.skipped == []
    assert 0 in training.history.exceptions
    assert not all_finite(training.parameters.flat)


def test_nnabla_tries_the_next_batch_and_counts_each_try() -> None:
    """Rule S10.11: Scaler nnabla."""
    training = make_training("nnabla", parameters={"scale": 2.0**22}, steps=12)
    training.run(12)
    history = training.history
    assert history.exceptions == history.skipped
    assert history.exceptions[:3] == [0, 1, 2] and len(history.exceptions) == history.tries < 12
    bad_so_far = [sum(bad < step for bad in history.exceptions) for step in range(12)]
    assert history.scale == [2.0 ** (22 - bad) for bad in bad_so_far]
    assert (len(history.loss), training.step, training.global_step) == (12, 12, 12 - history.tries)
    assert len(set(history.loss[:3])) == 3  # other batches


def test_mindspore_ends_a_training_that_always_overflows() -> None:
    training = make_training(
        "mindspore", steps=1100, data={"x": samples()["x"], "t": np.full((40, 2), 1e30, np.float32)}
    )
    with pytest.raises(ScalerError, match="1000"):
        training.run(1100)


def test_exceptions_are_counted_by_parameter_and_the_first_feed_is_kept() -> None:
    training = make_training("torch", parameters={"init_scale": 2.0**24}, steps=4)
    before = training.parameters.flat.copy()
    training.run(4)
    assert set(training.history.bad) <= {"w1", "b1", "w2", "b2"}
    assert training.history.bad["w2"] == len(training.history.exceptions)
    assert training.first_bad_feed is not None
    assert float(training.first_bad_feed["loss_scale"]) == 2.0**24
    assert (
        np.concatenate([training.first_bad_feed[n].ravel() for n in ("w1", "b1", "w2", "b2")]).tobytes()
        == before.tobytes()
    )
    assert (training.first_bad_feed["x"] == training.dataset.arrays["x"][training.order.indices(0)]).all()


def test_all_finite_finds_every_kind_of_value_that_is_not_finite() -> None:
    """Rule S10.3: An exception is a step with a gradient that is not finite."""
    for value in (np.nan, np.inf, -np.inf):
        for position in (0, 5, 9):
            array = np.ones(10, np.float32)
            array[position] = value
            assert not all_finite(array)
    assert all_finite(np.array([3e38, -3e38], np.float32))
    assert all_finite(np.array([], np.float32))


def test_batches_depend_on_seed_and_step_alone() -> None:
    fifty = Dataset(load_step_graph(noisy()), samples(50), "data")
    order, same_order = BatchOrder(fifty, 8, 3), BatchOrder(fifty, 8, 3)
    for step in (17, 2, 40, 0, 2):
        assert (order.indices(step) == same_order.indices(step)).all()
    assert (BatchOrder(fifty, 8, 3).indices(40) == order.indices(40)).all()
    assert (BatchOrder(fifty, 8, 4).indices(0) != order.indices(0)).any()
    epochs = [np.concatenate([order.indices(epoch * 6 + batch) for batch in range(6)]) for epoch in range(3)]
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 48  # six batches of eight samples, none twice
    assert (epochs[0] != epochs[1]).any()


def rows_of(count: int) -> dict[str, Any]:
    """Return the arrays of a batch of so many samples."""
    return {"x": np.zeros((count, 2), np.float32)}


def test_random_inputs_depend_on_seed_and_step_alone() -> None:
    graph = load_step_graph(noisy())
    drawn = draw_random_inputs(graph, 1, 5, rows_of(6))
    assert drawn["keep"].shape == (6, 2)
    assert set(np.unique(drawn["keep"])) <= {0.0, 1.0}
    assert (draw_random_inputs(graph, 1, 5, rows_of(6))["keep"] == drawn["keep"]).all()
    many = draw_random_inputs(graph, 1, 6, rows_of(4000))["keep"]
    assert many.mean() == pytest.approx(0.75, abs=0.03)
    assert (many[:6] != draw_random_inputs(graph, 2, 6, rows_of(4000))["keep"][:6]).any()
    assert (neutral_random_inputs(graph, rows_of(3))["keep"] == 0.75).all()


@pytest.mark.parametrize(
    ("distribution", "off"),
    [('"kind": "bernoulli", "p": 0.75', 0.75), ('"kind": "normal", "std": 2', 0), ('"kind": "normal", "mean": 3', 3),
     ('"kind": "uniform"', 0.5), ('"kind": "uniform", "low": -1, "high": 3', 1), ('"kind": "uniform", "bound": 2', 0)],
)  # fmt: skip
def test_the_mean_switches_a_random_input_off(distribution: str, off: float) -> None:
    model = noisy()
    model.metadata_props[0].value = f"{{{distribution}}}"
    assert (neutral_random_inputs(load_step_graph(model), rows_of(3))["keep"] == off).all()


@pytest.mark.parametrize(
    "distribution", ['"kind": "ones"', '"kind": "zeros"', '"kind": "constant", "value": 3',
                     '"kind": "values", "values": [1, 2, 3, 4, 5, 6]'],
)  # fmt: skip
def test_an_input_that_is_not_random_has_its_values_in_an_evaluation(distribution: str) -> None:
    model = noisy()
    model.metadata_props[0].value = f"{{{distribution}}}"
    graph = load_step_graph(model)
    neutral, drawn = neutral_random_inputs(graph, rows_of(3)), draw_random_inputs(graph, 0, 0, rows_of(3))
    np.testing.assert_array_equal(neutral["keep"], drawn["keep"])
    model.metadata_props[0].value = f'{{{distribution}, "off": 0.5}}'
    assert (neutral_random_inputs(load_step_graph(model), rows_of(3))["keep"] == 0.5).all()


def test_an_invalid_distribution_is_refused() -> None:
    model = noisy()
    for text in ('{"kind": "poisson"}', '{"mean": 1}', '{"kind": "normal", "std": "wide"}'):
        model.metadata_props[0].value = text
        with pytest.raises(ModelError, match="the distribution of 'keep'"):
            draw_random_inputs(load_step_graph(model), 0, 0, rows_of(3))


def test_a_restored_training_has_the_same_random_inputs() -> None:
    graph = load_step_graph(noisy())
    data = Dataset(graph, samples(), "data")

    def new_training() -> Training:
        session = make_float32_session(graph, "cpu", 1)
        return Training(session, data, ADAM, batch_size=4, steps=12, seed=1, scaler=make_scaler("torch"))

    uninterrupted, interrupted, restored = new_training(), new_training(), new_training()
    uninterrupted.run(12)
    interrupted.run(5)
    restored.restore(interrupted.state())
    restored.run(12)
    assert restored.history == uninterrupted.history
    assert restored.parameters.flat.tobytes() == uninterrupted.parameters.flat.tobytes()
    assert restored.buffers["seen"].tobytes() == uninterrupted.buffers["seen"].tobytes()
    assert uninterrupted.buffers["seen"] == 12
    assert uninterrupted.buffers["seen"].dtype == np.int64


DISTRIBUTIONS: list[tuple[dict[str, Any], tuple[float, float]]] = [  # with the expected mean and deviation
    ({"kind": "zeros"}, (0, 0)),
    ({"kind": "ones"}, (1, 0)),
    ({"kind": "constant", "value": 0.5}, (0.5, 0)),
    ({"kind": "uniform", "bound": 2}, (0, 2 / 3**0.5)),
    ({"kind": "uniform", "bound": 1, "mean": 3}, (3, 1 / 3**0.5)),
    ({"kind": "normal", "std": 0.5}, (0, 0.5)),
    ({"kind": "normal", "std": 2, "mean": -1}, (-1, 2)),
    ({}, (0, 100**-0.5 / 3**0.5)),
]


@pytest.mark.parametrize(("distribution", "expected"), DISTRIBUTIONS, ids=lambda value: str(value))
def test_initial_values_have_the_mean_and_deviation_of_their_distribution(
    distribution: dict[str, Any], expected: tuple[float, float]
) -> None:
    drawn = draw_initial_value(Parameter("w", (200, 100), distribution), 0, 0)
    assert drawn.dtype == np.float32
    mean, deviation = expected
    assert drawn.mean() == pytest.approx(mean, abs=0.05 * (deviation or 1e-9))
    assert drawn.std() == pytest.approx(deviation, rel=0.03, abs=1e-9)
    assert (draw_initial_value(Parameter("w", (200, 100), distribution), 0, 0) == drawn).all()
    if deviation:
        assert (draw_initial_value(Parameter("w", (200, 100), distribution), 0, 1) != drawn).any()
        assert (draw_initial_value(Parameter("w", (200, 100), distribution), 1, 0) != drawn).any()


def test_initial_values_of_vectors_and_integer_buffers() -> None:
    assert (draw_initial_value(Parameter("norm.weight", (3,), {}), 0, 0) == 1).all()
    assert (draw_initial_value(Parameter("norm.bias", (3,), {}), 0, 0) == 0).all()
    drawn = draw_initial_value(Parameter("seen", (3,), {"kind": "values", "values": [1, 2, 3]}, 7), 0, 0)
    assert (drawn.dtype, drawn.tolist()) == (np.int64, [1, 2, 3])
