"""Raw ``.bin`` files, and directories whose files have the names of the inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mixlist import read_data
from mixlist.errors import MixlistError, UsageError
from tests.support.builders import model
from tests.support.feed_cases import model_with_input

TWO_INPUTS = model("g (float[N, 8] x, int64[2] ids) => (float[N, 8] y) { y = Neg (x) }")
ONE_INPUT = model("g (float[N, 8] x) => (float[N, 8] y) { y = Neg (x) }")
ROWS = np.arange(16, dtype=np.float32).reshape(2, 8)
IDS = np.array([5, 6])


def save_named(folder: Path, **arrays: np.ndarray[Any, Any]) -> Path:
    """Write each array to a file with its name: the suffix is ``.bin`` after a name with ``_bin``, else ``.npy``."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, array in arrays.items():
        if name.endswith("_bin"):
            array.tofile(folder / f"{name.removesuffix('_bin')}.bin")
        else:
            np.save(folder / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize("names", [("x", "ids"), ("x", "ids_bin"), ("x_bin", "ids_bin")])
def test_a_folder_of_files_named_after_the_inputs_is_one_batch(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = save_named(tmp_path / "batch", **dict(zip(names, (ROWS, IDS), strict=True)))
    batches = read_data(TWO_INPUTS, folder, shapes={"x": (2, 8)})
    assert batches.names() == (str(folder),)
    (feed,) = batches
    np.testing.assert_array_equal(feed["x"], ROWS)
    np.testing.assert_array_equal(feed["ids"], IDS)


def test_a_folder_of_such_folders(tmp_path: Path) -> None:
    for index in (2, 10, 1):
        save_named(tmp_path / f"batch_{index}", x=ROWS * index, ids=IDS)
    assert [feed["x"][0, 1] for feed in read_data(TWO_INPUTS, tmp_path)] == [1, 2, 10]


def test_optional_inputs_may_have_no_file(tmp_path: Path) -> None:
    proto = model("g (float[N] x, float[1] w) => (float[N] y) <float[1] w = {2}> { y = Mul (x, w) }")
    folder = save_named(tmp_path / "a", x=np.ones(3, np.float32))
    assert [list(feed) for feed in read_data(proto, folder)] == [["x"]]
    save_named(folder, w=np.ones(1, np.float32))
    assert [list(feed) for feed in read_data(proto, folder)] == [["x", "w"]]


def test_files_without_input_names_stay_batches_of_a_model_with_one_input(tmp_path: Path) -> None:
    folder = save_named(tmp_path / "a", x=ROWS, other=ROWS + 1)
    assert [feed["x"][0, 0] for feed in read_data(ONE_INPUT, folder)] == [1, 0]
    folder = save_named(tmp_path / "b", first_bin=ROWS, second_bin=ROWS + 1)
    assert [feed["x"][0, 0] for feed in read_data(ONE_INPUT, folder, shapes={"x": (2, 8)})] == [0, 1]
    (feed,) = read_data(ONE_INPUT, folder / "second.bin", shapes={"x": (2, 8)})
    assert feed["x"][0, 0] == 1


def test_characters_that_files_cannot_have_are_underscores(tmp_path: Path) -> None:
    proto = model("g (float[2] a, float[2] b) => (float[2] y) { y = Add (a, b) }")
    for value, name in zip(proto.graph.input, ("serve/a:0", "b.1"), strict=True):
        value.name = name
    folder = save_named(tmp_path / "a", **{"serve_a_0": np.ones(2), "b.1": np.zeros(2)})
    (feed,) = read_data(proto, folder)
    assert {name: array.tolist() for name, array in feed.items()} == {"serve/a:0": [1, 1], "b.1": [0, 0]}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["x"], "no data for input 'ids'"),
        (["x", "mask"], "no data for input 'ids'; the model has no input 'mask'"),
        (["x", "x_bin", "ids"], "contains two files for input 'x'"),
        (["1", "2"], r"1\.npy contains one array, but the model expects 2: x, ids"),
    ],
)
def test_folders_that_do_not_fit_the_inputs(tmp_path: Path, names: list[str], says: str) -> None:
    folder = save_named(tmp_path / "a", **dict.fromkeys(names, ROWS))
    with pytest.raises(UsageError, match=says):
        list(read_data(TWO_INPUTS, folder, shapes={"x": (2, 8)}))


def test_named_arrays_among_other_batches_are_refused(tmp_path: Path) -> None:
    save_named(tmp_path, x=ROWS, ids=IDS)
    np.savez(tmp_path / "b.npz", x=ROWS, ids=IDS)
    with pytest.raises(MixlistError, match=r"contains \.npz files and arrays by input name"):
        read_data(TWO_INPUTS, tmp_path)


@pytest.mark.parametrize(
    ("declaration", "array"),
    [
        ("float[4]", np.arange(4, dtype=np.float32)),
        ("float16[4]", np.arange(4, dtype=np.float16)),
        ("bfloat16[4]", np.arange(4).astype(ml_dtypes.bfloat16)),
        ("int64[4]", np.arange(4)),
        ("uint8[4]", np.arange(4, dtype=np.uint8)),
        ("bool[4]", np.array([True, False, True, True])),
        ("double[2, 2]", np.arange(4.0).reshape(2, 2)),
    ],
)
def test_raw_values_have_the_declared_type_and_shape(
    tmp_path: Path, declaration: str, array: np.ndarray[Any, Any]
) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(array.tobytes())
    (feed,) = read_data(model_with_input(declaration), path)
    assert feed["x"].dtype == array.dtype
    np.testing.assert_array_equal(feed["x"], array)


def test_another_number_of_bytes_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    ROWS.astype(np.float64).tofile(path)
    with pytest.raises(UsageError) as caught:
        list(read_data(ONE_INPUT, path, shapes={"x": (2, 8)}))
    assert caught.value.message == f"{path} has 128 bytes, but input x: float32[2, 8] takes 64"
    assert caught.value.hint is not None and "shapes={'x': (2, 8)}" in caught.value.hint
    with pytest.raises(UsageError, match=r"the model expects 8 along axis 1"):
        list(read_data(ONE_INPUT, path, shapes={"x": (2, 16)}))


@pytest.mark.parametrize(
    ("declaration", "says"),
    [
        ("float[N, 8]", r"has no shape, and input x: float32\[N, 8\] leaves sizes open"),
        ("string[4]", r"input x: string\[4\] cannot come from a \.bin file"),
        ("int4[4]", r"input x: int4\[4\] cannot come from a \.bin file"),
    ],
)
def test_inputs_without_a_raw_form(tmp_path: Path, declaration: str, says: str) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(16))
    with pytest.raises(UsageError, match=says):
        list(read_data(model_with_input(declaration), tmp_path / "x.bin"))


def test_the_shape_of_an_unknown_input(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(16))
    with pytest.raises(UsageError, match="the model has no input 'z'"):
        read_data(ONE_INPUT, tmp_path / "x.bin", shapes={"z": (2, 8)})
