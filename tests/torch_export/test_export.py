"""Tests that compare exported steps with torch's own loss and gradients, and tests of the exported graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="the exporter needs the extra torch")
pytest.importorskip("onnxscript", reason="the exporter needs the extra torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from mixlist.errors import MixlistError, ModelError, UsageError  # noqa: E402
from mixlist.training import export_step  # noqa: E402
from tests.support import training_cases as cases  # noqa: E402
from tests.support.training_steps import TOLERANCE, assert_agrees, distance, open_step, reference  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's exporter warns of its own deprecations


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_step_agrees_with_torch_for_any_batch_size(case: cases.Case) -> None:
    module = case.make()
    proto = export_step(module, case.loss, case.rows(3))
    assert_plain(proto)
    step = open_step(proto, module)
    # Batch normalization of one row has no variance. Of two rows, it gives -1 and 1, and a gradient of rounding errors.
    for rows in (3, 4 if "batch_norm" in case.name else 1, 7):
        assert_agrees(step, case.loss, case.rows(rows))


def assert_plain(proto: onnx.ModelProto) -> None:
    """Check that each node has a schema of ONNX and its own name, and that the file has no paths of the machine."""
    onnx.checker.check_model(proto, full_check=True)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert proto.ir_version <= 13
    assert not proto.functions
    for node in proto.graph.node:
        assert onnx.defs.has(node.op_type, 18, node.domain), node.op_type
        assert node.name.startswith("/")
        assert not node.metadata_props
        assert not node.doc_string
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names)
    assert b".py" not in proto.SerializeToString()


@pytest.mark.parametrize("rows", [4, 9])
def test_cross_entropy_with_labels(rows: int) -> None:
    def batch(count: int) -> dict[str, Tensor]:
        return {"x": torch.randn(count, 6), "y": torch.randint(0, 5, (count,))}

    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    step = open_step(export_step(module, cases.classify, batch(4)), module)
    assert_agrees(step, cases.classify, batch(rows))


def test_cross_entropy_with_ignored_labels_and_class_weights() -> None:
    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.tensor([1.0, 2.0, 0.5], dtype=x.dtype)
        return F.cross_entropy(module(x), y, weight=weight, ignore_index=-1, label_smoothing=0.1)

    batch = {"x": torch.randn(5, 4), "y": torch.tensor([0, -1, 2, 1, -1])}
    module = nn.Linear(4, 3)
    assert_agrees(open_step(export_step(module, loss, batch), module), loss, batch)


def test_inputs_and_outputs_are_the_documented_ones() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(8, 3))
    module[0].bias.requires_grad_(False)
    batch = {"x": torch.zeros(2, 1, 4, 4), "y": torch.zeros(2, dtype=torch.int64)}
    graph = export_step(module, cases.classify, batch).graph
    parameters = ["0.weight", "1.weight", "1.bias", "4.weight", "4.bias"]
    buffers = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert [value.name for value in graph.input] == [*parameters, *buffers, "x", "y", "loss_scale", "random.0"]
    assert [value.name for value in graph.output] == [
        "loss", *(f"grad.{name}" for name in parameters), *(f"state.{name}" for name in buffers), "logits",
        "eval.loss", "eval.logits"
    ]  # fmt: skip
    assert "0.bias" in {tensor.name for tensor in graph.initializer}
    shapes = {value.name: dims(value) for value in (*graph.input, *graph.output)}
    assert shapes["x"] == ["batch", 1, 4, 4]
    assert shapes["y"] == ["batch"]
    assert shapes["random.0"] == ["batch", 8]
    assert shapes["loss"] == shapes["loss_scale"] == []
    assert shapes["logits"] == ["batch", 3]
    assert shapes["grad.4.weight"] == [3, 8]


def dims(value: onnx.ValueInfoProto) -> list[Any]:
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]


def test_node_names_hold_the_module_and_the_pass() -> None:
    proto = export_step(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), cases.weighted, {"x": torch.zeros(2, 3, 8)}
    )
    names = {node.name for node in proto.graph.node}
    assert {"/norm1/LayerNormalization", "/linear1/Gemm", "/grad/linear1/MatMul", "/loss/Sin"} <= names
    assert any(name.startswith("/grad/norm1/Reduce") for name in names)


def test_dropout_multiplies_by_its_random_input_and_can_be_switched_off() -> None:
    module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Dropout(0.25))
    batch = {"x": torch.randn(5, 4)}
    step = open_step(export_step(module, cases.weighted, batch), module)
    assert step.rule("random.0") == {"kind": "bernoulli", "p": 0.75, "off": 0.75}
    mask = np.random.default_rng(0).random((5, 6)) < 0.75
    outputs = step.run(batch, random_0=mask.astype(np.float32))
    without_dropout = batch["x"] @ module[0].weight.T
    assert (
        distance(outputs["out"], (without_dropout * torch.from_numpy(mask) / 0.75).detach().double().numpy())
        < TOLERANCE
    )

    def masked_loss(module: nn.Module, x: Tensor) -> Any:
        return cases.weighted(lambda x: module[0](x) * torch.from_numpy(mask) / 0.75, x)  # type: ignore[arg-type]

    expected = reference(module, masked_loss, batch)
    assert distance(outputs["grad.0.weight"], expected["grad.0.weight"]) < TOLERANCE
    off = step.run(batch, random_0=np.full((5, 6), 0.75, np.float32))
    np.testing.assert_array_equal(off["out"], step.run(batch, random_0=np.full((5, 6), 0.75, np.float32))["out"])
    assert distance(off["out"], without_dropout.detach().double().numpy()) < TOLERANCE


def test_dropout_of_whole_channels_and_of_attention() -> None:
    class TwoDropouts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.attend = nn.Conv1d(4, 8, 1), cases.Attend(dropout_p=0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(F.dropout1d(self.conv(x), 0.2).transpose(1, 2))

    module, batch = TwoDropouts(), {"x": torch.randn(3, 4, 5)}
    step = open_step(export_step(module, cases.weighted, batch), module)
    shapes = {value.name: dims(value) for value in step.proto.graph.input}
    assert shapes["random.0"] == ["batch", 8, 1]
    assert shapes["random.1"] == ["batch", 2, 5, 5]
    outputs = step.run(batch)
    projected = module.attend.project(module.conv(batch["x"]).transpose(1, 2))
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in projected.chunk(3, -1))
    without_dropout = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    assert distance(outputs["out"], without_dropout.detach().double().numpy()) < TOLERANCE


def test_random_operators_become_inputs() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            uniform = torch.empty_like(x).uniform_(-1, 3)
            return (x + 0.5 * torch.randn_like(x) + uniform + torch.rand(x.shape[0], 3)) * self.scale

    module, batch = Noisy(), {"x": torch.randn(4, 3)}
    step = open_step(export_step(module, cases.weighted, batch), module)
    kinds = [step.rule(f"random.{index}")["kind"] for index in range(3)]
    assert sorted(kinds) == ["normal", "uniform", "uniform"]
    draws = {f"random_{index}": np.random.default_rng(index).random((4, 3), np.float32) for index in range(3)}
    normal = draws[f"random_{kinds.index('normal')}"]
    first, second = (draws[f"random_{index}"] for index, kind in enumerate(kinds) if kind == "uniform")
    scale = module.scale.detach().numpy()
    expected = (batch["x"].numpy() + 0.5 * normal + (first * 4 - 1) + second) * scale
    assert distance(step.run(batch, **draws)["out"], expected.astype(np.float64)) < TOLERANCE
    assert dims(next(value for value in step.proto.graph.input if value.name == "random.0")) == ["batch", 3]


def test_the_same_module_gives_the_same_bytes_and_keeps_its_values(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(8, 3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    batch = {"x": torch.zeros(2, 1, 4, 4), "y": torch.zeros(2, dtype=torch.int64)}
    export_step(module, cases.classify, batch, path=tmp_path / "first.onnx")
    export_step(module, cases.classify, {name: value[:1] for name, value in batch.items()}, path=tmp_path / "two.onnx")
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_the_metadata_describe_the_distribution_of_initial_values() -> None:
    class EveryDistribution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)
            self.table = nn.Parameter(torch.randn(50, 64) * 0.02)
            self.gain = nn.Parameter(torch.full((64,), 0.1))
            self.register_buffer("history", torch.arange(64.0))

        def forward(self, x: Tensor) -> Tensor:
            self.history.add_(1.0)
            return self.norm(self.linear(x)) * self.gain + self.table.sum(0)

    proto = export_step(EveryDistribution(), cases.weighted, {"x": torch.randn(2, 64)})
    descriptions = {
        entry.key.removeprefix("pkg.mixlist.init."): json.loads(entry.value)
        for entry in proto.metadata_props
        if entry.key.startswith("pkg.mixlist.init.")
    }
    assert descriptions["linear.weight"]["kind"] == "uniform"
    assert descriptions["linear.weight"]["bound"] == pytest.approx(1 / 8, rel=0.01)
    assert descriptions["table"] == {"kind": "normal", "std": pytest.approx(0.02, rel=0.05), "estimated": True}
    assert descriptions["norm.weight"] == {"kind": "ones"}
    assert descriptions["norm.bias"] == descriptions["norm.running_mean"] == {"kind": "zeros"}
    assert descriptions["gain"] == {"kind": "constant", "value": pytest.approx(0.1), "estimated": True}
    assert descriptions["history"] == {"kind": "values", "values": list(range(64))}


def test_a_step_that_depends_on_the_batch_size_needs_a_fixed_one() -> None:
    class DependsOnBatchSize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out = self.linear(x)
            return out * 2 if len(x) > 4 else out

    module, batch = DependsOnBatchSize(), {"x": torch.randn(3, 3)}
    with pytest.raises(ModelError, match="some batch sizes only") as caught:
        export_step(module, cases.weighted, batch)
    assert "dynamic_batch=False" in str(caught.value)
    step = open_step(export_step(module, cases.weighted, batch, dynamic_batch=False), module)
    assert_agrees(step, cases.weighted, batch)


class LinearThenFunction(nn.Module):
    """A linear layer, and a function of its output."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def make_frozen() -> nn.Module:
    return nn.Linear(4, 2).requires_grad_(False)


