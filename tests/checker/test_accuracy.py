"""The metrics of outputs: against plain numpy on whole arrays, and at every edge."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mixlist.checker import accuracy
from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.limits import Limits, failed_limits
from mixlist.checker.result import OutputFinding

NONE = Limits(normalized=None, cosine=None)
F32 = np.float32
INF, NAN = math.inf, math.nan


def measured(*pairs: tuple[Any, Any], limits: Limits = NONE) -> OutputFinding:
    output = OutputAccuracy("y")
    for reference, mixed in pairs:
        output.add(reference, mixed)
    return output.finding(limits)


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, F32)


finite = hnp.arrays(F32, (3, 7), elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False))


@given(finite, finite)
def test_one_batch_is_what_the_formulas_say(reference, mixed) -> None:
    found = measured((reference, mixed))
    a, b = reference.astype(np.float64), mixed.astype(np.float64)
    gap, size = np.linalg.norm(b - a), np.linalg.norm(a)
    assert found.max_abs_error == np.abs(b - a).max()
    with np.errstate(all="ignore"):
        relative = np.abs(b - a) / np.abs(a)
    assert found.max_rel_error == pytest.approx(max(relative[a != 0], default=0.0))
    expected = gap / size if size else (INF if gap else 0.0)
    assert found.normalized_error == pytest.approx(expected)
    assert found.snr_db == pytest.approx(20 * math.log10(size / gap) if gap and size else (-INF if gap else INF))
    if size and np.linalg.norm(b):
        assert found.cosine == pytest.approx((a * b).sum() / size / np.linalg.norm(b), abs=1e-12)
    assert found.top1 == (a.argmax(1) == b.argmax(1)).mean()
    assert found.mismatches is None


def test_float16_of_random_values_is_within_its_rounding() -> None:
    values = np.random.default_rng(0).normal(size=(8, 1000)).astype(F32)
    found = measured((values, values.astype(np.float16)), limits=Limits())
    assert found.max_rel_error <= 2**-11
    assert 1e-4 < found.normalized_error < 2**-11
    assert 66 < found.snr_db < 80
    assert found.passed


def test_bfloat16_arrays_are_numbers() -> None:
    values = floats(1.0, 2.0, 3.0, 1.01)
    found = measured((values, values.astype(ml_dtypes.bfloat16)))
    assert found.max_abs_error == float(F32(1.01)) - 1.0078125
    assert found.mismatches is None
    logits = floats(1, 2, 3, 4).reshape(2, 2)
    assert measured((logits, logits.astype(ml_dtypes.bfloat16))).top1 == 1.0


def test_the_worst_batch_counts_and_is_not_drowned() -> None:
    """Rule S8.16: The worst batch counts."""
    good, bad = floats(1, 2, 3), floats(0, 0, 3)
    one = measured((good, bad))
    found = measured(*[(good, good)] * 50, (good, bad), *[(good * 1000, good * 1000)] * 50)
    for name in ("max_abs_error", "max_rel_error", "normalized_error", "cosine", "snr_db"):
        assert getattr(found, name) == getattr(one, name)


def test_shares_are_over_all_batches() -> None:
    """Rule S8.16: The worst batch counts."""
    right, wrong = np.array([3], np.int64), np.array([4], np.int64)
    assert measured(*[(right, right)] * 3, (right, wrong)).mismatches == 0.25
    up, down = floats(1, 2).reshape(1, 2), floats(2, 1).reshape(1, 2)
    assert measured(*[(up, up)] * 3, (up, down)).top1 == 0.75


def test_equal_is_perfect() -> None:
    found = measured((floats(1, -2, 0), floats(1, -2, 0)))
    assert found == OutputFinding("y", 0.0, 0.0, 0.0, 1.0, INF, None, None, True)
    zeros = measured((floats(0, 0), floats(0, 0)))
    assert (zeros.normalized_error, zeros.cosine, zeros.snr_db) == (0.0, 1.0, INF)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_not_finite_where_the_reference_is_finite_is_an_infinite_error(bad: float) -> None:
    """Rule S8.18: only NaN in the reference does not count."""
    found = measured((floats(1, 2), floats(1, 2)), (floats(1, 2), floats(1, bad)), (floats(1, 2), floats(1, 2)))
    assert found.max_abs_error == found.max_rel_error == found.normalized_error == INF
    assert found.snr_db == -INF
    assert math.isnan(found.cosine)
    assert failed_limits(found, Limits()) == ("normalized", "cosine")


def test_nan_in_the_reference_does_not_count_but_is_reported() -> None:
    """Rule S8.18: Values that are NaN in the reference do not count."""
    output = OutputAccuracy("y")
    output.add(floats(INF, -INF, NAN, 1), floats(INF, -INF, NAN, 1.5))
    assert output.finding(NONE).max_abs_error == 0.5
    (warning,) = output.warnings()
    assert warning.message == "1 of 4 values of 'y' are NaN in the reference and do not count"
    output.add(floats(INF, NAN, NAN, 1, -INF), floats(INF, 5, 0, 1, -INF))
    assert output.finding(NONE).max_abs_error == 0.5
    (warning,) = output.warnings()
    assert warning.message.startswith("3 of 9 values")
    assert warning.message.endswith("2 of them are not NaN in the mixed model")


def test_a_batch_of_zeros_is_measured_by_the_others() -> None:
    """Underflow noise beside an all-zero output is no infinite error, unless every batch is zero."""
    tiny = measured((floats(3, 4), floats(3, 4)), (floats(0, 0), floats(5e-6, 0)))
    assert tiny.normalized_error == pytest.approx(1e-6)
    assert tiny.cosine == 1.0
    assert measured((floats(0, 0), floats(5e-6, 0))).normalized_error == INF
    lost = measured((floats(3, 4), floats(0, 0)))
    assert (lost.normalized_error, lost.cosine) == (1.0, 0.0)


def test_relative_error_passes_over_zeros_of_the_reference() -> None:
    assert measured((floats(0, 4), floats(1, 5))).max_rel_error == 0.25


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.bool_])
def test_integers_and_bools(dtype: type) -> None:
    reference, mixed = np.array([0, 1, 1, 0], dtype), np.array([0, 1, 0, 0], dtype)
    found = measured((reference, mixed))
    assert (found.mismatches, found.top1, found.max_abs_error) == (0.25, None, 1.0)
    assert found.normalized_error == pytest.approx(math.sqrt(0.5))


def test_large_integers_are_told_apart() -> None:
    assert measured((np.array([2**60]), np.array([2**60 + 1]))).mismatches == 1.0


@pytest.mark.parametrize("dtype", [object, np.str_])
def test_texts(dtype: type) -> None:
    reference = np.array(["a", "b", "c", "d"], dtype)
    assert measured((reference, reference)).normalized_error == 0.0
    found = measured((reference, np.array(["a", "b", "c", "x"], dtype)))
    assert (found.mismatches, found.cosine, found.max_abs_error) == (0.25, 0.75, 1.0)
    assert found.normalized_error == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("dtype", [F32, np.int64, object])
def test_empty_tensors_pass(dtype: type) -> None:
    empty = np.zeros((0, 4), dtype)
    found = measured((empty, empty), limits=Limits(mismatch=0.0, top1=1.0, max_abs=0.0))
    assert found.passed
    assert (found.normalized_error, found.cosine, found.top1, found.mismatches) == (None, None, None, None)
    with_some = measured((empty, empty), (np.ones((1, 4), dtype), np.ones((1, 4), dtype)))
    assert with_some.passed and (with_some.normalized_error, with_some.cosine) == (0.0, 1.0)
    assert with_some.mismatches == (None if dtype is F32 else 0.0)


def test_scalars() -> None:
    assert measured((np.float32(2), np.float32(1))).max_rel_error == 0.5
    assert measured((np.array(2.0), np.array(1.0))).max_abs_error == 1.0


def test_sequences_maps_and_optionals() -> None:
    found = measured(([floats(1), floats(2, 3)], [floats(1), floats(2, 4)]))
    assert found.max_abs_error == 1.0
    assert found.normalized_error == pytest.approx(1 / math.sqrt(14))
    assert measured(([{1: 0.5, 2: 0.5}], [{2: 0.5, 1: 0.25}])).max_abs_error == 0.25
    assert measured((None, None)).passed
    assert measured(([], [])).passed


@pytest.mark.parametrize(
    ("reference", "mixed", "told"),
    [
        (np.zeros((2, 3), F32), np.zeros((3, 2), F32), "shape [2, 3] became [3, 2]"),
        (np.zeros(0, F32), np.zeros(1, F32), "shape [0] became [1]"),
        ([floats(1)], [floats(1), floats(2)], "other tensors (1 in the reference, 2 in the mixed model)"),
        (None, floats(1), "other tensors (0 in the reference, 1 in"),
        (floats(1), np.array(["a"]), "type float32 became <U1"),
        ({"a": 1.0}, {"b": 1.0}, "other tensors (1 in the reference, 1 in"),
    ],
)
def test_what_cannot_be_compared_fails_whatever_the_limits(reference, mixed, told: str) -> None:
    output = OutputAccuracy("y")
    output.add(reference, mixed)
    found = output.finding(NONE)
    assert not found.passed
    assert found.failed_limits == ("shape",)
    assert found.max_abs_error == INF
    assert told in output.warnings()[0].message
    assert failed_limits(found, NONE) == ("shape",)


def test_top1_means_something_only_over_classes() -> None:
    rng = np.random.default_rng(0)
    for shape in [(5,), (5, 1), (1, 3, 8, 8), ()]:
        values = rng.normal(size=shape).astype(F32)
        assert measured((values, values)).top1 is None
    tokens = rng.normal(size=(2, 3, 5)).astype(F32)
    other = tokens.copy()
    other[0, 0] = np.roll(other[0, 0], 1)
    assert measured((tokens, other)).top1 == pytest.approx(5 / 6)


def test_top1_with_nan_ties_and_masks() -> None:
    reference = np.array([[1, 2, -INF], [NAN, 1, 2], [1, 2, 3], [2, 2, 1]], F32)
    mixed = np.array([[1, 2, -INF], [0, 1, 2], [1, NAN, 3], [2, 2, 1]], F32)
    assert measured((reference, mixed)).top1 == pytest.approx(2 / 3)  # the second row does not count
    assert measured((floats(1.0, 1.001).reshape(1, 2), floats(1, 1).reshape(1, 2))).top1 == 0.0


def test_blocks_change_nothing(monkeypatch) -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(40, 25)).astype(F32)
    mixed = reference.astype(np.float16)
    whole = measured((reference, mixed))
    monkeypatch.setattr(accuracy, "BLOCK_SIZE", 7)
    pieces = measured((reference, mixed))
    for name in ("max_abs_error", "max_rel_error", "top1"):
        assert getattr(pieces, name) == getattr(whole, name)
    for name in ("normalized_error", "cosine", "snr_db"):
        assert getattr(pieces, name) == pytest.approx(getattr(whole, name))


def test_memory_is_that_of_a_block() -> None:
    values = np.ones(8_000_000, F32)
    output = OutputAccuracy("y")
    tracemalloc.start()
    for _ in range(3):
        output.add(values, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * accuracy.BLOCK_SIZE * 8 / 2  # ten float64 copies of a block, a sixth of one of the whole array
    assert output.finding(NONE).passed


def test_doubles_beyond_the_square_root_of_their_range_never_pass_unseen() -> None:
    found = measured((np.array([1e200, 1.0]), np.array([1e200, 2.0])), (np.array([1e200]), np.array([-1e200])))
    assert found.normalized_error == INF
    assert failed_limits(found, Limits())


LIMIT_CASES = [
    ("max_abs", 0.5, 0.4),
    ("max_rel", 0.25, 0.2),
    ("normalized", 0.25, 0.2),
    ("cosine", 0.9, 1.0),
    ("snr", 12.0, 13.0),
    ("top1", 0.5, 0.6),
]


@pytest.mark.parametrize(("name", "kept", "broken"), LIMIT_CASES)
def test_each_limit_is_kept_at_its_value_and_broken_beyond(name: str, kept: float, broken: float) -> None:
    """Rule S8.15: Outputs have limits."""
    found = OutputFinding("y", 0.5, 0.25, 0.25, 0.9, 12.0, None, 0.5, True)
    assert failed_limits(found, replace(NONE, **{name: kept})) == ()
    assert failed_limits(found, replace(NONE, **{name: broken})) == (name,)


def test_limits_on_what_an_output_lacks_say_nothing() -> None:
    found = measured((floats(1, 2), floats(1, 2)))
    assert failed_limits(found, Limits(top1=1.0, mismatch=0.0)) == ()


def test_default_limits_on_integers() -> None:
    """Few other values pass, many that are off by one step pass, many that are just other do not. Rule S8.17."""
    ids = np.random.default_rng(2).integers(0, 1000, 1000)
    few, many, coarse = ids.copy(), ids.copy(), np.full(1000, 200)
    few[:10] = 0
    many[:300] = 0
    step = coarse + (np.arange(1000) % 2)
    assert measured((ids, few), limits=Limits()).passed
    assert measured((ids, many), limits=Limits()).failed_limits == ("normalized", "cosine")
    assert measured((coarse, step), limits=Limits()).passed
    asked = Limits(mismatch=0.005)
    assert measured((ids, few), limits=asked).failed_limits == ("mismatch",)
    assert measured((coarse, step), limits=asked).failed_limits == ("mismatch",)
    assert measured((ids, many), limits=Limits(mismatch=0.5)).passed


def test_the_defaults_are_those_that_are_documented() -> None:
    """Rule S8.15: Outputs have limits."""
    assert Limits().enabled() == {"normalized": 1e-2, "cosine": 0.999}


@given(st.lists(st.tuples(*[hnp.arrays(np.float32, (3, 4), elements=st.floats(width=32))] * 2), min_size=1, max_size=5))
def test_batches_apart_merge_to_what_they_give_together(batches: list[tuple[Any, Any]]) -> None:
    together, merged = OutputAccuracy("y"), OutputAccuracy("y")
    for reference, mixed in batches:
        together.add(reference, mixed)
        alone = OutputAccuracy("y")
        alone.add(reference, mixed)
        merged.merge(alone)
    assert str(merged.finding(Limits())) == str(together.finding(Limits()))
    assert merged.warnings() == together.warnings()


def test_shares_merge() -> None:
    merged = OutputAccuracy("ids")
    for mixed in ([1, 2], [1, 3], [0, 0]):
        alone = OutputAccuracy("ids")
        alone.add(np.array([1, 2]), np.array(mixed))
        merged.merge(alone)
    assert merged.finding(Limits()).mismatches == 0.5


def test_what_is_lost_stays_lost_and_shares_may_recover() -> None:
    found, ids = OutputAccuracy("y"), OutputAccuracy("ids")
    found.add(np.ones(4), np.ones(4))
    assert not found.cannot_pass(Limits())
    found.add(np.ones(4), np.full(4, 1.1))
    assert found.cannot_pass(Limits())
    assert not found.cannot_pass(Limits(normalized=0.5))
    ids.add(np.array([1, 2]), np.array([1, 3]))
    assert not ids.finding(Limits()).passed
    assert not ids.cannot_pass(Limits())


@pytest.mark.parametrize(
    ("only", "told"),
    [
        (None, (1.0, 1.0, 0.0, 0.8)),
        (Limits(), (0.0, 0.0, None, 0.8)),
        (Limits(max_abs=0.1, cosine=None), (1.0, 0.0, None, 1.0)),
        (Limits(max_rel=0.1, top1=0.9), (1.0, 1.0, 0.0, 0.8)),
    ],
)
def test_what_nobody_asks_for_is_not_measured(
    only: Limits | None, told: tuple[float, float, float | None, float]
) -> None:
    measured = OutputAccuracy("y", only)
    measured.add(np.array([[1.0, 2.0]], np.float32), np.array([[2.0, 1.0]], np.float32))
    found = measured.finding(only or Limits())
    assert (found.max_abs_error, found.max_rel_error, found.top1, found.cosine) == pytest.approx(told)
    assert found.normalized_error == pytest.approx((2 / 5) ** 0.5)
    assert found.passed is False


@pytest.mark.parametrize("size", [1e200, 1.7e308])
def test_a_cosine_that_cannot_be_told_keeps_no_limit(size: float) -> None:
    asked = Limits(normalized=None, cosine=0.999)
    for good in ([], [1.0]):
        measured = OutputAccuracy("y", asked)
        for value in good:
            measured.add(np.array([value]), np.array([value]))
        measured.add(np.array([size]), np.array([-size]))
        assert measured.finding(asked).failed_limits == ("cosine",)


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_an_infinite_error_whatever_is_measured(wrong: float) -> None:
    for only in (None, Limits(cosine=None), Limits(normalized=None, cosine=None, max_abs=1.0)):
        measured = OutputAccuracy("y", only)
        measured.add(np.ones(3, np.float32), np.array([1.0, wrong, 1.0], np.float32))
        found = measured.finding(only or Limits())
        assert (found.max_abs_error, found.normalized_error) == (np.inf, np.inf)
        assert not found.passed
