"""Models that ONNX Runtime's optimizers fused, through the commands: each works as the model before the fusion does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import GraphOptimizationLevel as Level

from tests.cli.conftest import Run
from tests.support.evaluation import ort_session, run_ort, run_reference
from tests.support.fused_networks import (
    LENGTH,
    WORDS,
    make_causal_decoder,
    make_convolutions,
    make_encoder,
    save_fused,
    save_optimized,
)

NETWORKS = {"encoder": make_encoder, "decoder": make_causal_decoder, "cnn": make_convolutions}
# Each network, how it is fused, and the fused operators that the result must have. With all optimizations, the
# operators depend on the processor.
CASES = [
    ("encoder", "transformers", {"Attention", "SkipLayerNormalization", "BiasGelu"}),
    ("encoder", "extended", {"FusedMatMul", "SkipLayerNormalization", "BiasGelu"}),
    ("decoder", "transformers", {"SkipLayerNormalization", "FastGelu"}),
    ("decoder", "extended", {"FusedMatMul", "QuickGelu", "LayerNormalization"}),
    ("cnn", "extended", {"FusedConv", "FusedGemm"}),
    ("cnn", "all", set()),
]
# The cases that also run a search, which takes most of the time.
SEARCHED = {("encoder", "transformers"), ("decoder", "extended"), ("cnn", "extended")}


def fuse(proto: onnx.ModelProto, kind: str, path: Path) -> onnx.ModelProto:
    """Fuse a network, write it to ``path``, and return it."""
    if kind == "transformers":
        pytest.importorskip("onnxruntime.transformers.optimizer")
        save_fused(proto, path)
    else:
        save_optimized(proto, path, Level.ORT_ENABLE_EXTENDED if kind == "extended" else Level.ORT_ENABLE_ALL)
    return onnx.load(path)


def write_batches(proto: onnx.ModelProto, folder: Path) -> dict[str, np.ndarray]:
    """Write two batches, and return the last one. The mask ends with padding, as the fused attention requires."""
    folder.mkdir()
    random = np.random.default_rng(0)
    values = {
        "input_ids": lambda: random.integers(0, WORDS, (2, LENGTH)),
        "attention_mask": lambda: np.array([[1] * LENGTH, [1] * (LENGTH - 3) + [0] * 3]),
        "x": lambda: random.normal(size=(2, 3, 8, 8)).astype(np.float32),
    }
    for batch in range(2):
        feed = {info.name: values[info.name]() for info in proto.graph.input}
        np.savez(folder / f"{batch}.npz", **feed)
    return feed


@pytest.mark.parametrize(("network", "kind", "fused_ops"), CASES, ids=lambda value: value if value else "")
def test_commands_take_a_fused_model(run: Run, tmp_path: Path, network: str, kind: str, fused_ops: set[str]) -> None:
    original = NETWORKS[network]()
    path, mixed, data = tmp_path / "fused.onnx", tmp_path / "mixed.onnx", tmp_path / "data"
    fused = fuse(original, kind, path)
    assert {node.op_type for node in fused.graph.node} >= fused_ops
    feed = write_batches(original, data)
    (expected,) = run_reference(original, feed)
    (output,) = run_ort(fused, feed)
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-3)  # the fusion itself is right

    plan = json.loads(run("resolve", path, "--format", "json").out)
    low = {node["op_type"] for node in plan["nodes"] if node["precision"] == "float16"}
    assert low & {"Attention", "MatMul", "FusedConv", "FusedGemm"}

    assert run("apply", path, "-o", mixed).status == 0
    assert ort_session(onnx.load(mixed)).run(None, feed)[0].shape == expected.shape
    for options in ([], ["--mixed-model", mixed]):
        report = json.loads(run("check", path, "--data", data, *options, "--format", "json").out)
        assert (report["verdict"], report["nodes"]) == ("pass", [])
        (checked,) = report["outputs"]
        assert 0 < checked["normalized_error"] < 0.005

    if (network, kind) not in SEARCHED:
        return
    limit = ("--max-normalized-error", checked["normalized_error"] / 2)
    options = ("--data", data, *limit, "--no-holdout", "--jobs", 1, "--format", "json")
    result = json.loads(run("tune", path, "-o", tmp_path / "list.json", *options).out)
    assert result["modify_mixlist"] and result["edits"]
    checked = json.loads(
        run("check", path, "--data", data, *limit, "--mixlist", tmp_path / "list.json", "--format", "json").out
    )
    assert (checked["verdict"], checked["reasons"]) == (result["check"]["verdict"], result["check"]["reasons"])
    assert checked["verdict"] == "pass" or "nothing is low" in checked["reasons"][0]


def test_a_search_raises_the_nodes_around_a_fused_activation(run: Run, tmp_path: Path) -> None:
    """The up projection overflows, and the down projection reads what is too large; the activation between follows."""
    path, data = tmp_path / "fused.onnx", tmp_path / "data"
    original = make_encoder(scale=4e4)
    fused = fuse(original, "extended", path)
    write_batches(original, data)
    (gelu,) = [node for node in fused.graph.node if node.op_type == "BiasGelu"]
    neighbors = [n.name for n in fused.graph.node if gelu.input[0] in n.output or gelu.output[0] in n.input]
    assert len(neighbors) == 2 and run("check", path, "--data", data).status == 1
    found = run("convert", path, "-o", tmp_path / "mixed.onnx", "--data", data, "--jobs", 1, "--format", "json")
    result = json.loads(found.out)
    assert result["verdict"] == "pass"
    raised = {node["name"] for node in result["high_nodes"] if node["raised"]}
    assert raised >= set(neighbors) and result["after"]["low_nodes"] > len(raised)
