"""Tests of the bundled step graphs and their data: contents, gradients, and the script that writes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from mixlist.files.package_data import data_folder

DATA = data_folder("demo_data")
NETWORKS = ("cnn", "transformer")
TOOLS = Path(__file__).parents[2] / "tools"


def step_path(network: str) -> Path:
    return DATA / f"digits_{network}_step.onnx"


def read_metadata(proto: onnx.ModelProto, kind: str) -> dict[str, Any]:
    """Return the metadata of a kind, "init" or "random", by input name."""
    prefix = f"pkg.mixlist.{kind}."
    return {
        entry.key.removeprefix(prefix): json.loads(entry.value)
        for entry in proto.metadata_props
        if entry.key.startswith(prefix)
    }


@pytest.mark.parametrize("network", NETWORKS)
def test_step_graphs_are_small_and_hold_no_weights(network: str) -> None:
    proto = onnx.load(step_path(network))
    onnx.checker.check_model(proto, full_check=True)
    assert step_path(network).stat().st_size < 300_000
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert all(np.prod(tensor.dims) <= 512 for tensor in proto.graph.initializer)  # 512: the ones of a normalization
    parameters = [value.name.removeprefix("grad.") for value in proto.graph.output if value.name.startswith("grad.")]
    assert set(read_metadata(proto, "init")) == set(parameters)
    random_inputs = [value.name for value in proto.graph.input if value.name.startswith("random.")]
    assert list(read_metadata(proto, "random")) == random_inputs
    assert len(random_inputs) == (4 if network == "transformer" else 0)
    assert [value.name for value in proto.graph.input] == [*parameters, "x", "y", "loss_scale", *random_inputs]


def test_training_and_evaluation_data_have_each_digit_once() -> None:
    with np.load(DATA / "digits_train.npz") as training, np.load(DATA / "digits_eval.npz") as evaluation:
        assert training["x"].shape == (1348, 1, 8, 8)
        assert (training["x"].dtype, training["y"].dtype) == (np.uint8, np.int64)
        with np.load(DATA / "digits.npz") as demo:
            np.testing.assert_array_equal(evaluation["x"], demo["pixels"])
            np.testing.assert_array_equal(evaluation["y"], demo["labels"])
        images = np.concatenate([training["x"], evaluation["x"]])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 1797


def make_feed(proto: onnx.ModelProto, rows: int) -> dict[str, NDArray[Any]]:
    """Return small random parameters, the first training images, and random inputs that switch dropout off."""
    generator, distributions = np.random.default_rng(0), read_metadata(proto, "random")
    feed: dict[str, NDArray[Any]] = {"loss_scale": np.array(1, np.float32)}
    with np.load(DATA / "digits_train.npz") as arrays:
        feed |= {"x": arrays["x"][:rows].astype(np.float32), "y": arrays["y"][:rows]}
    for value in proto.graph.input:
        shape = [size.dim_value or rows for size in value.type.tensor_type.shape.dim]
        if value.name in distributions:
            feed[value.name] = np.full(shape, distributions[value.name]["off"], np.float32)
        elif value.name not in feed:
            feed[value.name] = generator.normal(0.5 if len(shape) == 1 else 0, 0.2, shape).astype(np.float32)
    return feed


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_equal_finite_differences_of_the_loss(network: str) -> None:
    """Compare with a central difference along the gradient, whose error is about h^2 + 1e-7 / h for a step h."""
    proto = onnx.load(step_path(network))
    session = onnxruntime.InferenceSession(step_path(network), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    feed = make_feed(proto, 32)
    outputs = dict(zip(names, session.run(None, feed), strict=True))
    gradients = {key.removeprefix("grad."): value for key, value in outputs.items() if key.startswith("grad.")}
    length = float(np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients.values())))
    losses = []
    for step in (0.003, -0.003):
        moved = {name: feed[name] + np.float32(step / length) * gradient for name, gradient in gradients.items()}
        losses.append(float(session.run(["loss"], {**feed, **moved})[0]))
    assert (losses[0] - losses[1]) / 0.006 == pytest.approx(length, rel=0.01)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_script_writes_the_same_bytes(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the script with the versions that made the files: other versions of torch may write other nodes."""
    torch = pytest.importorskip("torch", reason="the exporter needs the extra torch")
    onnxscript = pytest.importorskip("onnxscript", reason="the exporter needs the extra torch")
    if (torch.__version__.split("+")[0], onnxscript.__version__) != ("2.13.0", "0.7.2"):
        pytest.skip("made with torch 2.13.0 and onnxscript 0.7.2")
    monkeypatch.syspath_prepend(str(TOOLS))
    import make_steps

    try:
        written = make_steps.write_step(network, tmp_path)
    finally:
        sys.modules.pop("make_steps")
    assert written.read_bytes() == step_path(network).read_bytes()
