"""A search in segments gives the same report as a search on the whole model, and takes little memory."""

from __future__ import annotations

import json
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
from mixlist.model.naming import NodeRef
from mixlist.search import trial_worker
from mixlist.search.candidates import find_node_candidates
from mixlist.search.edits import NO_EDITS
from tests.support import llama_models, local_workers
from tests.support.builders import model, policy
from tests.support.llama_models import PLANTED, SMALL, TINY, LlamaSize

ONNX = mixlist.load_policy(ops_info="onnx")
IS_CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"
CAMPAIGN = "MIXLIST_CAMPAIGN=1 runs it"
Feeds = Sequence[Mapping[str, Any]]


def report_of(source: Any, lists: mixlist.Policy, feeds: Feeds, **options: Any) -> dict[str, Any]:
    """Return the JSON of a search without its times and the size of its segments."""
    report: dict[str, Any] = findings(mixlist.tune(source, lists, feeds, jobs=1, **options).to_json())
    return report


def findings(part: Any) -> Any:
    """Return a part of a report without what tells how it was made: times and the size of segments."""
    if not isinstance(part, dict):
        return part
    return {key: findings(value) for key, value in part.items() if key not in ("seconds", "segment_bytes")}


def assert_same(source: Any, lists: mixlist.Policy, feeds: Feeds, segment_bytes: int, **options: Any) -> dict[str, Any]:
    """Assert that segments change nothing in a report, and return the report."""
    whole = report_of(source, lists, feeds, **options)
    assert report_of(source, lists, feeds, segment_bytes=segment_bytes, **options) == whole
    return whole


def write_planted(path: Path, size: LlamaSize) -> Path:
    """Write a decoder in which three nodes of one layer must be raised."""
    return llama_models.write_llama(path, size, PLANTED)


def token_ids(size: LlamaSize, count: int) -> Feeds:
    return [llama_models.make_token_ids(size, 1, 6, seed) for seed in range(count)]


@pytest.mark.parametrize(
    "overflow_mode", ["inf", pytest.param("saturate", marks=pytest.mark.skipif(not IS_CAMPAIGN, reason=CAMPAIGN))]
)
def test_segments_change_no_search(tmp_path: Path, overflow_mode: str) -> None:
    path = write_planted(tmp_path / "m.onnx", TINY)
    report = assert_same(path, ONNX, token_ids(TINY, 5), 30_000, overflow_mode=overflow_mode)
    # Every product is black (Rule S8.39).
    assert report["verdict"] == "inconclusive" and report["low_share"]["tuned"] == 0
    assert report["trials"] >= 3 and report["validation"] is not None


LOOP = """agraph (float[n, 16] x, int64 trips) => (float[n, 16] y) {
    a = MatMul(x, w0)
    more = Constant<value = bool {1}>()
    carried, all = Loop(trips, more, a) <body = body (int64 i, bool go, float[n, 16] s)
      => (bool again, float[n, 16] t, float[n, 16] u) {
        again = Identity(go)
        p = MatMul(s, w1)
        t = Tanh(p)
        u = Mul(p, p)
    }>
    b = f.Dense(carried, w2)
    y = MatMul(b, w0)
}
<domain: "f", opset_import: ["" : 17]>
Dense (q, w) => (r) {
    p = MatMul(q, w)
    e = Exp(p)
    r = Mul(e, p)
}"""


@pytest.mark.parametrize("constants", ["keep", "clamp"])
def test_loops_and_calls(constants: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixlist.search.gated_graph.SMALL_CONSTANT", 0)
    proto = model('<ir_version: 8, opset_import: ["" : 17, "f" : 1]>' + LOOP, check=False)
    rng = np.random.default_rng(4)
    for name, scale in (("w0", 1.0), ("w1", 0.5), ("w2", 0.4)):
        weight = np.float32(scale) * rng.standard_normal((16, 16), np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    lists = policy(white=["MatMul", "Exp", "Mul", "Tanh"], constants=constants)
    feeds = [{"x": rng.standard_normal((2, 16), np.float32) * 30, "trips": np.array(2)} for _ in range(2)]
    assert assert_same(proto, lists, feeds, 1)["edits"]


def test_a_trial_loads_segments_one_at_a_time_from_the_first_that_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Recorded(trial_worker.LocalSession):
        def __init__(self, session: Any) -> None:
            super().__init__(session)
            events.append("open")

        def close(self) -> None:
            super().close()
            events.append("close")

    monkeypatch.setattr(trial_worker, "LocalSession", Recorded)
    decoder = llama_models.write_llama(tmp_path / "m.onnx", TINY)
    trials = local_workers.trials(decoder, ONNX, token_ids(TINY, 1), segment_bytes=30_000)
    try:
        assert trials.try_reference().passed
        all_segments = len(events) // 2
        assert all_segments == 4 and events == ["open", "close"] * all_segments
        events.clear()
        assert trials.try_edits(NO_EDITS).passed
        main = trials.compiler.solution(NO_EDITS)
        (logits,) = find_node_candidates(main, {NodeRef("", "logits")})
        events.clear()
        assert trials.try_edits(frozenset([logits.edit])).passed
        assert events == ["open", "close"]  # the last segment
    finally:
        trials.compiler.close()


def test_a_model_that_was_authored_in_float16_is_repaired_in_segments(tmp_path: Path) -> None:
    low = tmp_path / "low.onnx"
    source = write_planted(tmp_path / "m.onnx", TINY)
    mixlist.rewrite(source, mixlist.resolve(source, policy(mode="fp16"))).save(low)
    whole, in_segments = (
        findings(mixlist.repair(low, token_ids(TINY, 1), jobs=1, segment_bytes=segment_bytes).to_json())
        for segment_bytes in (None, 30_000)
    )
    assert in_segments == whole and whole["verdict"] == "pass" and whole["edits"]


@pytest.mark.skipif(not IS_CAMPAIGN, reason=CAMPAIGN)
def test_a_decoder_of_fifty_million_parameters(tmp_path: Path) -> None:
    path = write_planted(tmp_path / "m.onnx", SMALL)
    report = mixlist.tune(path, ONNX, token_ids(SMALL, 1), segment_bytes=40_500_000)
    assert report.verdict == "pass" and report.minimal and report.trials >= 3


@pytest.mark.timeout(1800)
@pytest.mark.skipif("MIXLIST_LARGE" not in os.environ, reason="needs 5 GB of disk: set MIXLIST_LARGE")
def test_a_decoder_of_a_billion_parameters_takes_little_memory(tmp_path: Path) -> None:
    import resource  # Windows has no such module

    path = write_planted(tmp_path / "m.onnx", llama_models.LARGE)
    np.savez(tmp_path / "batch.npz", **llama_models.make_token_ids(llama_models.LARGE, 1, 8))
    command = [sys.executable, "-m", "mixlist", "tune", str(path), "--ops-info", "onnx", "-o", str(tmp_path / "l.json")]
    command += ["--segment-bytes", "268435456"]
    process = subprocess.run([*command, "--data", str(tmp_path / "batch.npz")], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert json.loads((tmp_path / "l.json").read_text())["black-list"]["to-add"]
    # The largest process; the kernel counts kB. Shared pages count in full.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 3.0e6
