"""The objective max-speed minimizes the bytes of a static account on the CPU, and measured times elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

import mixlist
from mixlist.resolver import Resolver
from mixlist.tuner.candidates import EditSet, ListEdit
from mixlist.tuner.cost_model import CostModel
from mixlist.tuner.trial_compiler import TrialCompiler
from tests.support.builders import model

TEXT = "g (float[N,64] x, float[64,64] w) => (float[N,64] y) { m = MatMul(x, w) y = Relu(m) }"
HIGH: EditSet = frozenset({ListEdit("MatMul", "white", "black")})


@pytest.fixture
def compiler() -> Iterator[TrialCompiler]:
    feed = {"x": np.ones((256, 64), np.float32), "w": np.ones((64, 64), np.float32)}
    made = TrialCompiler(Resolver(model(TEXT)), mixlist.load_policy(), [feed], [])
    yield made
    made.close()


def test_low_precision_costs_half_the_traffic_and_its_casts(compiler: TrialCompiler) -> None:
    price = CostModel(compiler, "cpu")
    high = price(HIGH)
    assert high == 4 * (2 * 256 * 64 + 64 * 64) + 4 * 2 * 256 * 64  # bytes of MatMul and Relu in float32
    assert price(frozenset()) != high


def test_a_measured_price_is_a_time_and_what_does_not_run_is_infinite(
    compiler: TrialCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = CostModel(compiler, "cpu")
    assert 0 < price._measured_time(HIGH) < 1
    monkeypatch.setattr(compiler, "feeds", ({"x": np.ones((2, 3), np.float32)},))
    assert price._measured_time(HIGH) == math.inf


def test_choices_that_round_alike_have_one_price(compiler: TrialCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    price = CostModel(compiler, "cuda")
    times = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(price, "_measured_time", lambda _: next(times))
    idle: EditSet = frozenset({ListEdit("Softmax", "black", "white")})  # there is none in the model
    assert [price(frozenset()), price(idle), price(HIGH), price(HIGH | idle)] == [1.0, 1.0, 2.0, 2.0]
