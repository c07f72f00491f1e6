"""Types that nothing declares: proven from the tensors around them or left alone (Rules S4.39, S4.40)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

import mixlist
from tests.model.test_type_unification import custom_inputs
from tests.support.builders import apply, customize, keep, model, policy
from tests.support.contract import check_idempotent
from tests.support.graphs import Case, cases
from tests.support.loading import Loader
from tests.support.package import GRAY_POLICIES
from tests.test_properties import EXAMPLES

HEAD = '<ir_version: 8, opset_import: ["" : 17, "c" : 1, "com.microsoft" : 1, "com.microsoft.nchwc" : 1]>\n'
BEHIND_CUSTOM = (
    HEAD
    + """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}> {
  [f] u = c.Foo(x) [r] r = Relu(u) [m] m = MatMul(r, w) [n] y = Neg(m) }"""
)
UNKNOWN = (
    HEAD
    + """g (float[2,2] x) => (y) {
  [f] u = c.Foo(x) [a] a = Add(u, u) [b] b = Neg(a) [w] low = Exp(x) [p] p = Pow(low, b) [l] y = c.Foo(p) }"""
)


def resolve(text: str, **arguments: object) -> mixlist.Plan:
    return mixlist.resolve(model(text, check=False), policy(**arguments))  # type: ignore[arg-type]


def test_a_proven_type_is_decided_like_any_other() -> None:
    """Rule S4.39: Unknown types are unified first."""
    plan = resolve(BEHIND_CUSTOM, white=["MatMul"])
    by_name = {node.name: (node.precision, node.rule) for node in plan.nodes}
    assert by_name == {
        "f": ("float32", "schema"),
        "r": ("float32", "follow"),
        "m": ("float16", "white"),
        "n": ("float16", "follow"),
    }
    mixed_model = apply(model(BEHIND_CUSTOM, check=False), policy(white=["MatMul"]))
    matmul = next(node for node in mixed_model.graph.node if node.op_type == "MatMul")
    assert matmul.input[0] == "r_float16"


def test_a_reader_of_an_unknown_type_stays_as_authored() -> None:
    """Rule S4.40: A reader of an unknown type stays as authored."""
    plan = resolve(UNKNOWN, white=["Exp", "Add", "Neg", "Pow"])
    by_name = {node.name: (node.precision, node.rule) for node in plan.nodes}
    assert by_name["a"] == by_name["b"] == ("none", "unknown-type")
    assert by_name["p"] == ("float32", "unknown-type")
    reason = next(node.reason for node in plan.nodes if node.name == "p")
    assert "'b'" in reason and "type_hints=" in reason and "S4.40" in reason
    (warning,) = plan.warnings
    assert warning.code == "ML409"
    assert warning.message == "the type of 'u' is not known: 3 nodes stay as authored"
    assert "type_hints=" in (warning.hint or "")


def test_a_tensor_of_known_type_is_cast_back_and_one_of_unknown_type_is_never_cast() -> None:
    """Rule S4.40: A reader of an unknown type stays as authored."""
    mixed_model = apply(model(UNKNOWN, check=False), policy(white=["Exp", "Add", "Neg", "Pow"]))
    nodes = {node.name or node.output[0]: node for node in mixed_model.graph.node}
    assert (nodes["a"].input[0], nodes["b"].input[0]) == ("u", "a")
    assert list(nodes["p"].input) == ["low_float32", "b"]
    assert sorted(node.input[0] for node in mixed_model.graph.node if node.op_type == "Cast") == ["low", "x"]


def test_a_type_hint_removes_the_warning() -> None:
    """Rule S4.40: A reader of an unknown type stays as authored."""
    plan = mixlist.resolve(model(UNKNOWN, check=False), policy(white=["Add"]), type_hints={"u": "float32"})
    assert not plan.warnings
    assert next(node for node in plan.nodes if node.name == "a").precision == "float16"


@pytest.mark.parametrize("gray_policy", GRAY_POLICIES)
def test_a_cast_of_an_unknown_tensor_gives_its_own_type(gray_policy: str) -> None:
    """Rule S4.17: Every other Cast is a producer of its `to` type."""
    text = """g (float[4] x, seq(float[4]) s) => (float[4] y) {
      u = c.Foo(x) k = Cast<to = 1>(u) [w] w = Add(k, x) c = SequenceConstruct(k, x) [y] y = Neg(w) }"""
    plan = resolve(HEAD + text, white=["Exp"], gray_policy=gray_policy)
    by_name = {name: elem for node in plan.nodes for name, elem in node.outputs.items()}
    assert by_name == {"u": "unknown", "k": "float32", "w": "float32", "c": "seq(float32)", "y": "float32"}
    assert [node.precision for node in plan.nodes] == ["float32"] * 5


def test_a_node_that_reads_no_float_of_known_type_has_no_precision() -> None:
    """Rule S4.40: A reader of an unknown type stays as authored."""
    plan = resolve(
        HEAD + "g (float[2,2] x) => (y) { u = c.Foo(x) o = Optional(u) e = OptionalGetElement(o) y = Add(e, x) }"
    )
    by_name = {node.op_type: (node.precision, node.rule, dict(node.outputs)) for node in plan.nodes}
    assert by_name["OptionalGetElement"] == ("none", "unknown-type", {"e": "float32"})
    assert by_name["Add"][0] == "float32"


def test_a_node_rule_for_a_node_of_unknown_type() -> None:
    with pytest.raises(mixlist.MixlistError, match="the type of 'u' is not known") as caught:
        resolve(UNKNOWN, rules=(customize("a", ["float16"], ["float16"]),))
    assert "type_hints=" in (caught.value.hint or "")
    assert [warning.code for warning in resolve(UNKNOWN, rules=keep("a")).warnings] == ["ML306", "ML409"]


def test_a_custom_operator_that_reads_an_unknown_tensor_has_the_rule_schema() -> None:
    plan = resolve(HEAD + "g (float[2,2] x) => (y) { u = c.Foo(x) [v] y = c.Bar(u) }")
    assert (plan.nodes[1].rule, plan.warnings) == ("schema", ())


@settings(max_examples=EXAMPLES // 4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_applying_again_changes_nothing(case: Case) -> None:
    """Rule S7.9: The same input gives the same bytes."""
    for gray_policy in GRAY_POLICIES:
        rules = policy(white=["MatMul", "Exp", "Mul"], black=["Add"], gray_policy=gray_policy)  # type: ignore[arg-type]
        apply_rules = partial(apply, rules=rules)
        check_idempotent(apply_rules(custom_inputs(case.model)), apply_rules)


# --- models as ONNX Runtime's optimizer writes them, without declarations ---

SIMPLIFIED = (
    HEAD
    + """g (float[2,4] x, float[4] s) => (float[2,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
{ [n] a = SimplifiedLayerNormalization<axis = -1>(x, s) [m] b = MatMul(a, w) [e] y = Neg(b) }"""
)
LAYER_NORMALIZATION = SIMPLIFIED.replace('"" : 17', '"" : 13').replace("Simplified", "")
QUERY = (
    HEAD
    + """g (float[1,2,16] q, float[1,2,16] k, float[1,2,16] v, int32[1] seq, int32 total) => (float[1,2,16] y, cache)
<float[16,16] w> {
  [m] a = MatMul(q, w)
  [g] b, p, r = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>(a, k, v, , , seq, total)
  [o] y = MatMul(b, w) [c] c = Add(p, r) [d] cache = Neg(c) }"""
)
CUSTOM = (
    HEAD
    + """g (float[1,8,4,4] x) => (float[1,8,4,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
  [i] a = com.microsoft.nchwc.ReorderInput(x) [o] b = com.microsoft.nchwc.ReorderOutput<channels = 8>(a)
  [m] c = MatMul(b, w) [n] y = Neg(c) }"""
)
NOTHING_PROVEN = (
    HEAD
    + """g (float[1,8,4,4] x) => (y) {
  [i] a = com.microsoft.nchwc.ReorderInput(x) [o] b = com.microsoft.nchwc.ReorderOutput<channels = 8>(a)
  [r] r = Relu(b) [p] p = Exp(x) [q] q = Pow(p, r) [n] y = Add(r, r) }"""
)


def loadable_model(text: str) -> onnx.ModelProto:
    """Return the model with the weight that the text of QUERY is too short for."""
    proto = model(text, check=False)
    if text is QUERY:
        proto.graph.initializer.append(onnx.helper.make_tensor("w", 1, [16, 16], [0.0] * 256))
    return proto


@pytest.mark.parametrize("text", [SIMPLIFIED, LAYER_NORMALIZATION, QUERY, CUSTOM, NOTHING_PROVEN])
@pytest.mark.parametrize(
    "lists",
    [
        {"white": ["MatMul"]},
        {"white": ["MatMul", "Add", "Exp", "Pow", "Relu"]},
        {"white": ["MatMul", "GroupQueryAttention", "SimplifiedLayerNormalization", "LayerNormalization", "Exp"]},
        {"mode": "fp16"},
    ],
)
def test_onnx_runtime_loads_the_result(text: str, lists: dict[str, object], tmp_path: Path) -> None:
    """Rules S4.39, S4.40, S7.1."""
    original = loadable_model(text)
    with Loader(tmp_path) as loader:
        assert loader.load(original) == "ok"
        assert loader.load(apply(original, policy(**lists))) == "ok"  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [SIMPLIFIED, LAYER_NORMALIZATION, QUERY, CUSTOM])
def test_a_node_whose_type_is_proven_becomes_low(text: str) -> None:
    plan = mixlist.resolve(loadable_model(text), policy(white=["MatMul"]))
    assert next(node for node in plan.nodes if node.name == "m").precision == "float16"
