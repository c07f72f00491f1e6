"""Emulated steps against numpy, bit for bit, and every line of the order within a step.

All sums of the network have two terms and every product of two low numbers is exact in float32, so each result has one
rounding and no order of operations can change it.
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
from mixlist.training.scalers import make_scaler
from mixlist.training.step_graph import read_step
from mixlist.training.step_session import make_float32_session, make_mixed_session
from tests.support.training_network import all_low, mixed, squares

Rounding = Callable[[Any], Any]
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SGD = Settings("sgd", lr=0.05)


def rounding(low: str) -> Rounding:
    return lambda value: np.asarray(value, np.float32).astype(TYPES[low]).astype(np.float32)


def reference(p: dict[str, Any], x: Any, t: Any, scale: float, r: Rounding) -> tuple[Any, dict[str, Any]]:
    """Loss and scaled gradients, node by node: low nodes read rounded values and round what they make."""
    w1, b1, w2, b2, x = (r(v) for v in (p["w1"], p["b1"], p["w2"], p["b2"], x))
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


def start(seed: int = 0, size: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"w1": (2, 2), "b1": (2,), "w2": (2, 2), "b2": (2,)}
    return {name: rng.normal(0, size, shape).astype(np.float32) for name, shape in shapes.items()}


def samples(count: int = 40, size: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {name: rng.normal(0, size, (count, 2)).astype(np.float32) for name in ("x", "t")}


def training(scaler: str = "none", settings: Settings = SGD, policy: Any = None, data: Any = None, **more: Any) -> Any:
    graph = read_step(squares())
    rules = policy or mixed()
    held = Dataset(graph, data or samples(), "data")
    initial_values = more.pop("first_values", None) or start()
    made = make_scaler(scaler, **more.pop("parameters", {}))
    session = make_mixed_session(graph, rules, "cpu", None)
    options: dict[str, Any] = {"batch_size": 2, "steps": 60, "seed": 3, "scaler": made, **more}
    return Training(session, held, settings, initial_values=initial_values, **options)


@pytest.mark.parametrize("low", TYPES)
def test_sixty_steps_equal_numpy_bit_for_bit(low: str) -> None:
    """With torch's scaler from a scale that overflows: its rule is written out here once more."""
    ours = training("torch", policy=mixed(low), parameters={"init_scale": 2.0**17, "growth_interval": 6})
    p, r = start(), rounding(low)
    scale, good, losses, scales, skipped = 2.0**17, 0, [], [], []
    for step in range(60):
        rows = ours.order.indices(step)
        with np.errstate(all="ignore"):
            loss, grads = reference(p, ours.dataset.arrays["x"][rows], ours.dataset.arrays["t"][rows], scale, r)
        losses.append(float(loss))
        scales.append(scale)
        grads = {name: g / np.float32(scale) for name, g in grads.items()}
        if not all(np.isfinite(g).all() for g in grads.values()):
            skipped.append(step)
            scale, good = scale / 2, 0
            continue
        p = {name: p[name] - g * np.float32(0.05) for name, g in grads.items()}
        good += 1
        if good == 6:
            scale, good = scale * 2, 0
    ours.run(60)
    assert ours.history.loss == losses
    assert ours.history.scale == scales
    assert ours.history.skipped == ours.history.exceptions == skipped
    assert bool(skipped) == (low == "float16")
    for name, value in p.items():
        assert ours.parameters.views[name].tobytes() == value.tobytes(), name


def test_float32_steps_equal_numpy() -> None:
    graph, feed = read_step(squares()), {**start(), **samples(2)}
    made = make_float32_session(graph, "cpu", None)
    stepped = made.step(feed, 8.0)
    loss, grads = reference(start(), feed["x"], feed["t"], 8.0, lambda v: np.asarray(v, np.float32))
    np.testing.assert_allclose(stepped.loss, loss, rtol=1e-6)
    for name, view in made.gradient.views.items():
        np.testing.assert_allclose(view, grads[name], rtol=1e-6, atol=1e-6)


def test_gradients_are_those_of_the_loss() -> None:
    """The hand-written backward pass, by finite differences of the float32 step."""
    session = make_float32_session(read_step(squares()), "cpu", None)
    p, batch = start(), samples(2)
    session.step({**p, **batch}, 1.0)
    told = {name: view.copy() for name, view in session.gradient.views.items()}
    for name, value in p.items():
        for at in np.ndindex(value.shape):
            ends = []
            for shift in (1e-2, -1e-2):
                moved = {**p, name: value.copy()}
                moved[name][at] += shift
                ends.append(session.step({**moved, **batch}, 1.0).loss)
            assert (ends[0] - ends[1]) / 2e-2 == pytest.approx(told[name][at], abs=3e-3)


