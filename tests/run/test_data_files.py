"""Files and folders of test data that ``--data`` and the Python API read."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from mixlist.errors import FileError, MixlistError, UsageError
from mixlist.run.feeds import as_batches, read_data
from tests.support.builders import model
from tests.support.feed_cases import ONE_INPUT, ROWS, TWO_INPUTS, model_with_input, save_npz
from tests.support.systems import posix_only


def test_npz(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "a.npz", ids=np.array([3]), x=ROWS)
    batches = read_data(model(TWO_INPUTS), [path])
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
    batches = read_data(model(ONE_INPUT), [tmp_path / "data"])
    assert [Path(name).name for name in batches.names()] == ["batch_1.npz", "batch_2.npz", "batch_10.npz"]
    assert [feed["x"].shape[0] for feed in batches] == [1, 2, 10]  # sizes differ from batch to batch


def test_batches_are_read_one_by_one(tmp_path: Path) -> None:
    for k in range(3):
        save_npz(tmp_path / f"{k}.npz", x=ROWS)
    batches = read_data(model(ONE_INPUT), [tmp_path])
    (tmp_path / "1.npz").unlink()
    (tmp_path / "2.npz").write_bytes(b"damaged")
    iterator = iter(batches)
    next(iterator)
    with pytest.raises(FileError, match=r"1\.npz: No such file"):
        next(iterator)


def test_several_paths_keep_their_order(tmp_path: Path) -> None:
    paths = [save_npz(tmp_path / name, x=ROWS) for name in ("b.npz", "a.npz")]
    assert read_data(model(ONE_INPUT), paths).names() == tuple(map(str, paths))


def test_npy_for_a_model_with_one_input(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ROWS)
    (feed,) = read_data(model(ONE_INPUT), [path])
    np.testing.assert_array_equal(feed["x"], ROWS)
    (feed,) = read_data(model(ONE_INPUT), [tmp_path])
    np.testing.assert_array_equal(feed["x"], ROWS)
    weights = model(
        "g (float[N, 4] w, float[N, 4] x) => (float[N, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"
    )
    (feed,) = read_data(weights, [path])
    assert list(feed) == ["x"]
    with pytest.raises(UsageError, match="contains one array, but the model expects 2: x, ids"):
        list(read_data(model(TWO_INPUTS), [path]))


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
    batches = read_data(model(TWO_INPUTS), [tmp_path])
    assert [Path(name).name for name in batches.names()] == [f"test_data_set_{k}" for k in (0, 1, 10)]
    assert [feed["x"][0, 0] for feed in batches] == [0, 1, 10]
    (feed,) = read_data(model(TWO_INPUTS), [tmp_path / "test_data_set_10"])
    np.testing.assert_array_equal(feed["ids"], ids)


def test_numbers_of_test_data_do_not_count_initializers(tmp_path: Path) -> None:
    proto = model(
        "g (float[1] w, float[1] a, float[1] b) => (float[1] y) <float[1] w = {9}> { c = Sub (a, b) y = Mul (c, w) }"
    )
    first, second = np.array([1], np.float32), np.array([2], np.float32)
    path = save_set(tmp_path / "set", numpy_helper.from_array(first), numpy_helper.from_array(second))
    (feed,) = read_data(proto, [path])
    assert {name: float(value[0]) for name, value in feed.items()} == {"a": 1, "b": 2}


def test_names_in_test_data_count_if_all_are_inputs(tmp_path: Path) -> None:
    ids, rows = numpy_helper.from_array(np.array([5]), "ids"), numpy_helper.from_array(ROWS, "x")
    (feed,) = read_data(model(TWO_INPUTS), [save_set(tmp_path / "named", ids, rows)])
    np.testing.assert_array_equal(feed["x"], ROWS)
    rows, ids = numpy_helper.from_array(ROWS, "ids"), numpy_helper.from_array(np.array([5]), "other")
    (feed,) = read_data(model(TWO_INPUTS), [save_set(tmp_path / "numbered", rows, ids)])
    np.testing.assert_array_equal(feed["x"], ROWS)


def test_inputs_that_are_no_tensors_get_no_data(tmp_path: Path) -> None:
    """An optional may be missing."""
    proto = model(
        '<ir_version: 8, opset_import: ["" : 18]> g (seq(float[N]) q, optional(float[N]) o) => (int64 n, bool has)'
        " { n = SequenceLength (q) has = OptionalHasElement (o) }"
    )
    parts = [np.ones(2, np.float32), np.zeros(3, np.float32)]
    with pytest.raises(UsageError, match=r"input_0.pb is for input q: seq.*, and mixlist gives inputs tensors only"):
        list(read_data(proto, [save_set(tmp_path / "set", numpy_helper.from_list(parts))]))
    with pytest.raises(UsageError, match=r"'q' is a list .* and mixlist gives inputs tensors only"):
        list(as_batches([{"q": parts}], proto))
    only_optional = model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N] x, optional(float[N]) o) => (float[N] y, bool has)'
        " { y = Neg (x) has = OptionalHasElement (o) }"
    )
    (feed,) = as_batches([{"x": parts[0]}], only_optional)
    assert list(feed) == ["x"]


def test_too_many_and_too_few_files_of_test_data(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(ROWS)
    with pytest.raises(UsageError, match=r"contains input_1\.pb, but the model has 1 inputs: x"):
        list(read_data(model(ONE_INPUT), [save_set(tmp_path / "many", tensor, tensor)]))
    with pytest.raises(UsageError, match="no data for input 'ids'"):
        list(read_data(model(TWO_INPUTS), [save_set(tmp_path / "few", tensor)]))


def test_test_data_with_external_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(32))
    tensor = TensorProto(name="x", data_type=1, dims=[2, 4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=str(tmp_path / "secret"))
    with pytest.raises(FileError, match="refers to values in another file"):
        list(read_data(model(ONE_INPUT), [save_set(tmp_path / "a", tensor)]))


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
        read_data(model(ONE_INPUT), [tmp_path])


def test_paths_that_are_not_data(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file or directory") as error:
        read_data(model(ONE_INPUT), [tmp_path / "none.npz"])
    assert "test_data_set" in str(error.value.hint)
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(FileError, match=r"mixlist cannot read .*x\.csv as data"):
        read_data(model(ONE_INPUT), [tmp_path / "x.csv"])


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
            list(read_data(model(ONE_INPUT), [tmp_path / name]))
    assert not (tmp_path / "ran").exists()


def test_a_zip_file_that_is_not_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x", "text")
    with pytest.raises(FileError, match="its entry 'x' is not an array"):
        list(read_data(model(ONE_INPUT), [tmp_path / "a.npz"]))


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
        list(read_data(model(ONE_INPUT), [path if kind != "pb" else tmp_path]))
    except (MixlistError, MemoryError):  # a damaged shape can ask for any amount
        pass
    finally:
        path.unlink()


def test_npz_files_with_types_that_numpy_lacks(tmp_path: Path) -> None:
    half = np.array([1, 2.5, -3e38], ml_dtypes.bfloat16)
    path = save_npz(tmp_path / "a.npz", x=half)
    assert np.load(path)["x"].dtype == np.dtype("V2")
    (feed,) = read_data(model_with_input("bfloat16[N]"), [path])
    assert feed["x"].dtype == half.dtype
    assert feed["x"].tobytes() == half.tobytes()
    (feed,) = read_data(model_with_input("float[N]"), [path])  # a model in float32 can read bfloat16 data
    np.testing.assert_array_equal(feed["x"], half.astype(np.float32))
    small = np.array([1, -2, 7], ml_dtypes.int4)
    (feed,) = read_data(model_with_input("int4[N]"), [save_npz(tmp_path / "b.npz", x=small)])
    assert feed["x"].tolist() == [1, -2, 7]
    with pytest.raises(UsageError, match="the model expects numbers"):
        list(read_data(model_with_input("float[N]"), [tmp_path / "b.npz"]))


def test_float8_in_a_file(tmp_path: Path) -> None:
    values = np.array([1, -2, 0.5]).astype(ml_dtypes.float8_e4m3fn)
    (feed,) = read_data(model_with_input("float8e4m3fn[N]"), [save_npz(tmp_path / "a.npz", x=values)])
    assert feed["x"].astype(np.float32).tolist() == [1, -2, 0.5]


@posix_only
@pytest.mark.parametrize("name", ["x.npz", "x.npy", "input_0.pb", "labels"])
def test_data_must_be_regular_files(tmp_path: Path, name: str) -> None:
    """Reading a pipe without a writer never ends, and neither does reading a device."""
    os.mkfifo(tmp_path / name)
    path = tmp_path if name.endswith(".pb") else tmp_path / name
    with pytest.raises(FileError, match=f"{name} is a named pipe, and a regular file is needed"):
        list(as_batches(path, model(ONE_INPUT)))
    with pytest.raises(FileError, match="/dev/zero is a device, and a regular file is needed"):
        list(as_batches("/dev/zero", model(ONE_INPUT)))
