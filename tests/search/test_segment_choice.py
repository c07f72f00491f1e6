"""A search that does not fit into memory runs its trials in segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from mixlist.errors import UsageError
from mixlist.run import available_memory, segments
from mixlist.run.segments import DEFAULT_SEGMENT_BYTES, weight_bytes
from mixlist.search.options import TuneOptions
from mixlist.search.tune import trial_segment_bytes
from tests.support.builders import model
from tests.support.local_workers import InProcessExecutor
from tests.support.package import load_model

ROWS, COLUMNS = 2**15, 2**15


def large(folder: Path, elem: int = TensorProto.FLOAT, rows: int = ROWS) -> Path:
    """Write a model with a weight of 2^30 elements, or of fewer rows, in a file that does not exist."""
    proto = model("g (float[1,4] x) => (float[1,4] y) { z = Neg(x) y = MatMul(z, W) }", check=False)
    weight = proto.graph.initializer.add(name="W", data_type=elem, dims=[rows, COLUMNS])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="large.data")
    onnx.save(proto, folder / "large.onnx")
    return folder / "large.onnx"


def test_weights_are_counted_in_float32(tmp_path: Path) -> None:
    assert weight_bytes(load_model(large(tmp_path))) == 4 * 2**30
    assert weight_bytes(load_model(large(tmp_path, TensorProto.FLOAT16))) == 4 * 2**30
    assert weight_bytes(load_model(large(tmp_path, TensorProto.INT8))) == 2**30


def choose(path: Path, workers: int, **options: Any) -> int | None:
    return trial_segment_bytes(load_model(path), TuneOptions(**options), workers)


@pytest.mark.parametrize(
    ("rows", "workers", "free", "in_segments"),
    [
        (2**12, 1, 8, False),  # 0.54 GB of weights take 13 times as much
        (2**12, 1, 6, True),
        (2**12, 2, 8, True),
        (2**12, 2, 10, False),
        (2**15, 1, 1000, True),  # the weights and their rounded copies exceed 2 GiB, whatever is free
    ],
)
def test_segments_are_chosen_if_the_search_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, workers: int, free: int, in_segments: bool
) -> None:
    monkeypatch.setattr(segments, "measure_available_memory", lambda: free * 10**9)
    path = large(tmp_path, rows=rows)
    assert choose(path, workers) == (DEFAULT_SEGMENT_BYTES if in_segments else None)
    assert choose(path, workers, segment_bytes=77) == 77


@pytest.mark.parametrize("options", [{"scheduler": "tcp://host:1"}, {"executor": InProcessExecutor()}])
def test_workers_that_may_be_elsewhere_get_no_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(segments, "measure_available_memory", lambda: 20 * 10**9)
    with pytest.raises(UsageError, match=r"large.onnx has 4.3 GB of weights, which is too much"):
        choose(large(tmp_path), 0, **options)
    assert choose(large(tmp_path, rows=2**12), 0, **options) is None
    with pytest.raises(UsageError, match="segments cannot run on a cluster"):
        TuneOptions(segment_bytes=1, **options)


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
