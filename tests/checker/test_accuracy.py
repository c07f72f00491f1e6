"""The measures of outputs, compared with numpy on whole arrays and in every special case."""

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
from mixlist.checker.limits import Limits, find_failed_limits
from mixlist.checker.result import LargestDifference, OutputFinding

NO_LIMITS = Limits(normalized=None, cosine=None)
F32 = np.float32
INF, NAN = math.inf, math.nan


def measure(*pairs: tuple[Any, Any], limits: Limits = NO_LIMITS, quantity: bool = False) -> OutputFinding:
    output = OutputAccuracy("y", quantity=quantity)
    for reference, mixed in pairs:
        output.add(reference, mixed)
    return output.finding(limits)


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, F32)


finite = hnp.arrays(F32, (3, 7), elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False))


@given(finite, finite)
def test_one_batch_agrees_with_numpy(reference, mixed) -> None:
    finding = measure((reference, mixed))
    a, b = reference.astype(np.float64), mixed.astype(np.float64)
    error_norm, norm = np.linalg.norm(b - a), np.linalg.norm(a)
    assert finding.max_abs_error == np.abs(b - a).max()
    with np.errstate(all="ignore"):
        relative = np.abs(b - a) / np.abs(a)
    assert finding.max_rel_error == pytest.approx(max(relative[a != 0], default=0.0))
    expected = error_norm / norm if norm else (INF if error_norm else 0.0)
    assert finding.normalized_error == pytest.approx(expected)
    expected_snr = -INF if error_norm else INF
    if error_norm and norm:
        expected_snr = 20 * math.log10(norm / error_norm)
    assert finding.snr_db == pytest.approx(expected_snr)
    if norm and np.linalg.norm(b):
        assert finding.cosine == pytest.approx((a * b).sum() / norm / np.linalg.norm(b), abs=1e-12)
    assert finding.top1 == (a.argmax(1) == b.argmax(1)).mean()
    assert finding.mismatches is None


def test_the_error_of_float16_is_that_of_its_rounding() -> None:
    values = np.random.default_rng(0).normal(size=(8, 1000)).astype(F32)
    finding = measure((values, values.astype(np.float16)), limits=Limits())
    assert finding.max_rel_error <= 2**-11
    assert 1e-4 < finding.normalized_error < 2**-11
    assert 66 < finding.snr_db < 80
    assert finding.passed


def test_bfloat16_arrays_are_compared_as_floats() -> None:
    values = floats(1.0, 2.0, 3.0, 1.01)
    finding = measure((values, values.astype(ml_dtypes.bfloat16)))
    assert finding.max_abs_error == float(F32(1.01)) - 1.0078125
    assert finding.mismatches is None
    logits = floats(1, 2, 3, 4).reshape(2, 2)
    assert measure((logits, logits.astype(ml_dtypes.bfloat16))).top1 == 1.0


def test_errors_are_those_of_the_worst_batch() -> None:
    """The worst batch counts."""
    good, bad = floats(1, 2, 3), floats(0, 0, 3)
    bad_batch = measure((good, bad))
    finding = measure(*[(good, good)] * 50, (good, bad), *[(good * 1000, good * 1000)] * 50)
    for name in ("max_abs_error", "max_rel_error", "normalized_error", "cosine", "snr_db"):
        assert getattr(finding, name) == getattr(bad_batch, name)


def test_shares_are_over_all_batches() -> None:
    """Shares are over all batches."""
    right, wrong = np.array([3], np.int64), np.array([4], np.int64)
    assert measure(*[(right, right)] * 3, (right, wrong)).mismatches == 0.25
    up, down = floats(1, 2).reshape(1, 2), floats(2, 1).reshape(1, 2)
    assert measure(*[(up, up)] * 3, (up, down)).top1 == 0.75


