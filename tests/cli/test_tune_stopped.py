"""``mixlist tune``: searches that are interrupted, and searches that are killed and go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.builders import model
from tests.support.tuned import result

ROOT = Path(__file__).parents[2]
BRANCHES = {
    "Exp": "(twelve)",
    "Mul": "(big, big)",
    "Add": "(high, high)",
    "Sub": "(high, low)",
    "Pow": "(big, two)",
    "Sum": "(high, high)",
    "Reciprocal": "(tiny)",
    "Div": "(high, tenth)",
}
VALUES = {"twelve": 12, "big": 300, "high": 60000, "low": -60000, "two": 2, "tiny": 0.00001, "tenth": 0.1}


@pytest.fixture
def slow(tmp_path: Path) -> tuple[str, ...]:
    """The command line of a long search: each of eight op types overflows, behind a loop that takes time.

    A loop whose length is an input counts as one iteration, so the model is too small to be cut into pieces: no trial
    is spared the loop.
    """
    loop = "z = Loop (trips, , start) <body = b (int64 i, bool c, float[1] s) => (bool d, float[1] t) {"
    body = f"[l] {loop} d = Identity (c) t = Relu (s) }}> "
    body += " ".join(f"[o{at}] e{at} = {op} {given}" for at, (op, given) in enumerate(BRANCHES.items()))
    body += f" e = Concat <axis = 0> ({', '.join(f'e{at}' for at in range(len(BRANCHES)))}) y = Tanh (e)"
    inputs = ", ".join(f"float[1] {name}" for name in VALUES)
    made = model(f"g (int64 trips, float[1] start, {inputs}) => (float[8] y, float[1] z) {{ {body} }}")
    onnx.save(made, tmp_path / "slow.onnx")
    feed = {name: np.array([value], np.float32) for name, value in (VALUES | {"start": 1}).items()}
    np.savez(tmp_path / "slow.npz", **feed, trips=np.array(10_000))
    given = ("tune", "slow.onnx", "-o", "modify.json", "--data", "slow.npz", "--ops-info", "mindspore-o3", "--trace")
    return (*given, "--format", "json")


@contextmanager
def started(arguments: tuple[str, ...], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, as a shell would start it."""
    with subprocess.Popen(
        [sys.executable, "-m", "mixlist", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], wanted: str, skip: int = 0) -> None:
    """Reads the log up to a trial whose verdict is ``wanted``, behind the first ``skip`` lines."""
    assert process.stderr is not None
    for at, line in enumerate(process.stderr):
        if at >= skip and f" {wanted} " in line:
            return
    raise AssertionError(f"the search ended without a {wanted}")


def test_ctrl_c_writes_the_best_list_so_far(run, slow: tuple[str, ...], tmp_path: Path) -> None:
    """Rule S9.11: An interrupted search keeps its work."""
    (tmp_path / "modify.json").write_text("old")
    rules = ("--force", "--node-rules", "nodes.txt")
    with started((*slow, *rules), tmp_path) as process:
        read_until(process, "pass", skip=1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    told = result(out)
    assert (told["verdict"], told["complete"], told["minimal"], told["check"]) == ("fail", False, False, None)
    assert "interrupted: wrote modify.partial.json and nodes.partial.txt; modify.json is unchanged" in err
    assert (tmp_path / "modify.json").read_text() == "old"
    assert not (tmp_path / "nodes.txt").exists()
    partial = tmp_path / "modify.partial.json"
    assert partial.read_text() == told["modify_mixlist"]
    assert {edit["op"] for edit in told["edits"]} >= BRANCHES.keys()
    judged = ("check", tmp_path / "slow.onnx", "--data", tmp_path / "slow.npz", "--ops-info", "mindspore-o3")
    assert run(*judged, "--mixlist", partial).status == 0


def test_ctrl_c_before_any_list_holds_writes_nothing(slow: tuple[str, ...], tmp_path: Path) -> None:
    with started(slow, tmp_path) as process:
        read_until(process, "fail")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    told = result(out)
    assert (told["complete"], told["modify_mixlist"]) == (False, "")
    assert "nothing was written" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slow.npz", "slow.onnx"]


def test_a_search_that_was_killed_goes_on(slow: tuple[str, ...], tmp_path: Path) -> None:
    """SIGKILL twice in its midst; then the result is that of a search in one go, and no trial is made twice."""
    remembered = []
    for _ in range(2):
        with started((*slow, "--state", "state.jsonl"), tmp_path) as process:
            read_until(process, "fail", skip=4)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
        assert not (tmp_path / "modify.json").exists()
        remembered.append(len((tmp_path / "state.jsonl").read_text().splitlines()) - 1)
    told = {}
    for name, options in {"resumed": ("--state", "state.jsonl"), "whole": ("--force",)}.items():
        with started((*slow, *options), tmp_path) as process:
            out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        told[name] = result(out)
    one, other = told["resumed"], told["whole"]
    assert {edit["op"] for edit in one["edits"]} == BRANCHES.keys() | {"Concat", "Tanh"}  # which read what is too large
    assert one["remembered"] == remembered[1] >= remembered[0] > 0
    assert one["trials"] + one["remembered"] == other["trials"]
    changing = ("trials", "remembered", "log", "seconds", "check")
    assert {k: v for k, v in one.items() if k not in changing} == {k: v for k, v in other.items() if k not in changing}
    assert [line["edits"] for line in one["log"]] == [line["edits"] for line in other["log"]]
