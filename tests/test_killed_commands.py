"""Commands that are killed: each file has its old or its new content, and the next run gives the usual result.

``MIXLIST_KILLS`` is the number of kills of each command at random moments. From 100 kills on, the weights have 200 MB
and the list files 20,000 names.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from mixlist.model.save import referenced_data_files
from tests.support.builders import model
from tests.support.external_models import write_external
from tests.support.killed_runs import KillCampaign, KilledCommand
from tests.support.systems import posix_only

pytestmark = posix_only  # the server of commands forks
KILLS = int(os.environ.get("MIXLIST_KILLS", "1"))
_SIZE = 7071 if KILLS >= 100 else 128  # the rows and columns of a weight: 200 MB, or 64 KB
_NAMES = 20_000 if KILLS >= 100 else 500  # in each list file


def _apply(work: Path) -> KilledCommand:
    """Replace a model and its data file by one with other weights."""
    from mixlist.cli import main

    for seed in (0, 1):
        write_external(work / f"in{seed}.onnx", seed, _SIZE)
    (work / "old").mkdir()
    assert main(["apply", str(work / "in0.onnx"), "-o", str(work / "old" / "o.onnx")]) == 0

    def prepare(folder: Path) -> None:
        shutil.copytree(work / "old", folder, copy_function=os.link, dirs_exist_ok=True)

    def check_killed(folder: Path) -> str:
        data_files = referenced_data_files(folder / "o.onnx")
        return (
            "" if data_files and all((folder / name).is_file() for name in data_files) else f"o.onnx names {data_files}"
        )

    return KilledCommand("apply", ["apply", work / "in1.onnx", "-o", "o.onnx", "--force"], prepare, check_killed)


def _fmt(work: Path) -> KilledCommand:
    """Format three large list files."""

    def prepare(folder: Path) -> None:
        for number in range(3):
            ops = [f"Op{number}_{k}" for k in range(_NAMES)]
            (folder / f"list{number}.json").write_text(json.dumps({"white-list": {"to-add": ops}}))

    return KilledCommand("fmt", ["fmt", *(f"list{number}.json" for number in range(3))], prepare)


def _tune(work: Path) -> KilledCommand:
    """Search a list, and save the state of the search."""
    text = """g (float[1,8] x) => (float[1,8] y) <float[1] k = {0.001}, float[1] one = {1}> {
      [a] a = Mul(x, x) [b] b = Div(a, k) [c] c = Mul(b, k) [d] d = Mul(c, k) [e] e = Add(d, one) [f] f = Neg(e)
      [g] y = Tanh(f) }"""

    def prepare(folder: Path) -> None:
        onnx.save(model(text), folder / "m.onnx")
        np.savez(folder / "m.npz", x=np.full((1, 8), 300.0, np.float32))

    args = ["tune", "m.onnx", "-o", "list.json", "--data", "m.npz", "--ops-info", "mindspore-o3", "--force"]
    return KilledCommand("tune", [*args, "--state", "state.jsonl"], prepare, ignored=("state.jsonl",))


def _check(work: Path) -> KilledCommand:
    """Check a model whose weights are in temporary files during the run."""
    size = 1500 if KILLS >= 100 else 128
    write_external(work / "in.onnx", 0, size)
    np.savez(work / "x.npz", x=np.ones((2, size), np.float32))
    args = ["check", work / "in.onnx", "--data", work / "x.npz", "--html", "page.html"]
    return KilledCommand(
        "check", args, lambda folder: None, ignored=("page.html",)
    )  # the page contains the seconds of the run


COMMANDS: dict[str, Callable[[Path], KilledCommand]] = {
    "apply": _apply,
    "fmt": _fmt,
    "tune": _tune,
    "check": _check,
}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_loses_nothing(tmp_path: Path, name: str) -> None:
    """Rules S7.14 and S7.16."""
    counts = KillCampaign(COMMANDS[name](tmp_path), tmp_path / "killed").kill_at_random_moments(KILLS)
    print(counts)
    assert counts.wrong == []


@pytest.mark.parametrize("name", ["apply", "fmt"])
def test_a_kill_at_any_file_operation_loses_nothing(tmp_path: Path, name: str) -> None:
    """Rules S7.14 and S7.16."""
    counts = KillCampaign(COMMANDS[name](tmp_path), tmp_path / "killed").kill_at_each_operation()
    print(counts)
    assert counts.wrong == []
