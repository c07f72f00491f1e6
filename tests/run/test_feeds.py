"""Feeds of a model: names, shapes, casts of the data, and the forms that the Python API accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mixlist.errors import UsageError
from mixlist.run.feeds import Batches, as_batches, make_emulation_feed, read_data
from mixlist.run.inputs import Input, model_inputs
from mixlist.run.local_session import LocalSession
from tests.support.builders import model
from tests.support.feed_cases import ONE_INPUT, ROWS, TWO_INPUTS, convert_input, model_with_input, save_npz
from tests.support.local_sessions import make_session

DEFAULT = "g (float[1, 4] w, float[N, 4] x) => (float[N, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"


def warnings_of(proto: onnx.ModelProto, array: Any) -> tuple[str, ...]:
    batches = as_batches({"x": array}, proto)
    list(batches)
    return tuple(warning.without_severity for warning in batches.warnings)


# --- the inputs of a model ---


def test_the_inputs_of_a_model() -> None:
    proto = model(
        "g (float[N, 3, ?] x, int64 n, string[2] s, seq(float16[K]) q, bfloat16[1] w) => (float[N, 3, ?] y)"
        " <bfloat16[1] w = {1}> { y = Identity (x) }",
        check=False,
    )
    plain = proto.graph.input.add(name="unknown")
    plain.type.tensor_type.elem_type = TensorProto.FLOAT
    assert model_inputs(proto) == (
        Input("x", 1, ("N", 3, None), False),
        Input("n", 7, (), False),
        Input("s", 8, (2,), False),
        Input("q", ("seq", 10), ("K",), False),
        Input("w", 16, (1,), True),
        Input("unknown", 1, None, False),
    )
    assert [str(model_input) for model_input in model_inputs(proto)] == [
        "x: float32[N, 3, ?]",
        "n: int64[]",
        "s: string[2]",
        "q: seq(float16[K])",
        "w: bfloat16[1] (may be missing)",
        "unknown: float32[...]",
    ]


def test_negative_sizes_are_open() -> None:
    proto = model_with_input("float[N]")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert model_inputs(proto)[0].shape == (None,)


# --- names and shapes ---


@pytest.mark.parametrize("elem", [0, 99])
def test_an_input_whose_type_onnx_does_not_have(elem: int) -> None:
    proto = model(ONE_INPUT)
    proto.graph.input[0].type.tensor_type.elem_type = elem
    with pytest.raises(UsageError, match="the model declares a type that no data can have"):
        convert_input(proto, ROWS)


def test_wrong_names_show_the_inputs_and_the_data() -> None:
    with pytest.raises(UsageError) as error:
        list(as_batches({"X": ROWS, "ids": np.array([1])}, model(TWO_INPUTS)))
    assert error.value.message == "batch 0: no data for input 'x'; the model has no input 'X' (did you mean x?)"
    assert error.value.hint == (
        "the model expects x: float32[N, 4], ids: int64[M]; the data contains X: float32[2, 4], ids: int64[1]"
    )


@pytest.mark.parametrize(
    ("kind", "array", "says"),
    [
        ("float[N, 4]", np.zeros((2, 5), np.float32), "input 'x' is float32[2, 5]: the model expects 4 along axis 1"),
        ("float[N, 4]", np.zeros(4, np.float32), "input 'x' is float32[4]: the model expects 2 axes"),
        ("float", np.zeros(1, np.float32), "input 'x' is float32[1]: the model expects 0 axes"),
        ("float[N]", [[1, 2], [3]], "its rows have different lengths"),
        ("float[N]", np.array(["1.5"]), "input 'x' is str96[1]: the model expects numbers"),
        ("string[N]", np.array([1.5]), "input 'x' is float64[1]: the model expects strings"),
        ("string[N]", np.array([b"\xff"]), "these bytes are not UTF-8"),
        ("string[N]", np.array([1, "a"], object), "the model expects strings"),
        ("int32[N]", np.array([1, 2**31]), "2147483648 cannot be represented as int32"),
        ("int64[N]", np.array([2**63], np.uint64), "9223372036854775808 cannot be represented as int64"),
        (
            "int64[N]",
            np.array([float(2**63)]),
            "9.223372036854775808e+18 cannot be represented as int64|9.223372036854776e",
        ),
        ("uint8[N]", np.array([-1]), "-1 cannot be represented as uint8"),
        ("int64[N]", np.array([1.5], np.float32), "1.5 cannot be represented as int64"),
        ("int64[N]", np.array([np.nan]), "nan cannot be represented as int64"),
        ("int8[N]", np.array([np.inf], np.float16), "inf cannot be represented as int8"),
        ("bool[N]", np.array([0, 2]), "2 cannot be represented as bool"),
        ("float[N]", np.array([1j]), "the model expects float32"),
        ("int4[N]", np.array([8]), "8 cannot be represented as int4"),
    ],
)
def test_data_that_does_not_fit(kind: str, array: Any, says: str) -> None:
    with pytest.raises(UsageError) as error:
        convert_input(model_with_input(kind), array)
    assert any(text in error.value.message for text in says.split("|"))
    assert "the model expects x: " in str(error.value.hint)


# --- casts ---


@pytest.mark.parametrize(
    ("kind", "array", "note"),
    [
        ("float[N]", np.array([1, 0.1]), None),  # rounding float64 to float32 is not reported
        ("float[N]", np.array([np.nan, np.inf, -0.0]), "1 of 3 values are NaN"),
        ("float[N]", np.array([1.5, np.nan], np.float32), "1 of 2 values are NaN"),
        ("float[N]", np.array([1e300]), "1 of 1 values are beyond the range of float32"),
        ("float[N]", np.array([0, 200], np.uint8), "the data are uint8, taken as float32 without a scale"),
        ("float[N]", np.array([0, 255], np.int64), "the data are int64, taken as float32 without a scale"),
        ("float[N]", np.array([-200, 200]), None),
        ("float[N,1,1,2]", np.array([[[[0, 1]]]]), "the data are int64 from 0 to 1: fractions were lost"),
        ("float[N,1,2]", np.array([[[0, 1]]]), None),
        ("float16[N]", np.array([0, 16], np.uint8), None),
        ("float[N]", np.array([1, 2], np.int64), None),
        ("float[N]", np.array([True, False]), None),
        ("float[N]", np.array([2**24 + 1]), "1 of 1 values were rounded to float32"),
        ("float[N]", np.array([1.5], np.float16), None),
        ("float16[N]", np.array([1.5, np.nan], np.float32), "1 of 2 values are NaN"),
        ("float16[N]", np.array([2049.0, 1, np.nan], np.float32), "1 of 3 values were rounded to float16"),
        ("float16[N]", np.array([65519.0, 65520, np.inf], np.float32), "1 of 3 values are beyond the range of float16"),
        ("float16[N]", np.array([70000]), "1 of 1 values are beyond the range of float16"),
        ("bfloat16[N]", np.array([257.0], np.float32), "1 of 1 values were rounded to bfloat16"),
        ("bfloat16[N]", np.array([256.0], np.float64), None),
        ("double[N]", np.array([2**60], np.int64), None),
        ("int64[N]", np.array([3.0, -4.0]), None),
        ("int64[N]", np.array([2.0**62]), None),
        ("uint64[N]", np.array([2**63], np.uint64), None),
        ("int32[N]", np.array([-(2**31), 2**31 - 1]), None),
        ("bool[N]", np.array([0.0, 1.0], np.float32), None),
        ("uint8[N]", np.array([255], np.int64), None),
        ("float[N]", np.zeros(0, np.int8), None),
        ("int64[N]", np.zeros(0, np.float64), None),
        ("complex64[N]", np.array([1, 2]), None),
        ("uint4[N]", np.array([0, 15], np.uint8), None),
    ],
)
def test_casts(kind: str, array: Any, note: str | None) -> None:
    proto = model_with_input(kind)
    elem = proto.graph.input[0].type.tensor_type.elem_type
    with np.errstate(all="ignore"):
        expected = array.astype(helper.tensor_dtype_to_np_dtype(elem))
    result = convert_input(proto, array)
    assert result.dtype == expected.dtype
    assert result.tobytes() == expected.tobytes()
    messages = warnings_of(proto, array)
    assert [note is not None and note in message for message in messages] == [True] * (note is not None)


def test_an_array_of_the_declared_type_is_not_copied() -> None:
    assert convert_input(model_with_input("float[N, 4]"), ROWS) is ROWS


def test_byte_order_and_memory_order() -> None:
    swapped = convert_input(model_with_input("float[N, 4]"), ROWS.astype(">f4"))
    assert swapped.dtype.isnative
    np.testing.assert_array_equal(swapped, ROWS)
    fortran = convert_input(model_with_input("float[N, M]"), np.asfortranarray(ROWS))
    assert fortran.flags.c_contiguous
    np.testing.assert_array_equal(fortran, ROWS)


def test_a_loss_is_reported_once_for_each_input() -> None:
    batches = as_batches([{"x": np.array([2049.0])}] * 3, model_with_input("float16[N]"))
    for _ in range(2):
        list(batches)
    (warning,) = batches.warnings
    loss = "input 'x': 1 of 1 values were rounded to float16 (reported once for this input)"
    assert warning.without_severity == f"batch 0: ML602: {loss}"


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "", "ö"]),
        np.array([b"a", b"", "ö".encode()]),
        np.array(["a", "", "ö"], object),
        *([np.array(["a", "", "ö"], np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []),
    ],  # numpy has StringDType from version 2 on
)
def test_strings(array: Any, tmp_path: Path) -> None:
    proto = model_with_input("string[N]")
    got = convert_input(proto, array)
    assert got.tolist() == ["a", "", "ö"]
    assert LocalSession(make_session(proto)).run(None, {"x": got})[0].tolist() == ["a", "", "ö"]
    if array.dtype.kind in "US":
        (feed,) = read_data(proto, [save_npz(tmp_path / "a.npz", x=array)])
        assert feed["x"].tolist() == ["a", "", "ö"]


def test_scalars_bools_and_empty_arrays_run(tmp_path: Path) -> None:
    proto = model(
        "g (float s, bool[N] b, int64[K, 3] e, float16[N] h) => (float t, bool[N] c, int64[K, 3] f, float16[N] i)"
        " { t = Neg (s) c = Not (b) f = Neg (e) i = Identity (h) }"
    )
    path = save_npz(tmp_path / "a.npz", s=np.float32(2), b=[True, False], e=np.zeros((0, 3), int), h=np.float16([1, 2]))
    (feed,) = read_data(proto, [path])
    t, c, f, i = LocalSession(make_session(proto)).run(None, feed)
    assert (float(t), c.tolist(), f.shape, i.tolist()) == (-2, [False, True], (0, 3), [1, 2])


def test_an_input_with_a_default_may_be_missing() -> None:
    proto = model(
        "g (float[N, 4] x, float[1, 4] w) => (float[N, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"
    )
    runner = LocalSession(make_session(proto))
    (without_default,), (with_value,) = (
        as_batches({"x": ROWS}, proto),
        as_batches({"x": ROWS, "w": np.ones((1, 4))}, proto),
    )
    np.testing.assert_array_equal(runner.run(None, without_default)[0], ROWS + np.array([1, 2, 3, 4]))
    np.testing.assert_array_equal(runner.run(None, with_value)[0], ROWS + 1)


# --- the Python API, and the emulated graph ---


def test_data_that_the_python_api_takes(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "a.npz", x=ROWS)
    proto = model(ONE_INPUT)
    for data in (path, str(path), [path], {"x": ROWS}, [{"x": ROWS}], ({"x": ROWS} for _ in range(1))):
        batches = as_batches(data, proto)
        for _ in range(2):
            np.testing.assert_array_equal(next(iter(batches))["x"], ROWS)
    assert as_batches(batches, proto) is batches
    assert isinstance(batches, Batches)


@pytest.mark.parametrize("data", [[], None, 3, [ROWS], [{"x": ROWS}, "a.npz"], ROWS])
def test_data_that_the_python_api_refuses(data: Any) -> None:
    with pytest.raises(UsageError, match="the data is"):
        as_batches(data, model(ONE_INPUT))


def test_low_inputs_of_the_emulation() -> None:
    proto = model(
        "g (float16[N] h, bfloat16[N] b, float[N] f, int64[N] n) => (float16[N] y) { y = Identity (h) }",
        check=False,
    )
    inputs = model_inputs(proto)
    feed = {
        "h": np.array([2049, 70000], np.float32),
        "b": np.array([257], ml_dtypes.bfloat16),
        "f": np.array([0.1], np.float32),
        "n": np.array([3]),
    }
    raised = make_emulation_feed(feed, inputs)
    assert raised["h"].tolist() == [2048, np.inf]
    assert raised["b"].tolist() == [256]
    assert raised["f"] is feed["f"]
    assert raised["n"] is feed["n"]
    assert {raised[name].dtype for name in "hb"} == {np.dtype(np.float32)}
