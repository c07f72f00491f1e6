"""Compare trials with ``check`` on the same lists and data: pass or fail, and the reason.

Where too little can be compared, a check is inconclusive and breaks no limit; nothing is searched then (Rule S9.12).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import mixlist
from mixlist.checker.limits import Limits
from mixlist.tuner import trial_worker
from mixlist.tuner.candidates import edit_policy, find_list_candidates, find_node_candidates
from tests.checker.test_reference_verdict import Case, cases
from tests.support.builders import model, policy
from tests.support.local_workers import trials
from tests.support.planted_models import PLANTED, Planted

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "60"))
ANY = Limits(normalized=None, cosine=None)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_overflow(planted: Planted) -> None:
    """Batch by batch: a trial of one batch fails where the check of that batch overflows."""
    proto = model(planted.text, check=False)
    for feed in planted.feeds:
        checked = mixlist.check(proto, planted.policy, [feed], limits=ANY)
        tried = trials(proto, planted.policy, [feed], limits=ANY)
        outcome = tried.try_edits(frozenset())
        tried.compiler.close()
        assert outcome.passed is (checked.verdict != "fail"), (outcome, checked.reasons)
        if not outcome.passed:
            overflows = {f"{n.scope}/{n.name}" if n.scope else n.name for n in checked.nodes if n.kind == "overflow"}
            spoilt = {f"{n.scope}/{n.name}" if n.scope else n.name for n in checked.nodes if n.kind == "propagated"}
            assert outcome.why.removeprefix("overflow at ") in overflows | spoilt


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MIXLIST_SEED" not in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=cases(), data=st.data())
def test_a_trial_says_what_the_check_says(case: Case, data: st.DataObject) -> None:
    """Random graphs full of edges, masks, infinities and NaN; with the base lists and with some of the edits.

    Rule S9.3.
    """
    assume(case.rules.mode.action == "lists")  # others are not tuned
    mode = "saturate" if case.saturate else "inf"
    base = mixlist.check(case.model, case.rules, case.feeds, per_tensor=True, overflow_mode=mode)
    tried = trials(case.model, case.rules, case.feeds, saturate=case.saturate, base=base)
    try:
        units = find_list_candidates(
            tried.compiler.solution(frozenset()), case.rules, "black", tried.compiler.low_nodes(frozenset())
        )
        for choice in (frozenset(), frozenset(u.edit for u in units if data.draw(st.booleans()))):
            lists = edit_policy(case.rules, choice)
            checked = mixlist.check(case.model, lists, case.feeds, overflow_mode=mode) if choice else base
            outcome = tried.try_edits(choice)
            assert outcome.passed is (checked.verdict != "fail"), (outcome, checked.reasons)
    finally:
        tried.compiler.close()


def test_a_trial_stops_at_the_first_broken_limit_and_that_batch_goes_first() -> None:
    """Rule S9.2: A trial is one set of edits on the data."""
    feeds = [{"x": np.array([float(i), 1.0], np.float32)} for i in (1, 2, 3, 300, 4)]
    tried = trials(
        model("g (float[2] x) => (float[2] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"), policy(white=["Mul"]), feeds
    )
    ran: list[int] = []
    submit = tried._submit
    tried._submit = lambda flags, batch: ran.append(batch) or submit(flags, batch)  # type: ignore[method-assign]
    assert tried.try_edits(frozenset()).batch == 3
    assert ran == [0, 1, 2, 3] and tried.batch_order[0] == 3
    tried.compiler.close()


def test_inputs_in_float16_are_fed_as_the_graph_takes_them() -> None:
    feeds: list[dict[str, Any]] = [{"x": np.array([1.5, 200.0], np.float16), "i": np.array([2, 3], np.int64)}]
    proto = model(
        "g (float16[2] x, int64[2] i) => (float16[2] y) { [c] c = Cast<to=10>(i) [m] m = Mul(x, c) [n] y = Neg(m) }"
    )
    tried = trials(proto, policy(white=["Mul"]), feeds)
    assert tried.try_edits(frozenset()).passed and tried.try_reference().passed
    tried.compiler.close()


MASKED = """g (float[1,4,4] x, float[1,4,4] m) => (float[1,4,4] y)
  <float zero = {0}, float large = {LARGE}, float[1] k = {FACTOR}> {
  [b] b = Greater(m, zero) [w] w = Where(b, zero, large) [s] s = Mul(x, k) [a] a = Add(s, w) [y] y = Softmax(a) }"""


@pytest.mark.parametrize("large", ["-1e9", "-3.4028234e38", "-60000", "-inf"])
@pytest.mark.parametrize(("factor", "passes"), [("1", True), ("70000", False)])
def test_masks(large: str, factor: str, passes: bool) -> None:
    """A mask of any size is by design, scores that overflow beside it are not; no edit is needed for the first."""
    proto = model(MASKED.replace("LARGE", large).replace("FACTOR", factor))
    mask = np.ones((1, 4, 4), np.float32)
    mask[..., 2:] = 0
    feeds = [{"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 4, 4), "m": mask}]
    rules = policy(white=["Where", "Mul", "Add", "Softmax"], constants="ieee")
    checked = mixlist.check(proto, rules, feeds, limits=ANY)
    tried = trials(proto, rules, feeds, limits=ANY)
    outcome = tried.try_edits(frozenset())
    tried.compiler.close()
    assert outcome.passed is (checked.verdict == "pass") is passes, (outcome, checked.reasons)


def test_a_reshape_that_overflows_where_what_it_reads_does_not() -> None:
    """Sub is high; the white Reshape rounds what it reads, and the Relu makes zero of its infinities."""
    proto = model("""g (float[1,4] x) => (float[2,2] y) <int64[2] s = {2,2}, float big = {-1e5}> {
      [m] m = Sub(big, x) [r] r = Reshape(m, s) [y] y = Relu(r) }""")
    feeds = [{"x": np.ones((1, 4), np.float32)}]
    rules = policy(white=["Reshape"], black=["Sub"])
    tried = trials(proto, rules, feeds, limits=ANY)
    outcome = tried.try_edits(frozenset())
    tried.compiler.close()
    assert mixlist.check(proto, rules, feeds, limits=ANY).verdict == "fail"
    assert not outcome.passed and outcome.why == "overflow at r"


def test_the_first_overflow_is_named_where_its_sum_stands_in_a_later_output() -> None:
    """The sum is near the low range, so its minimum and maximum are taken; of the quotient only a sum is."""
    proto = model("""g (float[4] x) => (float[1] y) <float many = {1e4}> {
      [sum] s = ReduceSum(x) [divide] y = Div(s, many) }""")
    feeds = [{"x": np.full(4, 5e4, np.float32)}]
    rules = policy(white=["ReduceSum", "Div"])
    tried = trials(proto, rules, feeds, limits=ANY)
    outcome = tried.try_edits(frozenset())
    tried.compiler.close()
    (first,) = (node for node in mixlist.check(proto, rules, feeds, limits=ANY).nodes if node.first)
    assert outcome.why == f"overflow at {first.name}" == "overflow at sum"


TWO = """g (float[2] x) => (float[2] y)
{ [a] a = Mul (x, x) [b] b = Exp (a) [c] c = Sqrt (b) [y] y = Neg (c) }"""


def test_other_workers_begin_with_what_is_likely_to_come() -> None:
    """A guess that comes true is not run again; one that does not is dropped, and changes no outcome."""
    feeds = [{"x": np.array([1.0, 2.0], np.float32)}, {"x": np.array([2.0, 3.0], np.float32)}]
    tried = trials(model(TWO), policy(white=["Mul", "Exp", "Sqrt", "Neg"]), feeds, limits=ANY)
    tried.workers = replace(tried.workers, count=3)
    first, second, third = (
        frozenset(unit.edit for unit in find_node_candidates(tried.compiler.solution(frozenset()), {("", name)}))
        for name in "abc"
    )
    ran: list[tuple[bytes, int]] = []
    submit = tried._submit
    tried._submit = lambda flags, batch: ran.append((flags, batch)) or submit(flags, batch)  # type: ignore[method-assign]
    tried.compiler.add_gates(frozenset())
    of = {choice: tried.compiler.build_flags(choice) for choice in (first, second, third)}
    assert tried.passes(first, lambda count: [second, third][:count])
    assert ran == [(of[first], 0), (of[second], 0), (of[third], 0), (of[first], 1)]
    ran.clear()
    assert tried.passes(second)
    assert ran == [(of[second], 1)], "its first batch was a guess"
    ran.clear()
    assert tried.passes(frozenset()) and not tried._speculative_runs
    assert tried.passes(third) and (of[third], 0) in ran, "it was dropped when something else was asked for"
    tried.compiler.close()


def test_convolutions_compute_in_a_trial_what_they_do_in_the_check() -> None:
    """To many digits: a minimal list is close to the limit, and both must say the same of it.

    (In ONNX Runtime's blocked layout, which a check's sessions do not use, sums are taken in another order.)
    """
    rng = np.random.default_rng(0)
    proto = model(
        """g (float[1,32,24,24] x) => (float[1,32,24,24] y) <float[32,32,3,3] w = {}, float[32,1,3,3] d = {}> {
        [a] a = Conv <pads = [1,1,1,1]> (x, w) [b] b = Relu (a) [c] c = Conv <pads = [1,1,1,1], group = 32> (b, d)
        [e] e = Sigmoid (c) [f] f = Mul (c, e) [y] y = Conv <pads = [1,1,1,1]> (f, w) }""",
        check=False,
    )
    for tensor in proto.graph.initializer:
        values = rng.normal(0, 0.1, tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    feeds = [{"x": rng.normal(size=(1, 32, 24, 24)).astype(np.float32)}]
    tried = trials(proto, policy(white=["Conv", "Relu", "Sigmoid", "Mul"]), feeds)
    for unit in (None, *find_list_candidates(tried.compiler.solution(frozenset()), tried.compiler.base, "black", None)):
        choice = frozenset([unit.edit] if unit is not None else [])
        flags = tried.compiler.build_flags(choice)
        ours = (
            trial_worker.run_batch(tried.compiler.token, tried.compiler.payload_path, flags, 0).outputs[0].finding(ANY)
        )
        (theirs,) = mixlist.check(proto, edit_policy(tried.compiler.base, choice), feeds, limits=ANY).outputs
        assert theirs.normalized_error > 1e-4
        assert ours.normalized_error == pytest.approx(theirs.normalized_error, rel=1e-9)
    tried.compiler.close()
