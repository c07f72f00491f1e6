"""Tables of kernels: the data files, the tool that writes them, and the kernels of the installed ONNX Runtime."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

import mixlist
from mixlist.targets.providers import (
    DATA,
    FLOAT_NAMES,
    Kernel,
    Registry,
    parse_registry,
    read_registered_kernels,
)
from mixlist.targets.target import load_target
from tests.support.builders import model, policy

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "make_kernels.py"))
CAN_LIST_KERNELS = set(onnxruntime.get_available_providers()) <= {"CPUExecutionProvider", "AzureExecutionProvider"}
needs_kernel_list = pytest.mark.skipif(
    not CAN_LIST_KERNELS, reason="this build of ONNX Runtime may crash when it lists its kernels"
)

SMALL: dict[str, Any] = {
    "kernels": {
        "": {
            "Two": [[7, 12, {"T": "float16 float"}], [13, None, {"T": "float16 bfloat16", "U": ""}]],
            "Whole": [],
        },
        "my": {"Two": [[1, None, {"T": "double"}, {"mode": "linear cubic"}]]},
    },
}


def all_answers(registry: Registry) -> dict[tuple[Any, ...], bool]:
    """Return whether a kernel fits, for each operator, version, type and choice of parameters of a registry."""
    answers = {}
    for (domain, op_type), operator_kernels in registry.items():
        versions = {*chain.from_iterable((k.start, k.start + 1, k.end or k.start + 2) for k in operator_kernels)}
        parameters = sorted({*chain.from_iterable(k.types for k in operator_kernels)})
        for version in sorted(versions):
            for dtype in FLOAT_NAMES:
                for restricted in (set(), set(parameters), *({p} for p in parameters)):
                    key = (domain, op_type, version, dtype, *sorted(restricted))
                    answers[key] = any(k.fits(version) and k.accepts(dtype, restricted) for k in operator_kernels)
    return answers


def test_a_data_file_is_read() -> None:
    registry = parse_registry(SMALL["kernels"])
    assert set(registry) == {("", "Two"), ("", "Whole"), ("my", "Two")}
    assert registry["", "Whole"] == ()
    assert registry["my", "Two"][0].attributes == {"mode": {"linear", "cubic"}}
    old, new = registry["", "Two"]
    assert old == Kernel(7, 12, {"T": frozenset({"float16", "float"})})
    assert [old.fits(v) for v in (6, 7, 9, 12, 13)] == [False, True, True, True, False]
    assert [new.fits(v) for v in (12, 13, 14)] == [False, True, False]  # open: only where the operator last changed
    assert new.accepts("float16", {"T"}) and not new.accepts("float", {"T"})
    assert new.accepts("float16", set()) and not new.accepts("float16", {"T", "U"})  # U takes no float type
    assert new.accepts("float16", {"T", "V"})  # a kernel does not restrict a parameter that it does not name


def test_a_kernel_can_refuse_attributes() -> None:
    """Rules S13.2, S13.3: the CPU provider has float16 kernels that refuse a reduction when they run."""
    cpu, cuda = load_target("cpu"), load_target("cuda")
    for op_type, dtype, reductions in (
        ("ScatterElements", "float16", {"none", "min", "max"}),
        ("ScatterElements", "bfloat16", {"none"}),
        ("ScatterElements", "float", {"none", "add", "mul", "min", "max"}),
        ("ScatterND", "float16", {"none"}),
    ):
        for text in ("none", "add", "mul", "min", "max"):
            subject = ("", op_type, 18, dtype, (0,), {"reduction": text})
            assert cpu.runs(*subject) == (text in reductions), subject
            if text not in reductions:  # ONNX Runtime finds a kernel, so it inserts no Cast
                assert cpu.find_otherwise(*subject) == "refusal"
        assert cpu.runs("", op_type, 18, dtype, (0,), {})  # the default is none
        assert cpu.runs("", op_type, 13, dtype, (0,), {})  # opset 13 has no such attribute
    assert cuda.runs("", "ScatterElements", 18, "float16", (0,), {"reduction": "add"})


def test_a_plan_keeps_a_node_whose_attributes_the_kernel_refuses() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[4] x, int64[4] i, float[4] u) => (float[4] y, float[4] z) {
        [sum] y = ScatterElements <reduction = "add"> (x, i, u)
        [copy] z = ScatterElements (x, i, u)
    }"""
    plan = mixlist.resolve(model(text), policy(white=["ScatterElements"]))
    target_plan = mixlist.plan_for_target(plan, "cpu")
    assert [(node.name, node.otherwise) for node in target_plan.low_nodes] == [("./sum", "refusal"), ("./copy", None)]
    assert {node.name: node.precision for node in target_plan.plan.nodes} == {"sum": "float32", "copy": "float16"}


