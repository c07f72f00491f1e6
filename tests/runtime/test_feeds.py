"""Test data in every form that ``--data`` and the Python API take, and its conversion to feeds."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mixlist.errors import FileError, MixlistError, UsageError
from mixlist.runtime.feeds import Batches, as_batches, make_emulation_feed, read_batches
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.inputs import Input, model_inputs
from mixlist.runtime.local_session import LocalSession
from tests.support.builders import model
from tests.support.systems import posix_only

TWO = "g (float[N, 4] x, int64[M] ids) => (float[N, 4] y, int64[M] z) { y = Neg (x) z = Neg (ids) }"
ONE = "g (float[N, 4] x) => (float[N, 4] y) { y = Neg (x) }"
DEFAULT = "g (float[1, 4] w, float[N, 4] x) => (float[N, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def model_with_input(kind: str) -> onnx.ModelProto:
    """Return a model with one input ``x``; ``kind`` is its type and shape in ONNX text: ``float[N, 4]``."""
    return model(f"g ({kind} x) => ({kind} y) {{ y = Identity (x) }}", check=False)


def convert(proto: onnx.ModelProto, array: Any) -> Any:
    """Return the value that the input ``x`` of a model gets for an array."""
    (feed,) = as_batches({"x": array}, proto)
    return feed["x"]


def warnings_of(proto: onnx.ModelProto, array: Any) -> tuple[str, ...]:
    batches = as_batches({"x": array}, proto)
    list(batches)
    return tuple(warning.without_severity for warning in batches.warnings)


def save_npz(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


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


# --- files and directories ---


def test_npz(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "a.npz", ids=np.array([3]), x=ROWS)
    batches = read_batches([path], model(TWO))
    assert len(batches) == 1
    assert batches.names() == (str(path),)
    for _ in range(2):  # batches can be iterated several times
        (feed,) = batches
        assert list(feed) == ["x", "ids"]  # the model's order
        np.testing.assert_array_equal(feed["x"], ROWS)


def test_a_directory_of_npz_in_natural_order(tmp_path: Path) -> None:
    for k in (10, 2, 1):
        save_npz(tmp_path / "data" / f"batch_{k}.npz", x=np.full((k, 4), k, np.float32))
    (tmp_path / "data" / "README.md").write_text("not data")
    batches = read_batches([tmp_path / "data"], model(ONE))
    assert [Path(name).name for name in batches.names()] == ["batch_1.npz", "batch_2.npz", "batch_10.npz"]
    assert [feed["x"].shape[0] for feed in batches] == [1, 2, 10]  # sizes differ from batch to batch


def test_batches_are_read_one_by_one(tmp_path: Path) -> None:
    for k in range(3):
        save_npz(tmp_path / f"{k}.npz", x=ROWS)
    batches = read_batches([tmp_path], model(ONE))
    (tmp_path / "1.npz").unlink()
    (tmp_path / "2.npz").write_bytes(b"damaged")
    iterator = iter(batches)
    next(iterator)
    with pytest.raises(FileError, match=r"1\.npz: No such file"):
        next(iterator)


def test_several_paths_keep_their_order(tmp_path: Path) -> None:
    paths = [save_npz(tmp_path / name, x=ROWS) for name in ("b.npz", "a.npz")]
    assert read_batches(paths, model(ONE)).names() == tuple(map(str, paths))


def test_npy_for_a_model_with_one_input(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ROWS)
    (feed,) = read_batches([path], model(ONE))
    np.testing.assert_array_equal(feed["x"], ROWS)
    (feed,) = read_batches([tmp_path], model(ONE))
    np.testing.assert_array_equal(feed["x"], ROWS)
    weights = model(
        "g (float[N, 4] w, float[N, 4] x) => (float[N, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"
    )
    (feed,) = read_batches([path], weights)
    assert list(feed) == ["x"]
    with pytest.raises(UsageError, match="contains one array, but the model expects 2: x, ids"):
        list(read_batches([path], model(TWO)))


def save_set(folder: Path, *protos: Any) -> Path:
    folder.mkdir(parents=True)
    for k, proto in enumerate(protos):
        (folder / f"input_{k}.pb").write_bytes(proto.SerializeToString())
    (folder / "output_0.pb").write_bytes(b"")
    return folder


def test_onnx_test_data(tmp_path: Path) -> None:
    ids = np.array([5, 6])
    for k in (0, 1, 10):
        save_set(tmp_path / f"test_data_set_{k}", numpy_helper.from_array(ROWS + k), numpy_helper.from_array(ids))
    (tmp_path / "model.onnx").write_bytes(b"")
    batches = read_batches([tmp_path], model(TWO))
    assert [Path(name).name for name in batches.names()] == [f"test_data_set_{k}" for k in (0, 1, 10)]
    assert [feed["x"][0, 0] for feed in batches] == [0, 1, 10]
    (feed,) = read_batches([tmp_path / "test_data_set_10"], model(TWO))
    np.testing.assert_array_equal(feed["ids"], ids)


def test_numbers_of_test_data_do_not_count_initializers(tmp_path: Path) -> None:
    proto = model(
        "g (float[1] w, float[1] a, float[1] b) => (float[1] y) <float[1] w = {9}> { c = Sub (a, b) y = Mul (c, w) }"
    )
    first, second = np.array([1], np.float32), np.array([2], np.float32)
    path = save_set(tmp_path / "set", numpy_helper.from_array(first), numpy_helper.from_array(second))
    (feed,) = read_batches([path], proto)
    assert {name: float(value[0]) for name, value in feed.items()} == {"a": 1, "b": 2}


def test_names_in_test_data_count_if_all_are_inputs(tmp_path: Path) -> None:
    ids, rows = numpy_helper.from_array(np.array([5]), "ids"), numpy_helper.from_array(ROWS, "x")
    (feed,) = read_batches([save_set(tmp_path / "named", ids, rows)], model(TWO))
    np.testing.assert_array_equal(feed["x"], ROWS)
    rows, ids = numpy_helper.from_array(ROWS, "ids"), numpy_helper.from_array(np.array([5]), "other")
    (feed,) = read_batches([save_set(tmp_path / "numbered", rows, ids)], model(TWO))
    np.testing.assert_array_equal(feed["x"], ROWS)


def test_sequences_and_optionals_in_test_data(tmp_path: Path) -> None:
    proto = model(
        '<ir_version: 8, opset_import: ["" : 18]> g (seq(float[N]) q, optional(float[N]) o) => (int64 n, bool has)'
        " { n = SequenceLength (q) has = OptionalHasElement (o) }"
    )
    parts = [np.ones(2, np.float32), np.zeros(3, np.float32)]
    filled = numpy_helper.from_optional(parts[0])
    path = save_set(tmp_path / "set", numpy_helper.from_list(parts), filled)
    (feed,) = read_batches([path], proto)
    assert [part.tolist() for part in feed["q"]] == [[1, 1], [0, 0, 0]]
    assert feed["o"].tolist() == [1, 1]
    (bare,) = read_batches([save_set(tmp_path / "bare", numpy_helper.from_list(parts))], proto)
    runner = LocalSession(make_session(proto))
    assert [int(value) for value in runner.run(None, feed)] == [2, 1]
    assert [int(value) for value in runner.run(None, bare)] == [2, 0]
    with pytest.raises(UsageError, match=r"which a test_data_set directory can contain"):
        convert(model("g (seq(float[N]) x) => (int64 n) { n = SequenceLength (x) }"), np.ones((2, 3), np.float32))


def test_too_many_and_too_few_files_of_test_data(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(ROWS)
    with pytest.raises(UsageError, match=r"contains input_1\.pb, but the model has 1 inputs: x"):
        list(read_batches([save_set(tmp_path / "many", tensor, tensor)], model(ONE)))
    with pytest.raises(UsageError, match="no data for input 'ids'"):
        list(read_batches([save_set(tmp_path / "few", tensor)], model(TWO)))


def test_test_data_with_external_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(32))
    tensor = TensorProto(name="x", data_type=1, dims=[2, 4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=str(tmp_path / "secret"))
    with pytest.raises(FileError, match="refers to values in another file"):
        list(read_batches([save_set(tmp_path / "a", tensor)], model(ONE)))
    sequence = onnx.SequenceProto(elem_type=1, tensor_values=[tensor])
    proto = model("g (seq(float[N, 4]) q) => (int64 n) { n = SequenceLength (q) }")
    with pytest.raises(FileError, match="refers to values in another file"):
        list(read_batches([save_set(tmp_path / "b", sequence)], proto))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "contains no data"),
        (["readme.txt"], "contains no data"),
        (["a.npz", "b.npy"], "contains .npz files and .npy files"),
        (["a.npz", "set/input_0.pb"], "contains test data sets and .npz files"),
    ],
)
def test_directories_without_usable_data(tmp_path: Path, names: list[str], says: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(MixlistError, match=says):
        read_batches([tmp_path], model(ONE))


def test_paths_that_are_not_data(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file or directory") as error:
        read_batches([tmp_path / "none.npz"], model(ONE))
    assert "test_data_set" in str(error.value.hint)
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(FileError, match=r"mixlist cannot read .*x\.csv as data"):
        read_batches([tmp_path / "x.csv"], model(ONE))


class Bomb:
    """An object that creates a folder if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    bomb = np.array([Bomb(tmp_path / "ran")], object)
    np.savez(tmp_path / "a.npz", allow_pickle=True, x=bomb)
    np.save(tmp_path / "a.npy", bomb, allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(bomb))
    (tmp_path / "b.npz").write_bytes(pickle.dumps({"x": bomb}))
    for name, says in {
        "a.npz": "Python objects",
        "a.npy": "Python objects",
        "b.npy": "numpy",
        "b.npz": "numpy",
    }.items():
        with pytest.raises(FileError, match=says):
            list(read_batches([tmp_path / name], model(ONE)))
    assert not (tmp_path / "ran").exists()


