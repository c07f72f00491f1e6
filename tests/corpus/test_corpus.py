"""Thirteen real models with the default lists keep the promises S7, and run in the helper process.

``make campaign`` has three more lists.

ONNX Runtime's CPU provider computes most float16 nodes in float32, so its outputs do not show the accuracy of float16.
They show that the graph is connected as before: a wrong Cast or a lost edge gives entirely different outputs. So the
bound WIRING is loose (the largest difference measured is 0.024).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from tests.support.builders import apply
from tests.support.contract import check_contract, check_idempotent
from tests.support.scopes import View

from . import worker
from .conftest import CAMPAIGN, MODELS

LISTS = ["onnx", "ascend910b", "mindspore-o2", "nnabla-half"] if CAMPAIGN else ["onnx"]
WIRING = 0.05  # |mixed - original| / |original|, Euclidean, per output
FLOAT16_MAX = 65504.0
# Its products are of integers, and no other op type of it is on these white lists: no node may be low.
NOTHING_LOW = {("ddddocr_common_old", "onnx"), ("ddddocr_common_old", "ascend910b")}

# onnx does not know com.microsoft::DynamicQuantizeLSTM: its outputs, and those of nodes that move them, have no type.
UNTYPED = {"ddddocr_common_old": {"361", "362", "363", "364", "366", "380"}}
# ONNX Runtime's CPU provider loads a float16 ScatterElements with a reduction and then refuses to run it.
NO_KERNEL = "MLFloat16 data type is not supported with ScatterElements"

pytestmark = pytest.mark.timeout(600)  # the first test waits for the download


def run(model_id: str, model: Path, out: Path) -> tuple[dict[str, Any], str]:
    """Return the outputs of all batches, and a note if ONNX Runtime's CPU provider could not run the model as it is."""
    note = ""
    try:
        worker.call(worker.run, model_id, model, out)
    except worker.Crashed as signal:
        note = f"ONNX Runtime died of {signal}; it ran without graph optimizations"
        worker.call(worker.run, model_id, model, out, "--plain")
    except RuntimeError as error:
        if NO_KERNEL not in str(error):
            raise
        note = "ONNX Runtime has no float16 ScatterElements with a reduction; onnx.reference ran it"
        worker.call(worker.run, model_id, model, out, "--reference")
    with np.load(out) as arrays:
        return dict(arrays), note


@pytest.fixture(scope="session")
def original(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return a function that returns the original model's outputs; each model runs once per session."""

    @cache
    def outputs(model_id: str) -> dict[str, Any]:
        return run(model_id, corpus.path(model_id), tmp_path_factory.mktemp("original") / "out.npz")[0]

    return outputs


@pytest.mark.parametrize("library", LISTS)
@pytest.mark.parametrize("model_id", MODELS)
def test_the_mixed_model_keeps_the_contract_and_runs_like_the_original(
    model_id: str, library: str, corpus: Any, original: Any, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    source, mixed, policy = corpus.path(model_id), tmp_path / "mixed.onnx", mixlist.load_policy(ops_info=library)
    plan = mixlist.resolve(source, policy)
    assert any(node.precision in worker.LOW for node in plan.nodes) != ((model_id, library) in NOTHING_LOW)
    result = mixlist.rewrite(source, plan)
    check_contract(source, result, plan, runtime=False)
    check_idempotent(result.model, lambda model: apply(model, policy))
    scopes = View(result.model).scopes()
    untyped = {name for s in scopes for node in s.nodes for name in node.output if name and not s.elem_type(name)}
    assert untyped <= UNTYPED.get(model_id, set())  # a Cast gives some of them a type
    result.save(mixed)

    outputs, note = run(model_id, mixed, tmp_path / "mixed.npz")
    expected = original(model_id)
    assert list(outputs) == list(expected)
    overflowed = {name for name, value in outputs.items() if not np.isfinite(value).all()}
    for name, reference in expected.items():
        value = outputs[name]
        assert (value.dtype, value.shape) == (reference.dtype, reference.shape), name
        if name not in overflowed:
            error = np.linalg.norm(value.astype(np.float64) - reference)
            assert error <= WIRING * np.linalg.norm(reference), name
    if overflowed:
        note = "values of the original are beyond float16's range, and so the mixed model overflows"
        magnitudes = worker.call(worker.largest, model_id, library, source)["largest"]
        assert all(magnitudes[int(name.split(".")[0])] > FLOAT16_MAX for name in overflowed)
        assert overflowed < set(outputs) or len(outputs) == 1  # another batch is in range

    record_property("corpus_model", model_id)
    if note:
        record_property("corpus_note", f"{model_id}: {note}")
