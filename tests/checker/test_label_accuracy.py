"""Task accuracy against labels."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlist.checker.label_accuracy import TaskAccuracy, read_labels
from mixlist.checker.result import TaskResult
from mixlist.errors import FileError, UsageError

F32 = np.float32


def scores(*answers: int, classes: int = 4) -> np.ndarray:
    return np.eye(classes, dtype=F32)[list(answers)]


def test_right_answers_of_both_models_are_counted_over_batches() -> None:
    task = TaskAccuracy(np.array([0, 1, 2, 3]))
    task.add({"y": scores(0, 1)}, {"y": scores(0, 2)})
    task.add({"y": scores(2, 0)}, {"y": scores(2, 0)})
    assert task.result() == TaskResult(reference=0.75, mixed=0.5, count=4, used=4)
    assert task.warnings() == ()


def test_the_output_with_a_class_for_every_label_is_used() -> None:
    task = TaskAccuracy(np.array([3, 2]))
    image, two = np.zeros((2, 3, 8, 8), F32), scores(0, 1, classes=2)
    outputs = {"image": image, "two": two, "four": scores(3, 2), "parts": [image]}
    task.add(outputs, outputs)
    assert task.result() == TaskResult(1.0, 1.0, 2, 2)


def test_integer_outputs_are_answers() -> None:
    task = TaskAccuracy(np.array([7, 9]))
    task.add({"label": np.array([7, 8])}, {"label": np.array([7, 9])})
    assert task.result() == TaskResult(0.5, 1.0, 2, 2)


def test_labels_by_position_and_padding() -> None:
    task = TaskAccuracy(np.array([[1, 2, -100]]))
    tokens = scores(1, 2, 3).reshape(1, 3, 4)
    wrong = scores(1, 1, 1).reshape(1, 3, 4)
    task.add({"y": tokens}, {"y": wrong})
    assert task.result() == TaskResult(1.0, 0.5, 2, 1)


def test_nan_is_no_answer() -> None:
    task = TaskAccuracy(np.array([0]))
    mixed = scores(0)
    mixed[0, 0] = np.nan
    task.add({"y": scores(0)}, {"y": mixed})
    assert task.result() == TaskResult(1.0, 0.0, 1, 1)


def test_labels_without_a_sample_are_a_warning() -> None:
    task = TaskAccuracy(np.array([0, 1, 2]))
    task.add({"y": scores(0)}, {"y": scores(0)})
    assert [w.message for w in task.warnings()] == ["2 of 3 labels have no sample in the data"]


def test_too_few_labels_are_an_error() -> None:
    task = TaskAccuracy(np.array([0]))
    with pytest.raises(UsageError, match="labels for 1 samples, and the data has more"):
        task.add({"y": scores(0, 1)}, {"y": scores(0, 1)})


def test_labels_that_fit_no_output_are_an_error() -> None:
    task = TaskAccuracy(np.array([[0, 1]]))
    with pytest.raises(UsageError, match=r"shape \[1, 2\].*'y' \[2, 4\]"):
        task.add({"y": scores(0, 1)}, {"y": scores(0, 1)})
    with pytest.raises(UsageError, match="largest label is 10, and output 'y' has 4 classes"):
        TaskAccuracy(np.array([10])).add({"y": scores(0)}, {"y": scores(0)})


def test_labels_are_read_from_npy_and_npz(tmp_path: Path) -> None:
    labels = np.array([1, 2, 3], np.uint8)
    np.save(tmp_path / "a.npy", labels)
    np.savez(tmp_path / "one.npz", anything=labels)
    np.savez(tmp_path / "two.npz", pixels=np.zeros(3), labels=labels)
    for name in ("a.npy", "one.npz", "two.npz"):
        assert read_labels(tmp_path / name).tolist() == [1, 2, 3]
        assert read_labels(tmp_path / name).dtype == np.int64


def test_files_without_labels_are_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", np.zeros(3))
    np.savez(tmp_path / "two.npz", a=np.zeros(3, int), b=np.zeros(3, int))
    np.save(tmp_path / "pickle.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("1\n2\n")
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04" + bytes(40))
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(UsageError, match="float64"):
        read_labels(tmp_path / "floats.npy")
    with pytest.raises(UsageError, match="a, b"):
        read_labels(tmp_path / "two.npz")
    for name in ("pickle.npy", "text.npy", "zip.npz", "empty.npy", "missing.npy"):
        with pytest.raises(FileError, match=name):
            read_labels(tmp_path / name)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    offset=st.integers(0, 10**6),
    damage=st.binary(min_size=1, max_size=4),
    form=st.sampled_from(["npy", "npz", "compressed"]),
)
def test_damaged_files_raise_a_user_error(tmp_path_factory, offset: int, damage: bytes, form: str) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    with path.open("wb") as file:
        save = {"npy": np.save, "npz": np.savez, "compressed": np.savez_compressed}[form]
        save(file, np.arange(40))
    content = path.read_bytes()
    start = offset % len(content)
    path.write_bytes(content[:start] + damage + content[start + len(damage) :])
    with suppress(FileError, UsageError):
        assert read_labels(path).dtype == np.int64
