"""The program for onnxconverter-common prepares the model, so that the converter, a stub here, makes a valid one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest

import mixlist
from mixlist import Policy
from tests.support.builders import keep, model, policy

SHARED = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
 [a] b = Add(x, w) [m] c = Mul(b, w) [s] d = Sub(c, w) [e] y = Exp(d) }"""
READ_OUTPUT = """g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}> {
 [a] y = Add(x, w) [m] b = Mul(y, w) [n] z = Neg(b) }"""
WITH_DEFAULT = """<ir_version: 3, opset_import: ["" : 17]>
 g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { [a] y = Add(x, w) }"""


def prepare(
    source: onnx.ModelProto, lists: Policy, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[mixlist.ExportResult, onnx.ModelProto]:
    """Run the program with a converter that changes nothing; return the export and the model that it got."""
    stub = ModuleType("onnxconverter_common.float16")
    stub.convert_float_to_float16 = lambda model, **_: model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxconverter_common", ModuleType("onnxconverter_common"))
    monkeypatch.setitem(sys.modules, "onnxconverter_common.float16", stub)
    monkeypatch.chdir(folder)
    onnx.save(source, folder / "model.onnx")
    result = mixlist.export("model.onnx", lists, "onnxconverter")
    exec(compile(result.call, "program of the export", "exec"), {})
    prepared = onnx.load(folder / "mixed.onnx")
    onnx.checker.check_model(prepared, full_check=True)
    x = {"x": np.array([0.5, -2], np.float32)}
    for expected, value in zip(outputs_of(source, x), outputs_of(prepared, x), strict=True):
        np.testing.assert_array_equal(expected, value)
    return result, prepared


def outputs_of(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def test_float32_nodes_get_one_copy_of_an_initializer_that_converted_nodes_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = policy(white=["Mul", "Exp"], black=["Add", "Sub"])
    result, prepared = prepare(model(SHARED), lists, tmp_path, monkeypatch)
    assert result.is_valid and not result.exceptions
    assert {node.name: list(node.input) for node in prepared.graph.node} == {
        "a": ["x", "w_float32"],
        "m": ["b", "w"],
        "s": ["c", "w_float32"],
        "e": ["d"],
    }
    assert [tensor.name for tensor in prepared.graph.initializer] == ["w", "w_float32"]


@pytest.mark.parametrize(("rules", "is_blocked"), [((), False), (keep("a"), True)])
def test_an_identity_in_the_precision_of_its_producer_makes_an_output_that_nodes_read(
    rules: tuple[object, ...], is_blocked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = policy(white=["Add", "Mul", "Neg"], rules=rules)
    result, prepared = prepare(model(READ_OUTPUT), lists, tmp_path, monkeypatch)
    assert result.is_valid and not result.exceptions
    nodes = {node.output[0]: node for node in prepared.graph.node}
    assert nodes["y"].op_type == "Identity" and nodes["y_inner"].name == "a"
    assert list(nodes["b"].input) == ["y_inner", "w"]
    names = result.lists["node_block_list"]
    assert isinstance(names, list) and ("y_inner" in names) == is_blocked


def test_a_graph_input_with_a_default_becomes_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, prepared = prepare(model(WITH_DEFAULT), policy(white=["Add"]), tmp_path, monkeypatch)
    assert result.is_valid and not result.exceptions
    assert [value.name for value in prepared.graph.input] == ["x"] and prepared.ir_version == 4
    assert "the program makes each graph input with a default a constant" in result.notes


def test_a_program_for_a_model_without_these_cases_has_no_such_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, prepared = prepare(model(SHARED), policy(white=["Add", "Mul", "Sub", "Exp"]), tmp_path, monkeypatch)
    assert "copies" not in result.call and "Identity" not in result.call and "defaults" not in result.call
    assert len(prepared.graph.node) == 4