# The seven points.


def test_1_parameters_are_kept_in_float32() -> None:
    """Updates far below what float16 tells apart add up."""
    ours = training(settings=replace(SGD, lr=1e-6))
    before = {name: view.copy() for name, view in ours.parameters.views.items()}
    ours.run(20)
    assert ours.parameters.flat.dtype == np.float32
    w2 = ours.parameters.views["w2"]
    assert (w2 != before["w2"]).all()
    assert (w2.astype(np.float16) == before["w2"].astype(np.float16)).all()


def test_2_the_forward_pass_casts_them_for_low_operators() -> None:
    graph, batch = read_step(squares()), samples(2)
    session = make_mixed_session(graph, mixed(), "cpu", None)
    first = session.step({**start(), **batch}, 16.0)
    loss, gradient = first.loss, first.gradient.copy()
    rounded = {name: rounding("float16")(value) for name, value in start().items()}
    assert any((rounded[name] != value).any() for name, value in start().items())
    second = session.step({**rounded, **batch}, 16.0)
    assert (second.loss, second.gradient.tobytes()) == (loss, gradient.tobytes())
    nodes = mixlist.rewrite(squares(), mixlist.resolve(squares(), mixed())).model.graph.node
    assert {n.input[0] for n in nodes if n.op_type == "Cast"} >= {"w1", "b1", "w2", "b2", "x"}


def test_3_the_loss_layer_stays_in_float32_under_lists_that_keep_it() -> None:
    plan = {node.name: node.precision for node in mixlist.resolve(squares(), mixed()).nodes}
    assert {plan[name] for name in ("error", "square", "mean_1", "mean_0", "scaled", "gz")} == {"float32"}
    assert {plan[name] for name in ("hidden", "out", "out_bias", "of_w1", "of_w2", "gh")} == {"float16"}
    losses = {}
    for name, rules in {"kept": mixed(), "low": all_low()}.items():
        made = make_mixed_session(read_step(squares()), rules, "cpu", None).step({**start(), **samples(2)}, 1.0)
        losses[name] = np.float32(made.loss)
    assert losses["low"] == rounding("float16")(losses["low"])
    assert losses["kept"] != rounding("float16")(losses["kept"])


def test_4_the_loss_is_scaled_before_the_backward_pass() -> None:
    """Gradients that float16 cannot hold survive: scaling them afterwards would come too late. Rule S10.2."""
    session = make_mixed_session(read_step(squares()), mixed(), "cpu", None)
    data = samples(2, size=1e-5)
    feed = {**start(size=1e-2), **data, "b2": data["t"][0] + np.float32(1e-5)}
    session.step(feed, 1.0)
    assert not session.gradient.views["w1"].any()
    session.step(feed, 2.0**20)
    assert session.gradient.views["w1"].any()


def test_5_gradients_are_computed_low_and_come_back_as_float32() -> None:
    session = make_mixed_session(read_step(squares()), mixed(), "cpu", None)
    session.step({**start(), **samples(2)}, 4.0)
    for name in ("w1", "w2"):
        view = session.gradient.views[name]
        assert view.dtype == np.float32
        assert (view == rounding("float16")(view)).all()
    model = mixlist.rewrite(squares(), mixlist.resolve(squares(), mixed())).model
    assert {o.type.tensor_type.elem_type for o in model.graph.output} == {1}


def test_6_gradients_are_divided_by_the_scale() -> None:
    """Step by step the same parameters at any power of two that neither overflows nor underflows. Rule S10.2."""
    ends = []
    for scale in (1.0, 64.0):
        ours = training("fixed", parameters={"loss_scale": scale})
        ours.run(20)
        assert not ours.history.exceptions
        ends.append(ours.parameters.flat.tobytes())
    assert ends[0] == ends[1]


def test_7_a_bad_step_changes_nothing_and_a_good_one_the_masters() -> None:
    """Rule S10.4: A skipped step changes nothing."""
    ours = training("torch", parameters={"init_scale": 2.0**24})
    before = ours.parameters.flat.copy()
    ours.run(1)
    assert ours.history.skipped == [0]
    assert ours.parameters.flat.tobytes() == before.tobytes()
    ours.run(40)
    assert len(ours.history.skipped) < 20
    assert (ours.parameters.flat != before).all()
