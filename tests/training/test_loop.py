"""Steps, skipped steps and what counts them; the order of batches; random inputs."""

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
from mixlist.training.step_graph import Parameter, read_step
from mixlist.training.step_session import make_float32_session
from tests.support.training_network import noisy

from .test_reference import samples, training

ADAM = Settings("adam", lr=0.1, schedule="linear")


@pytest.mark.parametrize("advance", [False, True])
def test_skipped_steps_and_what_counts_them(advance: bool) -> None:
    """The learning rate and Adam's count stand still, or go on with --advance-on-skip. Rule S10.4."""
    ours = training("torch", ADAM, parameters={"init_scale": 2.0**22}, steps=20, advance_on_skip=advance)
    rates: list[tuple[float, int]] = []
    apply = ours.optimizer.apply

    def watched(parameters: Any, gradient: Any, rate: float) -> None:
        apply(parameters, gradient, rate)
        rates.append((rate, ours.optimizer.updates))

    ours.optimizer.apply = watched
    ours.run(20)
    made = [step for step in range(20) if step not in ours.history.skipped]
    assert 2 < len(made) < 18
    counts = made if advance else range(len(made))
    assert rates == [(pytest.approx(0.1 * (1 - count / 20)), count + 1) for count in counts]
    assert ours.global_step == (20 if advance else len(made))


def test_a_scaler_that_checks_nothing_applies_bad_steps() -> None:
    parameters = {"loss_scale": 2.0**40, "enable_overflow_check": False}
    ours = training("fixed", parameters=parameters, steps=3)
    ours.run(3)
    assert ours.history.skipped == []
    assert 0 in ours.history.exceptions
    assert not all_finite(ours.parameters.flat)


def test_nnabla_tries_the_same_batch_again() -> None:
    ours = training("nnabla", parameters={"scale": 2.0**22}, steps=4)
    ours.run(1)
    assert ours.history.skipped == []
    assert ours.history.exceptions == [0]
    assert ours.history.tries > 2
    assert ours.history.scale == [2.0 ** (22 - ours.history.tries)]
    assert len(ours.history.loss) == ours.step == ours.global_step == 1


def test_mindspore_ends_a_training_that_only_overflows() -> None:
    ours = training("mindspore", steps=1100, data={"x": samples()["x"], "t": np.full((40, 2), 1e30, np.float32)})
    with pytest.raises(ScalerError, match="1000"):
        ours.run(1100)


def test_where_exceptions_arise_and_what_the_first_bad_step_read() -> None:
    ours = training("torch", parameters={"init_scale": 2.0**24}, steps=4)
    before = ours.parameters.flat.copy()
    ours.run(4)
    assert set(ours.history.bad) <= {"w1", "b1", "w2", "b2"}
    assert ours.history.bad["w2"] == len(ours.history.exceptions)
    assert ours.first_bad_feed is not None
    assert float(ours.first_bad_feed["loss_scale"]) == 2.0**24
    assert (
        np.concatenate([ours.first_bad_feed[n].ravel() for n in ("w1", "b1", "w2", "b2")]).tobytes() == before.tobytes()
    )
    assert (ours.first_bad_feed["x"] == ours.dataset.arrays["x"][ours.order.indices(0)]).all()


def test_every_kind_of_not_finite_is_seen() -> None:
    """Rule S10.3: An exception is a step with a gradient that is not finite."""
    for value in (np.nan, np.inf, -np.inf):
        for at in (0, 5, 9):
            array = np.ones(10, np.float32)
            array[at] = value
            assert not all_finite(array)
    assert all_finite(np.array([3e38, -3e38], np.float32))
    assert all_finite(np.array([], np.float32))


def test_batches_depend_on_seed_and_step_alone() -> None:
    one, other = BatchOrder(50, 8, 3), BatchOrder(50, 8, 3)
    for step in (17, 2, 40, 0, 2):
        assert (one.indices(step) == other.indices(step)).all()
    assert (BatchOrder(50, 8, 3).indices(40) == one.indices(40)).all()
    assert (BatchOrder(50, 8, 4).indices(0) != one.indices(0)).any()
    epochs = [np.concatenate([one.indices(epoch * 6 + k) for k in range(6)]) for epoch in range(3)]
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 48
    assert (epochs[0] != epochs[1]).any()


