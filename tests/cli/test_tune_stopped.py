"""``mixlist tune``: searches that are interrupted, and searches that are killed and continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from mixlist.cli import tune
from tests.support.builders import model
from tests.support.tune_reports import TUNED
from tests.support.tune_result import parse_tune_result

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
def long_search(tmp_path: Path) -> tuple[str, ...]:
    """Return the command line of a long search: each of eight op types overflows, behind a loop that takes time.

    A loop whose length is an input counts as one iteration, so the model is too small to be cut into pieces: no trial
    is spared the loop.
    """
    loop = "z = Loop (trips, , start) <body = b (int64 i, bool c, float[1] s) => (bool d, float[1] t) {"
    body = f"[l] {loop} d = Identity (c) t = Relu (s) }}> "
    body += " ".join(f"[o{at}] e{at} = {op} {operands}" for at, (op, operands) in enumerate(BRANCHES.items()))
    body += f" e = Concat <axis = 0> ({', '.join(f'e{at}' for at in range(len(BRANCHES)))}) y = Tanh (e)"
    inputs = ", ".join(f"float[1] {name}" for name in VALUES)
    proto = model(f"g (int64 trips, float[1] start, {inputs}) => (float[8] y, float[1] z) {{ {body} }}")
    onnx.save(proto, tmp_path / "slow.onnx")
    save_feed(tmp_path, 10_000)
    arguments = (
        "tune",
        "slow.onnx",
        "-o",
        "modify.json",
        "--data",
        "slow.npz",
        "--ops-info",
        "mindspore-o3",
        "--trace",
    )
    return (*arguments, "--format", "json")


def save_feed(folder: Path, trips: int) -> None:
    """Write the batch of the search; each trial takes time for so many iterations."""
    feed = {name: np.array([value], np.float32) for name, value in (VALUES | {"start": 1}).items()}
    np.savez(folder / "slow.npz", **feed, trips=np.array(trips))


@contextmanager
def start_command(arguments: tuple[str, ...], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the command in a process group of its own, as a shell does; kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "mixlist", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A background job of a shell starts with this signal ignored, and so do its processes.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], verdict: str, skip: int = 0) -> None:
    """Read the log up to a trial whose verdict is ``wanted``, behind the first ``skip`` lines."""
    assert process.stderr is not None
    for at, line in enumerate(process.stderr):
        if at >= skip and f" {verdict} " in line:
            return
    raise AssertionError(f"the search ended without a {verdict}")


@pytest.mark.parametrize("exists", [True, False])
def test_only_a_file_that_exists_is_called_unchanged(exists: bool, tmp_path: Path) -> None:
    lists = tmp_path / "modify.json"
    if exists:
        lists.write_text("old")
    text = tune._save(replace(TUNED, complete=False), str(lists), force=False)
    partial = f"interrupted: wrote {tmp_path / 'modify.partial.json'}"
    assert text == partial + (f"; {lists} is unchanged" if exists else "")


def test_ctrl_c_writes_the_best_list_so_far(run, long_search: tuple[str, ...], tmp_path: Path) -> None:
    """An interrupted search keeps its work."""
    (tmp_path / "modify.json").write_text("old")
    with start_command((*long_search, "--force"), tmp_path) as process:
        read_until(process, "pass", skip=1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    report = parse_tune_result(out)
    assert (report["verdict"], report["complete"], report["minimal"], report["check"]) == ("fail", False, False, None)
    assert "interrupted: wrote modify.partial.json; modify.json is unchanged" in err
    assert (tmp_path / "modify.json").read_text() == "old"
    partial = tmp_path / "modify.partial.json"
    assert partial.read_text() == report["modify_mixlist"]
    assert {edit["op"] for edit in report["edits"]} >= BRANCHES.keys()
    check_arguments = ("check", tmp_path / "slow.onnx", "--data", tmp_path / "slow.npz", "--ops-info", "mindspore-o3")
    assert "because nothing is low" in run(*check_arguments, "--mixlist", partial).out


def test_ctrl_c_before_any_list_passes_writes_nothing(long_search: tuple[str, ...], tmp_path: Path) -> None:
    with start_command(long_search, tmp_path) as process:
        read_until(process, "fail")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    report = parse_tune_result(out)
    assert (report["complete"], report["modify_mixlist"]) == (False, "")
    assert "nothing was written" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slow.npz", "slow.onnx"]


def test_a_killed_search_continues_from_its_state(long_search: tuple[str, ...], tmp_path: Path) -> None:
    """A search that is killed twice has the result of an uninterrupted search, and repeats no trial."""
    save_feed(tmp_path, 2_000)  # the search runs to its end, twice
    trials_in_state = []
    for _ in range(2):
        with start_command((*long_search, "--state", "state.jsonl"), tmp_path) as process:
            read_until(process, "fail", skip=4)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
        assert not (tmp_path / "modify.json").exists()
        trials_in_state.append(len((tmp_path / "state.jsonl").read_text().splitlines()) - 1)
    reports = {}
    for name, options in {"resumed": ("--state", "state.jsonl"), "uninterrupted": ("--force",)}.items():
        with start_command((*long_search, *options), tmp_path) as process:
            out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        reports[name] = parse_tune_result(out)
    resumed, uninterrupted = reports["resumed"], reports["uninterrupted"]
    assert {edit["op"] for edit in resumed["edits"]} == BRANCHES.keys() | {
        "Concat",
        "Tanh",
    }  # they read values that are too large
    assert resumed["remembered"] == trials_in_state[1] >= trials_in_state[0] > 0
    assert resumed["trials"] + resumed["remembered"] == uninterrupted["trials"]
    changing = ("trials", "remembered", "log", "seconds", "check")
    assert {k: v for k, v in resumed.items() if k not in changing} == {
        k: v for k, v in uninterrupted.items() if k not in changing
    }
    assert [line["edits"] for line in resumed["log"]] == [line["edits"] for line in uninterrupted["log"]]
