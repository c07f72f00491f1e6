"""The bundled step graphs and their data: what they hold, that they learn, and that the script makes them."""

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
NAMES = ("cnn", "transformer")
TOOLS = Path(__file__).parents[2] / "tools"


def path(name: str) -> Path:
    return DATA / f"digits_{name}_step.onnx"


def metadata(proto: onnx.ModelProto, prefix: str) -> dict[str, Any]:
    start = f"pkg.mixlist.{prefix}."
    return {
        entry.key.removeprefix(start): json.loads(entry.value)
        for entry in proto.metadata_props
        if entry.key.startswith(start)
    }


@pytest.mark.parametrize("name", NAMES)
def test_they_are_small_plain_and_without_weights(name: str) -> None:
    proto = onnx.load(path(name))
    onnx.checker.check_model(proto, full_check=True)
    assert path(name).stat().st_size < 300_000
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert all(np.prod(tensor.dims) <= 512 for tensor in proto.graph.initializer)  # a normalisation's ones
    parameters = [value.name.removeprefix("grad.") for value in proto.graph.output if value.name.startswith("grad.")]
    assert set(metadata(proto, "init")) == set(parameters)
    random = [value.name for value in proto.graph.input if value.name.startswith("random.")]
    assert list(metadata(proto, "random")) == random
    assert len(random) == (4 if name == "transformer" else 0)
    assert [value.name for value in proto.graph.input] == [*parameters, "x", "y", "loss_scale", *random]


def test_the_data_are_all_digits_once() -> None:
    with np.load(DATA / "digits_train.npz") as train, np.load(DATA / "digits_eval.npz") as held_out:
        assert train["x"].shape == (1348, 1, 8, 8)
        assert (train["x"].dtype, train["y"].dtype) == (np.uint8, np.int64)
        with np.load(DATA / "digits.npz") as demo:
            np.testing.assert_array_equal(held_out["x"], demo["pixels"])
            np.testing.assert_array_equal(held_out["y"], demo["labels"])
        images = np.concatenate([train["x"], held_out["x"]])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 1797


def feeds(proto: onnx.ModelProto, rows: int) -> dict[str, NDArray[Any]]:
    """Small random parameters, the first training images, and no dropout."""
    random, off = np.random.default_rng(0), metadata(proto, "random")
    found: dict[str, NDArray[Any]] = {"loss_scale": np.array(1, np.float32)}
    with np.load(DATA / "digits_train.npz") as arrays:
        found |= {"x": arrays["x"][:rows].astype(np.float32), "y": arrays["y"][:rows]}
    for value in proto.graph.input:
        shape = [size.dim_value or rows for size in value.type.tensor_type.shape.dim]
        if value.name in off:
            found[value.name] = np.full(shape, off[value.name]["off"], np.float32)
        elif value.name not in found:
            found[value.name] = random.normal(0.5 if len(shape) == 1 else 0, 0.2, shape).astype(np.float32)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_are_the_slopes_of_the_loss(name: str) -> None:
    """A central difference along the gradient, of step h: off by some h squared, and 1e-7 / h of rounding."""
    proto = onnx.load(path(name))
    session = onnxruntime.InferenceSession(path(name), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    given = feeds(proto, 32)
    found = dict(zip(names, session.run(None, given), strict=True))
    grads = {key.removeprefix("grad."): value for key, value in found.items() if key.startswith("grad.")}
    length = float(np.sqrt(sum((grad.astype(np.float64) ** 2).sum() for grad in grads.values())))
    losses = []
    for step in (0.003, -0.003):
        moved = {key: given[key] + np.float32(step / length) * grad for key, grad in grads.items()}
        losses.append(float(session.run(["loss"], {**given, **moved})[0]))
    assert (losses[0] - losses[1]) / 0.006 == pytest.approx(length, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_script_makes_them_byte_for_byte(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the versions it names: other versions of torch may write other nodes."""
    torch = pytest.importorskip("torch", reason="the exporter needs the extra torch")
    onnxscript = pytest.importorskip("onnxscript", reason="the exporter needs the extra torch")
    if (torch.__version__.split("+")[0], onnxscript.__version__) != ("2.13.0", "0.7.2"):
        pytest.skip("made with torch 2.13.0 and onnxscript 0.7.2")
    monkeypatch.syspath_prepend(str(TOOLS))
    import make_steps

    try:
        made = make_steps.write_step(name, tmp_path)
    finally:
        sys.modules.pop("make_steps")
    assert made.read_bytes() == path(name).read_bytes()
