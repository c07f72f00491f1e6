"""Test type hints for custom operators, and operators whose type the emulation needs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mixlist
from mixlist import CheckReport
from mixlist.errors import UsageError
from mixlist.model.load import add_type_hints, load_model
from tests.support.builders import model, policy

# ONNX Runtime runs these operators but has no schema of them: only a hint gives the type of `a`.
CUSTOM = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft.nchwc" : 1]>
g (float[1,16,1,2] x) => (float[1,16,1,2] y) {
  [there] r = com.microsoft.nchwc.ReorderInput(x) [back] a = com.microsoft.nchwc.ReorderOutput<channels=16>(r)
  [square] b = Mul(a, a) [after] c = Neg(b) [cast] y = Cast<to = 1>(c) }"""
FEED = {"x": np.full((1, 16, 1, 2), 300, np.float32)}


def kinds(report: CheckReport) -> dict[str, str]:
    return {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in report.nodes}


def test_a_hint_lets_a_node_be_low_and_observed() -> None:
    proto = onnx.parser.parse_model(CUSTOM)
    before = proto.SerializeToString()
    without_hint = mixlist.check(proto, policy(white=["Mul"]), [FEED])
    assert kinds(without_hint) == {} and any("no node is low" in w.message for w in without_hint.warnings)
    with_hint = mixlist.check(proto, policy(white=["Mul"]), [FEED], type_hints={"a": "float32"})
    assert kinds(with_hint) == {"square": "overflow", "after": "propagated", "cast": "propagated"}
    assert proto.SerializeToString() == before
    with pytest.raises(UsageError, match="floaty"):
        mixlist.check(proto, policy(), [FEED], type_hints={"a": "floaty"})


def test_hints_apply_to_the_model_of_against_too() -> None:
    proto, hints, rules = onnx.parser.parse_model(CUSTOM), {"a": "float32"}, policy(white=["Mul"])
    mixed = mixlist.rewrite(proto, mixlist.resolve(proto, rules, type_hints=hints)).model
    report = mixlist.check(proto, policy(), [FEED], mixed_model=mixed, type_hints=hints)
    assert kinds(report)["square"] == "overflow"


def test_hints_reach_bodies_and_keep_declared_types() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "my" : 1, "f" : 1]>
    g (float[2] x, bool c) => (float[2] y, float16[2] d) {
      d = my.Op(x) e = f.F(x)
      y = If(c) <then_branch = t () => (float[2] u) { a = my.Op(e) u = Neg(a) },
                 else_branch = o () => (float[2] v) { v = Neg(x) }> }
    <domain: "f", opset_import: ["" : 17, "my" : 1]> F (p) => (q) { a = my.Op(p) q = Neg(a) }""")
    hinted = add_type_hints(load_model(proto), {"a": "float32", "d": "float32"}).proto
    branch = hinted.graph.node[2].attribute[0].g
    assert [i.name for i in branch.value_info] == ["a"]
    assert branch.value_info[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert hinted.functions == proto.functions and not hinted.graph.value_info
    loaded = load_model(proto)
    assert add_type_hints(loaded, {}) is loaded


@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    ("opset", "op"), [(22, "EyeLike"), (17, "EyeLike"), (17, "RandomNormalLike<scale=0.1, mean=1.0>")]
)
def test_generators_with_the_type_of_their_input(opset: int, op: str, mode: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[2,2] x) => (float[2,2] y) {{
      [w] w = Exp(x) [e] e = {op}(w) [m] m = Mul(w, w) [s] y = Add(m, e) }}"""
    proto = model(text)
    feed = {"x": np.full((2, 2), 6.0, np.float32)}
    report = mixlist.check(proto, policy(white=["Exp", "EyeLike", "RandomNormalLike", "Mul", "Add"], mode=mode), [feed])
    assert kinds(report) == ({"m": "overflow", "s": "propagated"} if mode == "mixed_float16" else {})
