"""The segments of a gated graph compute the same as the whole graph, bit for bit, wherever it is cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mixlist import Policy
from mixlist.decide import Resolver
from mixlist.lru_cache import LruCache
from mixlist.model.protos import nodes_in
from mixlist.search.edits import EditSet
from mixlist.search.gated_graph import Segment, split_graph
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trial_worker import TrialRunner
from tests.support.builders import model, policy
from tests.support.gate_comparison import (
    PROFILE,
    GateComparison,
    assert_same_values,
    draw_edits,
    is_loadable,
    models_and_policies,
)
from tests.support.graphs import Case
from tests.support.local_sessions import make_session
from tests.support.local_workers import trials
from tests.support.package import LocalSession, SessionOptions, open_session


def run_segments(segments: Iterable[Segment], flags: Any, feed: Mapping[str, Any], outputs: Iterable[str]) -> list[Any]:
    """Run the segments in order without optimizations. Also load them with the optimizations of a worker."""
    values = dict(feed)
    for segment in segments:
        open_session(segment.model, SessionOptions(threads=1, lean=True, reuse_memory=True))
        session = LocalSession(
            make_session(onnx.ModelProto.FromString(segment.model), SessionOptions(optimize=False, threads=1))
        )
        segment_feed = {name: values[name] for name in segment.input_names if name in values}
        if segment.flags_input:
            segment_feed[segment.flags_input] = flags[list(segment.gates)]
        values.update(zip(segment.output_names, session.run(segment.output_names, segment_feed), strict=True))
    return [values[name] for name in outputs]


@PROFILE
@given(models_and_policies(), st.data())
def test_segments_compute_the_same_as_the_whole_graph(problem: tuple[Case, Policy], data: st.DataObject) -> None:
    """Random graphs with control flow, sequences and constants, cut behind any of their nodes."""
    case, rules = problem
    assume("duplicate node name" not in case.features and is_loadable(case.model))
    comparison = GateComparison(case.model, rules, case.feeds())
    try:
        edits = draw_edits(data, (*comparison.candidates(), *comparison.nodes()))
        flags = comparison.compiler.build_flags(edits)
        outputs = comparison.run_gated(flags)
        gated = comparison.compiler.gated_graph
        assert gated is not None
        tensors = [name for node in gated.proto.graph.node for name in node.output if name]
        cut_outputs = [(name,) for name in tensors if data.draw(st.booleans())]
        bits = np.unpackbits(np.frombuffer(flags, np.uint8), count=len(gated.gates)).astype(bool)
        feed = {
            graph_input.name: comparison.feed[graph_input.name]
            for graph_input in gated.proto.graph.input
            if graph_input.name in comparison.feed
        }
        feed = {n: np.asarray(v, np.float32) if getattr(v, "dtype", None) == np.float16 else v for n, v in feed.items()}
        assert_same_values(
            run_segments(
                split_graph(gated, cut_outputs), bits, feed, gated.output_names[: len(comparison.compiler.output_names)]
            ),
            outputs,
            f"cut at {cut_outputs}",
        )
    finally:
        comparison.close()


NODE_BYTES = 1  # fewer bytes than one weight has: each MatMul of ``CHAIN`` is a segment
CHAIN = """g (float[4,64] x) => (float[4,64] y) <float[64,64] w = {0.01}>
{ [a] a = MatMul (x, w) [b] b = MatMul (a, w) [c] c = MatMul (b, w) [d] y = MatMul (c, w) }"""


def chain_model() -> onnx.ModelProto:
    proto = model(CHAIN.replace("<float[64,64] w = {0.01}>", ""), check=False)
    rng = np.random.default_rng(0)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(0, 0.1, (64, 64)).astype(np.float32), "w"))
    return proto


FEED = {"x": np.random.default_rng(1).normal(0, 1, (4, 64)).astype(np.float32)}


def test_no_constant_crosses_a_cut() -> None:
    """The constant ``k``, as large as a weight, is computed in both segments."""
    text = """g (float[64,64] x) => (float[64,64] y) <int64[2] s = {64,64}, int64[1] i = {0}> {
      [k] k = ConstantOfShape <value = float[1] {0.5}> (s) [a] a = MatMul (x, k) [r] r = Gather (a, i)
      [q] q = Expand (r, s) [y] y = MatMul (q, k) }"""
    compiler = TrialCompiler(
        Resolver(model(text)), policy(white=["MatMul"]), [{"x": np.ones((64, 64), np.float32)}], ()
    )
    compiler.build_flags(frozenset())
    assert compiler.gated_graph is not None
    segments = split_graph(compiler.gated_graph, [("r",)])
    first, second = segments
    assert first.input_names == ("x",) and "r" in second.input_names and "k" not in second.input_names
    for segment in segments:
        # In the bodies of an If, because the type of ``k`` can change (S4.44).
        nodes = nodes_in(onnx.ModelProto.FromString(segment.model).graph)
        assert "ConstantOfShape" in {node.op_type for node in nodes}
    compiler.close()


def test_no_sequence_crosses_a_cut() -> None:
    text = """g (float[2] x) => (float[2] y) <int64 i = {0}>
    { [a] a = Neg (x) s = SequenceConstruct (a, x) [b] b = SequenceAt (s, i) [y] y = Mul (b, b) }"""
    compiler = TrialCompiler(Resolver(model(text)), policy(white=["Mul"]), [{"x": np.ones(2, np.float32)}], ())
    compiler.build_flags(frozenset())
    assert compiler.gated_graph is not None
    segments = split_graph(compiler.gated_graph, [("a",), ("s",), ("b",)])
    assert len(segments) == 3 and all("s" not in segment.input_names for segment in segments)
    compiler.close()


def edits(compiler: TrialCompiler, *names: str) -> EditSet:
    from mixlist.search.candidates import find_node_candidates

    candidates = find_node_candidates(compiler.solution(frozenset()), compiler.low_nodes(frozenset()))
    return frozenset(candidate.edit for candidate in candidates if candidate.nodes[0][1] in names)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the indices of the segments are added that run from now on."""
    indices: list[int] = []
    run_segment = TrialRunner._run_segment
    monkeypatch.setattr(
        TrialRunner,
        "_run_segment",
        lambda runner, index, feed: indices.append(index) or run_segment(runner, index, feed),
    )
    return indices


