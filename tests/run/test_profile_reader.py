"""Test the reader of ONNX Runtime's profile with events written by hand, and with a real profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixlist.errors import FileError
from mixlist.run.local_session import open_session
from mixlist.run.profile_reader import find_float32_nodes, parse_events, read_profile
from mixlist.run.session import SessionOptions
from tests.support.package import data_folder
from tests.support.versions import PROFILES_HAVE_ARENA


def model_run(ts: int, dur: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur, "tid": 1, "args": {}}


def node(name: str, op: str, ts: int, dur: int, elem: str = "float", index: str = "0", **args: Any) -> dict[str, Any]:
    args = {"op_name": op, "node_index": index, "output_type_shape": [{elem: [4]}], **args}
    args.setdefault("provider", "CPUExecutionProvider")
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "tid": 1, "args": args}


def costs_of(profile: Any) -> dict[str, tuple[float, float]]:
    """Return the calls and the microseconds of each op type."""
    return {op.op_type: (op.calls, round(op.seconds * 1e6)) for op in profile.ops}


def test_time_by_operator_is_the_median_run_after_the_warm_up() -> None:
    events = []
    for count, slow in enumerate((90, 0, 50, 1)):  # the first is warm-up, the third was disturbed
        start = 1000 * count
        events += [
            node("a", "MatMul", start + 10, 20 + slow),
            node("b", "MatMul", start + 200, 5, index="1"),
            node("c", "Relu", start + 300, 2, index="2"),
            model_run(start, 400),
        ]
    profile = parse_events(events, warmup=1)
    assert profile.runs == 3
    assert costs_of(profile) == {"MatMul": (2, 26), "Relu": (1, 2)}
    assert [op.op_type for op in profile.ops] == ["MatMul", "Relu"]
    assert profile.seconds == pytest.approx(28e-6)
    assert (profile.nodes, profile.low_nodes, profile.device_times) == (3, 0, False)


def test_nodes_that_the_cpu_computed_in_float32() -> None:
    cuda = "CUDAExecutionProvider"
    events = [
        model_run(0, 1000),
        node("low", "Neg", 10, 1, "float16", provider=cuda),
        node("kept", "Exp", 20, 1, "float", provider=cuda),
        node("wide", "Sinh", 30, 1, "float"),
        node("low_on_cpu", "Neg", 40, 1, "float16"),
        node("reads_low", "ArgMax", 50, 1, "int64", input_type_shape=[{"float16": [4]}]),
        node("reads_wide", "ArgMax", 60, 1, "int64", input_type_shape=[{"float": [4]}]),
        node("integers", "Add", 70, 1, "int64"),
        {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 1},
    ]
    assert find_float32_nodes(events) == {"wide", "reads_wide"}


def test_the_time_of_a_loop_does_not_include_its_body() -> None:
    events = [
        model_run(0, 1000),
        node("loop", "Loop", 100, 500),
        node("i", "If", 150, 300, index="1"),
        node("m", "MatMul", 200, 200, index="2"),
        node("m", "MatMul", 480, 100, index="2"),
        node("after", "Relu", 600, 10, index="3"),
    ]
    profile = parse_events(events)
    assert costs_of(profile) == {"Loop": (1, 100), "If": (1, 100), "MatMul": (2, 300), "Relu": (1, 10)}
    assert profile.nodes == 4


def test_nodes_of_another_thread_are_not_inside() -> None:
    outer, inner = node("a", "Conv", 0, 100), node("b", "Relu", 10, 20, index="1")
    inner["tid"] = 2
    assert costs_of(parse_events([model_run(0, 100), outer, inner])) == {"Conv": (1, 100), "Relu": (1, 20)}


def test_low_nodes_and_providers_are_counted() -> None:
    events = [
        model_run(0, 100),
        node("a", "MatMul", 1, 1, "float16", index="0", provider="CUDAExecutionProvider"),
        node("b", "Cast", 3, 1, "float16", index="1", provider="CUDAExecutionProvider"),
        node("c", "Add", 5, 1, "bfloat16", index="2", provider="CUDAExecutionProvider"),
        node("d", "Softmax", 7, 1, "float", index="3"),
    ]
    profile = parse_events(events)
    assert (profile.nodes, profile.low_nodes) == (4, 2)
    assert profile.providers == {"CPUExecutionProvider": 1, "CUDAExecutionProvider": 3}


def test_times_of_device_kernels_are_preferred() -> None:
    kernel = {"cat": "Kernel", "name": "sgemm", "ts": 40, "dur": 30, "args": {"op_name": "MatMul"}}
    profile = parse_events(
        [model_run(0, 100), node("a", "MatMul", 1, 5), node("b", "Reshape", 8, 3, index="1"), kernel, kernel]
    )
    assert profile.device_times
    assert costs_of(profile) == {"MatMul": (1, 60), "Reshape": (1, 0)}


def test_the_peak_of_the_arena() -> None:
    peaks = [
        node(str(index), "Add", index, 1, index=str(index), mem_in_use_peak=str(size))
        for index, size in enumerate((5, 70, 6))
    ]
    assert parse_events([model_run(0, 10), *peaks]).arena == 70
    assert parse_events([model_run(0, 10), node("a", "Add", 1, 1)]).arena is None


def test_no_events() -> None:
    profile = parse_events([])
    assert (profile.runs, profile.ops, profile.nodes, profile.seconds) == (0, (), 0, 0)


def test_a_real_profile(tmp_path: Path) -> None:
    session = open_session(data_folder("demo_data") / "digits.onnx", SessionOptions(profile=tmp_path / "p", threads=1))
    feed = {"pixels": np.zeros((2, 1, 8, 8), np.float32)}
    for _ in range(5):
        session.run(None, feed)
    path = Path(session.end_profiling())
    profile = read_profile(path, warmup=2)
    assert profile.runs == 3
    assert {"Conv", "MatMul", "Softmax"} <= {op.op_type for op in profile.ops}
    assert {op.op_type: op.calls for op in profile.ops}["Conv"] == 2
    assert profile.providers == {"CPUExecutionProvider": profile.nodes}
    assert profile.arena is not None or not PROFILES_HAVE_ARENA
    assert profile.low_nodes == 0
    spans = [e["dur"] for e in json.loads(path.read_text()) if e["name"] == "model_run"]
    assert 0 < profile.seconds * 1e6 <= max(spans)


def test_a_file_that_is_not_a_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("[{")
    with pytest.raises(FileError, match=r"ONNX Runtime's profile is incomplete: .*\n  hint: check the space"):
        read_profile(path)
    with pytest.raises(FileError):
        read_profile(tmp_path / "none.json")
