"""A directory of ``.npy`` files that have the names of the inputs, as the samples of a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mixlist.errors import FileError, UsageError
from mixlist.training.dataset import read_arrays


def test_a_folder_holds_an_array_for_each_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 2)))
    np.save(tmp_path / "labels.1.npy", np.arange(4))
    (tmp_path / "readme.txt").write_text("")
    arrays, name = read_arrays(tmp_path, "the data")
    assert {key: np.shape(array) for key, array in arrays.items()} == {"x": (4, 2), "labels.1": (4,)}  # type: ignore[arg-type]
    assert name == str(tmp_path)


def test_data_that_names_no_inputs_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"contains no \.npz and no \.npy files"):
        read_arrays(tmp_path, "the data")
    np.save(tmp_path / "x.npy", np.ones(2))
    with pytest.raises(UsageError, match="holds one array") as caught:
        read_arrays(tmp_path / "x.npy", "the data")
    assert "or a directory of .npy files" in str(caught.value.hint)
