"""Conversion of constants: the bits of a scalar reference, and a correct report."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.model import dtypes
from mixlist.write import tensor_conversion
from mixlist.write.constant_conversion import find_constant_warnings
from mixlist.write.tensor_conversion import ConstantReport, convert_piece

EDGES = [
    0.0,
    -0.0,
    65504.0,
    65519.99,
    65520.0,
    -65520.0,
    1e6,
    2.0**-24,
    2.0**-25,
    2.0**-25 * 1.0001,
    1e-30,
    np.inf,
    -np.inf,
]


@given(
    st.lists(st.floats(width=32) | st.sampled_from(EDGES).map(lambda v: float(np.float32(v))), min_size=1, max_size=40)
)
def test_float16_bits_and_report_against_a_scalar_reference(values: list[float]) -> None:
    """Rule S7.8: Changed constants are reported."""
    float32_values = np.array(values, np.float32)
    report = ConstantReport("w")
    converted = convert_piece(float32_values, dtypes.FLOAT16, clamp="", report=report)
    with np.errstate(all="ignore"):
        expected = np.array([np.float16(v) for v in float32_values], np.float16)
    assert converted.dtype == np.float16
    assert np.array_equal(
        converted.view(np.uint16)[~np.isnan(float32_values)], expected.view(np.uint16)[~np.isnan(float32_values)]
    )
    assert np.array_equal(np.isnan(converted), np.isnan(float32_values))
    assert report.overflowed == sum(
        bool(np.isfinite(a) and np.isinf(b)) for a, b in zip(float32_values, expected, strict=True)
    )
    assert report.flushed == sum(bool(a != 0 and b == 0) for a, b in zip(float32_values, expected, strict=True))
    assert report.max_abs == max((abs(float(v)) for v in float32_values if np.isfinite(v)), default=0.0)


def test_clamp_keeps_signs_and_infinities() -> None:
    report = ConstantReport("w")
    converted = convert_piece(np.array([1e6, -1e6, np.inf, -np.inf, 3.0], np.float32), dtypes.FLOAT16, "finite", report)
    assert converted.tolist() == [65504.0, -65504.0, np.inf, -np.inf, 3.0]
    assert (report.clamped, report.overflowed) == (2, 0)


@pytest.mark.parametrize(("authored", "last"), [(np.float32, 65504.0), (ml_dtypes.bfloat16, np.inf)])
def test_the_engine_clips_infinities_of_longer_types(authored: type, last: float) -> None:
    """Rule S4.19 in Ascend names: ``constant_clip_pass.cc`` of hicann/ge compares the sizes of the two types."""
    report = ConstantReport("w")
    converted = convert_piece(np.array([-np.inf, 3.0, 1e6], authored), dtypes.FLOAT16, "all", report)
    assert converted.tolist() == [-last, 3.0, last]
    assert (report.clamped, report.overflowed) == ((2, 0) if np.isfinite(last) else (0, 1))
    assert report.max_abs == (np.inf if np.isfinite(last) else float(ml_dtypes.bfloat16(1e6)))


def test_bfloat16_rounds_to_nearest_even_and_keeps_the_range() -> None:
    report = ConstantReport("w")
    converted = convert_piece(
        np.array([1.0, 1.00390625, 3.3e38, -0.0, 3.4e38], np.float32), dtypes.BFLOAT16, False, report
    )
    assert converted.dtype == ml_dtypes.bfloat16
    assert converted.view(np.uint16).tolist() == [0x3F80, 0x3F80, 0x7F78, 0x8000, 0x7F80]
    assert report.overflowed == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_onnx_runtime_gives_the_bits_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, tensor_conversion._LARGE_COUNT, dtype=np.uint32)
    float32_values = bits.view(np.float32)
    converted = tensor_conversion._round_to(float32_values, dtypes.FLOAT16, np.dtype(np.float16), is_large=True)
    with np.errstate(all="ignore"):
        expected = float32_values.astype(np.float16)
    is_number = ~np.isnan(float32_values)  # the bits of a converted NaN are not defined
    assert np.array_equal(converted.view(np.uint16)[is_number], expected.view(np.uint16)[is_number])
    assert np.isnan(converted[~is_number]).all()


@pytest.mark.parametrize(
    ("report", "code", "words"),
    [
        (ConstantReport("w", overflowed=2, max_abs=1e6), "ML502", "reaches 1e+06, beyond the low type: 2 values"),
        (ConstantReport("w", clamped=3, max_abs=1e6), "ML502", "3 values were clamped"),
        (
            ConstantReport("w", flushed=4, nonzero=90),
            "ML503",
            "4 of 90 nonzero values of constant 'w' became zero, and Div d reads",
        ),
        (ConstantReport("u", flushed=9, nonzero=90), "ML503", "9 of 90 nonzero values of constant 'u' became zero"),
    ],
)
def test_a_lossy_conversion_is_warned_about(report: ConstantReport, code: str, words: str) -> None:
    """Rule S7.8: Changed constants are reported."""
    (warning,) = find_constant_warnings([ConstantReport("v"), report], {"v": "Log l", "w": "Div d"})
    assert (warning.code, words in warning.message) == (code, True), warning.message


def test_zeros_are_not_counted_as_nonzero_in_any_piece() -> None:
    report = ConstantReport("w")
    for piece in ([0.0, -0.0, 1.0], [0.0, 1e-9, 2.0]):  # no value of the first piece becomes zero
        convert_piece(np.array(piece, np.float32), dtypes.FLOAT16, False, report)
    assert (report.flushed, report.nonzero) == (1, 3)


def test_zeros_that_no_sensitive_operator_reads_are_not_warned_about() -> None:
    """Rule S7.8: tiny weights often become zero without harm."""
    assert not list(find_constant_warnings([ConstantReport("w", flushed=8, nonzero=90)], {"v": "Div d"}))