@needs_kernel_list
def test_the_file_of_the_tool_gives_the_answers_of_the_runtime(tmp_path: Path) -> None:
    data = json.loads(TOOL["text"](TOOL["make"]("cpu")))
    live, written = read_registered_kernels("cpu"), parse_registry(data["kernels"])
    assert set(written) == set(live)
    assert data["source"] == f"onnxruntime {onnxruntime.__version__}"
    assert len(all_answers(live)) > 10_000
    assert {op: all_answers({op: written[op]}) for op in written} == {op: all_answers({op: live[op]}) for op in live}


@needs_kernel_list
def test_the_registry_has_every_kernel_of_the_runtime() -> None:
    """A kernel of the registry accepts each type that a kernel object of the runtime accepts."""
    live = read_registered_kernels("cpu")
    kernel_defs = [k for k in state.get_all_opkernel_def() if k.provider == "CPUExecutionProvider"]
    assert {(k.domain, k.op_name) for k in kernel_defs} == set(live)
    for kernel_def in kernel_defs:
        start, end = kernel_def.version_range
        kernels_of_op = live[kernel_def.domain, kernel_def.op_name]
        for parameter, types in kernel_def.type_constraints.items():
            for dtype in FLOAT_NAMES:
                if f"tensor({dtype})" in types:
                    accepting = [k for k in kernels_of_op if k.accepts(dtype, {parameter})]
                    assert any(k.fits(start) for k in accepting), kernel_def.op_name
                    assert end == 2**31 - 1 or any(k.fits(end) for k in accepting), kernel_def.op_name


@needs_kernel_list
def test_the_file_for_the_cpu_has_the_kernels_of_its_release() -> None:
    data = json.loads((DATA / "cpu.json").read_text("utf-8"))
    if f" {onnxruntime.__version__} " not in f"{data['source']} ":
        pytest.skip(f"the file is of {data['source']}")
    written, live = parse_registry(data["kernels"]), read_registered_kernels("cpu")
    assert {op: all_answers({op: written[op]}) for op in written} == {op: all_answers({op: live[op]}) for op in live}


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a build that loads providers as libraries; the test fails if its kernels are listed."""

    def crash() -> None:
        raise AssertionError("onnxruntime-gpu crashes here if the libraries of TensorRT are missing")

    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(state, "get_all_opkernel_def", crash)
    load_target.cache_clear()
    yield
    load_target.cache_clear()


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_a_build_that_may_crash_does_not_list_its_kernels(with_cuda: None, provider: str) -> None:
    assert load_target(provider).runs("", "Relu", 17, "float", (0,))
    assert load_target(provider).source == "onnxruntime-gpu 1.31.1 (CUDA 13.0)"


# From the kernel list of onnxruntime-gpu 1.31.1: CUDA has no ReduceMax in bfloat16.
@pytest.mark.parametrize(
    ("op_type", "opset", "low_type", "expected"),
    [
        ("MatMul", 17, "float16", True),
        ("MatMul", 17, "bfloat16", True),
        ("MatMul", 12, "bfloat16", False),
        ("ReduceMax", 17, "float16", True),
        ("ReduceMax", 17, "bfloat16", False),
        ("ReduceMax", 20, "bfloat16", False),
        ("ReduceSum", 17, "bfloat16", True),
        ("Where", 15, "bfloat16", False),
        ("Where", 16, "bfloat16", True),
        ("LayerNormalization", 17, "bfloat16", True),
    ],
)
def test_kernels_of_cuda(op_type: str, opset: int, low_type: str, expected: bool) -> None:
    assert load_target("cuda").runs("", op_type, opset, low_type, (0,)) == expected


def test_an_operator_without_kernels_runs_as_its_function_body() -> None:
    assert ("", "MeanVarianceNormalization") not in load_target("cuda").kernels
    assert load_target("cuda").runs("", "MeanVarianceNormalization", 17, "float16", (0,))
