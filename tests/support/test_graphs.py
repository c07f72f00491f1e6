"""The random graphs are what the other tests take them for: valid, loadable, bounded, and varied enough."""

from __future__ import annotations

from collections import Counter

import onnx
from hypothesis import HealthCheck, given, settings

from tests.support.evaluation import largest_difference, ort_session, run_ort, run_reference
from tests.support.graphs import Case, cases

EPSILON = 2.0**-11
FREQUENCIES = {
    "If or Loop": 0.20,
    "capture": 0.10,
    "shared constant": 0.10,
    "user cast": 0.10,
}
EXAMPLES = 150
ONNX_RUNTIME_REFUSES = {"duplicate node name"}  # within one graph; the checker accepts it


def features(case: Case) -> set[str]:
    """The case's features with If and Loop as one."""
    both = {"If or Loop"} if case.features & {"If", "Loop"} else set()
    return set(case.features) | both


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def judge(seen: Counter[str], case: Case) -> None:
    """One model: the checker, ONNX Runtime and onnx.reference accept it and the last two agree."""
    seen.update({"all", *features(case)})
    onnx.checker.check_model(case.model, full_check=True)
    if not case.features & ONNX_RUNTIME_REFUSES:
        ort_session(case.model)
        feeds = case.feeds()
        gaps = largest_difference(run_ort(case.model, feeds), run_reference(case.model, feeds))
        for value, gap in zip(case.model.graph.output, gaps, strict=True):
            assert gap <= (case.errors[value.name] + 1) * EPSILON


def test_random_graphs_are_valid_and_varied() -> None:
    seen: Counter[str] = Counter()
    judge(seen)
    shares = {name: seen[name] / seen["all"] for name in FREQUENCIES}
    assert seen["all"] >= EXAMPLES
    assert {name: round(share, 3) for name, share in shares.items() if share < FREQUENCIES[name]} == {}
