"""A model that does not fit into memory is refused before the search, and the message gives the sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import mixlist
from mixlist.errors import UsageError
from mixlist.graph.load import load_model
from mixlist.runtime import available_memory
from mixlist.tuner import memory_estimate
from mixlist.tuner.memory_estimate import weight_bytes
from tests.support.builders import model

ROWS, COLUMNS = 2**15, 2**15


def large(folder: Path, elem: int = TensorProto.FLOAT) -> Path:
    """Write a model with a weight of 2^30 elements in a file that does not exist: nothing may read it."""
    proto = model("g (float[1,4] x) => (float[1,4] y) { z = Neg(x) y = MatMul(z, W) }", check=False)
    weight = proto.graph.initializer.add(name="W", data_type=elem, dims=[ROWS, COLUMNS])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="large.data")
    onnx.save(proto, folder / "large.onnx")
    return folder / "large.onnx"


def test_weights_are_counted_in_float32(tmp_path: Path) -> None:
    assert weight_bytes(load_model(large(tmp_path))) == 4 * 2**30
    assert weight_bytes(load_model(large(tmp_path, TensorProto.FLOAT16))) == 4 * 2**30
    assert weight_bytes(load_model(large(tmp_path, TensorProto.INT8))) == 2**30


@pytest.mark.parametrize(
    ("jobs", "free", "message", "hint"),
    [
        (1, 24, r"about 55.8 GB of memory with 1 worker, and 24.0 GB are free", "use a machine with more memory"),
        (2, 24, r"about 77.3 GB of memory with 2 workers, and 24.0 GB are free", "use a machine with more memory"),
        (2, 60, r"about 77.3 GB of memory with 2 workers, and 60.0 GB are free", "use --jobs 1, which takes 55.8 GB"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, free: int, message: str, hint: str
) -> None:
    monkeypatch.setattr(memory_estimate, "measure_available_memory", lambda: free * 10**9)
    with pytest.raises(UsageError, match=message) as error:
        mixlist.tune(large(tmp_path), mixlist.load_policy(), {"x": np.zeros((1, 4), np.float32)}, jobs=jobs)
    assert error.value.hint is not None and error.value.hint.startswith(hint)


def test_a_model_that_fits_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search starts, and fails later because the file with the weights does not exist."""
    monkeypatch.setattr(memory_estimate, "measure_available_memory", lambda: 56 * 10**9)
    with pytest.raises(mixlist.MixlistError, match="external data of tensor 'W' is missing"):
        mixlist.tune(large(tmp_path), mixlist.load_policy(), {"x": np.zeros((1, 4), np.float32)}, jobs=1)


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the group uses for files, and that the system can drop, is free."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (tmp_path / "cgroup").write_text("0::/box\n")
    group = tmp_path / "groups" / "box"
    group.mkdir(parents=True)
    monkeypatch.setattr(available_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(available_memory, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(available_memory, "_GROUPS", tmp_path / "groups")
    assert available_memory.measure_available_memory() == 8000 << 10
    for name, text in {
        "memory.max": "5000",
        "memory.current": "4000",
        "memory.stat": "anon 1\ninactive_file 3000",
    }.items():
        (group / name).write_text(text)
    assert available_memory.measure_available_memory() == 4000
    (group / "memory.max").write_text("max")
    assert available_memory.measure_available_memory() == 8000 << 10
