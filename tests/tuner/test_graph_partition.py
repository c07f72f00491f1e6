"""The pieces of a gated graph: they compute what the whole computes, bit for bit, wherever it is cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mixlist.cost.estimate import estimate_costs
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.runtime.inference_session import make_session, open_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.lru_cache import LruCache
from mixlist.runtime.session import SessionOptions
from mixlist.tuner import graph_partition
from mixlist.tuner.candidates import EditSet
from mixlist.tuner.graph_partition import Segment, choose_cuts, split_graph
from mixlist.tuner.trial_compiler import TrialCompiler
from mixlist.tuner.trial_worker import get_runner
from tests.support.builders import model, policy
from tests.support.graphs import Case
from tests.support.local_workers import trials
from tests.tuner.test_gated_graph import PROFILE, Bench, jobs, loads, same, subset


def chained(parts: Iterable[Segment], flags: Any, feed: Mapping[str, Any], outputs: Iterable[str]) -> list[Any]:
    """Run the pieces one after the other without optimizations; load them with those of a worker, too."""
    values = dict(feed)
    for part in parts:
        open_session(part.model, SessionOptions(threads=1, lean=True, reuse_memory=True))
        runner = LocalSession(
            make_session(onnx.ModelProto.FromString(part.model), SessionOptions(optimize=False, threads=1))
        )
        given = {name: values[name] for name in part.input_names if name in values}
        if part.flags_input:
            given[part.flags_input] = flags[list(part.gates)]
        values.update(zip(part.output_names, runner.run(part.output_names, given), strict=True))
    return [values[name] for name in outputs]


@PROFILE
@given(jobs(), st.data())
def test_pieces_compute_what_the_whole_does(job: tuple[Case, Policy], data: st.DataObject) -> None:
    """Random graphs with control flow, functions, sequences and constants, cut behind any of their nodes."""
    case, rules = job
    assume("duplicate node name" not in case.features and loads(case.model))
    bench = Bench(case.model, rules, case.feeds())
    try:
        choice = subset(data, (*bench.candidates(), *bench.nodes()))
        flags = bench.compiler.build_flags(choice)
        whole = bench.gated(flags)
        gated = bench.compiler.gated_graph
        assert gated is not None
        made = [name for node in gated.proto.graph.node for name in node.output if name]
        ends = [(name,) for name in made if data.draw(st.booleans())]
        bits = np.unpackbits(np.frombuffer(flags, np.uint8), count=len(gated.gates)).astype(bool)
        feed = {info.name: bench.feed[info.name] for info in gated.proto.graph.input if info.name in bench.feed}
        feed = {n: np.asarray(v, np.float32) if getattr(v, "dtype", None) == np.float16 else v for n, v in feed.items()}
        same(
            chained(split_graph(gated, ends), bits, feed, gated.output_names[: len(bench.compiler.output_names)]),
            whole,
            f"cut at {ends}",
        )
    finally:
        bench.close()


CHAIN = """g (float[4,64] x) => (float[4,64] y) <float[64,64] w = {0.01}>
{ [a] a = MatMul (x, w) [b] b = MatMul (a, w) [c] c = MatMul (b, w) [d] y = MatMul (c, w) }"""


def chain() -> onnx.ModelProto:
    made = model(CHAIN.replace("<float[64,64] w = {0.01}>", ""), check=False)
    rng = np.random.default_rng(0)
    made.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(0, 0.1, (64, 64)).astype(np.float32), "w"))
    return made


FEED = {"x": np.random.default_rng(1).normal(0, 1, (4, 64)).astype(np.float32)}


def pieces(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(graph_partition, "MIN_SEGMENT_COST", 1.0)
    monkeypatch.setattr(graph_partition, "MAX_SEGMENTS", count)


def test_a_small_model_is_one_piece() -> None:
    graph = Resolver(chain()).graph
    assert choose_cuts(graph, estimate_costs(graph)) == ()


def test_pieces_are_of_about_the_same_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces(monkeypatch, 4)
    graph = Resolver(chain()).graph
    assert choose_cuts(graph, estimate_costs(graph)) == ("a", "b", "c")
    pieces(monkeypatch, 2)
    assert choose_cuts(graph, estimate_costs(graph)) == ("b",)


def test_a_cut_is_where_few_bytes_cross_and_constants_cross_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind ``r`` there is one row; the constant that a node makes is as large as a weight."""
    pieces(monkeypatch, 2)
    text = """g (float[64,64] x) => (float[64,64] y) <int64[2] s = {64,64}, int64[1] i = {0}> {
      [k] k = ConstantOfShape <value = float[1] {0.5}> (s) [a] a = MatMul (x, k) [r] r = Gather (a, i)
      [q] q = Expand (r, s) [y] y = MatMul (q, k) }"""
    graph = Resolver(model(text)).graph
    (cut,) = choose_cuts(graph, estimate_costs(graph))
    assert cut == "r"
    compiler = TrialCompiler(
        Resolver(model(text)), policy(white=["MatMul"]), [{"x": np.ones((64, 64), np.float32)}], ()
    )
    compiler.build_flags(frozenset())
    assert compiler.gated_graph is not None
    _, second = split_graph(compiler.gated_graph, compiler.statistics.cut_outputs)
    assert second.input_names == (cut,)
    assert {"ConstantOfShape"} <= {node.op_type for node in onnx.ModelProto.FromString(second.model).graph.node}
    compiler.close()


