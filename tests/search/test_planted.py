"""Models with a planted problem: ``tune`` finds the known edits, the written files pass, and every edit is needed.

Every search runs in this process, and may take at most a given number of trials.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mixlist
from mixlist import Limits
from mixlist.search.tune_result import TuneReport
from tests.support.builders import model
from tests.support.local_workers import InProcessExecutor

PRECISION_REDUCE = {
    "white": {"precision_reduce": {"flag": "true"}},
    "black": {"precision_reduce": {"flag": "false"}},
    "gray": {},
}
Feeds = Sequence[Mapping[str, Any]]
OVERFLOWING = {"x": np.full((1, 8), 300.0, np.float32)}
NO_LIMITS = Limits(normalized=None, cosine=None)
LOOSE = Limits(normalized=0.05, cosine=None)


@dataclass(frozen=True)
class Tuned:
    """The result of a search, and the files in ``folder`` that it used."""

    folder: Path
    report: TuneReport
    feeds: Feeds
    check_options: Mapping[str, Any]
    constants: str

    @property
    def edits(self) -> set[str]:
        return {f"{edit.op}: {edit.before} to black" for edit in self.report.edits}

    def verify(self) -> None:
        """Check that the written files pass, and that they fail with any single edit left out."""
        assert self.report.verdict == "pass" or self.report.keeps_nothing_low, self.report.reasons
        assert self.report.minimal and self.report.complete
        self.report.save(self.folder / "modify.json")
        assert self.keeps_limits("modify.json")
        edits = json.loads((self.folder / "modify.json").read_text())
        for edit in self.report.edits:
            less = {
                name: {action: [op for op in ops if op != edit.op] for action, ops in actions.items()}
                for name, actions in edits.items()
            }
            (self.folder / "less.json").write_text(json.dumps(less))
            assert not self.keeps_limits("less.json"), edit

    def keeps_limits(self, lists: str) -> bool:
        policy = mixlist.load_policy(
            ops_info=self.folder / "lib.json",
            mixlist=self.folder / lists,
            op_names="onnx",
            constants=self.constants,
        )
        report = mixlist.check(self.folder / "m.onnx", policy, self.feeds, **self.check_options)
        return report.verdict == "pass" or report.passes_without_low


def tune(
    folder: Path,
    proto: onnx.ModelProto | str,
    feeds: Feeds,
    *,
    white: Iterable[str] = (),
    black: Iterable[str] = (),
    max_trials: int = 40,
    limits: Limits | None = None,
    overflow_mode: str = "inf",
    constants: str = "keep",
    **options: Any,
) -> Tuned:
    """Tune a model under a library file of these op types; at most ``max_trials`` trials may run."""
    proto = model(proto) if isinstance(proto, str) else proto
    onnx.save(proto, folder / "m.onnx")
    lists = dict.fromkeys(white, "white") | dict.fromkeys(black, "black")
    library = {
        op: PRECISION_REDUCE[lists.get(op, "gray")] for op in sorted({n.op_type for n in proto.graph.node} | set(lists))
    }
    (folder / "lib.json").write_text(json.dumps(library))
    policy = mixlist.load_policy(ops_info=folder / "lib.json", op_names="onnx", constants=constants)
    check_options = {"limits": limits, "overflow_mode": overflow_mode}
    report = mixlist.tune(folder / "m.onnx", policy, feeds, executor=InProcessExecutor(), **check_options, **options)
    print(f"{report.trials} trials: {report.reasons[0]}")
    assert report.trials <= max_trials, report.log
    return Tuned(folder, report, feeds, check_options, constants)


def chain(*nodes: str, size: int = 8) -> str:
    head = f"g (float[1,{size}] x) => (float[1,{size}] y) <float[1] k = {{0.001}}, float[1] one = {{1}}>"
    return f"{head} {{ {' '.join(nodes)} }}"


# --- overflow ---


def test_lists_that_pass_need_no_edit(tmp_path: Path) -> None:
    """The search begins with two tests."""
    result = tune(tmp_path, chain("[a] y = Mul(x, k)"), [OVERFLOWING], white=["Mul"], max_trials=0)
    result.verify()
    assert result.edits == set() and json.loads(result.report.modify_mixlist) == {}


def test_one_op_type_overflows(tmp_path: Path) -> None:
    """x * x overflows. The Add, Neg and Tanh after it are safe once it is high."""
    text = chain("[a] a = Mul(x, x)", "[b] b = Mul(a, k)", "[c] c = Add(b, one)", "[d] d = Neg(c)", "[e] y = Tanh(d)")
    result = tune(tmp_path, text, [OVERFLOWING], white=["Mul", "Add", "Neg", "Tanh"], max_trials=8)
    result.verify()
    assert result.edits == {"Mul: white to black"}
    assert "overflow" in result.report.edits[0].why and "overflow" in result.report.edits[0].without


SQUARES = chain(
    *[f"[s{i}] s{i} = Mul({'x' if i == 0 else f's{i - 1}'}, one)" for i in range(9)],
    "[big] b = Mul(s8, s8)",
    "[back] c = Mul(b, k)",
    "[n] y = Neg(c)",
)


def test_one_node_of_an_op_type_overflows(tmp_path: Path) -> None:
    lists = tune(tmp_path, SQUARES, [OVERFLOWING], white=["Mul", "Neg"], max_trials=6)
    lists.verify()
    assert lists.edits == {"Mul: white to black"}


def test_two_ops_that_break_a_limit_only_together(tmp_path: Path) -> None:
    """The error of either op type alone keeps the limit. The one with less work becomes high."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("Sub", ["a", "m"], ["b"], name="b"),
        helper.make_node("Neg", ["b"], ["y"], name="n"),
    ]
    x = rng.normal(size=(1, 64)).astype(np.float32)
    proto = graph(nodes, {"w": weights, "m": (x @ weights * 0.9).astype(np.float32)}, 64)
    errors = {}
    for high in ([], ["MatMul"], ["Sub"], ["MatMul", "Sub"]):
        policy = mixlist.load_policy(ops_info=library(tmp_path, {"MatMul", "Sub"} - set(high), high), op_names="onnx")
        errors[tuple(high)] = mixlist.check(proto, policy, [{"x": x}], limits=NO_LIMITS).outputs[0].normalized_error
    alone = max(errors["MatMul",], errors["Sub",])
    assert alone < errors[()]
    limits = Limits(normalized=(alone + errors[()]) / 2, cosine=None)
    result = tune(tmp_path, proto, [{"x": x}], white=["MatMul", "Sub"], limits=limits, max_trials=12)
    result.verify()
    assert result.edits == {"Sub: white to black"}, "MatMul has all the matrix work"