def test_equal_outputs_have_no_error() -> None:
    finding = measure((floats(1, -2, 0), floats(1, -2, 0)))
    assert finding == OutputFinding("y", 0.0, 0.0, 0.0, 1.0, INF, None, None, True)
    zeros = measure((floats(0, 0), floats(0, 0)))
    assert (zeros.normalized_error, zeros.cosine, zeros.snr_db) == (0.0, 1.0, INF)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_nonfinite_value_is_an_infinite_error_if_the_reference_is_finite(bad: float) -> None:
    """Rule S8.18: only NaN in the reference does not count."""
    finding = measure((floats(1, 2), floats(1, 2)), (floats(1, 2), floats(1, bad)), (floats(1, 2), floats(1, 2)))
    assert finding.max_abs_error == finding.max_rel_error == finding.normalized_error == INF
    assert finding.snr_db == -INF
    assert math.isnan(finding.cosine)
    assert find_failed_limits(finding, Limits()) == ("normalized", "cosine")


def test_nan_in_the_reference_does_not_count_but_is_reported() -> None:
    """Rule S8.18: Values that are NaN in the reference do not count."""
    output = OutputAccuracy("y")
    output.add(floats(INF, -INF, NAN, 1), floats(INF, -INF, NAN, 1.5))
    assert output.finding(NO_LIMITS).max_abs_error == 0.5
    (warning,) = output.warnings()
    assert warning.message == "1 of 4 values of 'y' are NaN in the reference and do not count"
    output.add(floats(INF, NAN, NAN, 1, -INF), floats(INF, 5, 0, 1, -INF))
    assert output.finding(NO_LIMITS).max_abs_error == 0.5
    (warning,) = output.warnings()
    assert warning.message.startswith("3 of 9 values")
    assert warning.message.endswith("2 of them are not NaN in the mixed model")


def test_a_batch_of_zeros_is_measured_by_the_norm_of_all_batches() -> None:
    """A small error in a batch of zeros is not infinite, unless the reference is zero in every batch."""
    tiny = measure((floats(3, 4), floats(3, 4)), (floats(0, 0), floats(5e-6, 0)))
    assert tiny.normalized_error == pytest.approx(1e-6)
    assert tiny.cosine == 1.0
    assert measure((floats(0, 0), floats(5e-6, 0))).normalized_error == INF
    lost = measure((floats(3, 4), floats(0, 0)))
    assert (lost.normalized_error, lost.cosine) == (1.0, 0.0)


def test_relative_error_ignores_zeros_of_the_reference() -> None:
    assert measure((floats(0, 4), floats(1, 5))).max_rel_error == 0.25


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.bool_])
def test_integers_and_bools_are_compared_by_value(dtype: type) -> None:
    reference, mixed = np.array([0, 1, 1, 0], dtype), np.array([0, 1, 0, 0], dtype)
    finding = measure((reference, mixed))
    assert (finding.mismatches, finding.top1, finding.max_abs_error) == (0.25, None, 1.0)
    assert finding.normalized_error == pytest.approx(math.sqrt(0.5))


def test_large_integers_are_compared_exactly() -> None:
    assert measure((np.array([2**60]), np.array([2**60 + 1]))).mismatches == 1.0


@pytest.mark.parametrize("dtype", [object, np.str_])
def test_strings_are_compared_as_unit_vectors(dtype: type) -> None:
    reference = np.array(["a", "b", "c", "d"], dtype)
    assert measure((reference, reference)).normalized_error == 0.0
    finding = measure((reference, np.array(["a", "b", "c", "x"], dtype)))
    assert (finding.mismatches, finding.cosine, finding.max_abs_error) == (0.25, 0.75, 1.0)
    assert finding.normalized_error == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("dtype", [F32, np.int64, object])
def test_empty_tensors_pass(dtype: type) -> None:
    empty = np.zeros((0, 4), dtype)
    finding = measure((empty, empty), limits=Limits(mismatch=0.0, snr=1.0, max_abs=0.0))
    assert finding.passed
    assert (finding.normalized_error, finding.cosine, finding.top1, finding.mismatches) == (None, None, None, None)
    with_some = measure((empty, empty), (np.ones((1, 4), dtype), np.ones((1, 4), dtype)))
    assert with_some.passed and (with_some.normalized_error, with_some.cosine) == (0.0, 1.0)
    assert with_some.mismatches == (None if dtype is F32 else 0.0)


def test_scalars() -> None:
    assert measure((np.float32(2), np.float32(1))).max_rel_error == 0.5
    assert measure((np.array(2.0), np.array(1.0))).max_abs_error == 1.0


