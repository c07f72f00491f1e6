"""A check in segments gives the same report as a check of whole models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.errors import ModelError, UsageError
from mixlist.run import segments
from tests.support import llama_models
from tests.support.builders import model, policy

ONNX = mixlist.load_policy(ops_info="onnx")
EVERYTHING_LOW = policy(mode="fp16")
Feeds = Sequence[Mapping[str, Any]]


@pytest.fixture
def part_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of segments of each model that is split."""
    counts: list[int] = []
    split = segments.split_by_weights

    def counted_split(*arguments: Any) -> Any:
        parts = split(*arguments)
        counts.append(len(parts))
        return parts

    monkeypatch.setattr("mixlist.run.segments.split_by_weights", counted_split)
    return counts


def report_of(source: Any, lists: mixlist.Policy, feeds: Feeds, **options: Any) -> dict[str, Any]:
    """Return the JSON of a check without its times."""
    report = mixlist.check(source, lists, feeds, per_tensor=True, **options).to_json()
    del report["seconds"]
    assert report.pop("segment_bytes") == options.get("segment_bytes")
    return report


def assert_same(source: Any, lists: mixlist.Policy, feeds: Feeds, segment_bytes: int, **options: Any) -> dict[str, Any]:
    """Assert that segments change nothing in a report, and return the report."""
    whole = report_of(source, lists, feeds, **options)
    assert report_of(source, lists, feeds, segment_bytes=segment_bytes, **options) == whole
    return whole


def matrices(count: int, size: int = 4) -> list[onnx.TensorProto]:
    """Return weights w0, w1 ... of shape [size, size]."""
    rng = np.random.default_rng(3)
    return [onnx.numpy_helper.from_array(rng.standard_normal((size, size), np.float32), f"w{i}") for i in range(count)]


def with_weights(text: str, count: int) -> onnx.ModelProto:
    """Return a model of a text, whose main graph gets the weights w0, w1 ..."""
    proto = model(text, check=False)
    proto.graph.initializer.extend(matrices(count))
    onnx.checker.check_model(proto, full_check=True)
    return proto