@pytest.mark.parametrize(("constants", "edits"), [("keep", set()), ("ieee", {"Mul: white to black"})])
def test_a_constant_out_of_range(tmp_path: Path, constants: str, edits: set[str]) -> None:
    """With ieee the constant becomes infinite. With keep its reader stays high without an edit."""
    text = chain("[a] a = Mul(x, huge)", "[d] b = Div(a, huge)", "[n] y = Neg(b)").replace(
        "float[1] one", "float[1] huge = {1e6}, float[1] one"
    )
    result = tune(tmp_path, text, [OVERFLOWING], white=["Mul", "Neg"], black=["Div"], constants=constants, max_trials=6)
    assert result.edits == edits
    result.verify()


def test_only_batch_7_of_10_overflows(tmp_path: Path) -> None:
    feeds = [{"x": np.full((1, 8), 300.0 if i == 6 else 2.0 + i, np.float32)} for i in range(10)]
    text = chain("[a] a = Mul(x, x)", "[b] b = Add(a, one)", "[c] c = Exp(k)", "[d] y = Sub(b, c)")
    result = tune(tmp_path, text, feeds, white=["Mul", "Add", "Exp", "Sub"], max_trials=14)
    result.verify()
    assert result.edits == {"Mul: white to black", "Add: white to black", "Sub: white to black"}


