"""Inputs of integers, bools and strings, sizes that differ between batches, and data that does not fit the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from tests.support.builders import model

FP16 = mixlist.load_policy(precision_mode_v2="fp16")
GATHER = """g (int64[N] ids, bool[N] keep) => (float[N,2] y) <float[3,2] table = {1, 2, 300, 4, 5, 6}> {
    rows = Gather(table, ids) c = Unsqueeze(keep, one) square = Mul(rows, rows) y = Where(c, square, rows)
}""".replace("<float", "<int64[1] one = {1}, float")
STRINGS = "g (string[N] names, float[N] x) => (string[N] same, float[N] y) { same = Identity(names) y = Mul(x, x) }"


def feed(ids: list[int], keep: list[bool]) -> dict[str, Any]:
    return {"ids": np.array(ids, np.int64), "keep": np.array(keep)}


def test_integers_and_bools_select_the_values_that_overflow() -> None:
    feeds = [feed([0, 2], [True, True]), feed([1, 0, 2], [False, True, True]), feed([0], [False])]
    report = mixlist.check(model(GATHER), FP16, feeds)
    (offender,) = [node for node in report.nodes if node.first]
    assert (offender.op_type, offender.batches, offender.max_abs_fp32) == ("Mul", (1,), 90000.0)
    assert report.exception_rate == 1 / 3
    assert report.outputs[0].max_abs_error < 1  # the branch that overflows was not taken


def test_strings_are_compared() -> None:
    feeds = [
        {"names": np.array(["a", "bc"], object), "x": np.array([1.0, 2.0], np.float32)},
        {"names": np.array([], object), "x": np.zeros(0, np.float32)},
    ]
    report = mixlist.check(model(STRINGS), FP16, feeds)
    assert report.verdict == "pass"
    assert [(o.name, o.mismatches) for o in report.outputs] == [("same", 0.0), ("y", None)]


@pytest.mark.parametrize(
    ("wrong_feed", "message"),
    [
        ({"ids": np.array([0], np.int64)}, "no data for input 'keep'"),
        ({**feed([0], [True]), "other": np.zeros(1)}, "other"),
        ({"ids": np.array([[0]], np.int64), "keep": np.array([True])}, "ids"),
        ({"ids": np.array([0.5]), "keep": np.array([True])}, "ids"),
        ({"ids": np.array(["a"]), "keep": np.array([True])}, "ids"),
    ],
)
def test_an_error_about_data_shows_the_inputs_of_the_model(wrong_feed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        mixlist.check(model(GATHER), FP16, [wrong_feed])
    assert "int64[N]" in (caught.value.hint or "")