def test_a_zip_file_that_is_not_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x", "text")
    with pytest.raises(FileError, match="its entry 'x' is not an array"):
        list(read_batches([tmp_path / "a.npz"], model(ONE)))


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore")  # numpy's, of odd headers
def test_damaged_files_raise_mixlist_errors(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["npz", "npy", "pb"]))
    path = tmp_path / f"input_0.{kind}"
    if kind == "npz":
        save_npz(path, x=ROWS)
    elif kind == "npy":
        np.save(path, ROWS)
    else:
        path.write_bytes(numpy_helper.from_array(ROWS).SerializeToString())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        list(read_batches([path if kind != "pb" else tmp_path], model(ONE)))
    except (MixlistError, MemoryError):  # a damaged shape can ask for any amount
        pass
    finally:
        path.unlink()


# --- names and shapes ---


@pytest.mark.parametrize("elem", [0, 99])
def test_an_input_whose_type_onnx_does_not_have(elem: int) -> None:
    proto = model(ONE)
    proto.graph.input[0].type.tensor_type.elem_type = elem
    with pytest.raises(UsageError, match="the model declares a type that no data can have"):
        convert(proto, ROWS)


def test_wrong_names_show_the_inputs_and_the_data() -> None:
    with pytest.raises(UsageError) as error:
        list(as_batches({"X": ROWS, "ids": np.array([1])}, model(TWO)))
    assert error.value.message == "batch 0: no data for input 'x'; the model has no input 'X' (did you mean x?)"
    assert error.value.hint is not None
    assert error.value.hint.split("\n") == [
        "the model expects",
        "  x: float32[N, 4]",
        "  ids: int64[M]",
        "the data contains",
        "  X: float32[2, 4]",
        "  ids: int64[1]",
    ]


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
        convert(model_with_input(kind), array)
    assert any(text in error.value.message for text in says.split("|"))
    assert "the model expects\n  x: " in str(error.value.hint)


