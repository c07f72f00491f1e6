"""Tests that compare emulated steps with numpy, bit for bit, and that check the order within a step (Rule S10.2).

All sums of the network have two terms, and the product of two low-precision numbers is exact in float32. So each result
is rounded once, and the order of operations cannot change it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mixlist
from mixlist.training.dataset import Dataset
from mixlist.training.loop import Training
from mixlist.training.optimizers import Settings
from mixlist.training.options import TrainOptions
from mixlist.training.scalers import make_scaler
from mixlist.training.step_graph import load_step_graph
from mixlist.training.step_session import make_float32_session, make_mixed_session
from tests.support.training_network import all_low, mixed, samples, squares

Rounding = Callable[[Any], Any]
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SGD = Settings("sgd", lr=0.05)


def make_rounding(low: str) -> Rounding:
    """Return a function that rounds float32 values to a low type."""
    return lambda value: np.asarray(value, np.float32).astype(TYPES[low]).astype(np.float32)


def run_reference(parameters: dict[str, Any], x: Any, t: Any, scale: float, r: Rounding) -> tuple[Any, dict[str, Any]]:
    """Return the loss and the scaled gradients, node by node: low nodes round their inputs and outputs with ``r``."""
    w1, b1, w2, b2, x = (r(value) for value in (*(parameters[name] for name in ("w1", "b1", "w2", "b2")), x))
    pre = r(r(x @ w1) + b1)
    h = np.maximum(pre, np.float32(0))
    logits = r(r(h @ w2) + b2)
    e = logits - t
    loss = (e * e).mean(axis=1).mean()
    gz = e * np.float32(scale) * np.float32(0.5)
    low_gz = r(gz)
    gpre = np.where(pre > 0, r(low_gz @ w2.T), np.float32(0))
    grads = {"w1": r(x.T @ gpre), "b1": gpre.sum(axis=0), "w2": r(h.T @ low_gz), "b2": gz.sum(axis=0)}
    return loss, grads


def make_initial_values(seed: int = 0, size: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"w1": (2, 2), "b1": (2,), "w2": (2, 2), "b2": (2,)}
    return {name: rng.normal(0, size, shape).astype(np.float32) for name, shape in shapes.items()}


def make_training(
    scaler: str = "none", settings: Settings = SGD, policy: Any = None, data: Any = None, **changes: Any
) -> Any:
    """Return a mixed training of the squares network; ``parameters`` are those of the scaler."""
    graph = load_step_graph(squares())
    dataset = Dataset(graph, data or samples(), "data")
    loss_scaler = make_scaler(scaler, **changes.pop("parameters", {}))
    session = make_mixed_session(graph, policy or mixed(), TrainOptions())
    options: dict[str, Any] = {"batch_size": 2, "steps": 60, "seed": 3, "scaler": loss_scaler, **changes}
    return Training(session, dataset, settings, initial_values=make_initial_values(), **options)


@pytest.mark.parametrize("low", TYPES)
def test_sixty_steps_equal_numpy_bit_for_bit(low: str) -> None:
    """Train with torch's scaler from a scale that overflows. The rule of the scaler is repeated here in numpy."""
    training = make_training("torch", policy=mixed(low), parameters={"init_scale": 2.0**17, "growth_interval": 6})
    parameters, r = make_initial_values(), make_rounding(low)
    scale, good_steps, losses, scales, skipped = 2.0**17, 0, [], [], []
    for step in range(60):
        rows = training.order.indices(step)
        with np.errstate(all="ignore"):
            batch = training.dataset.batch(rows)
            loss, gradients = run_reference(parameters, batch["x"], batch["t"], scale, r)
        losses.append(float(loss))
        scales.append(scale)
        gradients = {name: gradient / np.float32(scale) for name, gradient in gradients.items()}
        if not all(np.isfinite(gradient).all() for gradient in gradients.values()):
            skipped.append(step)
            scale, good_steps = scale / 2, 0
            continue
        parameters = {name: parameters[name] - gradient * np.float32(0.05) for name, gradient in gradients.items()}
        good_steps += 1
        if good_steps == 6:
            scale, good_steps = scale * 2, 0
    training.run(60)
    assert training.history.loss == losses
    assert training.history.scale == scales
    assert training.history.skipped == training.history.exceptions == skipped
    assert bool(skipped) == (low == "float16")
    for name, value in parameters.items():
        assert training.parameters.views[name].tobytes() == value.tobytes(), name


def test_float32_steps_equal_numpy() -> None:
    graph, feed = load_step_graph(squares()), {**make_initial_values(), **samples(2)}
    session = make_float32_session(graph, "cpu", None)
    result = session.step(feed, 8.0)
    loss, gradients = run_reference(
        make_initial_values(), feed["x"], feed["t"], 8.0, lambda value: np.asarray(value, np.float32)
    )
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
    for name, view in session.gradient_arrays.views.items():
        np.testing.assert_allclose(view, gradients[name], rtol=1e-6, atol=1e-6)