def test_sequences_maps_and_optionals() -> None:
    finding = measure(([floats(1), floats(2, 3)], [floats(1), floats(2, 4)]))
    assert finding.max_abs_error == 1.0
    assert finding.normalized_error == pytest.approx(1 / math.sqrt(14))
    assert measure(([{1: 0.5, 2: 0.5}], [{2: 0.5, 1: 0.25}])).max_abs_error == 0.25
    assert measure((None, None)).passed
    assert measure(([], [])).passed


@pytest.mark.parametrize(
    ("reference", "mixed", "reason"),
    [
        (np.zeros((2, 3), F32), np.zeros((3, 2), F32), "shape [2, 3] became [3, 2]"),
        (np.zeros(0, F32), np.zeros(1, F32), "shape [0] became [1]"),
        ([floats(1)], [floats(1), floats(2)], "other tensors (1 in the reference, 2 in the mixed model)"),
        (None, floats(1), "other tensors (0 in the reference, 1 in"),
        (floats(1), np.array(["a"]), "type float32 became <U1"),
        ({"a": 1.0}, {"b": 1.0}, "other tensors (1 in the reference, 1 in"),
    ],
)
def test_values_that_cannot_be_compared_fail_under_any_limits(reference, mixed, reason: str) -> None:
    output = OutputAccuracy("y")
    output.add(reference, mixed)
    finding = output.finding(NO_LIMITS)
    assert not finding.passed
    assert finding.failed_limits == ("shape",)
    assert finding.max_abs_error == INF
    assert reason in output.warnings()[0].message
    assert find_failed_limits(finding, NO_LIMITS) == ("shape",)


def test_top1_needs_an_axis_of_classes() -> None:
    rng = np.random.default_rng(0)
    for shape in [(5,), (5, 1), (1, 3, 8, 8), ()]:
        values = rng.normal(size=shape).astype(F32)
        assert measure((values, values)).top1 is None
    tokens = rng.normal(size=(2, 3, 5)).astype(F32)
    changed = tokens.copy()
    changed[0, 0] = np.roll(changed[0, 0], 1)
    assert measure((tokens, changed)).top1 == pytest.approx(5 / 6)


def test_the_largest_difference_has_its_place(monkeypatch) -> None:
    """The first batch with the largest error counts. A NaN of the reference and equal infinities are no differences."""
    monkeypatch.setattr(accuracy, "BLOCK_SIZE", 4)
    reference = np.zeros((2, 3, 5), F32)
    reference[0, 0, 0], reference[0, 0, 1] = NAN, INF
    mixed, worse = reference.copy(), reference.copy()
    mixed[0, 0, 0], mixed[1, 0, 2] = 9, 3
    worse[1, 2, 3] = -4
    output = OutputAccuracy("y")
    for batch, other in enumerate((mixed, worse, worse)):
        output.add(reference, other, batch)
    found = output.finding(NO_LIMITS).largest_difference
    assert found == LargestDifference(1, (1, 2, 3), (2, 3, 5), 0.0, -4.0)
    assert str(found) == "index [1, 2, 3] of [2, 3, 5] in batch #1, 0 became -4"
    mixed[1, 1, 1] = NAN
    output.add(reference, mixed, 3)
    assert output.finding(NO_LIMITS).largest_difference.index == (1, 1, 1)
    equal = OutputAccuracy("y")
    equal.add(reference, reference, 0)
    assert equal.finding(NO_LIMITS).largest_difference is None


def test_top1_with_nan_ties_and_masks() -> None:
    reference = np.array([[1, 2, -INF], [NAN, 1, 2], [1, 2, 3], [2, 2, 1]], F32)
    mixed = np.array([[1, 2, -INF], [0, 1, 2], [1, NAN, 3], [2, 2, 1]], F32)
    assert measure((reference, mixed)).top1 == pytest.approx(2 / 3)  # the second row does not count
    assert measure((floats(1.0, 1.001).reshape(1, 2), floats(1, 1).reshape(1, 2))).top1 == 0.0


def test_the_block_size_does_not_change_the_result(monkeypatch) -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(40, 25)).astype(F32)
    mixed = reference.astype(np.float16)
    one_block = measure((reference, mixed))
    monkeypatch.setattr(accuracy, "BLOCK_SIZE", 7)
    many_blocks = measure((reference, mixed))
    for name in ("max_abs_error", "max_rel_error", "top1"):
        assert getattr(many_blocks, name) == getattr(one_block, name)
    for name in ("normalized_error", "cosine", "snr_db"):
        assert getattr(many_blocks, name) == pytest.approx(getattr(one_block, name))


