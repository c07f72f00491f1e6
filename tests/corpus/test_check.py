"""The check finds where the overflow of real models starts. ONNX Runtime's float32 values give the expected nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import mixlist

from .conftest import QUICK_MODELS
from .feeds import feeds

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download
BOUND = 65520.0  # the least magnitude that float16 turns into infinity
MASK = 1e37


def all_values(path: Any, feed: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the values of every float tensor of the main graph."""
    proto = onnx.load(path)
    typed = onnx.shape_inference.infer_shapes(proto)
    kinds = {i.name: i.type.tensor_type.elem_type for i in (*typed.graph.value_info, *typed.graph.output)}
    declared = {o.name for o in proto.graph.output}
    names = [n for node in proto.graph.node for n in node.output if kinds.get(n) == onnx.TensorProto.FLOAT]
    for name in names:
        if name not in declared:
            proto.graph.output.add(name=name).type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, feed), strict=True))


def largest(values: np.ndarray) -> float:
    """Return the largest finite magnitude below that of masks."""
    magnitudes = np.abs(values[np.isfinite(values)])
    return float(magnitudes[magnitudes < MASK].max(initial=0))


@pytest.mark.parametrize("model_id", QUICK_MODELS)
def test_overflow_starts_where_values_leave_the_range(model_id: str, corpus: Any) -> None:
    path, policy, batches = corpus.path(model_id), mixlist.load_policy(), feeds(model_id)
    report = mixlist.check(path, policy, batches)
    low = {d.name: d.outputs for d in mixlist.resolve(path, policy).nodes if d.scope == "" and d.precision == "float16"}
    made_low = {out for outputs in low.values() for out in outputs}
    expected: set[tuple[str, int]] = set()
    for index, feed in enumerate(batches):
        sizes = {name: largest(values) for name, values in all_values(path, feed).items()}
        beyond = {name for name, size in sizes.items() if size >= BOUND}
        judged = [sizes[out] for outputs in low.values() for out in outputs if out in sizes]
        assert not any(0.99 < size / BOUND < 1.01 for size in judged)  # rounding would decide
        reached: set[str] = set()  # not finite because an input is not
        for node in onnx.load(path).graph.node:
            if node.name in low and any(name in beyond and name not in made_low for name in node.input):
                expected.add((node.name, index))  # Rule S8.4: its converted input is out of range
            if any(name in reached for name in node.input):
                reached.update(node.output)
            elif node.name in low and any(name in beyond for name in node.output):
                reached.update(node.output)
                expected.add((node.name, index))
    first = {(n.name, batch) for n in report.nodes if n.first and not n.scope for batch in n.batches}
    assert first == expected
    assert {n.scope for n in report.nodes if n.first} <= {""}
    assert report.batches == len(batches)
    assert report.exception_rate == len({batch for _, batch in expected}) / len(batches)
    assert not [n for n in report.nodes if n.kind == "preexisting"]
    if model_id == "oww_melspectrogram":  # it squares 16-bit sound at full volume; the second batch is quiet
        assert expected and {batch for _, batch in expected} == {0}
