"""Sums inside an operator whose output is finite are reported, and with ``inner_type="low"`` fail (Rule S8.13)."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model

import mixlist
from mixlist.errors import ModelError
from tests.support.builders import model, policy
from tests.support.open_sessions import record_open_sessions
from tests.support.versions import newest_opset

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
NEEDS_OPSET_23 = pytest.mark.skipif(newest_opset() < 23, reason="onnx or ONNX Runtime is older than the operator")
ONES = "float[8] one = {1,1,1,1,1,1,1,1}, float[2] two = {1,1}"
# By op type: a graph with the node n, whose input x is [1, 2, 4], and a value of x from which on its sums leave the
# range. All magnitudes are equal, so each limit is the root or the quotient of 65520 and the number of terms.
NODES = {
    "LayerNormalization": ("[n] y = LayerNormalization<axis=1>(x, gain)", (65520 / 8) ** 0.5),
    "SkipLayerNormalization": ("[n] y = com.microsoft.SkipLayerNormalization(x, x, row)", (65520 / 4) ** 0.5 / 2),
    "SkipSimplifiedLayerNormalization": (
        "[n] y = com.microsoft.SkipSimplifiedLayerNormalization(x, x, row)", (65520 / 4) ** 0.5 / 2),
    "SimplifiedLayerNormalization": (
        "[n] y = SimplifiedLayerNormalization(x, row)", (65520 / 4) ** 0.5),
    "InstanceNormalization": ("[n] y = InstanceNormalization(x, two, two)", (65520 / 4) ** 0.5),
    "RMSNormalization": ("[n] y = RMSNormalization(x, row)", (65520 / 4) ** 0.5),
    "GroupNormalization": ("[n] y = GroupNormalization<num_groups=1>(x, two, two)", (65520 / 8) ** 0.5),
    "LpNormalization": ("[n] y = LpNormalization<axis=1, p=1>(x)", 65520 / 2),
    "ReduceL2": ("[n] y = ReduceL2<keepdims=1>(x)", (65520 / 8) ** 0.5),
    "GlobalAveragePool": ("[n] y = GlobalAveragePool(x)", 65520 / 4),
    "ReduceMean": ("[n] y = ReduceMean(x, axes)", 65520 / 4),
}  # fmt: skip


def graph_of(op_type: str) -> str:
    weights = "float[2,4] gain = {1,1,1,1,1,1,1,1}, float[4] row = {1,1,1,1}"
    weights = f"{weights}, {ONES}, int64[1] axes = {{2}}"
    head = HEAD.replace("21", "23") if op_type == "RMSNormalization" else HEAD
    return f"{head} g (float[1,2,4] x) => (float[A,B,C] y) <{weights}> {{ {NODES[op_type][0]} }}"


@pytest.mark.parametrize(
    "op_type", [pytest.param(op, marks=NEEDS_OPSET_23) if op == "RMSNormalization" else op for op in NODES]
)
def test_a_sum_beyond_the_range_is_an_internal_risk(op_type: str) -> None:
    """Rule S8.13: internal-risk, from the limit on and not below it; with inner_type="low" an overflow."""
    graph, limit = graph_of(op_type), NODES[op_type][1]
    # Both signs, so that older kernels compute the variance without loss. A mean adds each sign by itself.
    signs = np.array([-1, -1] if op_type in ("GlobalAveragePool", "ReduceMean") else [1, -1], np.float32)
    below, beyond = ([{"x": np.tile(signs * limit * share, (1, 2, 2)).astype(np.float32)}] for share in (0.99, 1.01))
    risk = mixlist.check(parse_model(graph), policy(white=[op_type]), beyond)
    assert [(n.name, n.kind, n.first, n.inside) for n in risk.nodes if n.kind != "near-limit"] == [
        ("n", "internal-risk", False, True)
    ]
    (sums,) = (n for n in risk.nodes if n.inside)
    assert sums.max_abs_fp32 > 65520 > sums.max_abs_low > 0 and risk.exception_rate == 0
    for inner_type in ("float32", "low"):
        report = mixlist.check(parse_model(graph), policy(white=[op_type]), below, inner_type=inner_type)
        assert not [n for n in report.nodes if n.kind != "near-limit"]
    failed = mixlist.check(parse_model(graph), policy(white=[op_type]), beyond, inner_type="low")
    (finding,) = (n for n in failed.nodes if n.inside)
    assert (finding.kind, finding.first, finding.max_abs_low) == ("overflow", True, float("inf"))
    assert failed.verdict == "fail" and failed.exception_rate == 1 and finding.suggestion


def test_each_batch_counts_once_in_the_exception_rate() -> None:
    feeds = [{"x": np.full((1, 2, 4), value, np.float32)} for value in (1.0, 1e3, 2.0, 2e3)]
    lists = policy(white=["LayerNormalization"])
    report = mixlist.check(parse_model(graph_of("LayerNormalization")), lists, feeds, inner_type="low")
    assert [(n.kind, n.batches) for n in report.nodes] == [("overflow", (1, 3))] and report.exception_rate == 0.5


def test_an_accelerator_that_saturates_limits_the_sum() -> None:
    feeds = [{"x": np.full((1, 2, 4), 1e3, np.float32)}]
    lists = policy(white=["LayerNormalization"])
    report = mixlist.check(
        parse_model(graph_of("LayerNormalization")), lists, feeds, inner_type="low", overflow_mode="saturate"
    )
    assert [(n.kind, n.max_abs_low) for n in report.nodes] == [("saturated", 65504.0)] and report.verdict == "fail"


def test_the_kernel_may_add_the_values_of_one_sign_first() -> None:
    text = f"{HEAD} g (float[1,4] x) => (float[1,1] y) <int64[1] axes = {{1}}> {{ [n] y = ReduceSum(x, axes) }}"
    feed = {"x": np.array([[6e4, -6e4, 6e4, -6e4]], np.float32)}
    report = mixlist.check(model(text), policy(white=["ReduceSum"]), [feed])
    assert [(n.kind, n.max_abs_fp32) for n in report.nodes] == [("internal-risk", 1.2e5)]


def test_a_node_in_a_branch_is_examined() -> None:
    body = "g{} () => (float[1,4] {}) {{ [n] {} = {}(x) }}"
    then_branch, else_branch = body.format(1, "a", "a", "ReduceL2<keepdims=1>"), body.format(2, "b", "b", "Neg")
    text = (
        f"{HEAD} g (float[1,4] x, bool c) => (float[1,M] y)"
        f" {{ y = If(c) <then_branch = {then_branch}, else_branch = {else_branch}> }}"
    ).replace("float[1,4] a", "float[1,1] a")
    for is_taken in (True, False):
        feed = {"x": np.full((1, 4), 1e3, np.float32), "c": np.array(is_taken)}
        report = mixlist.check(model(text), policy(white=["ReduceL2"]), [feed])
        assert [n.kind for n in report.nodes] == (["internal-risk"] if is_taken else [])


def test_an_input_that_overflows_explains_the_sum() -> None:
    text = f"{HEAD} g (float[1,4] x) => (float[1,1] y) {{ h = Mul(x, x) [n] y = ReduceL2<keepdims=1>(h) }}"
    feed = {"x": np.full((1, 4), 1e3, np.float32)}
    report = mixlist.check(model(text), policy(white=["Mul", "ReduceL2"]), [feed], inner_type="low")
    assert {n.kind for n in report.nodes} == {"overflow", "propagated"} and not any(n.inside for n in report.nodes)


def test_an_output_that_overflows_explains_the_sum() -> None:
    text = f"{HEAD} g (float[1,4] x) => (float[1,1] y) {{ [n] y = ReduceSum(x) }}"
    report = mixlist.check(model(text), policy(white=["ReduceSum"]), [{"x": np.full((1, 4), 6e4, np.float32)}])
    assert [n.kind for n in report.nodes if n.kind != "near-limit"] == ["overflow"]


def test_an_input_that_saturates_explains_the_sum() -> None:
    """The output of the normalization is finite in both models."""
    head = f"{HEAD} g (float[1,4] x) => (float[1,4] y) <float[4] gain = {{1,1,1,1}}>"
    text = f"{head} {{ h = Mul(x, x) [n] y = LayerNormalization(h, gain) }}"
    feed = {"x": np.array([[1e3, 1e3, 0, 0]], np.float32)}
    lists = policy(white=["Mul", "LayerNormalization"])
    report = mixlist.check(model(text), lists, [feed], overflow_mode="saturate")
    assert [n.kind for n in report.nodes if n.kind != "near-limit"] == ["saturated"]


def test_an_overflow_explains_the_sums_of_its_batch_alone() -> None:
    head = f"{HEAD} g (float[1,4] x) => (float[1,4] y) <float[4] gain = {{1,1,1,1}}>"
    text = f"{head} {{ h = Mul(x, x) [n] y = LayerNormalization(h, gain) }}"
    feeds = [{"x": np.array([[size, size, 0, 0]], np.float32)} for size in (1e3, 20)]
    report = mixlist.check(model(text), policy(white=["Mul", "LayerNormalization"]), feeds, inner_type="low")
    assert [n.batches for n in report.nodes if n.inside] == [(1,)]


def test_sums_that_are_refused_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ModelError("refused")

    monkeypatch.setattr("mixlist.checker.observer.Observer.read_statistics", refuse)
    feeds = [{"x": np.ones((1, 2, 4), np.float32)}] * 2
    lists, text = policy(white=["LayerNormalization"]), graph_of("LayerNormalization")
    report = mixlist.check(parse_model(text), lists, feeds, inner_type="low")
    assert [w.message for w in report.warnings] == ["the sums inside operators are not judged: refused"]


def test_bfloat16_has_the_range_of_float32() -> None:
    feeds = [{"x": np.full((1, 2, 4), 1e3, np.float32)}]
    lists = policy(white=["LayerNormalization"], mode="mixed_bfloat16")
    assert mixlist.check(parse_model(graph_of("LayerNormalization")), lists, feeds, inner_type="low").nodes == ()


@pytest.mark.parametrize("value", [3.0, 65520.0])
def test_softmax_adds_as_many_ones_as_it_has_equal_scores(value: float) -> None:
    text = f"{HEAD} g (float[1,N] x) => (float[1,N] y) {{ [n] y = Softmax(x) }}"
    for count in (65519, 65520):
        scores = np.full((1, count), value if value < 65504 else 3.0, np.float32)
        report = mixlist.check(model(text), policy(white=["Softmax"]), [{"x": scores}])
        assert [n.kind for n in report.nodes if n.inside] == (["internal-risk"] if count == 65520 else [])


@NEEDS_OPSET_23
@pytest.mark.parametrize("form", ["4-d", "3-d", "past"])
def test_the_scores_of_attention_are_examined(form: str) -> None:
    """Two heads of the query read one head of the key. A score is 8 products, over the square root of 8."""
    heads, length, size, float32 = 2, 3, 8, TensorProto.FLOAT
    query, key = (
        ((1, length, heads * size), (1, length, size))
        if form == "3-d"
        else ((1, heads, length, size), (1, 1, length, size))
    )
    attributes = {"q_num_heads": heads, "kv_num_heads": 1} if form == "3-d" else {}
    shapes = {"q": query, "k": key, "v": key}
    names = ["q", "k", "v"]
    if form == "past":
        shapes |= {"pk": key, "pv": key}
        names += ["", "pk", "pv"]
    node = helper.make_node("Attention", names, ["y", *(("ck", "cv") if form == "past" else ())], "n", **attributes)
    inputs = [helper.make_tensor_value_info(name, float32, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", float32, query)])
    attention = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    limit = (65520 / 8**0.5) ** 0.5
    for share, kinds in ((0.99, []), (1.01, ["internal-risk"])):
        feed = {name: np.full(shape, limit * share, np.float32) for name, shape in shapes.items()}
        # Only the first token of the query and the last key make a large score, with "past" an earlier key.
        feed["q"][..., 1:, :] = 0
        feed["k"][..., : -1 if form != "past" else None, :] = 0
        report = mixlist.check(attention, policy(white=["Attention"]), [feed])
        assert [n.kind for n in report.nodes if n.inside] == kinds


@pytest.mark.parametrize(
    "step",
    ["inner_sums.InnerSums._nodes_with_nonfinite_values", "value_counts._output_value_count", "layerwise.islice"],
)
def test_an_error_leaves_no_session_open(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[1,4] x) => (float[1,4] y, float[1,4] r) '
    graph = f"{head}<float[4] one = {{1,1,1,1}}> {{ y = LayerNormalization(x, one) s = Mul(x, x) r = Sub(s, s) }}"
    open_sessions = record_open_sessions(monkeypatch)

    def fail(*_: object) -> None:
        assert len(open_sessions) > 2
        raise KeyboardInterrupt

    monkeypatch.setattr(f"mixlist.checker.{step}", fail)
    lists = policy(white=["LayerNormalization", "Mul", "Sub"])
    with pytest.raises(KeyboardInterrupt):
        mixlist.check(model(graph), lists, [{"x": np.array([[1000, -1000, 500, 0.0]], np.float32)}], layerwise=True)
    assert not open_sessions


@pytest.mark.parametrize("scores", [[60000.0, -60000.0, 1.0], [12.0, 1.0, -65504.0]])
def test_softmax_has_no_internal_risk_because_it_subtracts_the_largest_score(scores: list[float]) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[1,3] x) => (float[1,3] y) { [n] y = Softmax(x) }'
    feed = {"x": np.array([scores], np.float32)}
    assert mixlist.check(model(text), policy(white=["Softmax"]), [feed]).nodes == ()


def test_high_nodes_have_no_internal_risk() -> None:
    text = "g (float[1,4] x) => (float[1,4] y) <float[4] one = {1,1,1,1}> { [n] y = LayerNormalization(x, one) }"
    report = mixlist.check(model(text), policy(black=["LayerNormalization"]), [{"x": np.full((1, 4), 1e3, np.float32)}])
    assert report.nodes == ()


# By case: opset, node, shape of x, and the value of each element from which on the sum of the node leaves the range.
FORMS = {
    "ReduceSum-12": (12, "ReduceSum<axes = [1]>(x)", (1, 4), 65520 / 2),
    "ReduceSum-13": (13, "ReduceSum(x, axis)", (1, 4), 65520 / 2),
    "ReduceSum all": (13, "ReduceSum(x)", (2, 4), 65520 / 4),
    "ReduceMean-17": (17, "ReduceMean<keepdims = 0, axes = [1]>(x)", (1, 4), 65520 / 4),
    "ReduceL2-18": (18, "ReduceL2(x, axis)", (2, 4), (65520 / 4) ** 0.5),
    "LayerNormalization-17": (17, "LayerNormalization(x, row)", (2, 4), (65520 / 4) ** 0.5),
    "LayerNormalization-18": (18, "LayerNormalization(x, row)", (2, 4), (65520 / 4) ** 0.5),
    "LayerNormalization, epsilon first": (
        18, "LayerNormalization<epsilon = 0.01, axis = 0>(x, row)", (1, 4), 65520**0.5 / 2),
    "LpNormalization, squares": (17, "LpNormalization(x)", (2, 4), (65520 / 4) ** 0.5),
    "LpNormalization, axis": (17, "LpNormalization<p = 2, axis = 0>(x)", (2, 4), (65520 / 2) ** 0.5),
    "LpNormalization, magnitudes": (17, "LpNormalization<p = 1, axis = 0>(x)", (2, 4), 65520 / 2),
    "GlobalAveragePool": (17, "GlobalAveragePool(x)", (1, 2, 3, 2), 65520 / 6),
    "InstanceNormalization": (17, "InstanceNormalization(x, two, two)", (1, 2, 3, 2), (65520 / 6) ** 0.5),
    "GroupNormalization": (21, "GroupNormalization<num_groups = 2>(x, two, two)", (1, 2, 4), (65520 / 4) ** 0.5),
    "GroupNormalization, epsilon first": (
        21, "GroupNormalization<epsilon = 0.1, num_groups = 2>(x, two, two)", (1, 2, 4), (65520 / 4) ** 0.5),
    "SkipLayerNormalization, bias": (
        17, "com.microsoft.SkipLayerNormalization(x, x, row, row, bias)", (1, 1, 4), (65520 / 4) ** 0.5 / 2 - 50),
    "SkipLayerNormalization, no bias": (
        17, "com.microsoft.SkipLayerNormalization(x, x, row, bias)", (1, 1, 4), (65520 / 4) ** 0.5 / 2),
    "SkipSimplifiedLayerNormalization, bias": (
        17, "com.microsoft.SkipSimplifiedLayerNormalization(x, x, row, bias)", (1, 1, 4), (65520 / 4) ** 0.5 / 2 - 50),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_sums_of_each_form(form: str) -> None:
    """Attributes, axes and opsets decide how many values are added."""
    opset, node, shape, limit = FORMS[form]
    weights = "int64[1] axis = {1}, float[4] row = {1,1,1,1}, float[2] two = {1,1}, float[4] bias = {100,100,100,100}"
    text = f"g (float[{','.join(map(str, shape))}] x) => (float y) <{weights}> {{ [n] y = {node} }}"
    graph = parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> {text}')
    graph.graph.output[0].type.tensor_type.ClearField("shape")
    lists = policy(white=[node.partition("(")[0].partition("<")[0].rpartition(".")[2]])
    for share, kinds in ((0.99, []), (1.01, ["internal-risk"])):
        x = np.full(shape, limit * share, np.float32)
        if node.startswith("ReduceSum"):  # its result is small, as the values of one sign are half of all
            x[..., ::2] *= -1
        report = mixlist.check(graph, lists, [{"x": x}])
        assert [n.kind for n in report.nodes if n.inside] == kinds
        assert "ML606" not in {warning.code for warning in report.warnings}
        if kinds:
            (finding,) = [n for n in report.nodes if n.inside]
            assert finding.max_abs_fp32 == pytest.approx(65520, rel=0.03)


@pytest.mark.parametrize(
    ("opset", "node", "shape"),
    [
        (11, "Softmax(x)", (1, 65520)),
        (11, "Softmax(x)", (2, 2, 32760)),
        (12, "Softmax<axis = 1>(x)", (2, 2, 32760)),
        (12, "Softmax<axis = 0>(x)", (2, 32760)),
        (13, "Softmax<axis = 0>(x)", (65520, 2)),
        (17, "LogSoftmax<axis = 1>(x)", (1, 65520, 2)),
        (17, "Softmax(x)", (1, 65520)),
        (18, "Softmax(x)", (1, 65520)),
    ],
)
def test_the_axes_of_a_softmax(opset: int, node: str, shape: tuple[int, ...]) -> None:
    """Before opset 13 all axes from ``axis`` on are one."""
    text = f"g (float{list(shape)} x) => (float{list(shape)} y) {{ [n] y = {node} }}"
    graph = parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    smaller = tuple(size - 1 if size > 2 else size for size in shape)
    graph.graph.input[0].type.tensor_type.ClearField("shape")
    graph.graph.output[0].type.tensor_type.ClearField("shape")
    for size, kinds in ((smaller, []), (shape, ["internal-risk"])):
        report = mixlist.check(graph, policy(white=["Softmax", "LogSoftmax"]), [{"x": np.zeros(size, np.float32)}])
        assert [n.kind for n in report.nodes if n.inside] == kinds


@NEEDS_OPSET_23
@pytest.mark.parametrize("scale", [0.0, 0.5])
@pytest.mark.parametrize("omitted", ["", ", , , "])
def test_the_scale_of_an_attention(scale: float, omitted: str) -> None:
    """Without the attribute, the scale is one over the root of the size of a head."""
    attribute = f"<is_causal = 0, scale = {scale}>" if scale else ""
    text = (
        f'<ir_version: 10, opset_import: ["" : 23]> g (float[1,1,2,4] q, float[1,1,2,4] k) => (float[1,1,2,4] y)'
        f" {{ [n] y = Attention{attribute}(q, k, k{omitted}) }}"
    )
    network = model(text)
    limit = (65520 / 4 / (scale or 0.5)) ** 0.5
    for share, kinds in ((0.99, []), (1.01, ["internal-risk"])):
        feed = {name: np.full((1, 1, 2, 4), limit * share, np.float32) for name in "qk"}
        feed["k"] = -feed["k"]
        report = mixlist.check(network, policy(white=["Attention"]), [feed])
        assert [n.kind for n in report.nodes if n.inside] == kinds


def test_a_mask_on_its_way_through_a_sum_is_no_risk() -> None:
    """float32's lowest value is written on purpose."""
    text = f"{HEAD} g (float[1,4] x) => (float[1,1] y) <int64[1] axes = {{1}}> {{ [n] y = ReduceSum(x, axes) }}"
    feed = {"x": np.array([[-3e38, 1, 1, 1]], np.float32)}
    report = mixlist.check(model(text), policy(white=["ReduceSum"]), [feed])
    assert not [n for n in report.nodes if n.inside]


def test_the_largest_batch_is_reported() -> None:
    lists, text = policy(white=["LayerNormalization"]), graph_of("LayerNormalization")
    feeds = [{"x": np.full((1, 2, 4), value, np.float32)} for value in (1e3, 2e3, 500)]
    (finding,) = mixlist.check(parse_model(text), lists, feeds, inner_type="low").nodes
    assert (finding.batches, finding.max_abs_fp32) == ((0, 1, 2), 8 * 2e3**2)
