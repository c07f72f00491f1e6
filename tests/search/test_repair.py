"""``mixlist.repair``: planted outliers, healthy models, and models that no repair helps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import mixlist
from mixlist.errors import ModelError
from mixlist.search.repair import MAY_GAIN_MORE
from tests.support.builders import model, policy
from tests.support.float16_models import Planted, build, convolutional_network, image_feeds, planted_networks
from tests.support.local_workers import InProcessExecutor

IS_CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"
# In the suite one convolutional network and one decoder, in the campaign all twenty networks.
NETWORKS = planted_networks(20)
TESTED = NETWORKS if IS_CAMPAIGN else [NETWORKS[0], NETWORKS[9]]
MAX_EDITS, MAX_ERROR = 3, 1e-2


def repair(*arguments: Any, **options: Any) -> mixlist.RepairReport:
    """Repair a model without worker processes."""
    return mixlist.repair(*arguments, executor=InProcessExecutor(), **options)


def raised(report: mixlist.RepairReport) -> list[list[str]]:
    """Return the names of the raised nodes by edit."""
    return [[str(node.ref) for node in edit.nodes] for edit in report.edits]


def half(*rows: Any) -> list[dict[str, Any]]:
    """Return batches for a model with the input x."""
    return [{"x": np.asarray(values, np.float16)} for values in rows]


@pytest.mark.parametrize("planted", TESTED, ids=lambda planted: planted.name)
def test_a_planted_outlier_is_repaired(planted: Planted, tmp_path: Path) -> None:
    """The first offender is the planted node, and the repaired model is close to float32."""
    report = repair(planted.model, planted.feeds)
    assert report.verdict == "pass"
    assert [str(finding.ref) for finding in report.first_offenders] == [planted.offender]
    assert 1 <= len(report.edits) <= MAX_EDITS
    assert raised(report)[0][0] == planted.offender
    assert report.raised_nodes == sum(map(len, raised(report)))
    # An independent look at the file: the reference evaluator of onnx computes float16 in float16.
    report.save(tmp_path / "repaired.onnx")
    (error,) = report.errors
    assert error.before is not None and not error.before.passed
    for feed in planted.feeds:
        exact = _run(_in_float32(planted.model), feed)
        repaired = _run(onnx.load(tmp_path / "repaired.onnx"), feed)
        assert np.linalg.norm(repaired - exact) <= MAX_ERROR * np.linalg.norm(exact)


def _run(network: onnx.ModelProto, feed: dict[str, Any]) -> Any:
    """Return the first output as float64, computed by onnx's reference evaluator in the types of the model."""
    from onnx.reference import ReferenceEvaluator

    types = {value.name: value.type.tensor_type.elem_type for value in network.graph.input}
    inputs = {n: v.astype(np.float32) if types[n] == onnx.TensorProto.FLOAT else v for n, v in feed.items()}
    with np.errstate(all="ignore"):
        (result, *_) = ReferenceEvaluator(network).run(None, inputs)
    return np.asarray(result, np.float64)


