"""Validation data, which the search does not see: a quarter of the batches, or --validate-on (Rules S9.10, S9.14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.search.tune_result import TuneReport
from tests.support.builders import model, policy

TEXT = "g (float[2] x) => (float[2] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
POLICY = policy(white=["Mul"])
SMALL, LARGE = 3.0, 300.0  # the square of LARGE overflows in float16


def feeds(sizes: Sequence[float]) -> list[dict[str, Any]]:
    return [{"x": np.array([size, 1], np.float32)} for size in sizes]


def tune(sizes: Sequence[float], **options: Any) -> TuneReport:
    return mixlist.tune(model(TEXT), POLICY, feeds(sizes), **options)


def names(*indices: int) -> tuple[str, ...]:
    return tuple(f"batch {at}" for at in indices)


@pytest.mark.parametrize(
    ("count", "held_out"), [(4, names(3)), (7, names(6)), (8, names(6, 7)), (13, names(10, 11, 12))]
)
def test_the_last_quarter_is_held_out(count: int, held_out: tuple[str, ...]) -> None:
    report = tune([SMALL] * count)
    assert report.held_out == held_out
    assert report.validation is not None and report.check is not None
    assert (report.validation.batches, report.check.batches) == (len(held_out), count - len(held_out))
    assert not any("not validated" in warning.message for warning in report.warnings)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_fewer_than_four_batches_none_is_held_out(count: int) -> None:
    report = tune([SMALL] * count)
    assert (report.verdict, report.validation, report.held_out) == ("pass", None, ())
    (warning,) = [warning for warning in report.warnings if "not validated" in warning.message]
    assert f"there {'is 1 batch' if count == 1 else f'are {count} batches'}, and a quarter" in warning.message


def test_a_list_that_fails_on_the_held_out_batch_is_in_the_report() -> None:
    """Only the held-out batch overflows, so the search finds nothing to change."""
    report = tune([SMALL, SMALL, SMALL, LARGE])
    assert (report.verdict, report.edits) == ("fail", ())
    assert report.reasons[0].startswith("on the batches that were held out: 1 of 1 batches overflow")
    assert report.modify_mixlist == "{}\n"
    assert report.validation is not None and report.validation.verdict == "fail"


def test_no_holdout_searches_all_batches() -> None:
    report = tune([SMALL, SMALL, SMALL, LARGE], holdout=False)
    assert (report.verdict, report.validation, report.held_out) == ("pass", None, ())
    assert [edit.op for edit in report.edits] == ["Mul"]
    assert not any("not validated" in warning.message for warning in report.warnings)


def test_validate_on_replaces_the_held_out_batches() -> None:
    report = tune([SMALL, SMALL, SMALL, LARGE], validate_on=feeds([SMALL, LARGE]))
    assert (report.verdict, report.held_out, [edit.op for edit in report.edits]) == ("pass", (), ["Mul"])
    assert report.validation is not None and report.validation.batches == 2


def test_only_batches_within_steps_are_split() -> None:
    report = tune([SMALL] * 8 + [LARGE], steps=4)
    assert (report.verdict, report.held_out) == ("pass", names(3))


def test_held_out_batches_get_their_labels() -> None:
    """An answer is the index of the larger value. Each batch has two samples, and the label -100 does not count."""
    text = "g (float[2, 2] x) => (float[2, 2] y) { [m] y = Mul(x, x) }"
    data = [{"x": np.array([[1, 2], [2, 1]], np.float32)} for _ in range(4)]
    labels = np.array([1, 0] * 4)
    labels[1] = -100
    report = mixlist.tune(model(text), POLICY, data, labels=labels)
    assert report.check is not None and report.check.task is not None
    assert report.validation is not None and report.validation.task is not None
    assert (report.check.task.count, report.validation.task.count) == (5, 2)
    assert report.validation.task.mixed == 1
    assert not any("labels have no sample" in warning.message for warning in report.warnings)
    report = mixlist.tune(model(text), POLICY, data, labels=np.array([1, 0] * 4 + [1]))
    assert report.validation is not None
    assert any("1 of 3 labels have no sample" in warning.message for warning in report.validation.warnings)


def test_a_loss_of_right_answers_on_the_held_out_batch_fails() -> None:
    """In float16, 2049 becomes 2048, so that the two values of the last batch are equal."""
    text = "g (float[1, 2] x) => (float[1, 2] y) <float zero = {0}> { [a] y = Add(x, zero) }"
    values = [[1, 2], [1, 2], [1, 2], [2048, 2049]]
    data = [{"x": np.array([row], np.float32)} for row in values]
    report = mixlist.tune(model(text), policy(white=["Add"]), data, labels=np.array([1, 1, 1, 1]))
    assert report.verdict == "fail"
    assert report.reasons[0].startswith("on the batches that were held out: task accuracy falls by 1")