def test_gradients_equal_finite_differences() -> None:
    """Check the hand-written backward pass of the test network with differences of the float32 loss."""
    session = make_float32_session(load_step_graph(squares()), "cpu", None)
    parameters, batch = make_initial_values(), samples(2)
    session.step({**parameters, **batch}, 1.0)
    gradients = {name: view.copy() for name, view in session.gradient_arrays.views.items()}
    for name, value in parameters.items():
        for index in np.ndindex(value.shape):
            losses = []
            for shift in (1e-2, -1e-2):
                moved = {**parameters, name: value.copy()}
                moved[name][index] += shift
                losses.append(session.step({**moved, **batch}, 1.0).loss)
            assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(gradients[name][index], abs=3e-3)


# The order within a step, in seven points.


def test_1_parameters_are_kept_in_float32() -> None:
    """Make updates that are too small for float16: they still add up."""
    training = make_training(settings=replace(SGD, lr=1e-6))
    before = {name: view.copy() for name, view in training.parameters.views.items()}
    training.run(20)
    assert training.parameters.flat.dtype == np.float32
    w2 = training.parameters.views["w2"]
    assert (w2 != before["w2"]).all()
    assert (w2.astype(np.float16) == before["w2"].astype(np.float16)).all()


def test_2_low_nodes_read_parameters_in_low_precision() -> None:
    graph, batch = load_step_graph(squares()), samples(2)
    session = make_mixed_session(graph, mixed(), TrainOptions())
    result = session.step({**make_initial_values(), **batch}, 16.0)
    loss, gradient = result.loss, result.gradient.copy()  # the next step overwrites the array
    rounded = {name: make_rounding("float16")(value) for name, value in make_initial_values().items()}
    assert any((rounded[name] != value).any() for name, value in make_initial_values().items())
    rounded_result = session.step({**rounded, **batch}, 16.0)
    assert (rounded_result.loss, rounded_result.gradient.tobytes()) == (loss, gradient.tobytes())
    nodes = mixlist.rewrite(squares(), mixlist.resolve(squares(), mixed())).model.graph.node
    assert {node.input[0] for node in nodes if node.op_type == "Cast"} >= {"w1", "b1", "w2", "b2", "x"}


def test_3_the_loss_stays_in_float32_if_the_lists_keep_it() -> None:
    precisions = {node.name: node.precision for node in mixlist.resolve(squares(), mixed()).nodes}
    assert {precisions[name] for name in ("error", "square", "mean_1", "mean_0", "scaled", "gz")} == {"float32"}
    assert {precisions[name] for name in ("hidden", "out", "out_bias", "of_w1", "of_w2", "gh")} == {"float16"}
    losses = {}
    for name, policy in {"high": mixed(), "low": all_low()}.items():
        result = make_mixed_session(load_step_graph(squares()), policy, TrainOptions()).step(
            {**make_initial_values(), **samples(2)}, 1.0
        )
        losses[name] = np.float32(result.loss)
    assert losses["low"] == make_rounding("float16")(losses["low"])
    assert losses["high"] != make_rounding("float16")(losses["high"])


def test_4_the_loss_is_scaled_before_the_backward_pass() -> None:
    """Scale gradients that are too small for float16. Scaling after the backward pass would be too late. Rule S10.2."""
    session = make_mixed_session(load_step_graph(squares()), mixed(), TrainOptions())
    data = samples(2, size=1e-5)
    feed = {**make_initial_values(size=1e-2), **data, "b2": data["t"][0] + np.float32(1e-5)}
    session.step(feed, 1.0)
    assert not session.gradient_arrays.views["w1"].any()
    session.step(feed, 2.0**20)
    assert session.gradient_arrays.views["w1"].any()


def test_5_low_nodes_compute_gradients_that_are_returned_as_float32() -> None:
    session = make_mixed_session(load_step_graph(squares()), mixed(), TrainOptions())
    session.step({**make_initial_values(), **samples(2)}, 4.0)
    for name in ("w1", "w2"):
        view = session.gradient_arrays.views[name]
        assert view.dtype == np.float32
        assert (view == make_rounding("float16")(view)).all()
    model = mixlist.rewrite(squares(), mixlist.resolve(squares(), mixed())).model
    assert {output.type.tensor_type.elem_type for output in model.graph.output} == {1}


def test_6_gradients_are_divided_by_the_scale() -> None:
    """Train with two scales that neither overflow nor underflow: the parameters are equal. Rule S10.2."""
    final_parameters = []
    for scale in (1.0, 64.0):
        training = make_training("fixed", parameters={"loss_scale": scale})
        training.run(20)
        assert not training.history.exceptions
        final_parameters.append(training.parameters.flat.tobytes())
    assert final_parameters[0] == final_parameters[1]


def test_7_a_bad_step_changes_nothing_and_a_good_step_the_parameters() -> None:
    """Rule S10.4: A skipped step changes nothing."""
    training = make_training("torch", parameters={"init_scale": 2.0**24})
    before = training.parameters.flat.copy()
    training.run(1)
    assert training.history.skipped == [0]
    assert training.parameters.flat.tobytes() == before.tobytes()
    training.run(40)
    assert len(training.history.skipped) < 20
    assert (training.parameters.flat != before).all()
