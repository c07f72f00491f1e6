"""The course of a training, written for TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mixlist
from mixlist import installed_runtime
from mixlist.errors import FileError, UsageError
from tests.support.extras import import_extra

torch = import_extra("torch")

from .test_loop import Loop  # noqa: E402


@pytest.fixture
def scalars(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[str, str], list[tuple[int, float]]]]:
    """Put a writer that keeps what it gets in the place of PyTorch's, which needs another package."""
    written: dict[tuple[str, str], list[tuple[int, float]]] = {}

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            self.name = Path(folder).name

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written.setdefault((self.name, tag), []).append((step, value))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("mixlist.training.run.require_tensorboard", lambda: None)
    yield written


def test_loss_scale_exceptions_and_headroom_by_step(scalars: dict[Any, list[Any]], tmp_path: Path) -> None:
    report = mixlist.train(Loop(), runs=1, scaler_parameters={"init_scale": 2.0**24}, tensorboard=str(tmp_path))
    mixed = report.runs[0].mixed
    steps = list(range(len(mixed.loss)))
    assert scalars["seed 0 mixed", "loss"] == list(zip(steps, mixed.loss, strict=True))
    assert scalars["seed 0 float32", "loss"] == list(zip(steps, report.runs[0].float32.loss, strict=True))
    assert scalars["seed 0 mixed", "loss scale"] == list(zip(steps, mixed.scale, strict=True))
    assert scalars["seed 0 mixed", "exceptions"][-1] == (steps[-1], len(mixed.exceptions))
    headroom = {tag: values for (_, tag), values in scalars.items() if tag.startswith("headroom")}
    assert min(value for values in headroom.values() for _, value in values) == report.headroom[0].factor
    assert set(mixed.largest) == {step for values in headroom.values() for step, _ in values}


def test_without_tensorboard_one_sentence_comes_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_runtime, "find_spec", lambda name: None if name == "tensorboard" else name)
    with pytest.raises(UsageError, match="TensorBoard is not installed"):
        mixlist.train(lambda seed: pytest.fail("it trained"), tensorboard="runs")


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mixlist.training.run.require_tensorboard", lambda: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write for TensorBoard into"):
        mixlist.train(lambda seed: pytest.fail("it trained"), tensorboard=str(tmp_path / "file"))


def test_without_lists_python_has_those_of_autocast() -> None:
    """With every scaler, as the command."""

    def loop(seed: int, scaler: Any) -> Any:
        network, x = torch.nn.Linear(4, 1), torch.ones(8, 4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        for _ in range(5):
            loss = network(x).pow(2).mean()  # a power is float32 in autocast, and gray in the default library
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"loss": loss}

    lists = {name: mixlist.train(loop, runs=1, loss_scaler=name).notes[0] for name in ("torch", "none", "mindspore")}
    assert set(lists.values()) == {"lists: pytorch, gray policy promote"}


def test_without_float32_only_the_mixed_training_runs() -> None:
    kinds: list[str] = []
    report = mixlist.train(Loop(), runs=2, float32=False, progress=lambda progress: kinds.append(progress.detail.kind))
    assert set(kinds) == {"mixed"} and not report.runs[0].float32.loss
    assert any("float32 was not trained" in reason for reason in report.reasons)