def test_a_sequence_crosses_no_cut() -> None:
    text = """g (float[2] x) => (float[2] y) <int64 i = {0}>
    { [a] a = Neg (x) s = SequenceConstruct (a, x) [b] b = SequenceAt (s, i) [y] y = Mul (b, b) }"""
    compiler = TrialCompiler(Resolver(model(text)), policy(white=["Mul"]), [{"x": np.ones(2, np.float32)}], ())
    compiler.build_flags(frozenset())
    assert compiler.gated_graph is not None
    parts = split_graph(compiler.gated_graph, [("a",), ("s",), ("b",)])
    assert len(parts) == 3 and all("s" not in part.input_names for part in parts)
    compiler.close()


def edits(compiler: TrialCompiler, *names: str) -> EditSet:
    from mixlist.tuner.candidates import find_node_candidates

    units = find_node_candidates(compiler.solution(frozenset()), compiler.low_nodes(frozenset()))
    return frozenset(unit.edit for unit in units if unit.nodes[0][1] in names)


def record(compiler: TrialCompiler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the pieces that run from now on."""
    ran: list[int] = []
    for at, runner in enumerate(get_runner(compiler.token, Path(compiler.payload_path).read_bytes()).sessions):
        run = runner.run
        monkeypatch.setattr(runner, "run", lambda *given, at=at, run=run: ran.append(at) or run(*given))
    return ran


def test_a_trial_begins_with_the_first_piece_whose_flags_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces(monkeypatch, 4)
    tried = trials(chain(), policy(white=["MatMul"]), [FEED])
    compiler = tried.compiler
    assert tried.try_edits(frozenset()).passed
    ran = record(compiler, monkeypatch)
    tried.try_edits(edits(compiler, "c"))
    assert ran == [2, 3]
    ran.clear()
    tried.try_edits(edits(compiler, "a"))
    assert ran == [1, 2, 3], "the first piece ran with nothing rounded for the reference"
    ran.clear()
    tried.try_edits(edits(compiler, "c", "d"))
    assert ran == [3], "the third piece ran with these flags before"
    compiler.close()


def test_nothing_is_kept_of_a_model_that_draws_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces(monkeypatch, 2)
    noisy = model("g (float[4] x) => (float[4] y) { [m] m = Mul (x, x) n = RandomNormalLike (m) [y] y = Add (m, n) }")
    tried = trials(noisy, policy(white=["Mul"]), [{"x": np.ones(4, np.float32)}])
    assert "normalized" in tried.try_reference().why, "two runs in float32 differ"
    tried.compiler.close()


def test_a_trial_stops_at_the_piece_that_overflows_where_that_settles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces(monkeypatch, 4)
    large = {"x": FEED["x"] * 1e5}
    for rate, stops in ((0.005, [0]), (2.0, [0, 1, 2, 3])):
        tried = trials(chain(), policy(white=["MatMul"]), [large], exception_rate=rate)
        compiler = tried.compiler
        compiler.add_gates(frozenset())
        tried.try_reference()
        ran = record(compiler, monkeypatch)
        outcome = tried.try_edits(frozenset())
        assert ran == stops and not outcome.passed
        assert outcome.why.startswith("overflow at a") is (rate < 1)
        compiler.close()


def test_what_was_asked_for_longest_ago_goes() -> None:
    kept: LruCache[dict[str, Any]] = LruCache(3000, lambda values: 256 + values["x"].nbytes)
    for name in "abc":
        kept.put(name, {"x": np.zeros(150, np.float64)})
        kept.get("a")
    assert kept.get("a") is not None and kept.get("b") is None and kept.get("c") is not None