def make_with_unused_parameter() -> nn.Module:
    module = nn.Linear(4, 2)
    module.extra = nn.Parameter(torch.zeros(3))
    return module


BATCH = {"x": torch.ones(3, 4)}
REFUSED = [
    ("no_module", lambda: print, BATCH, cases.weighted, "module is a"),
    ("frozen", make_frozen, BATCH, cases.weighted, "no trainable parameter"),
    ("half", lambda: nn.Linear(4, 2).half(), BATCH, cases.weighted, "parameter weight is float16"),
    ("unused", make_with_unused_parameter, BATCH, cases.weighted, "does not depend on extra"),
    ("detached", lambda: nn.Linear(4, 2), BATCH, lambda module, x: module(x).detach().sum(), "does not depend on any"),
    ("rows", lambda: nn.Linear(4, 2), {**BATCH, "y": torch.ones(2)}, cases.weighted, "number of rows: x 3, y 2"),
    ("empty", lambda: nn.Linear(4, 2), {}, cases.weighted, "example_batch must be a dict"),
    ("array", lambda: nn.Linear(4, 2), {"x": np.ones((3, 4))}, cases.weighted, "'x'] is a ndarray"),
    ("name", lambda: nn.Linear(4, 2), {"loss_scale": torch.ones(3)}, cases.weighted, "'loss_scale' has a meaning"),
    ("clash", lambda: nn.Linear(4, 2), {"bias": torch.ones(3)}, cases.weighted, "'bias' is both"),
    ("loss", lambda: nn.Linear(4, 2), BATCH, lambda module, x: module(x), r"a tensor of shape \[.*2\] as the loss"),
    ("nothing", lambda: nn.Linear(4, 2), BATCH, lambda module, x: None, "returned NoneType"),
    ("metrics", lambda: nn.Linear(4, 2), BATCH, lambda module, x: (module(x).sum(), [1]), "dict of named tensors"),
    ("value", lambda: LinearThenFunction(lambda x: x if x.sum() > 0 else -x), BATCH, cases.weighted,
     "value of a tensor"),
    ("permutation", lambda: LinearThenFunction(lambda x: x[torch.randperm(x.shape[0])]), BATCH, cases.weighted,
     r"aten.randperm.default in the model draws"),
    ("operator", lambda: LinearThenFunction(lambda x: torch.linalg.inv(x[:, None] * x[:, :, None])), BATCH,
     cases.weighted, r"counterpart for the operator aten\.linalg_inv"),
    ("pool", lambda: nn.Sequential(nn.Conv1d(1, 1, 1), nn.AdaptiveMaxPool1d(3)), {"x": torch.ones(3, 1, 4)},
     cases.weighted, "windows of several sizes"),
    *((f"metric {name}", lambda: nn.Linear(4, 2), BATCH,
       lambda module, x, name=name: (module(x).sum(), {name: module(x)}),
       f"one of its results '{name}', which {problem}")
      for name, problem in [*dict.fromkeys(("x", "weight"), "is the name of an input").items(),
                            *dict.fromkeys(("loss", "loss_scale", "grad.weight", "state.mean", "random.0"),
                                           "has a meaning in every step graph").items()]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "batch", "loss", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_a_step_that_cannot_be_exported_is_refused_with_a_hint(
    make: Any, batch: Any, loss: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(MixlistError, match=message) as caught:
        export_step(make(), loss, batch, path=tmp_path / "step.onnx")
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_without_onnxscript_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"onnxscript is not installed[\s\S]*pip install 'mixlist\[torch\]'"):
        export_step(nn.Linear(1, 1), cases.weighted, BATCH)