def _in_float32(network: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a float16 model without Casts with every tensor in float32."""
    raised_network = onnx.ModelProto()
    raised_network.CopyFrom(network)
    graph = raised_network.graph
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return raised_network


def test_two_outliers_are_two_edits() -> None:
    """The groups of raised nodes are not connected with one another."""
    text, weights = convolutional_network(0, 3)
    for block in (0, 2):
        weights[f"w{block}_w1"] *= 2.0**17
        weights[f"w{block}_w2"] /= 2.0**17
    report = repair(build(text, weights), image_feeds(0))
    assert raised(report) == [[f"/{b}/conv1", f"/{b}/relu1", f"/{b}/conv2"] for b in (0, 2)]
    assert [(row["edit"], row["op_type"]) for row in report.to_rows()] == [
        (edit, op_type) for edit in (0, 1) for op_type in ("Conv", "Relu", "Conv")
    ]
    # The infinity of the first one reaches the second, which only the search finds.
    assert [row["name"] for row in report.to_rows("first_offenders")] == ["/0/conv1"]
    assert "6 of 20 float16 nodes raised" in report._repr_html_()
    assert repr(report) == f"<RepairReport of 'g': pass; edits 2, raised 6 of 20, trials {report.trials}>"


SQUARE = "g (float16[N] x) => (float16[N] y) { [a] a = Neg(x) [m] m = Mul(a, a) [r] r = Sqrt(m) [n] y = Neg(r) }"


def test_the_repaired_model_is_the_one_of_apply(tmp_path: Path) -> None:
    report = repair(model(SQUARE), half([1, 300]))
    report.save(tmp_path / "repaired.onnx", rules=tmp_path / "rules.txt")
    assert raised(report) == [["m", "r"]]
    policy = mixlist.load_policy(precision_mode_v2="origin", customize_dtypes=tmp_path / "rules.txt")
    applied = mixlist.rewrite(model(SQUARE), mixlist.resolve(model(SQUARE), policy)).model
    assert report.repaired_model == applied == onnx.load(tmp_path / "repaired.onnx")
    assert [value.type.tensor_type.elem_type for value in (*applied.graph.input, *applied.graph.output)] == [10, 10]


def test_a_healthy_model_stays_as_it_is(tmp_path: Path) -> None:
    """There is nothing to repair, and the written model has the same graph."""
    report = repair(model(SQUARE), half([1, 2]))
    assert (report.verdict, report.edits, report.first_offenders) == ("pass", (), ())
    assert report.reasons == ("nothing to repair: the model as it is keeps every limit",)
    report.save(tmp_path / "same.onnx", rules=tmp_path / "rules.txt")
    assert onnx.load(tmp_path / "same.onnx").graph == model(SQUARE).graph
    assert (tmp_path / "rules.txt").read_text() == ""


def test_the_report_says_that_more_than_half_of_the_nodes_are_raised() -> None:
    report = repair(model(SQUARE.replace("Sqrt(m)", "Relu(m)").replace("Neg(r)", "Sqrt(r)")), half([1, 300]))
    assert (report.verdict, report.raised_nodes, report.low_nodes) == ("pass", 3, 4)
    assert report.reasons == (f"the repaired model keeps every limit, and most of it is float32 now: {MAY_GAIN_MORE}",)
    assert report.repaired_model is not None


def test_float32_parts_of_a_mixed_model_stay() -> None:
    """Only nodes that are low in the file are raised, and a float32 part is no candidate."""
    text = """g (float16[N] x) => (float16[N] y) {
      [a] a = Neg(x) [up] h = Cast<to=1>(a) [s] s = Mul(h, h) [r] r = Sqrt(s) [down] d = Cast<to=10>(r)
      [m] m = Mul(d, d) [q] q = Sqrt(m) [n] y = Neg(q) }"""
    report = repair(model(text), half([1, 300]))
    assert (report.verdict, raised(report), report.low_nodes) == ("pass", [["m", "q"]], 4)


def test_a_bfloat16_model_is_repaired() -> None:
    """3e38 overflows in bfloat16 as in float32; a sum of small numbers loses its digits in bfloat16 alone."""
    text = """g (bfloat16[64] x) => (bfloat16[1] y) <int64[1] axes = {0}> {
      [a] a = Neg(x) [big] b = Mul(a, a) [e] e = Exp(b) [l] l = Log(e) [s] s = Sqrt(l) [m] y = ReduceSum(s, axes) }"""
    values = np.linspace(0.01, 0.3, 64).astype(ml_dtypes.bfloat16)
    report = repair(model(text), [{"x": values}])
    assert (report.precision, report.verdict) == ("bfloat16", "pass")
    assert report.edits
    assert {node.precision for edit in report.edits for node in edit.nodes} == {"bfloat16"}


def test_a_reference_that_is_nan_is_inconclusive() -> None:
    report = repair(model("g (float16[N] x) => (float16[N] y) { [l] y = Log(x) }"), half([-1, -2]))
    assert (report.verdict, report.rewritten) == ("inconclusive", None)
    assert report.reasons[0].startswith("output 'y' is NaN in the reference, first at l (Log)")


def test_an_output_beyond_the_range_has_no_repair() -> None:
    text = "g (float16[N] x) => (float16[N] y) { [a] a = Neg(x) [b] b = Neg(a) [m] y = Mul(b, b) }"
    report = repair(model(text), half([1, 300]))
    assert (report.verdict, report.rewritten) == ("fail", None)
    assert report.reasons[-1].startswith("with every node raised that a node rule can raise: ")


def test_an_authored_cast_that_overflows_has_no_repair() -> None:
    text = """g (float[N] x) => (float16[N] y) {
      [s] s = Mul(x, x) [down] d = Cast<to=10>(s) [r] r = Sqrt(d) [n] y = Neg(r) }"""
    report = repair(model(text), [{"x": np.array([1, 300], np.float32)}])
    assert (report.verdict, report.rewritten) == ("fail", None)
    assert "down" in report.reasons[-1]


def test_a_float32_model_is_refused() -> None:
    with pytest.raises(ModelError, match="no node in float16 or bfloat16"):
        repair(model(SQUARE.replace("float16", "float")), [{"x": np.ones(2, np.float32)}])


def test_an_overflow_in_the_last_of_many_batches_is_repaired() -> None:
    """No batch is held out, unlike in tune."""
    report = repair(model(SQUARE), half([1, 2], [1, 2], [1, 2], [1, 300]))
    assert (report.verdict, raised(report)) == ("pass", [["m", "r"]])


def test_large_weights_of_raised_nodes_are_read_in_float32() -> None:
    """A check stores a large float16 weight as float32. Raised nodes read these numbers without a conversion."""
    text = "g (float16[1,128] x, float16[128,128] w) => (float16[1,128] y) { [m] m = MatMul(x, w) [s] s = Sigmoid(m)"
    network = model(f"{text} [a] a = Neg(s) [b] b = Neg(a) [c] y = Neg(b) }}")
    del network.graph.input[1:]
    network.graph.initializer.append(numpy_helper.from_array(np.full((128, 128), 300, np.float16), "w"))
    report = repair(network, half(np.full((1, 128), 2)))
    assert (report.verdict, raised(report)) == ("pass", [["m", "s"]])


BODIES = """g (float16[2] x, bool c) => (float16[2] y) {
    [v2] u = Mul(x, x) [vr] t = Sqrt(u) [vn] a = Neg(t)
    [i] y = If(c) <then_branch = t () => (float16[2] b) { [sq] s = Mul(x, x) [ro] r = Sqrt(s) [ad] b = Add(r, a) },
                   else_branch = e () => (float16[2] d) { [neg] n = Neg(a) [pos] d = Abs(n) }> }"""


def test_nodes_of_branches_are_raised(tmp_path: Path) -> None:
    feeds = [{"x": np.array([1, 300], np.float16), "c": np.array(chosen)} for chosen in (True, False)]
    report = repair(model(BODIES), feeds)
    assert raised(report) == [["v2", "vr"], ["i/then_branch/sq", "i/then_branch/ro"]]
    report.save(tmp_path / "repaired.onnx")
    onnx.checker.check_model(tmp_path / "repaired.onnx", full_check=True)


def test_interrupted_repairs_write_nothing() -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    report = repair(model(SQUARE), half([1, 300]), progress=stop)
    assert (report.complete, report.verdict, report.rewritten) == (False, "fail", None)


# --- names of nodes in rules ---


SAME_NAMES = """g (float[1,8] x, bool c) => (float[1,8] y) { [NAME] h = Mul(x, x) [root] r = Sqrt(h) [root2] s = Sqrt(r)
  [i] q = If(c) <then_branch = t () => (float[1,8] a) { [NAME] a = Mul(r, s) },
                 else_branch = e () => (float[1,8] b) { [NAME] b = Mul(s, s) }> [end] y = Relu(q) }"""
IN_A_BODY = """g (float[1,8] x, bool c) => (float[1,8] y) { [root] s = Sqrt(x) [fc] f = Mul(s, s)
  [i] q = If(c) <then_branch = t () => (float[1,8] a) { [fc] m = Mul(f, f) [root] a = Sqrt(m) },
                 else_branch = e () => (float[1,8] b) { [fc] b = Mul(s, s) }> [end] y = Relu(q) }"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SAME_NAMES.replace("NAME", "fc"), {"./fc", "root"}),
        (SAME_NAMES.replace("NAME", "fc", 1).replace("NAME", "other"), {"fc", "root"}),
        (IN_A_BODY, {"i/then_branch/fc", "i/then_branch/root"}),
    ],
)
def test_a_rule_names_one_node_of_several_with_its_name(text: str, expected: set[str]) -> None:
    """Rules S6.4 and S6.5: scope/NAME and ./NAME mean one node. The other nodes of this name stay low."""
    feeds = [{"x": np.full((1, 8), 300.0, np.float32), "c": np.array(True)}]
    low = mixlist.rewrite(model(text), mixlist.resolve(model(text), policy(mode="fp16"))).model
    limits = mixlist.Limits(normalized=None, cosine=None)
    report = mixlist.repair(low, feeds, limits=limits, executor=InProcessExecutor())
    assert report.verdict == "pass"
    assert {line.partition("::")[0] for line in report.customize_dtypes.splitlines()} == expected
