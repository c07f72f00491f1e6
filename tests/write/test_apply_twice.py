"""A file that mixlist wrote, rewritten under another policy: its types count as authored (Rule S4.32)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import onnx
import onnx.compose
import pytest

import mixlist
from tests.support import contract
from tests.support.builders import model, policy
from tests.support.contract_casts import check_used
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
    "custom": """<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]> g (float[4] x) => (float[4] y) {
      w = Exp(x) c = my.domain.Thing<body = b (float[4] a) => (float[4] r) { v = Log(w) r = Exp(v) }>(w)
      y = Neg(w) }""",
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("first", "second"), list(permutations(POLICIES, 2)))
def test_a_rewritten_model_can_be_rewritten_under_another_policy(graph: str, first: str, second: str) -> None:
    """Rules S4.18, S4.32."""
    original = model(GRAPHS[graph], check=graph != "custom")
    rewritten_model = rewrite_under(original, first)
    rules = policy(**POLICIES[second])
    plan = mixlist.resolve(rewritten_model, rules)
    # Start from the original, unless the first policy, "origin" or "raise" here, changed nothing (Rule S7.11).
    # Under "origin" the types of the file are what the user asks for.
    warns = first not in ("origin", "raise") and second != "origin"
    assert any(w.code == "ML501" for w in plan.warnings) == warns
    second_model = mixlist.rewrite(rewritten_model, plan).model
    contract.check_accepted(original, second_model)
    if "bfloat16" not in (first, second):
        contract.check_loads(original, second_model)
    contract.check_signature(original, second_model)
    view = View(second_model)
    contract.check_sorted(view)
    contract.check_value_info(second_model, view)
    for scope in view.scopes():
        check_used(scope)
    assert user_nodes(second_model) == user_nodes(original)
    contract.check_idempotent(second_model, lambda m: mixlist.rewrite(m, mixlist.resolve(m, rules)).model)


def rewrite_under(original: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model after a rewrite under one of POLICIES."""
    return mixlist.rewrite(original, mixlist.resolve(original, policy(**POLICIES[name]))).model


def user_nodes(proto: onnx.ModelProto) -> list[str]:
    """Return the operators of the main graph in order, without Constants and Casts, which may go (Rule S7.7)."""
    return [n.op_type for n in proto.graph.node if n.op_type not in ("Cast", "Constant")]


# --- rewritten models that were changed afterwards ---

RULES = policy(white=["Exp"], black=["Log"])


def rewrite_text(text: str) -> onnx.ModelProto:
    """Return a model in ONNX text after a rewrite under RULES."""
    original = model(text)
    return mixlist.rewrite(original, mixlist.resolve(original, RULES)).model


def check_all_policies(changed: onnx.ModelProto) -> None:
    """Assert that every policy accepts a model, keeps its interface, and changes nothing the second time."""
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
def test_a_tensor_that_mixlist_made_may_become_an_output(names: list[str]) -> None:
    rewritten_model = rewrite_text(PLAIN)
    for name in names:
        elem = onnx.TensorProto.FLOAT if name.endswith("32") else onnx.TensorProto.FLOAT16
        rewritten_model.graph.output.append(onnx.helper.make_tensor_value_info(name, elem, [4]))
    check_all_policies(rewritten_model)


@pytest.mark.parametrize("slot", [0, 1])
def test_an_output_may_be_removed(slot: int) -> None:
    rewritten_model = rewrite_text(PLAIN)
    del rewritten_model.graph.output[slot]
    check_all_policies(rewritten_model)


@pytest.mark.parametrize("joint", ["a_y", "a_z"])
def test_two_rewritten_models_may_be_merged(joint: str) -> None:
    parts = []
    for prefix in ("a_", "b_"):
        rewritten_model = rewrite_text(PLAIN)
        del rewritten_model.metadata_props[:]
        parts.append(onnx.compose.add_prefix(rewritten_model, prefix))
    check_all_policies(onnx.compose.merge_models(*parts, io_map=[(joint, "b_x")]))


def test_an_output_without_a_declared_type_keeps_its_type() -> None:
    original = model("g (float[4] x) => (y) { w = Exp(x) y = Relu(w) }", check=False)
    rewritten_model = mixlist.rewrite(original, mixlist.resolve(original, RULES)).model
    assert [n.op_type for n in rewritten_model.graph.node] == ["Cast", "Exp", "Relu", "Cast"]
    contract.check_idempotent(rewritten_model, lambda m: mixlist.rewrite(m, mixlist.resolve(m, RULES)).model)
