"""A training that was killed goes on to the same numbers, bit for bit."""

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
from mixlist.training import Settings, checkpoint, train
from tests.support.systems import posix_only
from tests.support.training_network import classifier, clusters, mixed, noisy, squares

from .test_reference import samples

ROOT = Path(__file__).parents[2]
# The command line in a process that kills itself after so many steps; -1: never. Its state is written after each step.
KILLED = """
import os, signal, sys
from mixlist.cli import main
from mixlist.training import checkpoint
from mixlist.training.loop import Training

checkpoint.SAVE_INTERVAL = 0.0
left, one = int(sys.argv[1]), Training._run_step

def counted(self):
    global left
    one(self)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

Training._run_step = counted
sys.exit(main(sys.argv[2:]))
"""


def started(steps: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, str(steps), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    onnx.save(noisy(), tmp_path / "step.onnx")
    np.savez(tmp_path / "train.npz", **samples(40))
    given = ("train", tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--batch-size", "4", "--epochs", "2")
    scaled = ("--loss-scale", str(2.0**22), "--ops-info", "mindspore-o3", "--scaler-arg", "growth_interval=4")
    return *map(str, given), *scaled, "--trace-overflow", "--tune-scale", "--format", "json"


def told(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    del found["seconds"]
    return found


@pytest.mark.parametrize("moments", [(1,), (20, 20), (27, 3, 40, 9), (120, 135)])
def test_killed_at_any_moment(files: tuple[str, ...], tmp_path: Path, moments: tuple[int, ...]) -> None:
    """Twenty steps each, three seeds, twice: 120 steps; behind them those of --tune-scale."""
    state = tmp_path / "state.npz"
    whole = started(-1, *files)
    assert whole.returncode == 1, whole.stderr
    assert told(whole.stdout)["runs"][0]["mixed"]["skipped"]
    for steps in moments:
        dead = started(steps, *files, "--state", state)
        assert dead.returncode == -signal.SIGKILL, dead.stderr
    resumed = started(-1, *files, "--state", state)
    assert resumed.returncode == 1, resumed.stderr
    assert told(resumed.stdout) == told(whole.stdout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.npz", "step.onnx", "train.npz"]


def test_a_resumed_training_does_not_begin_again(files: tuple[str, ...], tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    plain = [option for option in files if option not in ("--tune-scale", "--trace-overflow")]
    started(100, *plain, "--state", state)
    assert started(21, *plain, "--state", state).returncode == -signal.SIGKILL  # 99 of 120 were kept
    assert started(2, *plain, "--state", state).returncode == 1
    assert started(1, *plain, "--state", state).returncode == 1  # nothing is left


def run(state: Path, **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 16, "epochs": 1, "optimizer": Settings(lr=0.01), **options}
    return train(given.pop("model", classifier()), mixed(), given.pop("data", clusters()), state=state, **given)


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


@pytest.mark.parametrize(("change", "what"), CHANGES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_state_of_another_training_is_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    state = tmp_path / "state.npz"
    run(state)
    with pytest.raises(UsageError, match=f"another training: .*{what}"):
        run(state, **change)


def test_more_runs_go_on_from_a_state(tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    assert run(state, runs=2).verdict == "fail"
    assert [r.seed for r in run(state, runs=3).runs] == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"{}", b"\x93NUMPY"], ids=repr)
def test_a_file_that_is_no_state(tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state.npz"
    state.write_bytes(content)
    with pytest.raises(FileError, match="not the state of a training"):
        run(state)
    assert state.read_bytes() == content


@pytest.mark.parametrize("seed", range(20))
def test_a_state_that_was_changed_is_refused(tmp_path: Path, seed: int) -> None:
    """A text is put in place of any value of the JSON, or one byte of an array is flipped; the file is whole."""
    state, random = tmp_path / "state.npz", np.random.default_rng(seed)
    run(state)
    with np.load(state) as content:
        arrays = dict(content)
    name = random.choice(sorted(arrays))
    if name == "state.json":
        arrays[name] = np.frombuffer(re.sub(rb": [^,}]+", b': "x"', arrays[name].tobytes(), count=seed), np.uint8)
    else:
        damaged = bytearray(arrays[name].tobytes())
        damaged[0] ^= 1
        arrays[name] = np.frombuffer(bytes(damaged), arrays[name].dtype).reshape(arrays[name].shape)
    np.savez(state, allow_pickle=False, **arrays)
    with pytest.raises(FileError, match="not the state of a training"):
        run(state)


def test_other_npz_files_are_no_state(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones(3))
    with pytest.raises(FileError, match="not the state of a training"):
        run(tmp_path / "data.npz")


def test_states_keep_every_value(tmp_path: Path) -> None:
    state = {"a": {"b/c": np.arange(3), "d": np.float32(2)}, "e": [1.5, float("inf")], "f": None, "g": {"": "text"}}
    checkpoint.write_state(tmp_path / "s", {"key": "1"}, state)
    found = checkpoint.read_state(tmp_path / "s", {"key": "1"})
    assert found is not None
    assert (found["a"]["b/c"] == np.arange(3)).all()
    assert found["a"]["d"] == np.float32(2)
    assert (found["e"], found["f"], found["g"]) == ([1.5, float("inf")], None, {"": "text"})
    assert checkpoint.read_state(tmp_path / "none", {}) is None


def test_ctrl_c_leaves_a_state_to_go_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from .test_train import Stop

    monkeypatch.setattr(checkpoint, "SAVE_INTERVAL", 0.0)
    state = tmp_path / "state.npz"
    assert not run(state, progress=Stop(40)).complete
    steps: list[Progress] = []
    whole = run(tmp_path / "other.npz")
    assert run(state, progress=steps.append).runs == whole.runs
    assert len(steps) < 60
    assert steps[-1].done == steps[-1].total == 90  # with those of the first run


def test_squares_too(tmp_path: Path) -> None:
    found = run(tmp_path / "state.npz", model=squares(), data=samples())
    assert run(tmp_path / "state.npz", model=squares(), data=samples()).runs == found.runs


@posix_only
def test_a_pipe_is_no_state(tmp_path: Path) -> None:
    """A pipe would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe"):
        run(tmp_path / "pipe")
