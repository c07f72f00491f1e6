"""Which kernels a provider has: the data files, the tool that writes them, and what is asked of the runtime itself."""

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

from mixlist.targets import kernels
from mixlist.targets.kernels import (
    DATA,
    FLOATS,
    Kernel,
    Registry,
    has_low_kernel,
    kernel_release,
    parse_registry,
    read_registered_kernels,
)

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "make_kernels.py"))
CAN_BE_ASKED = set(onnxruntime.get_available_providers()) <= {"CPUExecutionProvider", "AzureExecutionProvider"}
asked = pytest.mark.skipif(not CAN_BE_ASKED, reason="this build of ONNX Runtime may die when asked for its kernels")

SMALL = {
    "source": "a release",
    "kernels": {
        "": {
            "Two": [[7, 12, {"T": "float16 float"}], [13, None, {"T": "float16 bfloat16", "U": ""}]],
            "Whole": [],
        },
        "my": {"Two": [[1, None, {"T": "double"}]]},
    },
}


def answers(registry: Registry) -> dict[tuple[Any, ...], bool]:
    """Every question that can be put to the kernels of a registry."""
    found = {}
    for (domain, op_type), rows in registry.items():
        versions = {*chain.from_iterable((k.start, k.start + 1, k.end or k.start + 2) for k in rows)}
        parameters = sorted({*chain.from_iterable(k.types for k in rows)})
        for since in sorted(versions):
            for dtype in FLOATS:
                for wanted in (set(), set(parameters), *({p} for p in parameters)):
                    key = (domain, op_type, since, dtype, *sorted(wanted))
                    found[key] = any(k.fits(since) and k.takes(dtype, wanted) for k in rows)
    return found


def test_a_data_file_is_read() -> None:
    registry = parse_registry(SMALL)
    assert set(registry) == {("", "Two"), ("", "Whole"), ("my", "Two")}
    assert registry["", "Whole"] == ()
    old, new = registry["", "Two"]
    assert old == Kernel(7, 12, {"T": frozenset({"float16", "float"})})
    assert [old.fits(v) for v in (6, 7, 9, 12, 13)] == [False, True, True, True, False]
    assert [new.fits(v) for v in (12, 13, 14)] == [False, True, False]  # open: only where the operator last changed
    assert new.takes("float16", {"T"}) and not new.takes("float", {"T"})
    assert new.takes("float16", set()) and not new.takes("float16", {"T", "U"})  # U takes no float type
    assert new.takes("float16", {"T", "V"})  # what a kernel does not name, it does not restrict


@asked
def test_the_tools_file_answers_as_the_runtime_does(tmp_path: Path) -> None:
    data = json.loads(TOOL["text"](TOOL["make"]("cpu")))
    live, written = read_registered_kernels("cpu"), parse_registry(data)
    assert set(written) == set(live)
    assert data["source"] == f"onnxruntime {onnxruntime.__version__}"
    told = answers(live)
    assert len(told) > 10_000
    assert {op: answers({op: written[op]}) for op in written} == {op: answers({op: live[op]}) for op in live}


@asked
def test_the_registry_answers_as_the_kernels_it_was_made_from() -> None:
    """Against the runtime's own objects: a kernel is told for a type exactly where one of them takes it."""
    live = read_registered_kernels("cpu")
    raw = [k for k in state.get_all_opkernel_def() if k.provider == "CPUExecutionProvider"]
    assert {(k.domain, k.op_name) for k in raw} == set(live)
    for each in raw:
        start, end = each.version_range
        for parameter, types in each.type_constraints.items():
            for dtype in FLOATS:
                if f"tensor({dtype})" in types:
                    rows = live[each.domain, each.op_name]
                    assert any(k.fits(start) and k.takes(dtype, {parameter}) for k in rows), each.op_name
                    assert end == 2**31 - 1 or any(k.fits(end) and k.takes(dtype, {parameter}) for k in rows)


@asked
def test_the_file_for_the_cpu_is_what_its_release_says() -> None:
    data = json.loads((DATA / "kernels_cpu.json").read_text("utf-8"))
    if f" {onnxruntime.__version__} " not in f"{data['source']} ":
        pytest.skip(f"the file is of {data['source']}")
    written, live = parse_registry(data), read_registered_kernels("cpu")
    assert {op: answers({op: written[op]}) for op in written} == {op: answers({op: live[op]}) for op in live}


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build with providers that load as libraries; asking it for its kernels fails the test."""

    def die() -> None:
        raise AssertionError("asked for its kernels, onnxruntime-gpu dies where TensorRT's libraries are missing")

    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(state, "get_all_opkernel_def", die)
    kernels._kernels.cache_clear()
    yield
    kernels._kernels.cache_clear()


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_a_build_that_may_die_of_the_question_is_not_asked(with_cuda: None, provider: str) -> None:
    assert has_low_kernel(provider, "", "Relu", 17, "float", (0,))
    assert kernel_release(provider) == "onnxruntime-gpu 1.31.1 (CUDA 13.0)"


# Read off the registry of onnxruntime-gpu 1.31.1 by eye: CUDA has no reductions to the extremes in bfloat16.
@pytest.mark.parametrize(
    ("op_type", "opset", "low", "has"),
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
def test_what_cuda_has(op_type: str, opset: int, low: str, has: bool) -> None:
    assert has_low_kernel("cuda", "", op_type, opset, low, (0,)) == has


def test_an_operator_of_any_type_without_kernel_has_its_body() -> None:
    assert ("", "MeanVarianceNormalization") not in kernels._kernels("cuda")
    assert has_low_kernel("cuda", "", "MeanVarianceNormalization", 17, "float16", (0,))