# --- casts ---


@pytest.mark.parametrize(
    ("kind", "array", "note"),
    [
        ("float[N]", np.array([1, 0.1]), None),  # rounding float64 to float32 is not reported
        ("float[N]", np.array([np.nan, np.inf, -0.0]), None),
        ("float[N]", np.array([1e300]), "1 of 1 values are beyond the range of float32"),
        ("float[N]", np.array([1, 2], np.uint8), None),
        ("float[N]", np.array([True, False]), None),
        ("float[N]", np.array([2**24 + 1]), "1 of 1 values were rounded to float32"),
        ("float[N]", np.array([1.5], np.float16), None),
        ("float16[N]", np.array([1.5, np.nan], np.float32), None),
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
    result = convert(proto, array)
    assert result.dtype == expected.dtype
    assert result.tobytes() == expected.tobytes()
    messages = warnings_of(proto, array)
    assert [note is not None and note in message for message in messages] == [True] * (note is not None)


def test_an_array_of_the_declared_type_is_not_copied() -> None:
    assert convert(model_with_input("float[N, 4]"), ROWS) is ROWS


def test_byte_order_and_memory_order() -> None:
    swapped = convert(model_with_input("float[N, 4]"), ROWS.astype(">f4"))
    assert swapped.dtype.isnative
    np.testing.assert_array_equal(swapped, ROWS)
    fortran = convert(model_with_input("float[N, M]"), np.asfortranarray(ROWS))
    assert fortran.flags.c_contiguous
    np.testing.assert_array_equal(fortran, ROWS)


def test_a_loss_is_reported_once_for_each_input() -> None:
    batches = as_batches([{"x": np.array([2049.0])}] * 3, model_with_input("float16[N]"))
    for _ in range(2):
        list(batches)
    (warning,) = batches.warnings
    loss = "input 'x': 1 of 1 values were rounded to float16 (reported once for this input)"
    assert warning.without_severity == f"batch 0: ML602: {loss}"


def test_npz_files_with_types_that_numpy_lacks(tmp_path: Path) -> None:
    half = np.array([1, 2.5, -3e38], ml_dtypes.bfloat16)
    path = save_npz(tmp_path / "a.npz", x=half)
    assert np.load(path)["x"].dtype == np.dtype("V2")
    (feed,) = read_batches([path], model_with_input("bfloat16[N]"))
    assert feed["x"].dtype == half.dtype
    assert feed["x"].tobytes() == half.tobytes()
    (feed,) = read_batches([path], model_with_input("float[N]"))  # a model in float32 can read bfloat16 data
    np.testing.assert_array_equal(feed["x"], half.astype(np.float32))
    small = np.array([1, -2, 7], ml_dtypes.int4)
    (feed,) = read_batches([save_npz(tmp_path / "b.npz", x=small)], model_with_input("int4[N]"))
    assert feed["x"].tolist() == [1, -2, 7]
    with pytest.raises(UsageError, match="the model expects numbers"):
        list(read_batches([tmp_path / "b.npz"], model_with_input("float[N]")))


def test_float8_in_a_file(tmp_path: Path) -> None:
    values = np.array([1, -2, 0.5]).astype(ml_dtypes.float8_e4m3fn)
    (feed,) = read_batches([save_npz(tmp_path / "a.npz", x=values)], model_with_input("float8e4m3fn[N]"))
    assert feed["x"].astype(np.float32).tolist() == [1, -2, 0.5]


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "", "ö"]),
        np.array([b"a", b"", "ö".encode()]),
        np.array(["a", "", "ö"], object),
        np.array(["a", "", "ö"], np.dtypes.StringDType()),
    ],
)
def test_strings(array: Any, tmp_path: Path) -> None:
    proto = model_with_input("string[N]")
    got = convert(proto, array)
    assert got.tolist() == ["a", "", "ö"]
    assert LocalSession(make_session(proto)).run(None, {"x": got})[0].tolist() == ["a", "", "ö"]
    if array.dtype.kind in "US":
        (feed,) = read_batches([save_npz(tmp_path / "a.npz", x=array)], proto)
        assert feed["x"].tolist() == ["a", "", "ö"]