CHAIN = """agraph (float[n, 4] x) => (float[n, 4] y) {
    a = MatMul(x, w0)
    b = Exp(a)
    c = MatMul(b, w1)
    d = Mul(c, a)
    y = MatMul(d, w2)
}"""
CONTROL_FLOW = """agraph (float[n, 4] x, int64 trips) => (float[n, 4] y) {
    a = MatMul(x, w0)
    more = Constant<value = bool {1}>()
    b = Loop(trips, more, a) <body = body (int64 i, bool go, float[n, 4] s) => (bool again, float[n, 4] t) {
        again = Identity(go)
        p = MatMul(s, w1)
        t = Exp(p)
    }>
    total = ReduceSum<keepdims = 0>(b)
    zero = Constant<value = float {0.0}>()
    positive = Greater(total, zero)
    c = If(positive) <
        then_branch = yes () => (float[n, 4] u) { u = MatMul(b, w2) },
        else_branch = no () => (float[n, 4] v) { v = MatMul(a, w1) }>
    y = MatMul(c, w0)
}"""
SEQUENCES = """agraph (float[n, 4] x) => (float[n, 4] y) {
    a = MatMul(x, w0)
    b = MatMul(a, w1)
    s = SequenceConstruct(a, b)
    c = MatMul(b, w2)
    first = Constant<value = int64 {0}>()
    d = SequenceAt(s, first)
    y = Add(c, d)
}"""
CALLS = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
agraph (float[n, 4] x) => (float[n, 4] y) {
    a = f.Dense(x, w0)
    b = f.Dense(a, w1)
    y = MatMul(b, w2)
}
<domain: "f", opset_import: ["" : 17]>
Dense (q, w) => (r) {
    p = MatMul(q, w)
    e = Exp(p)
    r = Mul(e, p)
}"""
PASSED_THROUGH = """agraph (float[n, 4] x) => (float[n, 4] y, float[4, 4] w0, float[n, 4] x2) {
    a = MatMul(x, w0)
    turned = Transpose(w1)
    b = MatMul(a, turned)
    c = MatMul(b, turned)
    y = MatMul(c, w2)
    x2 = Identity(x)
}"""

# A weight that is a graph input too, as in files of IR 3, is converted by Casts, not stored in the low type.
DEFAULTS = """agraph (float[n, 4] x, float[4, 4] w0, float[4, 4] w1) => (float[n, 4] y) {
    a = MatMul(x, w0)
    b = Exp(a)
    c = MatMul(b, w1)
    y = MatMul(c, w0)
}"""


def batches_of(count: int, scale: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """Return random batches; each has one row more than the one before."""
    rng = np.random.default_rng(1)
    return [{"x": scale * rng.standard_normal((index + 1, 4), np.float32), **more} for index in range(count)]


@pytest.mark.parametrize(
    ("text", "more", "segment_bytes", "scale"),
    [
        pytest.param(CHAIN, {}, 40, 40.0, id="chain with overflow"),
        pytest.param(CHAIN, {}, 100, 1.0, id="chain"),
        pytest.param(CONTROL_FLOW, {"trips": np.array(2)}, 40, 40.0, id="control flow with overflow"),
        pytest.param(CONTROL_FLOW, {"trips": np.array(2)}, 100, 1.0, id="control flow"),
        pytest.param(SEQUENCES, {}, 40, 40.0, id="sequences"),
        pytest.param(CALLS, {}, 100, 1.0, id="calls"),
        pytest.param(PASSED_THROUGH, {}, 40, 40.0, id="passed through"),
        pytest.param(DEFAULTS, {}, 100, 1.0, id="defaults of inputs"),
        pytest.param(DEFAULTS, {"w0": np.eye(4, dtype=np.float32)}, 40, 40.0, id="an input in place of its default"),
    ],
)
def test_segments_change_no_finding(
    text: str, more: dict[str, Any], segment_bytes: int, scale: float, part_counts: list[int]
) -> None:
    report = assert_same(with_weights(text, 3), EVERYTHING_LOW, batches_of(2, scale, **more), segment_bytes)
    assert report["batches"] == 2
    assert max(part_counts) > 1
    if text is CHAIN and scale == 40.0:
        assert any(finding["kind"] == "overflow" for finding in report["nodes"])


@pytest.mark.parametrize("options", [{"inner_type": "low"}, {"layerwise": True}, {"overflow_mode": "saturate"}])
def test_segments_serve_every_session_of_a_check(options: dict[str, Any], part_counts: list[int]) -> None:
    assert_same(with_weights(CHAIN, 3), EVERYTHING_LOW, batches_of(2, 20.0), 1, **options)
    assert len(part_counts) >= 3 and min(part_counts) > 1


@pytest.mark.parametrize("low_source", [False, True])
def test_a_decoder_has_the_same_report(tmp_path: Path, low_source: bool) -> None:
    path = llama_models.write_llama(tmp_path / "m.onnx", llama_models.TINY, {"layers.1.up.weight": 3e5})
    if low_source:  # the model itself has float16 weights, and the reference widens them
        low, plan = tmp_path / "low.onnx", mixlist.resolve(path, EVERYTHING_LOW)
        mixlist.rewrite(path, plan).save(low)
        path = low
    feeds = [llama_models.make_token_ids(llama_models.TINY, 2, 5, seed) for seed in range(2)]
    report = assert_same(path, ONNX, feeds, 30_000)
    assert report["verdict"] == "fail" or low_source


def test_values_between_segments_go_to_files(monkeypatch: pytest.MonkeyPatch, part_counts: list[int]) -> None:
    from mixlist.run.segments import ValueStore

    written: list[int] = []
    put = ValueStore.put

    def counted_put(store: ValueStore, key: Any, value: Any) -> None:
        put(store, key, value)
        written.append(len(store._in_files))

    monkeypatch.setattr("mixlist.run.segments.MEMORY_BYTES", 0)
    monkeypatch.setattr(ValueStore, "put", counted_put)
    assert_same(with_weights(CHAIN, 3), EVERYTHING_LOW, batches_of(2), 1)
    assert max(written) > 10 and min(part_counts) > 3


def test_batches_run_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixlist.checker.run.GROUP_BYTES", 40)
    report = assert_same(with_weights(CHAIN, 3), EVERYTHING_LOW, batches_of(5), 1)
    assert report["batches"] == 5


def test_a_batch_that_the_reference_refuses_is_named() -> None:
    text = "agraph (float[n, m] x) => (float[n, 4] y) {\n a = Relu(x)\n b = MatMul(a, w0)\n y = MatMul(b, w1)\n}"
    wrong: list[dict[str, Any]] = [*batches_of(1), {"x": np.ones((2, 3), np.float32)}]
    for segment_bytes in (None, 1):
        with pytest.raises(ModelError, match=r"^batch 1: .*dimension mismatch"):
            mixlist.check(with_weights(text, 2), EVERYTHING_LOW, wrong, segment_bytes=segment_bytes)


def test_segments_are_chosen_if_the_weights_exceed_a_quarter_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, part_counts: list[int]
) -> None:
    proto = with_weights(CHAIN, 3)  # 192 bytes of weights
    monkeypatch.setattr(segments, "_LEAST_WEIGHTS", 1)
    monkeypatch.setattr(segments, "DEFAULT_SEGMENT_BYTES", 64)
    monkeypatch.setattr(segments, "measure_available_memory", lambda: 4 * 192)
    mixlist.check(proto, EVERYTHING_LOW, batches_of(1))
    assert part_counts == []
    monkeypatch.setattr(segments, "measure_available_memory", lambda: 4 * 192 - 1)
    mixlist.check(proto, EVERYTHING_LOW, batches_of(1), jobs=1)  # workers get whole models
    assert part_counts == []
    mixlist.check(proto, EVERYTHING_LOW, batches_of(1))
    assert part_counts and min(part_counts) == 3


@pytest.mark.parametrize("options", [{"jobs": 2}, {"scheduler": "tcp://host:1"}])
def test_segments_are_refused_where_models_run_whole(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="segments cannot run"):
        mixlist.check(with_weights(CHAIN, 3), EVERYTHING_LOW, batches_of(1), segment_bytes=1, **options)


def cuts_of(text: str, count: int, segment_bytes: int, tokens: int = 2) -> list[list[str]]:
    """Return the inputs of each segment."""
    parts = segments.split_by_weights(with_weights(text, count), segment_bytes, {"x": (tokens, 4)})
    return [sorted(part.input_names) for part in parts]


def test_the_cut_goes_where_few_bytes_cross() -> None:
    text = """agraph (float[n, 4] x) => (float[n, 4] y) {
        a = MatMul(x, w0)
        narrow = Neg(a)
        b = Abs(narrow)
        c = Exp(narrow)
        d = Mul(b, c)
        e = Add(d, b)
        y = MatMul(e, w1)
    }"""
    assert cuts_of(text, 2, 64) == [["x"], ["e"]]
    assert cuts_of(text.replace("Add(d, b)", "Add(d, w1)"), 2, 64) == [["x"], ["d"]]
    # Between w0 and the node that reads w1, ``narrow`` alone crosses at one place, and two tensors at the others.
    assert cuts_of(text.replace("Mul(b, c)", "Mul(b, w1)").replace("Add(d, b)", "Add(d, c)"), 2, 64) == [
        ["x"],
        ["narrow"],
    ]


def test_a_weight_that_two_nodes_read_counts_once() -> None:
    """Without this, the second MatMul, which also reads w0, would begin a segment of its own."""
    assert cuts_of(CHAIN, 3, 64) == [["x"], ["a"], ["d"]]
    assert cuts_of(CHAIN.replace("w1", "w0"), 3, 64) == [["x"], ["d"]]


LARGE = pytest.mark.skipif("MIXLIST_LARGE" not in os.environ, reason="needs 13 GB of disk: set MIXLIST_LARGE")


@pytest.mark.timeout(900)
@LARGE
def test_a_decoder_of_a_billion_parameters_takes_little_memory(tmp_path: Path) -> None:
    import resource  # Windows has no such module

    path = llama_models.write_llama(tmp_path / "m.onnx", llama_models.LARGE)
    feed = llama_models.make_token_ids(llama_models.LARGE, 1, 8)
    np.savez(tmp_path / "batch.npz", input_ids=feed["input_ids"])
    command = [
        sys.executable,
        "-m",
        "mixlist",
        "check",
        str(path),
        "--ops-info",
        "onnx",
        "--segment-bytes",
        "300000000",
    ]
    process = subprocess.run([*command, "--data", str(tmp_path / "batch.npz")], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    # The largest process; the kernel counts kB. Shared pages count in full.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2.0e6


@pytest.mark.skipif(os.environ.get("MIXLIST_CAMPAIGN") != "1", reason="MIXLIST_CAMPAIGN=1 runs it")
def test_a_decoder_of_fifty_million_parameters(tmp_path: Path, part_counts: list[int]) -> None:
    path = llama_models.write_llama(tmp_path / "m.onnx", llama_models.SMALL)
    feeds = [llama_models.make_token_ids(llama_models.SMALL, 1, 4)]
    report = assert_same(path, ONNX, feeds, 40_000_000)
    assert report["verdict"] == "pass" and min(part_counts) >= 5
