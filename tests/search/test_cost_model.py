"""The cost of a set of edits: bytes of a static estimate on the CPU provider, measured times elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

import mixlist
from mixlist.benchmark.timed_session import measure_shortest_run
from mixlist.decide import Resolver
from mixlist.search.edits import EditSet, ListEdit
from mixlist.search.strategy import CostModel
from mixlist.search.trial_compiler import TrialCompiler
from tests.support.builders import model

TEXT = "g (float[N,64] x, float[64,64] w) => (float[N,64] y) { m = MatMul(x, w) y = Relu(m) }"
HIGH: EditSet = frozenset({ListEdit("MatMul", "white", "black")})


@pytest.fixture
def compiler() -> Iterator[TrialCompiler]:
    feed = {"x": np.ones((256, 64), np.float32), "w": np.ones((64, 64), np.float32)}
    compiler = TrialCompiler(Resolver(model(TEXT)), mixlist.load_policy(), [feed], [])
    yield compiler
    compiler.close()


def test_the_static_cost_counts_the_bytes_of_the_rewritten_model(compiler: TrialCompiler) -> None:
    cost = CostModel(compiler, None)
    cost_in_float32 = cost(HIGH)
    assert cost_in_float32 == 4 * (2 * 256 * 64 + 64 * 64) + 4 * 2 * 256 * 64  # the bytes of MatMul and Relu
    assert cost(frozenset()) != cost_in_float32


def test_a_measured_cost_is_in_seconds_and_infinite_if_the_model_does_not_run(
    compiler: TrialCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = CostModel(compiler, partial(measure_shortest_run, provider="cpu"))
    assert 0 < cost._measured_time(HIGH) < 1
    monkeypatch.setattr(compiler, "feeds", ({"x": np.ones((2, 3), np.float32)},))
    assert cost._measured_time(HIGH) == math.inf


def test_edits_that_round_the_same_tensors_share_one_cost(
    compiler: TrialCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = CostModel(compiler, partial(measure_shortest_run, provider="cpu"))
    times = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(cost, "_measured_time", lambda _: next(times))
    unused_edit: EditSet = frozenset({ListEdit("Softmax", "black", "white")})  # the model has no Softmax
    assert [cost(frozenset()), cost(unused_edit), cost(HIGH), cost(HIGH | unused_edit)] == [1.0, 1.0, 2.0, 2.0]
