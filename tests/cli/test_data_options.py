"""The data options, on a command that only tells what it got."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from mixlist.cli import command_group
from mixlist.cli.data_options import DataOptions, make_batches, pop_data_options
from mixlist.cli.declared_options import build_options, declared_options
from mixlist.cli.options import POLICY_OPTIONS
from mixlist.cli.parameters import CONFIG
from mixlist.targets.providers import ProviderOption
from tests.cli.conftest import Ran
from tests.support.builders import model

Run = Callable[..., Ran]
TEXT = "g (float[N, K] x, int64[N] a=b) => (float[N, K] y) { y = Neg (x) }"


def proto() -> Any:
    made = model(TEXT.replace("a=b", "ids"))
    made.graph.input[1].name = "a=b"  # names hold anything
    return made


@click.command("check", params=[*POLICY_OPTIONS, *declared_options(DataOptions, ProviderOption), CONFIG])
def told(**option_values: object) -> None:
    """Prints the names and shapes of the batches."""
    data = pop_data_options(option_values)
    build_options(ProviderOption(), option_values)
    assert set(option_values) == POLICY
    batches = make_batches(data, proto())
    for name, feed in zip(batches.names(), batches, strict=True):
        shapes = ", ".join(f"{key} {list(array.shape)}" for key, array in feed.items())
        sys.stdout.write(f"{Path(name).name}: {shapes}; {feed['a=b'].min()}..{feed['a=b'].max()}\n")
    sys.stdout.write("".join(f"{warning.without_severity}\n" for warning in batches.warnings))


POLICY = {
    "ops_info", "mixlist", "precision_mode", "precision_mode_v2", "keep_dtype", "customize_dtypes", "op_names",
    "gray_policy", "constants", "protect",
}  # fmt: skip


@pytest.fixture
def call(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``mixlist check`` is the command above."""
    monkeypatch.setattr(command_group._LazyGroup, "get_command", lambda *_: told)
    return lambda *args: run("check", *args)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "batch.npz"
    np.savez(path, **{"x": np.ones((2, 3)), "a=b": np.array([7, 8])})
    return path


def test_files(call: Run, npz: Path) -> None:
    ran = call("--data", npz, "--data", npz.parent)
    assert ran.status == 0
    assert ran.out == "batch.npz: x [2, 3], a=b [2]; 7..8\n" * 2


def test_random_data(call: Run) -> None:
    ran = call("--random", 2, "--seed", 3, "--dim", "K=4", "--dim", "a=b.0=5", "--range", "a=b=3:3")
    assert ran.out.splitlines() == [
        "random 0: x [1, 4], a=b [5]; 3..3",
        "random 1: x [1, 4], a=b [5]; 3..3",
        "ML601: size N is not given: 1 is used (set it with --dim N=N)",
    ]


def test_a_pattern_of_sizes_and_the_range_of_integers(call: Run) -> None:
    ran = call("--random", 1, "--dim", "*=3", "--dim", "K=2")
    assert ran.out.splitlines() == [
        "random 0: x [3, 2], a=b [3]; 0..1",
        "ML601: input 'a=b': integers 0 or 1, because the graph shows no range (set another range with --range)",
    ]


def test_no_data_at_all(call: Run) -> None:
    ran = call()
    assert ran.status == 2
    assert "error: there is no data to run the model on" in ran.err
    assert "hint: give data with --data batches/" in ran.err
    assert "--random 4" in ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--random", 1, "--data", "x.npz"], "--data and --random are two sources of data"),
        (["--data", "BATCH", "--dim", "K=1"], "--dim is for --random, and the data comes from --data"),
        (["--data", "BATCH", "--seed", "1"], "--seed is for --random"),
        (["--data", "BATCH", "--range", "x=1:2"], "--range is for --random"),
        (["--random", 0], "0 is not in the range x>=1"),
        (["--random", 1, "--seed", -1], "-1 is not in the range x>=0"),
        (["--random", 1, "--dim", "K"], "--dim K: this is not NAME=SIZE"),
        (["--random", 1, "--dim", "=4"], "--dim =4: this is not NAME=SIZE"),
        (["--random", 1, "--dim", "K=-4"], "'-4' is not a size"),
        (["--random", 1, "--dim", "K=4.0"], "'4.0' is not a size"),
        (["--random", 1, "--dim", "K=" + "9" * 5000], "is not a size"),
        (["--random", 1, "--dim", "K=²"], "is not a size"),
        (["--random", 1, "--dim", "k=4"], "did you mean K?"),
        (["--random", 1, "--dim", "k*=4"], "the open sizes are N, K"),
        (["--random", 1, "--range", "x=4"], "'4' is not LOW:HIGH in finite numbers"),
        (["--random", 1, "--range", "x=0:inf"], "'0:inf' is not LOW:HIGH in finite numbers"),
        (["--random", 1, "--range", "x=nan:1"], "is not LOW:HIGH in finite numbers"),
        (["--random", 1, "--range", "x=0:1" + "0" * 400], "is not LOW:HIGH in finite numbers"),
        (["--random", 1, "--range", "x=2:1"], "2 is more than 1"),
        (["--data", "none.npz"], "none.npz: there is no such file or directory"),
        (["--provider", "tpu"], "'tpu' is not one of 'cpu', 'cuda'"),
    ],
)
def test_wrong_options(call: Run, npz: Path, arguments: list[object], says: str) -> None:
    ran = call(*[npz if argument == "BATCH" else argument for argument in arguments])
    assert ran.status == 2
    assert says in ran.err
    assert ran.out == ""


def test_data_that_does_not_fit_shows_both_sides(call: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    ran = call("--data", tmp_path / "a.npz")
    assert ran.status == 2
    assert "no data for input 'a=b'" in ran.err
    for line in ("the model expects", "x: float32[N, K]", "a=b: int64[N]", "the data contains", "x: float64[3]"):
        assert line in ran.err


def test_a_configuration_and_the_command_line_above_it(call: Run, npz: Path) -> None:
    config = npz.parent / "mixlist.toml"
    config.write_text('[check]\ndata = ["batch.npz"]\n')
    ran = call("--config", config)  # the path is relative to the file
    assert ran.out == "batch.npz: x [2, 3], a=b [2]; 7..8\n"
    ran = call("--config", config, "--random", 1, "--dim", "K=2")
    assert ran.out.startswith("random 0: x [1, 2], a=b [1]")
    config.write_text('[check]\nrandom = 1\nseed = 4\ndim = ["K=2"]\nrange = ["x=0:1"]\n')
    assert call("--config", config).out.startswith("random 0: x [1, 2], a=b [1]")
    assert call("--config", config, "--data", npz).out == "batch.npz: x [2, 3], a=b [2]; 7..8\n"
    config.write_text('[check]\nrandom = 1\ndata = "batch.npz"\n')
    assert "two sources of data" in call("--config", config).err
    config.write_text('[check]\nrandom = "many"\n')
    assert "random takes a whole number" in call("--config", config).err
