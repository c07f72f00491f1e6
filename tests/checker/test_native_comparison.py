"""The comparison of a native check with an emulated one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mixlist
from mixlist.checker.result import CheckReport, compare_with_emulation
from mixlist.errors import UsageError
from tests.support.builders import model


@pytest.fixture(scope="module")
def report() -> CheckReport:
    feeds = [{"x": np.array([300.0], np.float32)}]
    policy = mixlist.load_policy(precision_mode_v2="fp16")
    return mixlist.check(model("g (float[N] x) => (float[N] y) { m = Mul(x, x) y = Neg(m) }"), policy, feeds)


def test_equal_reports_have_no_differences(report: CheckReport) -> None:
    comparison = compare_with_emulation(report, report)
    assert (comparison.verdict, comparison.exception_rate, comparison.differences) == ("fail", 1.0, ())


def test_a_finding_and_an_output_that_differ_are_reported(report: CheckReport) -> None:
    outputs = tuple(replace(o, passed=True, normalized_error=1e-3) for o in report.outputs)
    comparison = compare_with_emulation(replace(report, nodes=report.nodes[1:], outputs=outputs), report)
    assert comparison.differences == (
        "Mul_0: nothing natively, overflow emulated",
        "output 'y' keeps its limits only natively: normalized error 0.001 natively, inf emulated",
    )


def test_a_check_on_the_cpu_cannot_be_compared_with_itself() -> None:
    with pytest.raises(UsageError, match="no native check"):
        mixlist.check(
            model("g (float[N] x) => (float[N] y) { y = Neg(x) }"), mixlist.load_policy(), [], compare_emulated=True
        )