def test_gray_ops_become_high_with_the_op_they_follow(tmp_path: Path) -> None:
    """Neg and Mul are gray and follow the white Relu. A black Relu makes all of them high with one edit."""
    text = chain("[r] r = Relu(x)", "[m] m = Mul(r, r)", "[n] n = Neg(m)", "[e] y = Mul(n, k)")
    result = tune(tmp_path, text, [OVERFLOWING], white=["Relu"], max_trials=10)
    result.verify()
    assert result.edits in ({"Relu: white to black"}, {"Mul: gray to black"})
    assert len(result.edits) == 1


def test_a_saturated_value_counts_as_an_overflow(tmp_path: Path) -> None:
    text = chain("[a] a = Mul(x, x)", "[b] b = Mul(a, k)", "[d] y = Neg(b)")
    result = tune(
        tmp_path, text, [OVERFLOWING], white=["Mul", "Neg"], overflow_mode="saturate", limits=NO_LIMITS, max_trials=6
    )
    result.verify()
    assert result.edits == {"Mul: white to black"}


# --- accuracy ---


def graph(nodes: list[onnx.NodeProto], weights: Mapping[str, Any], size: int) -> onnx.ModelProto:
    graph_proto = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def library(folder: Path, white: Iterable[str], black: Iterable[str]) -> Path:
    flags = dict.fromkeys(white, PRECISION_REDUCE["white"]) | dict.fromkeys(black, PRECISION_REDUCE["black"])
    (folder / "other.json").write_text(json.dumps(flags))
    return folder / "other.json"


def test_accuracy_at_one_op_type(tmp_path: Path) -> None:
    """Sub subtracts two numbers near 2000, where float16 holds only whole numbers."""
    text = chain("[a] a = Add(x, far)", "[b] b = Sub(a, far)", "[c] c = Mul(b, k)", "[d] y = Tanh(c)").replace(
        "float[1] one", "float[1] far = {2000.3}, float[1] one"
    )
    feeds = [{"x": np.linspace(0.1, 0.9, 8, dtype=np.float32)[None] * i} for i in (1, 2, 3)]
    result = tune(tmp_path, text, feeds, white=["Add", "Sub", "Mul", "Tanh"], max_trials=14)
    result.verify()
    assert result.edits == {"Add: white to black", "Sub: white to black"}


# --- models that no list helps ---


def test_limits_that_float32_does_not_keep_either(tmp_path: Path) -> None:
    """The search begins with two tests."""
    feeds = [{"x": np.ones((1, 8), np.float32)}]
    judge: Any = {"judge": lambda reference, mixed: {"loss": 1}, "judge_limits": {"loss": 0}}
    result = tune(tmp_path, chain("[a] y = Mul(x, x)"), feeds, white=["Mul"], max_trials=1, **judge)
    assert result.report.verdict == "fail" and "every node in float32 too" in result.report.reasons[0]
    assert result.report.edits == () and result.report.modify_mixlist == ""


AUTHORED = """g (float16[1,8] x) => (float16[1,8] y) <float16[1] small = {1}, float16[1] big = {1000}> {
  [s] s = Mul(x, small) [m] m = Mul(s, s) [d] d = Div(m, big) [n] y = Neg(d) }"""


def test_no_list_raises_a_node_that_was_authored_in_float16(tmp_path: Path) -> None:
    """A black node keeps its authored type, float16 here. So no list helps, but ``repair`` does."""
    feeds = [{"x": np.full((1, 8), 300.0, np.float16)}]
    lists = tune(tmp_path, AUTHORED, feeds, white=["Mul", "Div", "Neg"], max_trials=8, reference_type="float32")
    assert lists.report.verdict == "fail" and lists.report.reasons == ("no list of op types keeps the limits",)
    assert lists.report.keeps_too_little_low and not lists.report.keeps_nothing_low
    repaired = mixlist.repair(tmp_path / "m.onnx", feeds, executor=InProcessExecutor())
    assert {node.name for edit in repaired.edits for node in edit.nodes} == {"m", "d"}


# --- how much stays low ---


MIXED = chain(
    *("[a] a = Tanh(x)", "[b] b = MatMul(a, w)", "[c] c = Mul(b, b)", "[d] d = Mul(c, c)"),
    *("[e] e = Exp(k)", "[f] y = Add(d, e)"),
).replace("float[1] one", f"float[8,8] w = {{{','.join(['9'] * 64)}}}, float[1] one")