def test_random_inputs_depend_on_seed_and_step_alone() -> None:
    graph = read_step(noisy())
    drawn = draw_random_inputs(graph, 1, 5, 6)
    assert drawn["keep"].shape == (6, 2)
    assert set(np.unique(drawn["keep"])) <= {0.0, 1.0}
    assert (draw_random_inputs(graph, 1, 5, 6)["keep"] == drawn["keep"]).all()
    many = draw_random_inputs(graph, 1, 6, 4000)["keep"]
    assert many.mean() == pytest.approx(0.75, abs=0.03)
    assert (many[:6] != draw_random_inputs(graph, 2, 6, 4000)["keep"][:6]).any()
    assert (neutral_random_inputs(graph, 3)["keep"] == 0.75).all()


@pytest.mark.parametrize(
    ("told", "off"),
    [('"kind": "bernoulli", "p": 0.75', 0.75), ('"kind": "normal", "std": 2', 0), ('"kind": "normal", "mean": 3', 3),
     ('"kind": "uniform"', 0.5), ('"kind": "uniform", "low": -1, "high": 3', 1), ('"kind": "uniform", "bound": 2', 0)],
)  # fmt: skip
def test_noise_is_switched_off_by_its_mean(told: str, off: float) -> None:
    model = noisy()
    model.metadata_props[0].value = f"{{{told}}}"
    assert (neutral_random_inputs(read_step(model), 3)["keep"] == off).all()


def test_noise_of_no_known_kind() -> None:
    model = noisy()
    for text in ('{"kind": "poisson"}', '{"mean": 1}', '{"kind": "normal", "std": "wide"}'):
        model.metadata_props[0].value = text
        with pytest.raises(ModelError, match="the distribution of 'keep'"):
            draw_random_inputs(read_step(model), 0, 0, 3)


def test_a_training_with_noise_goes_on_anywhere() -> None:
    graph = read_step(noisy())
    data = Dataset(graph, samples(), "data")

    def make() -> Training:
        session = make_float32_session(graph, "cpu", 1)
        return Training(session, data, ADAM, batch_size=4, steps=12, seed=1, scaler=make_scaler("torch"))

    whole, first, second = make(), make(), make()
    whole.run(12)
    first.run(5)
    second.restore(first.state())
    second.run(12)
    assert second.history == whole.history
    assert second.parameters.flat.tobytes() == whole.parameters.flat.tobytes()
    assert second.buffers["seen"].tobytes() == whole.buffers["seen"].tobytes()
    assert whole.buffers["seen"] == 12
    assert whole.buffers["seen"].dtype == np.int64


KINDS: list[tuple[dict[str, Any], tuple[float, float]]] = [
    ({"kind": "zeros"}, (0, 0)),
    ({"kind": "ones"}, (1, 0)),
    ({"kind": "constant", "value": 0.5}, (0.5, 0)),
    ({"kind": "uniform", "bound": 2}, (0, 2 / 3**0.5)),
    ({"kind": "uniform", "bound": 1, "mean": 3}, (3, 1 / 3**0.5)),
    ({"kind": "normal", "std": 0.5}, (0, 0.5)),
    ({"kind": "normal", "std": 2, "mean": -1}, (-1, 2)),
    ({}, (0, 100**-0.5 / 3**0.5)),
]


@pytest.mark.parametrize(("what", "expected"), KINDS, ids=lambda value: str(value))
def test_first_values(what: dict[str, Any], expected: tuple[float, float]) -> None:
    drawn = draw_initial_value(Parameter("w", (200, 100), what), 0, 0)
    assert drawn.dtype == np.float32
    mean, deviation = expected
    assert drawn.mean() == pytest.approx(mean, abs=0.05 * (deviation or 1e-9))
    assert drawn.std() == pytest.approx(deviation, rel=0.03, abs=1e-9)
    assert (draw_initial_value(Parameter("w", (200, 100), what), 0, 0) == drawn).all()
    if deviation:
        assert (draw_initial_value(Parameter("w", (200, 100), what), 0, 1) != drawn).any()
        assert (draw_initial_value(Parameter("w", (200, 100), what), 1, 0) != drawn).any()


def test_first_values_by_name_and_of_integers() -> None:
    assert (draw_initial_value(Parameter("norm.weight", (3,), {}), 0, 0) == 1).all()
    assert (draw_initial_value(Parameter("norm.bias", (3,), {}), 0, 0) == 0).all()
    drawn = draw_initial_value(Parameter("seen", (3,), {"kind": "values", "values": [1, 2, 3]}, 7), 0, 0)
    assert (drawn.dtype, drawn.tolist()) == (np.int64, [1, 2, 3])