def test_memory_is_bounded_by_the_block_size() -> None:
    values = np.ones(8_000_000, F32)
    output = OutputAccuracy("y")
    tracemalloc.start()
    for _ in range(3):
        output.add(values, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * accuracy.BLOCK_SIZE * 8 / 2  # ten float64 copies of a block, a sixth of one of the whole array
    assert output.finding(NO_LIMITS).passed


def test_doubles_whose_squares_overflow_fail() -> None:
    finding = measure((np.array([1e200, 1.0]), np.array([1e200, 2.0])), (np.array([1e200]), np.array([-1e200])))
    assert finding.normalized_error == INF
    assert find_failed_limits(finding, Limits())


LIMIT_CASES = [
    ("max_abs", 0.5, 0.4),
    ("max_rel", 0.25, 0.2),
    ("normalized", 0.25, 0.2),
    ("cosine", 0.9, 1.0),
    ("snr", 12.0, 13.0),
]


@pytest.mark.parametrize(("name", "kept_limit", "broken_limit"), LIMIT_CASES)
def test_each_limit_is_kept_at_its_value_and_broken_beyond(name: str, kept_limit: float, broken_limit: float) -> None:
    """Rule S8.15: Outputs have limits."""
    finding = OutputFinding("y", 0.5, 0.25, 0.25, 0.9, 12.0, None, 0.5, True)
    assert find_failed_limits(finding, replace(NO_LIMITS, **{name: kept_limit})) == ()
    assert find_failed_limits(finding, replace(NO_LIMITS, **{name: broken_limit})) == (name,)


@pytest.mark.parametrize(
    ("mismatches", "limit", "failed"),
    [
        (0.25, 0.25, ()),
        (0.25, 0.2, ("mismatch",)),
        # Without a limit, 1 % may differ whatever the errors are; beyond that, the errors of quantities decide.
        (0.01, None, ()),
        (0.011, None, ("normalized", "cosine", "snr")),
        (0.011, 0.5, ()),
    ],
)
def test_a_share_of_mismatches_is_kept_at_its_limit(
    mismatches: float, limit: float | None, failed: tuple[str, ...]
) -> None:
    """Rule S8.17: a limit of mismatches, or few of them, excuses the errors of integers."""
    finding = OutputFinding("ids", 9.0, 9.0, 9.0, 0.1, 1.0, mismatches, None, True, quantity=True)
    assert find_failed_limits(finding, Limits(mismatch=limit, snr=40.0)) == failed
    assert find_failed_limits(finding, Limits(mismatch=limit, snr=40.0, max_abs=1.0)) == ("max_abs", *failed)


def test_a_share_of_ignored_values_is_kept_at_its_limit() -> None:
    """Rule S8.21: more ignored values than allowed are too little evidence."""
    finding = OutputFinding("y", 0.0, 0.0, 0.0, 1.0, INF, None, None, True, ignored_share=0.5)
    assert find_failed_limits(finding, Limits(), max_ignored=0.5) == ()
    assert find_failed_limits(finding, Limits(), max_ignored=0.49) == ("max_ignored",)


def test_limits_of_missing_measures_are_ignored() -> None:
    finding = measure((floats(1, 2), floats(1, 2)))
    assert find_failed_limits(finding, Limits(mismatch=0.0)) == ()


def test_default_limits_on_integers() -> None:
    """Rule S8.17: few mismatches pass, many that are off by one step pass in quantities, and many large ones do not."""
    ids = np.random.default_rng(2).integers(0, 1000, 1000)
    few, many, coarse = ids.copy(), ids.copy(), np.full(1000, 200)
    few[:10] = 0
    many[:300] = 0
    step = coarse + (np.arange(1000) % 2)
    assert measure((ids, few), limits=Limits()).passed
    assert measure((ids, many), limits=Limits()).failed_limits == ("mismatch",)
    assert measure((ids, many), limits=Limits(), quantity=True).failed_limits == ("normalized", "cosine")
    assert measure((coarse, step), limits=Limits()).failed_limits == ("mismatch",)
    assert measure((coarse, step), limits=Limits(), quantity=True).passed
    assert measure((ids, many), limits=Limits(normalized=None)).passed
    limits = Limits(mismatch=0.005)
    assert measure((ids, few), limits=limits).failed_limits == ("mismatch",)
    assert measure((coarse, step), limits=limits, quantity=True).failed_limits == ("mismatch",)
    assert measure((ids, many), limits=Limits(mismatch=0.5)).passed


def test_the_default_limits_are_those_of_the_rule() -> None:
    """Rule S8.15: Outputs have limits."""
    assert Limits().enabled() == {"normalized": 1e-2, "cosine": 0.999}


@given(st.lists(st.tuples(*[hnp.arrays(np.float32, (3, 4), elements=st.floats(width=32))] * 2), min_size=1, max_size=5))
def test_merged_batches_equal_added_batches(batches: list[tuple[Any, Any]]) -> None:
    together, merged = OutputAccuracy("y"), OutputAccuracy("y")
    for reference, mixed in batches:
        together.add(reference, mixed)
        batch_accuracy = OutputAccuracy("y")
        batch_accuracy.add(reference, mixed)
        merged.merge(batch_accuracy)
    assert str(merged.finding(Limits())) == str(together.finding(Limits()))
    assert merged.warnings() == together.warnings()


def test_shares_merge() -> None:
    merged = OutputAccuracy("ids")
    for mixed in ([1, 2], [1, 3], [0, 0]):
        batch_accuracy = OutputAccuracy("ids")
        batch_accuracy.add(np.array([1, 2]), np.array(mixed))
        merged.merge(batch_accuracy)
    assert merged.finding(Limits()).mismatches == 0.5


def test_broken_error_limits_stay_broken_and_shares_may_recover() -> None:
    numbers, ids = OutputAccuracy("y"), OutputAccuracy("ids")
    numbers.add(np.ones(4), np.ones(4))
    assert not numbers.cannot_pass(Limits())
    numbers.add(np.ones(4), np.full(4, 1.1))
    assert numbers.cannot_pass(Limits())
    assert not numbers.cannot_pass(Limits(normalized=0.5))
    ids.add(np.array([1, 2]), np.array([1, 3]))
    assert not ids.finding(Limits()).passed
    assert not ids.cannot_pass(Limits())


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (None, (1.0, 1.0, 0.0, 0.8)),
        (Limits(), (0.0, 0.0, None, 0.8)),
        (Limits(max_abs=0.1, cosine=None), (1.0, 0.0, None, 1.0)),
        (Limits(max_rel=0.1), (1.0, 1.0, None, 0.8)),
    ],
)
def test_measures_without_a_limit_are_not_computed(
    limits: Limits | None, expected: tuple[float, float, float | None, float]
) -> None:
    output = OutputAccuracy("y", limits)
    output.add(np.array([[1.0, 2.0]], np.float32), np.array([[2.0, 1.0]], np.float32))
    finding = output.finding(limits or Limits())
    assert (finding.max_abs_error, finding.max_rel_error, finding.top1, finding.cosine) == pytest.approx(expected)
    assert finding.normalized_error == pytest.approx((2 / 5) ** 0.5)
    assert finding.passed is False


@pytest.mark.parametrize("size", [1e200, 1.7e308])
def test_an_undefined_cosine_breaks_its_limit(size: float) -> None:
    limits = Limits(normalized=None, cosine=0.999)
    for good in ([], [1.0]):
        output = OutputAccuracy("y", limits)
        for value in good:
            output.add(np.array([value]), np.array([value]))
        output.add(np.array([size]), np.array([-size]))
        assert output.finding(limits).failed_limits == ("cosine",)


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_a_nonfinite_value_is_an_infinite_error_under_any_limits(wrong: float) -> None:
    for limits in (None, Limits(cosine=None), Limits(normalized=None, cosine=None, max_abs=1.0)):
        output = OutputAccuracy("y", limits)
        output.add(np.ones(3, np.float32), np.array([1.0, wrong, 1.0], np.float32))
        finding = output.finding(limits or Limits())
        assert (finding.max_abs_error, finding.normalized_error) == (np.inf, np.inf)
        assert not finding.passed
