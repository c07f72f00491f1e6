"""Tests of state files: a training that was killed continues with the same numbers, bit for bit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mixlist.errors import FileError, UsageError
from mixlist.progress import Progress
from mixlist.training import Settings, state_file, train
from tests.support.systems import posix_only
from tests.support.training_network import classifier, clusters, mixed, noisy, samples, squares

ROOT = Path(__file__).parents[2]
# A program that runs the command line and kills itself after as many steps as its first argument says (-1: never). Its
# state is written after each step.
SELF_KILLING_COMMAND = """
import os, signal, sys
from mixlist.cli import main
from mixlist.training import state_file
from mixlist.training.loop import Training

state_file.SAVE_INTERVAL = 0.0
steps_left, run_step = int(sys.argv[1]), Training._run_step

def run_counted_step(self):
    global steps_left
    run_step(self)
    steps_left -= 1
    if steps_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

Training._run_step = run_counted_step
sys.exit(main(sys.argv[2:]))
"""


def run_command(steps: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SELF_KILLING_COMMAND, str(steps), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str, ...]:
    onnx.save(noisy(), tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", **samples(40))
    data = ("train", tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--batch-size", "4", "--epochs", "2")
    scaling = ("--loss-scale", str(2.0**22), "--ops-info", "mindspore-o3", "--scaler-arg", "growth_interval=4")
    return *map(str, data), *scaling, "--trace-overflow", "--tune-scale", "--format", "json"


def parse_report(text: str) -> dict[str, Any]:
    """Return a JSON report without its wall times."""
    report: dict[str, Any] = json.loads(text)
    del report["seconds"]
    return report


@pytest.mark.parametrize("kill_steps", [(1,), (20, 20), (27, 3, 40, 9), (120, 135)])
def test_a_training_killed_at_any_step_continues_to_the_same_report(
    arguments: tuple[str, ...], tmp_path: Path, kill_steps: tuple[int, ...]
) -> None:
    """Kill a command of 120 steps (three seeds, two trainings of 20 steps each) before or during --tune-scale."""
    state = tmp_path / "state.npz"
    uninterrupted = run_command(-1, *arguments)
    assert uninterrupted.returncode == 1, uninterrupted.stderr
    assert parse_report(uninterrupted.stdout)["runs"][0]["mixed"]["skipped"]
    for steps in kill_steps:
        killed = run_command(steps, *arguments, "--state", state)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run_command(-1, *arguments, "--state", state)
    assert resumed.returncode == 1, resumed.stderr
    assert parse_report(resumed.stdout) == parse_report(uninterrupted.stdout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.npz", "step.onnx", "train.npz"]


def test_a_resumed_training_does_not_start_again(arguments: tuple[str, ...], tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    without_advice = [option for option in arguments if option not in ("--tune-scale", "--trace-overflow")]
    run_command(160, *without_advice, "--state", state)  # the state has 159 of the 180 steps
    assert run_command(21, *without_advice, "--state", state).returncode == -signal.SIGKILL
    assert run_command(2, *without_advice, "--state", state).returncode == 1
    assert run_command(1, *without_advice, "--state", state).returncode == 1  # no step is left


def run(state: Path, **changes: Any) -> Any:
    options: dict[str, Any] = {"batch_size": 16, "epochs": 1, "optimizer": Settings(lr=0.01), **changes}
    return train(options.pop("model", classifier()), mixed(), options.pop("data", clusters()), state=state, **options)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"model": classifier(hidden=8)}, "step graph"),
    ({"data": clusters(seed=4)}, "data"),
    ({"eval_data": clusters(seed=4)}, "data"),
    ({"optimizer": Settings(lr=0.02)}, "options"),
    ({"scaler_parameters": {"init_scale": 8.0}}, "options"),
    ({"epochs": 2}, "options"),
    ({"threads": 1}, "options"),
    ({"init": {"b1": np.ones(16)}}, "initial values"),
]


@pytest.mark.parametrize(
    ("change", "differing_part"), CHANGES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_state_of_another_training_is_refused(tmp_path: Path, change: dict[str, Any], differing_part: str) -> None:
    state = tmp_path / "state.npz"
    run(state)
    with pytest.raises(UsageError, match=f"another training: .*{differing_part}"):
        run(state, **change)


def test_more_runs_continue_from_a_state(tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    assert run(state, runs=2).verdict == "inconclusive"
    assert [seed_run.seed for seed_run in run(state, runs=3).runs] == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"{}", b"\x93NUMPY"], ids=repr)
def test_a_file_that_is_not_a_state_is_refused(tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state.npz"
    state.write_bytes(content)
    with pytest.raises(FileError, match="not the state of a training"):
        run(state)
    assert state.read_bytes() == content


@pytest.mark.parametrize("seed", range(20))
def test_a_state_that_was_changed_is_refused(tmp_path: Path, seed: int) -> None:
    """Replace values of the JSON text, or flip one bit of an array; the .npz file itself stays valid."""
    state, generator = tmp_path / "state.npz", np.random.default_rng(seed)
    run(state)
    with np.load(state) as content:
        arrays = dict(content)
    name = generator.choice(sorted(arrays))
    if name == "state.json":
        arrays[name] = np.frombuffer(re.sub(rb": [^,}]+", b': "x"', arrays[name].tobytes(), count=seed), np.uint8)
    else:
        damaged = bytearray(arrays[name].tobytes())
        damaged[0] ^= 1
        arrays[name] = np.frombuffer(bytes(damaged), arrays[name].dtype).reshape(arrays[name].shape)
    np.savez(state, allow_pickle=False, **arrays)
    with pytest.raises(FileError, match="not the state of a training"):
        run(state)


def test_another_npz_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones(3))
    with pytest.raises(FileError, match="not the state of a training"):
        run(tmp_path / "data.npz")


def test_states_keep_every_value(tmp_path: Path) -> None:
    state = {"a": {"b/c": np.arange(3), "d": np.float32(2)}, "e": [1.5, float("inf")], "f": None, "g": {"": "text"}}
    state_file.write_state(tmp_path / "s", {"key": "1"}, state)
    restored = state_file.read_state(tmp_path / "s", {"key": "1"})
    assert restored is not None
    assert (restored["a"]["b/c"] == np.arange(3)).all()
    assert restored["a"]["d"] == np.float32(2)
    assert (restored["e"], restored["f"], restored["g"]) == ([1.5, float("inf")], None, {"": "text"})
    assert state_file.read_state(tmp_path / "none", {}) is None


def test_a_training_continues_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from .test_train import Stop

    monkeypatch.setattr(state_file, "SAVE_INTERVAL", 0.0)
    state = tmp_path / "state.npz"
    assert not run(state, progress=Stop(40)).complete
    steps: list[Progress] = []
    uninterrupted = run(tmp_path / "other.npz")
    assert run(state, progress=steps.append).runs == uninterrupted.runs
    assert len(steps) == 96
    assert steps[-1].done == steps[-1].total == 135  # the steps of the interrupted command count as done


def test_a_finished_state_gives_the_same_runs(tmp_path: Path) -> None:
    report = run(tmp_path / "state.npz", model=squares(), data=samples())
    assert run(tmp_path / "state.npz", model=squares(), data=samples()).runs == report.runs


@posix_only
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Refuse a pipe, since reading it would wait for a writer forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe"):
        run(tmp_path / "pipe")