def test_scalars_bools_and_empty_arrays_run(tmp_path: Path) -> None:
    proto = model(
        "g (float s, bool[N] b, int64[K, 3] e, float16[N] h) => (float t, bool[N] c, int64[K, 3] f, float16[N] i)"
        " { t = Neg (s) c = Not (b) f = Neg (e) i = Identity (h) }"
    )
    path = save_npz(tmp_path / "a.npz", s=np.float32(2), b=[True, False], e=np.zeros((0, 3), int), h=np.float16([1, 2]))
    (feed,) = read_batches([path], proto)
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
    proto = model(ONE)
    for data in (path, str(path), [path], {"x": ROWS}, [{"x": ROWS}], ({"x": ROWS} for _ in range(1))):
        batches = as_batches(data, proto)
        for _ in range(2):
            np.testing.assert_array_equal(next(iter(batches))["x"], ROWS)
    assert as_batches(batches, proto) is batches
    assert isinstance(batches, Batches)


@pytest.mark.parametrize("data", [[], None, 3, [ROWS], [{"x": ROWS}, "a.npz"], ROWS])
def test_data_that_the_python_api_refuses(data: Any) -> None:
    with pytest.raises(UsageError, match="the data is"):
        as_batches(data, model(ONE))


def test_low_inputs_of_the_emulation() -> None:
    proto = model(
        "g (float16[N] h, bfloat16[N] b, float[N] f, int64[N] n, seq(float16[N]) q) => (float16[N] y)"
        " { y = Identity (h) }",
        check=False,
    )
    inputs = model_inputs(proto)
    feed = {
        "h": np.array([2049, 70000], np.float32),
        "b": np.array([257], ml_dtypes.bfloat16),
        "f": np.array([0.1], np.float32),
        "n": np.array([3]),
        "q": [np.array([0.1], np.float16)],
    }
    raised = make_emulation_feed(feed, inputs)
    assert raised["h"].tolist() == [2048, np.inf]
    assert raised["b"].tolist() == [256]
    assert raised["f"] is feed["f"]
    assert raised["n"] is feed["n"]
    assert raised["q"][0].dtype == np.float32
    assert raised["q"][0][0] == np.float16(0.1)
    assert {raised[name].dtype for name in "hb"} == {np.dtype(np.float32)}


@posix_only
@pytest.mark.parametrize("name", ["x.npz", "x.npy", "input_0.pb", "labels"])
def test_data_must_be_regular_files(tmp_path: Path, name: str) -> None:
    """Reading a pipe without a writer never ends, and neither does reading a device."""
    os.mkfifo(tmp_path / name)
    path = tmp_path if name.endswith(".pb") else tmp_path / name
    with pytest.raises(FileError, match=f"{name} is a named pipe, and a regular file is needed"):
        list(as_batches(path, model(ONE)))
    with pytest.raises(FileError, match="/dev/zero is a device, and a regular file is needed"):
        list(as_batches("/dev/zero", model(ONE)))