def test_lists_that_pass_stay_as_they_are(tmp_path: Path) -> None:
    result = tune(tmp_path, MIXED, [OVERFLOWING], white=["Tanh"], black=["MatMul", "Mul"], max_trials=0)
    assert result.edits == set() and result.report.low_share["tuned"] == 0.0
    assert not result.report.keeps_too_little_low  # no matrix work was low before


def test_a_list_that_keeps_less_than_nine_tenths_of_the_work_keeps_too_little(tmp_path: Path) -> None:
    """One of twelve matrix products overflows, and a black MatMul makes all of them high."""
    weights = ", ".join("300" if at == 0 else "0.25" for at in range(16))
    text = (
        f"g (float[2, 4] x, float[2, 4] s) => (float[2, 4] y, float[2, 4] z) <float[4, 4] w = {{{weights}}}> {{"
        " [big] b = MatMul(x, w) [end] y = Tanh(b) [m0] t0 = MatMul(s, w) [n0] c0 = Tanh(t0) "
        + " ".join(f"[m{at}] t{at} = MatMul(c{at - 1}, w) [n{at}] c{at} = Tanh(t{at})" for at in range(1, 11))
        + " [out] z = Neg(c10) }"
    )
    feeds = [{"x": np.full((2, 4), 300, np.float32), "s": np.full((2, 4), 0.1, np.float32)}]
    result = tune(tmp_path, text, feeds, white=["MatMul", "Neg"])
    result.verify()
    report = result.report
    assert (report.verdict, report.low_share) == ("inconclusive", {"base": 1.0, "tuned": 0.0})
    assert report.reasons == ("every limit is kept, but less than 1 % of the matrix work stays low",)
    assert result.edits == {"MatMul: white to black"} and report.keeps_too_little_low
    nothing_low = tune(tmp_path, text.replace("Neg", "Identity"), feeds, white=["MatMul"]).report
    assert (nothing_low.verdict, nothing_low.keeps_nothing_low) == ("inconclusive", True)
    assert nothing_low.reasons == ("every limit is kept, because nothing is low",)
    assert [warning.code for warning in nothing_low.warnings if warning.code == "ML605"] == ["ML605"]


def test_a_list_that_loses_no_matrix_work_keeps_enough(tmp_path: Path) -> None:
    text = "g (float[4] x, float[4, 4] s) => (float[4] y, float[4, 4] z) { [m] y = Mul(x, x) [p] z = MatMul(s, s) }"
    feeds = [{"x": np.full(4, 300, np.float32), "s": np.full((4, 4), 0.5, np.float32)}]
    result = tune(tmp_path, text, feeds, white=["Mul", "MatMul"])
    assert result.edits == {"Mul: white to black"}
    assert result.report.low_share["tuned"] == 1 and not result.report.keeps_too_little_low


# --- several op types of one model ---


@pytest.mark.parametrize("places", [(0,), (7,), (14,), (2, 9), (0, 5, 13)])
def test_some_op_types_of_many_overflow(tmp_path: Path, places: tuple[int, ...]) -> None:
    """Each op type has an input and an output of its own. Only those at ``places`` get a value that is too large."""
    ops = ("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sin",
           "Softplus", "Sqrt", "Tanh")  # fmt: skip
    nodes, large = [], {ops[i] for i in places}
    bad = {"Exp": 12.0, "Reciprocal": 1e-6}
    names, feed = [], {}
    for i, op in enumerate(ops):
        nodes.append(helper.make_node(op, [f"x{i}"], [f"y{i}"], name=f"n{i}"))
        names.append(f"x{i}")
        value = bad.get(op, 1e5) if op in large else 1.5
        feed[f"x{i}"] = np.full((1, 4), value, np.float32)
    graph_proto = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in names],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [1, 4]) for i in range(len(ops))],
    )
    proto = helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = tune(
        tmp_path, proto, [feed], white=ops, limits=Limits(normalized=0.05, cosine=None), max_trials=4 * len(places) * 4
    )
    result.verify()
    assert result.edits == {f"{op}: white to black" for op in large}
