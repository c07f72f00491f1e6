"""``mixlist.convert``: what is raised, what stays low, and that ``apply`` with the rules writes the same model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.errors import FileError, UsageError
from mixlist.search import convert as convert_module
from mixlist.search.cheapest_nodes import ChoiceCosts
from mixlist.search.convert_result import INTEGER_PRODUCTS
from mixlist.search.options import ConvertOptions
from mixlist.search.trial_verdict import Outcome
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor, interrupt_at

# Twelve matrix products of 32 rows. Only [big] overflows, if x is 3000.
PRODUCTS, SIDE = 12, 32
TEXT = (
    f"g (float[{SIDE}, {SIDE}] x, float[{SIDE}, {SIDE}] s) => (float[{SIDE}, {SIDE}] y, float[{SIDE}, {SIDE}] z) {{"
    " [big] b = MatMul(x, x) [end] y = Tanh(b) [m0] t0 = MatMul(s, s) [n0] c0 = Tanh(t0) "
    + " ".join(f"[m{at}] t{at} = MatMul(c{at - 1}, s) [n{at}] c{at} = Tanh(t{at})" for at in range(1, PRODUCTS - 1))
    + f" [out] z = Identity(c{PRODUCTS - 2}) }}"
)


def feeds(count: int = 1, *, last: float = 3000.0, others: float = 3000.0) -> list[dict[str, Any]]:
    """Return batches with equal values in x; ``last`` is that of the last one."""
    sizes = [others] * (count - 1) + [last]
    small = np.random.default_rng(0).normal(0, 0.1, (SIDE, SIDE)).astype(np.float32)
    return [{"x": np.full((SIDE, SIDE), size, np.float32), "s": small} for size in sizes]


def convert(source: Any, data: Any, lists: mixlist.Policy | None = None, **options: Any) -> mixlist.ConvertResult:
    """Convert without worker processes."""
    return mixlist.convert(source, data, lists, executor=InProcessExecutor(), **options)


def raised(result: mixlist.ConvertResult) -> set[str]:
    return {node.name for node in result.report.high_nodes if node.raised}


def applied_bytes(source: onnx.ModelProto, rules: str, tmp_path: Path, **options: Any) -> bytes:
    """Return the model that ``apply`` writes with these rules."""
    path = tmp_path / "rules.txt"
    path.write_text(rules)
    lists = mixlist.load_policy(customize_dtypes=path if rules else None, **options)
    return mixlist.rewrite(source, mixlist.resolve(source, lists)).model.SerializeToString(deterministic=True)


def test_lists_that_pass_are_the_result(tmp_path: Path) -> None:
    """No trial runs, and the model is that of ``apply``."""
    source = model(TEXT)
    result = convert(source, feeds(last=1.0))
    report = result.report
    assert (report.verdict, report.trials, report.log, report.customize_dtypes) == ("pass", 0, (), "")
    assert result.model.SerializeToString(deterministic=True) == applied_bytes(source, "", tmp_path)
    assert report.after is not None and report.before.low_nodes == 0 < report.after.low_nodes
    assert report.after.bytes < report.before.bytes
    assert not [node for node in report.high_nodes if node.raised]


def test_only_the_node_that_overflows_is_raised(tmp_path: Path) -> None:
    """The first trial has it, and the rules give the same bytes."""
    source = model(TEXT)
    result = convert(source, feeds())
    report = result.report
    assert report.verdict == "pass" and report.trials == 1
    assert {"big"} <= raised(result) <= {"big", "end"}
    (big,) = [node for node in report.high_nodes if node.name == "big"]
    assert big.reason == "its values reach 2.88e+08, beyond the range of float16"
    assert report.after is not None and report.after.low_share == pytest.approx(1 - 1 / PRODUCTS)
    assert result.model.SerializeToString(deterministic=True) == applied_bytes(
        source, report.customize_dtypes, tmp_path
    )
    lists = mixlist.load_policy(customize_dtypes=tmp_path / "rules.txt")
    assert mixlist.check(source, lists, feeds()).verdict == "pass"


def test_the_nodes_of_a_unit_name_the_one_that_overflows() -> None:
    """[p] to [o] are a written-out normalization (Rule S4.47), which moves as a whole."""
    norm = "[p] p = Pow(x, two) [v] v = ReduceMean<axes=[-1]>(p) [a] a = Add(v, eps) [r] r = Sqrt(a) [o] w = Div(x, r)"
    constants = "<float two = {2}, float eps = {1e-3}>"
    text = TEXT.replace("z) {", f"z, float[{SIDE}, {SIDE}] w) {constants} {{ {norm}")
    result = convert(model(f'<ir_version: 9, opset_import: ["": 17]> {text}'), feeds())
    reasons = {node.name: node.reason for node in result.report.high_nodes}
    shared = "its unit has p, whose values reach 9e+06, beyond the range of float16"
    assert [reasons[name] for name in "pvaro"] == [shared] * 5
    assert reasons["big"].startswith("its values reach")


def test_the_result_is_close_in_float16_itself() -> None:
    """The reference evaluator of onnx computes float16 in float16: an independent look at the result."""
    from onnx.reference import ReferenceEvaluator

    source, data = model(TEXT), feeds()
    exact = ReferenceEvaluator(source).run(None, data[0])
    mixed = ReferenceEvaluator(convert(source, data).model).run(None, data[0])
    for expected, computed in zip(exact, mixed, strict=True):
        assert np.linalg.norm(computed - expected) <= 1e-2 * np.linalg.norm(expected)
    with np.errstate(all="ignore"):
        all_low = mixlist.rewrite(source, mixlist.resolve(source, mixlist.load_policy(precision_mode_v2="fp16"))).model
        assert not np.isfinite(ReferenceEvaluator(all_low).run(["b"], data[0])[0]).all()


def test_a_small_error_raises_only_the_node_that_adds_it() -> None:
    """No value overflows. [sum] cancels, so float16 loses all of its digits."""
    text = (
        f"g (float[{SIDE}, {SIDE}] x, float[{SIDE}, {SIDE}] s, float[{SIDE}, {SIDE}] v) =>"
        f" (float[{SIDE}, {SIDE}] y, float[{SIDE}, {SIDE}] z) {{"
        " [up] u = MatMul(x, s) [down] d = MatMul(x, x) [sum] c = Sub(u, d) [abs] y = Abs(c)"
        " [m0] t0 = MatMul(v, v) [n0] c0 = Tanh(t0)"
        + " ".join(f" [m{at}] t{at} = MatMul(c{at - 1}, v) [n{at}] c{at} = Tanh(t{at})" for at in range(1, 8))
        + " [out] z = Identity(c7) }"
    )
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (SIDE, SIDE)).astype(np.float32)
    near, small = (rng.normal(0, size, (SIDE, SIDE)).astype(np.float32) for size in (1e-3, 0.1))
    data = [{"x": x, "s": x + near, "v": small}]
    result = convert(model(text), data)
    assert result.report.verdict == "pass"
    assert {"up", "down", "sum"} <= raised(result)
    assert not {f"m{at}" for at in range(8)} & raised(result)
    reasons = {node.name: node.reason for node in result.report.high_nodes}
    assert reasons["sum"].startswith("adds an error of 0.28")
    # Their own errors are small: two Casts around [sum] would cost more than they gain.
    assert {reasons[name] for name in ("up", "down", "abs")} == {
        "between nodes in float32, where Casts would cost more"
    }


def test_lists_that_pass_and_keep_much_high_are_searched() -> None:
    """Under the lists all but [out] is high; with every node low, [big] overflows. The result is between the two.

    The checks are those of the lists, with every node low, whose ranking serves the search, and of the result.
    """
    lists = policy(white=["Identity"], black=["MatMul", "Tanh"])
    with mock.patch.object(convert_module, "run_check", wraps=convert_module.run_check) as checks:
        result = convert(model(TEXT), feeds(), lists)
    failing = SimpleNamespace(verdict="fail")
    assert [call.kwargs["rank_if"](failing) for call in checks.call_args_list] == [False, True, False]
    assert result.report.verdict == "pass" and result.report.trials == 1
    assert {"big"} <= raised(result) <= {"big", "end"}
    assert [entry.passed for entry in result.report.log] == [True, False, True]


def test_sensitive_nodes_of_a_chain_are_found() -> None:
    """Four nodes of a chain break the limits, and no error shows which ones.

    A part of the chain without its neighbors costs more in float16 than in float32, and yet it can become low.
    """
    count, sensitive = 200, {20, 60, 61, 150}
    text = f"g (float[4096] v0) => (float[4096] v{count}) {{" + "".join(
        f" [n{at}] v{at + 1} = Tanh(v{at})" for at in range(count)
    )
    data = [{"v0": np.zeros(4096, np.float32)}]
    job = convert_module._prepare(model(text + " }"), data, mixlist.load_policy(), ConvertOptions())
    tried = []

    def try_edits(edits: Any) -> Outcome:
        low = {int(edit.pattern[1:]) for edit in edits if "float16" in edit.outputs}
        tried.append(low)
        return Outcome(passed=not low & sensitive, why="", limit_share=2.0 if low & sensitive else 0.1)

    solution = job.resolver.plan(job.policy).solution
    compiler = SimpleNamespace(
        base=job.policy, low_share=lambda edits: 0.0, solution=lambda edits: solution, limits=job.limits
    )
    trials = SimpleNamespace(try_edits=try_edits, compiler=compiler)
    costs = ChoiceCosts(job.resolver.graph, job.costs, job.space.low_slots, count)
    evidence = SimpleNamespace(errors=[1e-6] * count, overflowing={})
    every_low = [(frozenset(range(count)), 2.0)]
    search: Any = convert_module._Search(job.space, costs, trials, evidence, {}, every_low, [], (frozenset(),))  # type: ignore[arg-type]
    low = convert_module._find_cheapest_passing(search)
    assert low is not None and not low & sensitive
    assert len(low) >= 188 and len(tried) <= convert_module.MAX_TRIALS


def test_the_mode_with_every_node_low_counts_as_seen(tmp_path: Path) -> None:
    """The lists round between two nodes, which misses a limit; every node low does not."""
    # Under the lists a is high and its result is rounded for b alone, which changes the difference of the two.
    text = "g (float[N] x) => (float[N] y) { [a] a = Exp(x) [b] b = Neg(a) [c] y = Add(a, b) }"
    source, data = model(text), [{"x": np.linspace(0.1, 2, 64, dtype=np.float32)}]
    edits = {
        "white-list": {"to-add": ["Neg"]},
        "black-list": {"to-add": ["Exp", "Add"]},
        "gray-list": {"to-remove": ["Neg", "Add"]},
    }
    (tmp_path / "modify.json").write_text(json.dumps(edits))
    lists = mixlist.load_policy(mixlist=tmp_path / "modify.json")
    assert mixlist.check(source, lists, data).verdict == "fail"
    result = convert(source, data, lists)
    report = result.report
    assert report.verdict == "pass" and report.after is not None
    assert report.trials == 0
    assert report.after.low_nodes == 3
    # The rules make the nodes low that the lists keep.
    assert "a::InputDtype:float16,OutputDtype:float16" in report.customize_dtypes.splitlines()
    assert result.model.SerializeToString(deterministic=True) == applied_bytes(
        source, report.customize_dtypes, tmp_path, mixlist=tmp_path / "modify.json"
    )


def test_a_target_keeps_the_nodes_that_it_cannot_run(tmp_path: Path) -> None:
    text = "g (float[4, 4] x) => (float y) { [a] t = MatMul(x, x) [b] y = Det(t) }"
    source, data = model(text), [{"x": np.ones((4, 4), np.float32)}]
    result = convert(source, data, policy(white=["MatMul", "Det"]), target="webgpu")
    table = mixlist.plan_for_target(mixlist.resolve(source, policy(white=["MatMul", "Det"])), "webgpu")
    kept = {node.name.removeprefix("./") for node in table.kept}
    assert {node.name for node in result.report.high_nodes} == kept
    (det,) = result.report.high_nodes
    assert det.reason.endswith("target='webgpu' has no float16 kernel for Det: it stays float32 (S13.3)")
    before, after = result.report.before, result.report.after
    assert after is not None and 0 < after.bytes != before.bytes


def test_a_target_leaves_a_node_alone_whose_type_no_rule_chooses() -> None:
    """WebGPU has no ConstantOfShape in float16. It gets the type of its reader, and nothing warns."""
    text = (
        "g (float[4, 4] x, int64[2] n) => (float[4, 4] y, float[N, M] z) {"
        " [a] y = MatMul(x, x) [f] f = ConstantOfShape<value = float[1] {0.5}>(n) [b] z = Neg(f) }"
    )
    lists = policy(white=["MatMul", "Neg"])
    result = convert(model(text), [{"x": np.ones((4, 4), np.float32), "n": np.array([4, 4])}], lists, target="webgpu")
    types = {node.name: node.precision for node in result.plan.nodes}
    assert result.report.warnings == () and types["f"] == "float16"
    assert mixlist.plan_for_target(mixlist.resolve(model(text), lists), "webgpu").kept == ()


def test_bfloat16_keeps_the_large_values() -> None:
    result = convert(model(TEXT), feeds(), low_type="bfloat16", limits=mixlist.Limits(normalized=0.05))
    assert (result.report.verdict, result.report.precision, result.report.trials) == ("pass", "bfloat16", 0)


def test_a_batch_that_was_held_out_and_fails_joins() -> None:
    """Only the last of four batches overflows at [late]."""
    text = (
        "g (float[32, 32] x, float[32, 32] s, float[32, 32] v) => (float[32, 32] y, float[32, 32] z, float[32, 32] w)"
        " { [big] b = MatMul(x, x) [end] y = Tanh(b) [late] t = MatMul(s, s) [after] z = Tanh(t)"
        " [c] c = MatMul(v, v) [d] d = Tanh(c) [e] e = MatMul(d, d) [f] w = Tanh(e) }"
    )
    rng = np.random.default_rng(0)
    small = rng.normal(0, 0.1, (32, 32)).astype(np.float32)
    large = np.full((32, 32), 3000.0, np.float32)
    data = [{"x": large, "s": small, "v": small}] * 3 + [{"x": large, "s": large, "v": small}]
    result = convert(model(text), data)
    assert result.report.verdict == "pass"
    assert {"big", "late"} <= raised(result)


def test_no_result_is_said_and_not_written(tmp_path: Path) -> None:
    """The only node overflows."""
    source = model("g (float[2, 2] x) => (float[2, 2] y) { [m] y = MatMul(x, x) }")
    result = convert(source, [{"x": np.full((2, 2), 300, np.float32)}])
    report = result.report
    assert (report.verdict, report.after, report.high_nodes) == ("fail", None, ())
    assert report.reasons[0] == "every choice of low nodes that was tried misses a limit"
    for write in (
        lambda: result.save(tmp_path / "m.onnx"),
        lambda: result.save_rules(tmp_path / "r.txt"),
        lambda: result.model,
    ):
        with pytest.raises(UsageError, match="there is no converted model: every choice"):
            write()


@pytest.mark.parametrize(("share", "measured"), [(math.inf, []), (2.0, [({0}, 2.0)])])
def test_an_infinite_error_of_a_trial_is_no_measurement(share: float, measured: list[Any]) -> None:
    """The errors of nodes are fitted to what trials measured, which an infinity would make NaN."""
    empty = SimpleNamespace(graph=SimpleNamespace(nodes=()))
    lists = SimpleNamespace(mode=SimpleNamespace(low="float16"))
    search: Any = SimpleNamespace(
        space=SimpleNamespace(edits=lambda low: frozenset(), group_of_name={}),
        trials=SimpleNamespace(
            try_edits=lambda edits: Outcome(False, "", limit_share=share),
            compiler=SimpleNamespace(base=lists, low_share=lambda edits: None, solution=lambda edits: empty),
        ),
        costs=SimpleNamespace(cost=len), trials_left=3, log=[], measured=[], failing=[], passing={},
    )  # fmt: skip
    convert_module._try_low(search, frozenset({0}))
    assert (search.measured, search.failing, search.trials_left) == (measured, [{0}], 2)


def test_nothing_can_be_compared() -> None:
    source = model("g (float[2] x) => (float[2] y) { [m] y = Mul(x, x) }")
    result = convert(source, [{"x": np.full(2, np.nan, np.float32)}])
    assert (result.report.verdict, result.rewritten) == ("inconclusive", None)


def test_a_judge_decides_instead_of_the_limits() -> None:
    def distance(reference: dict[str, Any], outputs: dict[str, Any]) -> dict[str, float]:
        return {"distance": float(np.abs(reference["y"] - outputs["y"]).max())}

    text = "g (float[32, 32] x) => (float[32, 32] y) { [a] t = MatMul(x, x) [b] y = Tanh(t) }"
    data = [{"x": np.random.default_rng(0).normal(0, 0.3, (32, 32)).astype(np.float32)}]
    strict = convert(model(text), data, judge=distance, judge_limits={"distance": 0.0})
    assert strict.report.verdict == "fail"
    assert convert(model(text), data, judge=distance, judge_limits={"distance": 0.1}).report.verdict == "pass"


def test_a_rule_of_the_user_stays_in_force(tmp_path: Path) -> None:
    """m3 stays high although nothing overflows there."""
    (tmp_path / "keep.txt").write_text("m3\n")
    lists = mixlist.load_policy(keep_dtype=tmp_path / "keep.txt")
    result = convert(model(TEXT), feeds(), lists)
    assert "m3" in {node.name for node in result.report.high_nodes} - raised(result)
    assert "m3" not in result.report.customize_dtypes
    rules = result.report.customize_dtypes
    assert result.model.SerializeToString(deterministic=True) == applied_bytes(
        model(TEXT), rules, tmp_path, keep_dtype=tmp_path / "keep.txt"
    )


def test_a_mode_without_low_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="the precision mode origin makes no node low"):
        convert(model(TEXT), feeds(), mixlist.load_policy(precision_mode_v2="origin"))
    with pytest.raises(UsageError, match="low_type='bfloat16', and the mode mixed_float16"):
        convert(model(TEXT), feeds(), mixlist.load_policy(), low_type="bfloat16")
    with pytest.raises(UsageError, match="unknown low type 'float8'"):
        convert(model(TEXT), feeds(), low_type="float8")


def test_without_data_the_data_is_random() -> None:
    result = convert(model(TEXT), None)
    assert result.report.random_data and result.report.batches == convert_module.RANDOM_BATCHES
    assert not convert(model(TEXT), feeds(last=1.0)).report.random_data


def test_the_number_of_batches_can_be_limited() -> None:
    """The second batch overflows, and is not read."""
    result = convert(model(TEXT), feeds(2, others=1.0), max_batches=1)
    assert (result.report.verdict, result.report.batches, result.report.trials) == ("pass", 1, 0)
    assert convert(model(TEXT), feeds(2, others=1.0)).report.trials > 0


def test_a_large_input_is_named() -> None:
    text = (
        "g (float[8, 8] x) => (float[8, 8] y, float[8, 8] z) { [m] m = MatMul(x, x) [n] y = Tanh(m) [e] z = Tanh(x) }"
    )
    data = [{"x": np.linspace(1, 16000, 64, dtype=np.float32).reshape(8, 8)}]
    (advice,) = convert(model(text), data).report.advice
    assert advice.startswith("values overflow behind input 'x', which reaches 16000, as 16-bit samples do")
    assert convert(model(text), [{"x": np.ones((8, 8), np.float32)}]).report.advice == ()


@pytest.mark.parametrize(("products", "is_integer"), [(2, True), (1, False)])
def test_a_model_with_integer_products_is_named(products: int, is_integer: bool) -> None:
    text = (
        "g (float[8, 8] x, uint8[8, 8] q) => (float[8, 8] y, int32[8, 8] i0, int32[8, 8] i1) { [m] y = MatMul(x, x)"
        " [i] i0 = MatMulInteger(q, q)"
        f" [j] i1 = {'MatMulInteger(q, q)' if products == 2 else 'Cast<to = 6>(q)'} }}"
    )
    data = [{"x": np.ones((8, 8), np.float32), "q": np.ones((8, 8), np.uint8)}]
    assert convert(model(text), data).report.advice == ((INTEGER_PRODUCTS,) if is_integer else ())


def test_a_product_between_dequantized_tensors_is_one_of_integers() -> None:
    text = (
        "g (float[8, 8] x) => (float[8, 8] y) <float s = {0.02}, uint8 z = {128}> { q = QuantizeLinear(x, s, z)"
        " d = DequantizeLinear(q, s, z) [m] y = MatMul(d, d) }"
    )
    assert convert(model(text), [{"x": np.ones((8, 8), np.float32)}]).report.advice == (INTEGER_PRODUCTS,)


def test_an_interrupt_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        convert(model(TEXT), feeds(), progress=interrupt_at(1))


def test_the_files_of_a_result(tmp_path: Path) -> None:
    result = convert(model(TEXT), feeds())
    with pytest.raises(UsageError, match="both the model and the rules"):
        result.save(tmp_path / "m.onnx", rules=tmp_path / "." / "m.onnx")
    assert result.save(tmp_path / "m.onnx", rules=tmp_path / "r.txt") == (tmp_path / "m.onnx",)
    assert (tmp_path / "r.txt").read_text() == result.report.customize_dtypes
    for write in (
        lambda: result.save(tmp_path / "n.onnx", rules=tmp_path / "r.txt"),
        lambda: result.save_rules(tmp_path / "r.txt"),
    ):
        with pytest.raises(FileError, match=r"r\.txt exists"):
            write()
    result.save_rules(tmp_path / "r.txt", force=True)
    assert repr(result) == "<ConvertResult of 'g': pass; low " + repr(result.report).partition("pass; low ")[2]
    assert [row["name"] for row in result.report.to_rows()] == [node.name for node in result.report.high_nodes]
    assert [row["passed"] for row in result.report.to_rows("trials")] == [False, True]
    with pytest.raises(UsageError, match="there is no table"):
        result.report.to_rows("edits")
