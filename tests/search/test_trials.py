"""Compare trials with ``check`` on the same lists and data: both must pass, or fail for the same reason.

A check with too little to compare is inconclusive and breaks no limit. ``tune`` searches nothing then.
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
from mixlist import Limits
from mixlist.search import trial_worker
from mixlist.search.candidates import find_list_candidates
from mixlist.search.edits import edit_policy
from tests.checker.test_reference_verdict import Case, cases
from tests.support.builders import model, policy
from tests.support.local_workers import trials
from tests.support.planted_models import PLANTED, Planted

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "30"))
ANY = Limits(normalized=None, cosine=None)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_overflow(planted: Planted) -> None:
    """A trial of one batch fails if the check of that batch overflows, at one of the nodes that the check names."""
    proto = model(planted.text, check=False)
    for feed in planted.feeds:
        report = mixlist.check(proto, planted.policy, [feed], limits=ANY)
        search_trials = trials(proto, planted.policy, [feed], limits=ANY)
        outcome = search_trials.try_edits(frozenset())
        search_trials.compiler.close()
        assert outcome.passed is (report.verdict != "fail"), (outcome, report.reasons)
        if not outcome.passed:
            overflows = {f"{n.scope}/{n.name}" if n.scope else n.name for n in report.nodes if n.kind == "overflow"}
            propagated = {f"{n.scope}/{n.name}" if n.scope else n.name for n in report.nodes if n.kind == "propagated"}
            assert outcome.why.removeprefix("overflow at ") in overflows | propagated


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MIXLIST_SEED" not in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=cases(), data=st.data())
def test_a_trial_agrees_with_the_check(case: Case, data: st.DataObject) -> None:
    """Random graphs with values at the limits, masks, infinities and NaN, under the base lists and edits."""
    assume(case.policy.mode.action == "lists")  # tune refuses the other modes
    mode = "saturate" if case.saturate else "inf"
    base = mixlist.check(case.model, case.policy, case.feeds, per_tensor=True, overflow_mode=mode)
    search_trials = trials(case.model, case.policy, case.feeds, saturate=case.saturate, base=base)
    try:
        candidates = find_list_candidates(
            search_trials.compiler.solution(frozenset()),
            case.policy,
            search_trials.compiler.low_nodes(frozenset()),
        )
        for edits in (frozenset(), frozenset(candidate.edit for candidate in candidates if data.draw(st.booleans()))):
            edited_policy = edit_policy(case.policy, edits)
            report = mixlist.check(case.model, edited_policy, case.feeds, overflow_mode=mode) if edits else base
            outcome = search_trials.try_edits(edits)
            assert outcome.passed is (report.verdict != "fail"), (outcome, report.reasons)
    finally:
        search_trials.compiler.close()


def test_a_trial_stops_at_the_first_broken_limit_and_that_batch_goes_first() -> None:
    """A trial is one set of edits on the data."""
    feeds = [{"x": np.array([float(i), 1.0], np.float32)} for i in (1, 2, 3, 300, 4)]
    search_trials = trials(
        model("g (float[2] x) => (float[2] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"), policy(white=["Mul"]), feeds
    )
    started_runs: list[int] = []
    submit = search_trials._submit
    search_trials._submit = lambda flags, batch: started_runs.append(batch) or submit(flags, batch)  # type: ignore[method-assign]
    assert search_trials.try_edits(frozenset()).batch == 3
    assert started_runs == [0, 1, 2, 3] and search_trials.batch_order[0] == 3
    # With several workers too, the first batch runs alone: the others start if it passes.
    search_trials.workers = replace(search_trials.workers, count=3)
    started_runs.clear()
    search_trials.outcomes.clear()
    search_trials.search_state.outcomes.clear()
    assert search_trials.try_edits(frozenset()).batch == 3
    assert started_runs == [3]
    assert search_trials.try_reference().passed
    assert started_runs == [3, 3, 0, 1, 2, 4]
    search_trials.compiler.close()


def test_inputs_in_float16_are_converted_for_the_gated_graph() -> None:
    feeds: list[dict[str, Any]] = [{"x": np.array([1.5, 200.0], np.float16), "i": np.array([2, 3], np.int64)}]
    proto = model(
        "g (float16[2] x, int64[2] i) => (float16[2] y) { [c] c = Cast<to=10>(i) [m] m = Mul(x, c) [n] y = Neg(m) }"
    )
    search_trials = trials(proto, policy(white=["Mul"]), feeds)
    assert search_trials.try_edits(frozenset()).passed and search_trials.try_reference().passed
    search_trials.compiler.close()


MASKED = """g (float[1,4,4] x, float[1,4,4] m) => (float[1,4,4] y)
  <float zero = {0}, float large = {LARGE}, float[1] k = {FACTOR}> {
  [b] b = Greater(m, zero) [w] w = Where(b, zero, large) [s] s = Mul(x, k) [a] a = Add(s, w) [y] y = Softmax(a) }"""


@pytest.mark.parametrize("large", ["-1e9", "-3.4028234e38", "-60000", "-inf"])
@pytest.mark.parametrize(("factor", "passes"), [("1", True), ("70000", False)])
def test_a_mask_does_not_fail_a_trial(large: str, factor: str, passes: bool) -> None:
    """The values of a mask may overflow, whatever their size. Scores in the same tensor may not."""
    proto = model(MASKED.replace("LARGE", large).replace("FACTOR", factor))
    mask = np.ones((1, 4, 4), np.float32)
    mask[..., 2:] = 0
    feeds = [{"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 4, 4), "m": mask}]
    base_policy = policy(white=["Where", "Mul", "Add", "Softmax"], constants="ieee")
    report = mixlist.check(proto, base_policy, feeds, limits=ANY)
    search_trials = trials(proto, base_policy, feeds, limits=ANY)
    outcome = search_trials.try_edits(frozenset())
    search_trials.compiler.close()
    assert outcome.passed is (report.verdict == "pass") is passes, (outcome, report.reasons)


def test_a_reshape_overflows_although_its_float32_input_does_not() -> None:
    """Sub is high. The white Reshape rounds its input to infinities, which Relu turns into zeros."""
    proto = model("""g (float[1,4] x) => (float[2,2] y) <int64[2] s = {2,2}, float big = {-1e5}> {
      [m] m = Sub(big, x) [r] r = Reshape(m, s) [y] y = Relu(r) }""")
    feeds = [{"x": np.ones((1, 4), np.float32)}]
    base_policy = policy(white=["Reshape"], black=["Sub"])
    search_trials = trials(proto, base_policy, feeds, limits=ANY)
    outcome = search_trials.try_edits(frozenset())
    search_trials.compiler.close()
    assert mixlist.check(proto, base_policy, feeds, limits=ANY).verdict == "fail"
    assert not outcome.passed and outcome.why == "overflow at r"


def test_the_first_overflow_is_named_although_its_sum_is_in_a_later_output() -> None:
    """The output of ``sum`` is near the limit and gets a range, which is a later graph output than plain sums."""
    proto = model("""g (float[4] x) => (float[1] y) <float many = {1e4}> {
      [sum] s = ReduceSum(x) [divide] y = Div(s, many) }""")
    feeds = [{"x": np.full(4, 5e4, np.float32)}]
    base_policy = policy(white=["ReduceSum", "Div"])
    search_trials = trials(proto, base_policy, feeds, limits=ANY)
    outcome = search_trials.try_edits(frozenset())
    search_trials.compiler.close()
    (first,) = (node for node in mixlist.check(proto, base_policy, feeds, limits=ANY).nodes if node.first)
    assert outcome.why == f"overflow at {first.name}" == "overflow at sum"


def test_convolutions_compute_the_same_in_a_trial_and_in_the_check() -> None:
    """A minimal list is close to the limit, so both must agree to many digits.

    In the blocked layout of ONNX Runtime sums have another order. The sessions of both must not use that layout.
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
    search_trials = trials(proto, policy(white=["Conv", "Relu", "Sigmoid", "Mul"]), feeds)
    for candidate in (
        None,
        *find_list_candidates(
            search_trials.compiler.solution(frozenset()),
            search_trials.compiler.base,
            search_trials.compiler.low_nodes(frozenset()),
        ),
    ):
        edits = frozenset([candidate.edit] if candidate is not None else [])
        flags = search_trials.compiler.build_flags(edits)
        trial_output = (
            trial_worker.run_batch(search_trials.compiler.token, search_trials.compiler.payload_path, flags, 0)
            .outputs[0]
            .finding(ANY)
        )
        (check_output,) = mixlist.check(
            proto, edit_policy(search_trials.compiler.base, edits), feeds, limits=ANY
        ).outputs
        assert check_output.normalized_error > 1e-4
        assert trial_output.normalized_error == pytest.approx(check_output.normalized_error, rel=1e-9)
    search_trials.compiler.close()