def test_a_trial_starts_at_the_first_segment_whose_flags_are_new(runs: list[int]) -> None:
    search_trials = trials(chain_model(), policy(white=["MatMul"]), [FEED], segment_bytes=NODE_BYTES)
    compiler = search_trials.compiler
    assert search_trials.try_edits(frozenset()).passed
    assert runs == 2 * [0, 1, 2, 3], "the reference and the trial"
    runs.clear()
    search_trials.try_edits(edits(compiler, "c"))
    assert runs == [2, 3]
    runs.clear()
    search_trials.try_edits(edits(compiler, "a"))
    assert runs == [1, 2, 3], "the first segment ran with these flags for the reference"
    runs.clear()
    search_trials.try_edits(edits(compiler, "c", "d"))
    assert runs == [3], "the third segment ran with these flags before"
    compiler.close()


def test_segments_of_a_random_model_are_not_cached() -> None:
    noisy = model("g (float[4] x) => (float[4] y) { [m] m = Mul (x, x) n = RandomNormalLike (m) [y] y = Add (m, n) }")
    search_trials = trials(noisy, policy(white=["Mul"]), [{"x": np.ones(4, np.float32)}])
    assert "normalized" in search_trials.try_reference().why, "two runs in float32 differ"
    search_trials.compiler.close()


def test_a_trial_stops_after_the_segment_that_overflows_if_that_decides_it(runs: list[int]) -> None:
    large = {"x": FEED["x"] * 1e5}
    for rate, expected_runs in ((0.005, [0]), (2.0, [0, 1, 2, 3])):
        search_trials = trials(
            chain_model(), policy(white=["MatMul"]), [large], exception_rate=rate, segment_bytes=NODE_BYTES
        )
        compiler = search_trials.compiler
        compiler.add_gates(frozenset())
        search_trials.try_reference()
        runs.clear()
        outcome = search_trials.try_edits(frozenset())
        assert runs == expected_runs and not outcome.passed
        assert outcome.why.startswith("overflow at a") is (rate < 1)
        compiler.close()


def test_the_cache_drops_the_entry_that_was_read_longest_ago() -> None:
    cache: LruCache[dict[str, Any]] = LruCache(3000, lambda values: 256 + values["x"].nbytes)
    for name in "abc":
        cache.put(name, {"x": np.zeros(150, np.float64)})
        cache.get("a")
    assert cache.get("a") is not None and cache.get("b") is None and cache.get("c") is not None
