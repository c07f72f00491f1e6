"""The data options, on a command that only prints the batches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from mixlist.cli import command_group
from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import DataOptions, batches_of_options, pop_data_options
from mixlist.cli.options import POLICY_OPTIONS, build_options, declared_options
from mixlist.targets.providers import ProviderOption
from tests.cli.conftest import CompletedCommand
from tests.support.builders import model

Run = Callable[..., CompletedCommand]
TEXT = "g (float[N, K] x, int64[N] a=b) => (float[N, K] y) { y = Neg (x) }"


def model_with_equals_sign() -> Any:
    proto = model(TEXT.replace("a=b", "ids"))
    proto.graph.input[1].name = "a=b"  # names hold anything
    return proto


@click.command(
    "check", cls=FileCheckingCommand, params=[*POLICY_OPTIONS, *declared_options(DataOptions, ProviderOption), CONFIG]
)
def print_batches(**option_values: object) -> None:
    """Print the names and shapes of the batches."""
    data = pop_data_options(option_values)
    build_options(ProviderOption(), option_values)
    assert set(option_values) == POLICY
    batches = batches_of_options(data, model_with_equals_sign())
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
    """Return a function that runs ``print_batches`` as ``mixlist check``."""
    monkeypatch.setattr(command_group._LazyGroup, "get_command", lambda *_: print_batches)
    return lambda *args: run("check", *args)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "batch.npz"
    np.savez(path, **{"x": np.ones((2, 3)), "a=b": np.array([7, 8])})
    return path


def test_data_names_files_and_folders(call: Run, npz: Path) -> None:
    completed = call("--data", npz, "--data", npz.parent)
    assert completed.status == 0
    assert completed.out == "batch.npz: x [2, 3], a=b [2]; 7..8\n" * 2


def test_random_data_has_the_sizes_and_ranges_of_the_options(call: Run) -> None:
    completed = call("--random", 2, "--seed", 3, "--dim", "K=4", "--dim", "a=b.0=5", "--range", "a=b=3:3")
    assert completed.out.splitlines() == [
        "random 0: x [1, 4], a=b [5]; 3..3",
        "random 1: x [1, 4], a=b [5]; 3..3",
        "ML601: size N is not given: 1 is used (set it with --dim N=N)",
    ]


def test_a_pattern_sets_all_open_sizes(call: Run) -> None:
    completed = call("--random", 1, "--dim", "*=3", "--dim", "K=2")
    assert completed.out.splitlines() == [
        "random 0: x [3, 2], a=b [3]; 0..1",
        "ML601: input 'a=b': integers 0 or 1, because the graph shows no range (set another range with --range)",
    ]


@pytest.mark.parametrize(
    "command",
    [
        "check {}",
        "bench {}",
        "tune {} -o m.json",
        "repair {} -o m.onnx",
        "convert {} -o m.onnx",
        "diff onnx onnx --model {}",
    ],
)
def test_two_sources_of_data_are_refused_before_the_model_is_read(run: Run, command: str, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no model")
    completed = run(*command.format(damaged).split(), "--random", 1, "--data", tmp_path)
    assert completed.status == 2
    assert "--data and --random are two sources of data" in completed.err


def test_missing_data_is_an_error(call: Run) -> None:
    completed = call()
    assert completed.status == 2
    assert "error: there is no data to run the model on" in completed.err
    assert "hint: give data with --data batches/" in completed.err
    assert "--random 4" in completed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--random", 1, "--data", "x.npz"], "--data and --random are two sources of data"),
        (["--loader", "l.py:f", "--data", "x.npz"], "--data and --loader are two sources of data"),
        (["--loader", "l.py:f", "--random", 1], "--loader and --random are two sources of data"),
        (["--loader", "l.py:f", "--seed", 1], "--seed is for --random, and the data comes from --loader"),
        (["--loader", "l.py:f", "--scale", 1], "--scale is for images, and the data comes from --loader"),
        (["--loader", "l.py"], "the loader l.py: this is not FILE.py:FUNCTION or MODULE:FUNCTION"),
        (["--loader", "none.py:f"], "none.py: there is no such file"),
        (["--data", "BATCH", "--dim", "K=1"], "--dim is for --random and images, and the data has no images"),
        (["--data", "BATCH", "--bgr"], "--bgr is for images, and the data has no images"),
        (["--data", "BATCH", "--shape", "x=2,3"], "--shape is for .bin files, and the data has none"),
        (["--data", "BATCH", "--shape", "x=2,-3"], "--shape x=2,-3: this is not INPUT=SIZE,SIZE"),
        (["--data", "BATCH", "--shape", "y=2"], "--shape: the model has no input 'y'"),
        (["--data", "BATCH", "--mean", "1,x"], "--mean 1,x: not all of these are finite numbers"),
        (["--data", "BATCH", "--scale", "1/0"], "--scale 1/0: not all of these are finite numbers"),
        (["--data", "BATCH", "--scale", "1e999"], "--scale 1e999: not all of these are finite numbers"),
        (["--data", "BATCH", "--resize", "zoom"], "'zoom' is not one of 'stretch', 'crop', 'pad'"),
        (["--random", 1, "--mean", "1"], "--mean is for images, and the data is random"),
        (["--data", "BATCH", "--seed", "1"], "--seed is for --random"),
        (["--data", "BATCH", "--range", "x=1:2"], "--range is for --random"),
        (["--random", 0], "0 is not in the range x>=1"),
        (["--random", 1, "--seed", -1], "-1 is not in the range x>=0"),
        (["--random", 1, "--dim", "K"], "--dim K: this is not NAME=SIZE"),
        (["--random", 1, "--dim", "=4"], "--dim =4: this is not NAME=SIZE"),
        (["--random", 1, "--dim", "K=-4"], "--dim K=-4: this is not NAME=SIZE"),
        (["--random", 1, "--dim", "K=4.0"], "--dim K=4.0: this is not NAME=SIZE"),
        (["--random", 1, "--dim", "K=" + "9" * 5000], "this is not NAME=SIZE"),
        (["--random", 1, "--dim", "K=²"], "this is not NAME=SIZE"),
        (["--random", 1, "--dim", "k=4"], "did you mean K?"),
        (["--random", 1, "--dim", "k*=4"], "the open sizes are N, K"),
        (["--random", 1, "--range", "x=4"], "--range x=4: this is not INPUT=LOW:HIGH"),
        (["--random", 1, "--range", "x=0:inf"], "--range x=0:inf: this is not INPUT=LOW:HIGH, from a finite number"),
        (["--random", 1, "--range", "x=nan:1"], "this is not INPUT=LOW:HIGH"),
        (["--random", 1, "--range", "x=0:1" + "0" * 400], "this is not INPUT=LOW:HIGH"),
        (["--random", 1, "--range", "x=0:1/0"], "--range x=0:1/0: this is not INPUT=LOW:HIGH"),
        (
            ["--random", 1, "--range", "x=2:1"],
            "--range x=2:1: this is not INPUT=LOW:HIGH, from a finite number to one that is not less",
        ),
        (["--data", "none.npz"], "none.npz: there is no such file or directory"),
        (["--provider", "tpu"], "'tpu' is not one of 'cpu', 'cuda'"),
    ],
)
def test_invalid_data_options_are_refused(call: Run, npz: Path, arguments: list[object], message: str) -> None:
    completed = call(*[npz if argument == "BATCH" else argument for argument in arguments])
    assert completed.status == 2
    assert message in completed.err
    assert completed.out == ""


def test_unfit_data_shows_the_inputs_of_the_model_and_of_the_data(call: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    completed = call("--data", tmp_path / "a.npz")
    assert completed.status == 2
    assert "no data for input 'a=b'" in completed.err
    for line in ("the model expects", "x: float32[N, K]", "a=b: int64[N]", "the data contains", "x: float64[3]"):
        assert line in completed.err


def test_the_command_line_replaces_data_of_a_configuration(call: Run, npz: Path) -> None:
    config = npz.parent / "mixlist.toml"
    config.write_text('[check]\ndata = ["batch.npz"]\n')
    completed = call("--config", config)  # the path is relative to the file
    assert completed.out == "batch.npz: x [2, 3], a=b [2]; 7..8\n"
    completed = call("--config", config, "--random", 1, "--dim", "K=2")
    assert completed.out.startswith("random 0: x [1, 2], a=b [1]")
    config.write_text('[check]\nrandom = 1\nseed = 4\ndim = ["K=2"]\nrange = ["x=0:1"]\n')
    assert call("--config", config).out.startswith("random 0: x [1, 2], a=b [1]")
    assert call("--config", config, "--data", npz).out == "batch.npz: x [2, 3], a=b [2]; 7..8\n"
    config.write_text('[check]\nrandom = 1\ndata = "batch.npz"\n')
    assert "two sources of data" in call("--config", config).err
    config.write_text('[check]\nrandom = "many"\n')
    assert "random takes a whole number" in call("--config", config).err


def test_raw_files_have_the_shape_of_the_option(call: Run, tmp_path: Path) -> None:
    (tmp_path / "batch").mkdir()
    np.ones(6, np.float32).tofile(tmp_path / "batch" / "x.bin")
    np.array([7, 8]).tofile(tmp_path / "batch" / "a=b.bin")
    completed = call("--data", tmp_path / "batch", "--shape", "x=2,3", "--shape", "a=b=2")
    assert completed.out == "batch: x [2, 3], a=b [2]; 7..8\n"
    completed = call("--data", tmp_path / "batch", "--shape", "x=2,4", "--shape", "a=b=2")
    assert "x.bin has 24 bytes, but input x: float32[2, 4] takes 32" in completed.err


def test_a_loader_yields_the_batches(call: Run, tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text(
        "import numpy as np\n\n\ndef batches():\n    print('reading')\n"
        "    yield {'x': np.ones((1, 2)), 'a=b': np.array([3])}\n"
        "    yield {'x': np.ones((2, 2)), 'a=b': np.array([4, 5])}\n"
    )
    expected = "batch 0: x [1, 2], a=b [1]; 3..3\nbatch 1: x [2, 2], a=b [2]; 4..5\n"
    completed = call("--loader", f"{tmp_path / 'loader.py'}:batches")
    assert (completed.out, completed.err) == (expected, "reading\n")
    assert "error: there is no module no_such_module" in call("--loader", "no_such_module:batches").err
    # The command line wins over other data of a configuration.
    config = tmp_path / "mixlist.toml"
    config.write_text("[check]\nrandom = 3\n")
    assert call("--config", config, "--loader", f"{tmp_path / 'loader.py'}:batches").out == expected
    assert call("--config", config, "--dim", "K=2").out.startswith("random 0: x [1, 2]")


def test_a_loader_without_end_is_asked_for_no_more_batches_than_the_command_uses(tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text(
        "import numpy as np\n\n\ndef batches():\n    for count in range(100):\n        assert count < 20\n"
        "        yield {'x': np.ones((4, 2), np.float32)}\n"
    )
    options = DataOptions(loader=f"{tmp_path / 'loader.py'}:batches")
    assert (
        len(batches_of_options(options, model("g (float[N, K] x) => (float[N, K] y) { y = Neg (x) }"), limit=20)) == 20
    )


def test_an_error_of_a_loader_shows_a_traceback_only_if_asked(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = tmp_path / "loader.py"
    loader.write_text("def batches():\n    raise KeyError('x')\n")
    completed = call("--loader", f"{loader}:batches")
    assert completed.status == 2
    assert completed.err.startswith(f"mixlist: error: {loader}:2: the loader {loader}:batches raised KeyError: 'x'\n")
    assert "Traceback" not in completed.err
    monkeypatch.setenv("MIXLIST_DEBUG", "1")
    completed = call("--loader", f"{loader}:batches")
    assert "Traceback" in completed.err and 'loader.py", line 2, in batches' in completed.err


def test_the_bar_of_a_loader_has_no_total(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loader may end before the most batches that the command reads."""
    from contextlib import nullcontext

    from mixlist.cli import data_options
    from mixlist.progress import Progress

    steps: list[Progress] = []
    monkeypatch.setattr("mixlist.show.progress_bar.bar", lambda *_: nullcontext(steps.append))
    (tmp_path / "loader.py").write_text("def load():\n    yield {'x': 1}\n    yield {'x': 2}\n")
    options = data_options.DataOptions(loader=f"{tmp_path / 'loader.py'}:load")
    text = "g (float x) => (float y) { y = Exp(x) }"
    batches = data_options.batches_of_options(options, model(text), 100)
    assert len(list(batches)) == 2
    assert [(step.done, step.total) for step in steps] == [(1, None), (2, None)]
