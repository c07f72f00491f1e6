"""Test reductions that accept empty tensors, which CUDA needs: on the CPU they give the same results."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from mixlist.checker.check_sessions import CheckSessions
from mixlist.checker.instrument import Instrumenter
from tests.support.builders import model
from tests.support.local_sessions import make_session
from tests.support.package import LocalSession
from tests.support.planted_models import PLANTED, Planted

LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64 n, float[2] x) => (float[2] y) {
  yes = Constant<value = bool {1}>()
  y = Loop (n, yes, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
    d = Identity(c) t = Add(s, s) }>
}
"""


@pytest.fixture
def safe_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckSessions, "safe_reductions", property(lambda _: True))


@pytest.mark.usefixtures("safe_reductions")
@pytest.mark.parametrize("case", PLANTED, ids=lambda case: case.name)
def test_planted(case: Planted) -> None:
    report = mixlist.check(model(case.text), case.policy, case.feeds)
    kinds = {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in report.nodes}
    assert kinds == case.kinds
    assert report.exception_rate == case.rate


def test_no_reduction_reads_an_empty_tensor() -> None:
    instrumented = Instrumenter(model("g (float[N] x) => (float[N] y) { y = Neg(x) }"), safe_reductions=True).run()
    extended = {o for n in instrumented.proto.graph.node if n.op_type == "Concat" for o in n.output}
    reduced = [n.input[0] for n in instrumented.proto.graph.node if n.op_type.startswith("Reduce")]
    assert len(reduced) == 6
    assert set(reduced) <= extended


def test_a_loop_without_iterations_and_an_empty_tensor_did_not_run() -> None:
    feed = {"n": np.array(0, np.int64), "x": np.ones(2, np.float32)}
    report = mixlist.check(model(LOOP), mixlist.load_policy(), [feed], per_tensor=True)
    assert not [t for t in report.tensors if t.node == "Add_0"]
    instrumented = Instrumenter(model("g (float[N] x) => (float[N] y) { y = Neg(x) }"), safe_reductions=True).run()
    with LocalSession(make_session(instrumented.proto)) as runner:
        values = dict(zip(runner.output_names, runner.run(None, {"x": np.zeros(0, np.float32)}), strict=True))
    columns = {s: instrumented.columns[instrumented.probes[0].ref, s][0] for s in ("minimum", "maximum", "sum")}
    statistics = {s: float(values[p.output][p.column]) for s, p in columns.items()}
    assert statistics == {"minimum": np.inf, "maximum": -np.inf, "sum": 0.0}
