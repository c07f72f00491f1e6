"""A batch on which ONNX Runtime runs the reference and refuses the mixed model is a finding."""

from __future__ import annotations

import io
import math
from concurrent.futures import Executor
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker.result import CheckReport
from mixlist.errors import ModelError
from mixlist.run.local_session import Refusal, RunRefused, parse_refusal
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor
from tests.support.package import check_document, write_document

# 7.999 is 8 in float16, and the table has no entry 8.
TEXT = """g (float[1] x) => (float[1] y) <float zero = {0}, float[8] table = {0, 1, 2, 3, 4, 5, 6, 7}> {
  [sum] s = Add(x, zero) [index] i = Cast<to=7>(s) [pick] y = Gather(table, i) }"""
RULES = policy(white=["Add"])


def feeds(*values: float) -> list[dict[str, Any]]:
    return [{"x": np.array([value], np.float32)} for value in values]


def render_text(report: CheckReport) -> str:
    stream = io.StringIO()
    write_document(check_document(report), stream)
    return stream.getvalue()


@pytest.mark.parametrize("executor", [None, InProcessExecutor()], ids=["other process", "this process"])
def test_a_refused_batch_fails_the_check_and_names_the_node(executor: Executor | None) -> None:
    report = mixlist.check(model(TEXT), RULES, feeds(7.999, 3.0), executor=executor)
    assert (report.verdict, report.batches, report.exception_rate) == ("fail", 1, 0.0)
    (reason,) = report.reasons
    assert reason.startswith("ONNX Runtime runs the reference and refuses the mixed model on batch 0, at pick (Gather)")
    assert "out of data bounds" in reason
    (finding,) = report.nodes
    assert (finding.name, finding.kind, finding.first, finding.batches) == ("pick", "refused", True, (0,))
    assert finding.max_abs_fp32 == 7 and math.isnan(finding.max_abs_low)
    assert report.outputs[0].passed, "the second batch was compared"
    assert "up to 7 in float32, not computed in float16" in render_text(report)


def test_a_check_whose_batches_are_all_refused() -> None:
    report = mixlist.check(model(TEXT), RULES, feeds(7.999, 7.9995), layerwise=True)
    assert (report.verdict, report.batches) == ("fail", 0)
    assert "on batch 0, and 1 more, at pick" in report.reasons[0]
    assert report.nodes[0].batches == (0, 1)


def test_in_a_branch_the_innermost_node_is_named() -> None:
    inside = TEXT.replace(
        "[pick] y = Gather(table, i)",
        """c = Greater(x, zero) b = Squeeze(c)
        [if] y = If (b) <then_branch = t () => (float[1] p) { [pick] p = Gather(table, i) },
                         else_branch = e () => (float[1] q) { [same] q = Identity(x) }>""",
    )
    report = mixlist.check(model(inside), RULES, feeds(7.999))
    (finding,) = report.nodes
    assert (finding.scope, finding.name) == ("if/then_branch", "pick")


@pytest.mark.parametrize("executor", [None, InProcessExecutor()], ids=["other process", "this process"])
def test_a_reference_that_is_refused_stays_an_error_that_names_the_batch(executor: Executor | None) -> None:
    """A refused run is a finding, but for a batch that the reference refuses too."""
    with pytest.raises(ModelError, match=r"^batch 1: ONNX Runtime cannot run .*out of data bounds"):
        mixlist.check(model(TEXT), RULES, feeds(3.0, 9.0), executor=executor)
    with pytest.raises(ModelError, match=r"^batch 1, whose input 'x' holds nothing but NaN: .*out of data bounds"):
        mixlist.check(model(TEXT), RULES, feeds(3.0, math.nan), executor=executor)
    text = "g (float[N] x) => (float[2] y) <int64[1] two = {2}> { [r] y = Reshape(x, two) }"
    with pytest.raises(ModelError, match=r"^batch 0, whose input 'x' has no elements: .*Reshape"):
        mixlist.check(model(text), RULES, [{"x": np.ones(0, np.float32)}], executor=executor)


def test_a_refusal_on_a_worker_is_a_finding(tmp_path: Any) -> None:
    """The worker process reports the same error."""
    report = mixlist.check(model(TEXT), RULES, feeds(7.999, 3.0, 2.0), jobs=1)
    assert (report.verdict, report.batches, report.nodes[0].kind) == ("fail", 2, "refused")


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Conv node."
            " Name:'/dec/conv' Status Message: Invalid input shape: {0}",
            Refusal("/dec/conv", "Conv", "Invalid input shape: {0}"),
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running If node. Name:'if' Status"
            " Message: Non-zero status code returned while running Conv node. Name:'' Status Message: ",
            Refusal("", "Conv", "no reason given"),
        ),
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x", None),
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Mul node."
            " Name:'m' Status Message: Failed to allocate memory for requested buffer of size 1",
            None,
        ),
    ],
)
def test_refusals_are_read_from_messages_of_onnx_runtime(message: str, refusal: Refusal | None) -> None:
    assert parse_refusal(message) == refusal


def test_a_refusal_crosses_processes() -> None:
    import pickle

    error = RunRefused("ONNX Runtime cannot run the model: x", Refusal("n", "Conv", "no"))
    loaded = pickle.loads(pickle.dumps(error))
    assert (str(loaded), loaded.refusal) == (str(error), error.refusal)
