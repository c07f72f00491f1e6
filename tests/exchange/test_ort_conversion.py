"""The program for onnxruntime.transformers, run: each node gets the types of the plan, except the listed exceptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import mixlist
from mixlist import Policy
from tests.support.builders import keep, model, policy
from tests.support.converted_types import Comparison, compare

FAN_OUT = """g (float[4] x) => (float[4] y, float[4] z) <float[4] w = {1, 2, 3, 4}> {
 [a] a = Add(x, w) [e] b = Exp(a) [s] c = Sqrt(b) [l] d = Log(b) [m] y = Mul(c, d) [n] z = Neg(b) }"""
CASTS = """g (int64[4] i, float[4] x) => (float[4] y) {
 [c] a = Cast<to = 1>(i) [t] t = Cast<to = 7>(x) [b] b = Cast<to = 1>(t) [add] s = Add(a, b) [e] y = Exp(s) }"""
CONSTANT = """g (float[1] x) => (float[1] y) {
 [k] k = Constant<value = float[1] {1e-9}>() [a] b = Add(x, k) [e] c = Exp(b) [m] y = Mul(c, k) }"""
RESIZE = """g (float[1, 1, 2, 2] x) => (float[1, 1, 8, 8] y) <float[4] s = {1, 1, 2, 2}> {
 [r] a = Resize(x, , s) [e] b = Exp(a) [u] y = Resize(b, , s) }"""
BODIES = """g (float[4] x, bool c) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { [a] a = Exp(x)
 [i] b = If(c) <then_branch = t () => (float[4] o) { [p] o = Mul(a, w) },
  else_branch = e () => (float[4] q) { [r] q = Exp(a) }>
 [s] d = Softmax(b) [l] y = Log(d) }"""
SHARED = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [a] b = Add(x, w) [m] y = Mul(b, w) }"
FLOAT16_PART = """g (float[4] x) => (float[4] y) {
 [e] a = Exp(x) [h] b = Cast<to = 10>(a) [s] c = Exp(b) [g] d = Cast<to = 1>(c) [n] y = Neg(d) }"""
CASES: dict[str, tuple[str, Policy]] = {
    "all low": (FAN_OUT, policy(white=["Add", "Exp", "Sqrt", "Log", "Mul", "Neg"])),
    "all high": (FAN_OUT, policy(black=["Add", "Exp", "Sqrt", "Log", "Mul", "Neg"])),
    "two high readers of one low tensor": (FAN_OUT, policy(white=["Add", "Exp"], black=["Sqrt", "Log", "Mul"])),
    "one of two nodes": (FAN_OUT, policy(white=["Add", "Exp", "Log"], rules=keep("a", "l"))),
    "casts of the model": (CASTS, policy(white=["Exp"], black=["Add"])),
    "casts into low nodes": (CASTS, policy(white=["Exp", "Add"])),
    "a constant of both": (CONSTANT, policy(white=["Exp", "Mul"], black=["Add"])),
    "scales of Resize": (RESIZE, policy(white=["Resize"], black=["Exp"])),
    "bodies": (BODIES, policy(white=["Exp", "Mul"], black=["Softmax", "Log"])),
    "a float16 part and black lists": (FLOAT16_PART, policy(white=["Neg"], black=["Exp"])),
    "a float16 part and white lists": (FLOAT16_PART, policy(white=["Neg", "Exp"])),
    "a shared initializer": (SHARED, policy(white=["Mul"], black=["Add"])),
}


def convert(source: onnx.ModelProto, lists: Policy, folder: Path) -> tuple[mixlist.ExportResult, onnx.ModelProto]:
    """Run the program of the export in this process; return the export and the converted model."""
    onnx.save(source, folder / "model.onnx")
    result = mixlist.export(folder / "model.onnx", lists, "ort")
    program = result.call.replace("mixed.onnx", str(folder / "mixed.onnx").replace("\\", "/"))
    exec(compile(program, "program of the export", "exec"), {})
    return result, onnx.load(folder / "mixed.onnx")


@pytest.mark.parametrize("case", CASES)
def test_each_node_has_the_types_of_the_plan(case: str, tmp_path: Path) -> None:
    text, lists = CASES[case]
    source = model(text)
    result, converted = convert(source, lists, tmp_path)
    mixed = mixlist.rewrite(source, mixlist.resolve(source, lists)).model
    comparison: Comparison = compare(mixed, converted)
    assert not comparison.missing
    assert set(comparison.unlike) <= {str(item.node) for item in result.exceptions}
    assert comparison.equal >= len(source.graph.node) - 2
    onnxruntime.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_node_that_must_be_blocked_and_has_no_name_differs_as_its_exception_says(tmp_path: Path) -> None:
    source = model("g (float[2] x) => (float[2] y) { [low] a = Neg(x) y = Neg(a) }")
    lists = policy(white=["Neg"], rules=keep("Neg_0"))
    result, converted = convert(source, lists, tmp_path)
    assert [str(item.node) for item in result.exceptions] == ["Neg_0"]
    assert not [node for node in converted.graph.node if node.op_type == "Cast" and node.name == "a_cast_to_fp32_node"]


def test_a_value_between_two_high_nodes_is_not_rounded(tmp_path: Path) -> None:
    source = model("g (float[1] x) => (float[1] y) { [s] a = Mul(x, x) [l] b = Log(a) [n] y = Neg(b) }")
    _, converted = convert(source, policy(white=["Neg"], black=["Mul", "Log"]), tmp_path)
    session = onnxruntime.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"])
    # 1e6 is beyond the range of float16, so that a rounded product would give -inf.
    (value,) = session.run(None, {"x": np.array([1000], np.float32)})
    assert value == pytest.approx(-13.8, abs=0.1)
