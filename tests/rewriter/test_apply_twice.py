"""A file that mixlist wrote, under another policy: its types are its authored types now (Rule S4.32)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import onnx
import onnx.compose
import onnx.inliner
import pytest

import mixlist
from tests.support import contract
from tests.support.builders import model, policy
from tests.support.contract_casts import _check_used
from tests.support.scopes import View

POLICIES: dict[str, dict[str, Any]] = {
    "exp": {"white": ["Exp", "Sub"], "black": ["Log"]},
    "log": {"white": ["Log", "Relu"], "black": ["Exp"]},
    "force": {"mode": "fp16"},
    "raise": {"mode": "cube_fp16in_fp32out"},
    "bfloat16": {"mode": "mixed_bfloat16", "white": ["Exp", "Sub"], "black": ["Log"]},
    "origin": {"mode": "origin"},
}
GRAPHS = {
    "casts": """g (float[4] x) => (float[4] y, float[4] z) <float[4] k = {1,2,3,4}> {
      w = Exp(x) c = Cast<to=10>(w) d = Cast<to=1>(c) l = Log(d) y = Add(l, k) z = Sub(x, k) }""",
    "branches": """g (float[4] x, bool c) => (float[4] y) { w = Exp(x)
      z = If(c) <then_branch = t () => (float[4] p) { p = Relu(w) }, else_branch = e () => (float[4] q) { q = Log(w) }>
      y = Neg(z) }""",
    "loop": """g (float[4] x, int64 m) => (float[4] y, float[N,4] z)
      <bool go = {1}, float[4] k = {1,2,3,4}> { w = Exp(x)
      a, z = Loop(m, go, w) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t, float[4] u)
        { d = Identity(c) t = Sub(s, k) u = Log(s) }> y = Relu(a) }""",
    "sequence": """g (float[4] x) => (float[4] y) <int64 i = {0}> { w = Exp(x) v = Log(x)
      s = SequenceConstruct(w, v) t = SequenceInsert(s, x) a = SequenceAt(t, i) y = Relu(a) }""",
    "functions": """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[4] x) => (float[4] y, float[4] z) {
      w = Exp(x) y = f.F(w) z = f.F(x) }
      <domain: "f", opset_import: ["" : 17]> F (a) => (b) {
        r = Relu(a) k = Constant<value_float=2.0>() m = Mul(r, k) b = Log(m) }""",
    "custom": """<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]> g (float[4] x) => (float[4] y) {
      w = Exp(x) c = my.domain.Thing<body = b (float[4] a) => (float[4] r) { v = Log(w) r = Exp(v) }>(w)
      y = Neg(w) }""",
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("first", "second"), list(permutations(POLICIES, 2)))
def test_another_policy_on_a_result(graph: str, first: str, second: str) -> None:
    """Rules S4.18, S4.32."""
    original = model(GRAPHS[graph], check=graph != "custom")
    once = rewritten(original, first)
    rules = policy(**POLICIES[second])
    plan = mixlist.resolve(once, rules)
    assert any(w.code == "ML501" for w in plan.warnings)  # start from the original
    twice = mixlist.rewrite(once, plan).model
    contract.check_accepted(original, twice)
    if "bfloat16" not in (first, second):
        contract.check_loads(original, twice)
    contract.check_signature(original, twice)
    view = View(twice)
    contract.check_sorted(view)
    contract.check_value_info(twice, view)
    for scope in view.scopes():
        _check_used(scope)
    assert user_nodes(twice) == user_nodes(original)
    contract.check_idempotent(twice, lambda m: mixlist.rewrite(m, mixlist.resolve(m, rules)).model)


def rewritten(original: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model under one of the policies."""
    return mixlist.rewrite(original, mixlist.resolve(original, policy(**POLICIES[name]))).model


def user_nodes(proto: onnx.ModelProto) -> list[str]:
    """Operators of the main graph in order, but for Constants and mixlist's own Casts."""
    marked = [n for n in proto.graph.node if any(p.key.startswith("pkg.mixlist") for p in n.metadata_props)]
    return [n.op_type.split("_")[0] for n in proto.graph.node if n not in marked and n.op_type != "Constant"]


# --- results that somebody changed ---

RULES = policy(white=["Exp"], black=["Log"])


def written(text: str) -> onnx.ModelProto:
    """A model in ONNX text, rewritten."""
    original = model(text)
    return mixlist.rewrite(original, mixlist.resolve(original, RULES)).model


def check_again(changed: onnx.ModelProto) -> None:
    """Both policies take it, keep its signature and settle at once."""
    onnx.checker.check_model(changed, full_check=True)
    for settings in POLICIES.values():
        rules = policy(**settings)
        result = mixlist.rewrite(changed, mixlist.resolve(changed, rules)).model
        contract.check_accepted(changed, result)
        contract.check_signature(changed, result)
        view = View(result)
        contract.check_sorted(view)
        contract.check_value_info(result, view)
        contract.check_idempotent(result, lambda m, r=rules: mixlist.rewrite(m, mixlist.resolve(m, r)).model)


PLAIN = """g (float[4] x) => (float[4] y, float[4] z) <float[4] k = {1,2,3,4}> {
  w = Exp(x) a = Add(w, k) y = Relu(a) z = Log(w) }"""


@pytest.mark.parametrize(
    "names", [["x_float16"], ["w_float32"], ["y_float16"], ["w", "x_float16", "w_float32", "y_float16"]]
)
def test_tensors_of_mixlists_own_that_somebody_made_outputs(names: list[str]) -> None:
    once = written(PLAIN)
    for name in names:
        elem = onnx.TensorProto.FLOAT if name.endswith("32") else onnx.TensorProto.FLOAT16
        once.graph.output.append(onnx.helper.make_tensor_value_info(name, elem, [4]))
    check_again(once)


@pytest.mark.parametrize("slot", [0, 1])
def test_an_output_that_somebody_removed(slot: int) -> None:
    once = written(PLAIN)
    del once.graph.output[slot]
    check_again(once)


def test_functions_that_somebody_inlined() -> None:
    """Casts of a function's body stand in a subgraph then and read tensors from outside."""
    once = written("""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
      g (float[4] x, bool c) => (float[4] y, float[4] z) {
      w = Exp(x) y = f.F(w) z = If(c) <then_branch = t () => (float[4] p) { p = f.F(w) },
                                        else_branch = e () => (float[4] q) { q = f.F(x) }> }
      <domain: "f", opset_import: ["" : 17]> F (a) => (b) { l = Log(a) e = Exp(a) b = Add(e, l) }""")
    check_again(onnx.inliner.inline_local_functions(once))


@pytest.mark.parametrize("joint", ["a_y", "a_z"])
def test_two_results_that_somebody_merged(joint: str) -> None:
    parts = []
    for prefix in ("a_", "b_"):
        once = written(PLAIN)
        del once.metadata_props[:]
        parts.append(onnx.compose.add_prefix(once, prefix))
    check_again(onnx.compose.merge_models(*parts, io_map=[(joint, "b_x")]))


def test_an_output_without_a_declared_type_keeps_the_type_that_it_had() -> None:
    original = model("g (float[4] x) => (y) { w = Exp(x) y = Relu(w) }", check=False)
    once = mixlist.rewrite(original, mixlist.resolve(original, RULES)).model
    assert [n.op_type for n in once.graph.node] == ["Cast", "Exp", "Relu", "Cast"]
    contract.check_idempotent(once, lambda m: mixlist.rewrite(m, mixlist.resolve(m, RULES)).model)
