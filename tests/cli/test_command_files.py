"""Outputs that are inputs, other outputs or exist already, and places that cannot be written, are refused first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mixlist.cli import demo
from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.command_index import COMMANDS, load_command
from mixlist.cli.config_file import CONFIG
from mixlist.cli.parameters import PathType
from tests.support.package import data_folder
from tests.support.systems import needs_proc, posix_only

DEMO_FILES = [path.name for path in data_folder("demo_data").iterdir() if path.suffix != ".md"]


def test_every_command_declares_its_files() -> None:
    """A parameter that names a file has a PathType, and the command is one that compares files."""
    for command in map(load_command, COMMANDS):
        assert isinstance(command, FileCheckingCommand), command.name
        for parameter in command.params:
            names_file = parameter.metavar in (
                *("FILE", "PATH", "DIR", "PATH...", "PATH|PRESET", "OUT", "ORIGINAL", "MIXED"),
                *("FILE.py:NAME", "FILE.py:FUNCTION"),
            )
            is_path = isinstance(parameter.type, click.Path | click.File)
            assert isinstance(parameter.type, PathType) is (names_file or is_path), (command.name, parameter.name)


# --- the files of each command ---


def _write_model_with_external_data(path: Path, weights: str) -> None:
    """Write a model with its weights in another file."""
    tensor = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, 1, ["N", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, save_as_external_data=True, location=weights, size_threshold=0)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write one file for each option that names a file to read; return the folder."""
    _write_model_with_external_data(tmp_path / "model.onnx", "model.bin")
    _write_model_with_external_data(tmp_path / "other.onnx", "other.bin")
    texts = {
        "lists.json": "{}",
        "library.json": '{"MatMul": {"precision_reduce": {"flag": "true"}}}',
        "library/a.json": '{"MatMul": {"precision_reduce": {"flag": "true"}}}',
        "report.json": "{}",
        "other.json": "{}",
        "keep.txt": "",
        "customize.txt": "",
        "hints.json": "{}",
        "config.toml": "",
        "loader.py": "def batches():\n    yield {}\n",
        "train.py": "def run(seed, scaler): ...\n",
        **dict.fromkeys(("named/x.npy", "named/w.bin", "folders/0/x.npy", "photos/0.png"), ""),
    }
    for name in ("library", "batches", "sets/set_0", "named", "folders/0", "photos"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for name in ("batch.npz", "batches/0.npz", "more.npz"):
        np.savez(tmp_path / name, x=np.ones((1, 4), np.float32))
    value = numpy_helper.from_array(np.ones((1, 4), np.float32), "x")
    (tmp_path / "sets/set_0/input_0.pb").write_bytes(value.SerializeToString())
    return tmp_path


# The arguments of a command that read, each with the files that are read; options, then the files that they name.
_POLICY = {
    "--mixlist=lists.json": ["lists.json"],
    "--keep-dtype=keep.txt": ["keep.txt"],
    "--customize-dtypes=customize.txt": ["customize.txt"],
    "--ops-info=library.json": ["library.json"],
    "--ops-info=library": ["library/a.json"],
    "--config=config.toml": ["config.toml"],
}
_PLAN = _POLICY | {"--type-hints=hints.json": ["hints.json"]}
_DATA = {
    "--data=batch.npz": ["batch.npz"],
    "--data=batches": ["batches/0.npz"],
    "--data=sets": ["sets/set_0/input_0.pb"],
    "--data=sets/set_0": ["sets/set_0/input_0.pb"],
    "--data=named": ["named/w.bin"],
    "--data=folders": ["folders/0/x.npy"],
    "--data=photos": ["photos/0.png"],
    "--loader=loader.py:batches": ["loader.py"],
}
_MODEL = {"model.onnx": ["model.onnx", "model.bin"]}
_READ: dict[str, dict[str, list[str]]] = {
    "view": _MODEL
    | _PLAN
    | {"--check-report=report.json": ["report.json"], "--other-mixlist=other.json": ["other.json"]},
    "apply": _MODEL | _PLAN,
    "convert": _MODEL | _PLAN | _DATA,
    "check": _MODEL
    | _PLAN
    | _DATA
    | {
        "--mixed-model=other.onnx": ["other.onnx", "other.bin"],
        "model.onnx other.onnx": ["other.onnx", "other.bin"],
    },
    "bench": _MODEL | _PLAN | _DATA | {"model.onnx other.onnx": ["other.onnx", "other.bin"]},
    "tune": _MODEL | _PLAN | _DATA | {"--validate-on=more.npz": ["more.npz"]},
    "repair": _MODEL
    | _DATA
    | {
        "--validate-on=more.npz": ["more.npz"],
        "--config=config.toml": ["config.toml"],
        "--type-hints=hints.json": ["hints.json"],
    },
    "train": _POLICY | {"train.py:run": ["train.py"]},
}
# The options that write, with the file that is written for each.
_WRITTEN: dict[str, list[str]] = {
    "view": ["-o {}"],
    "apply": ["-o {} --force", "-o new.onnx --report {}"],
    "convert": ["-o {} --force", "-o new.onnx --force --rules {}", "-o new.onnx --html {}"],
    "check": ["--html {}"],
    "bench": ["--html {}"],
    "tune": [
        "-o {} --force",
        "-o new.json --state {}",
        "-o new.json --html {}",
        "-o {partial}",
    ],
    "repair": ["-o {} --force", "-o new.onnx --force --rules {}", "-o new.onnx --state {}"],
    "train": ["--html {}"],
}


def _arguments(command: str, option: str) -> list[str]:
    """Return arguments that read what the command needs and what ``option`` says."""
    if command == "train":
        return ["train.py:run", *([] if option == "train.py:run" else [option])]
    model = [] if option.startswith("model.onnx") else ["model.onnx"]
    return [*model, *option.split()]


def _same_path(path: Path, link: Path) -> Path:
    return path


def _symbolic_link(path: Path, link: Path) -> Path:
    link.symlink_to(path)
    return link


def _hard_link(path: Path, link: Path) -> Path:
    os.link(path, link)
    return link


def _cases(command: str, written: str) -> Iterator[tuple[str, str, Callable[[Path, Path], Path]]]:
    """Yield the options of a command that read, with each file that they read and each path to it."""
    link_makers = (_same_path, _symbolic_link, _hard_link) if "{}" in written else (_symbolic_link, _hard_link)
    for option, named in _READ[command].items():
        # A search may replace the list that it started from.
        if (command, written, option) != ("tune", "-o {} --force", "--mixlist=lists.json"):
            yield from ((option, read, make_link) for read in named for make_link in link_makers)


@pytest.mark.parametrize(
    ("command", "written"), [(command, written) for command, outputs in _WRITTEN.items() for written in outputs]
)
def test_an_output_that_is_an_input_is_refused(
    run: Any, files: Path, monkeypatch: pytest.MonkeyPatch, command: str, written: str
) -> None:
    """Every pair of options is refused, also through a link, and nothing changes."""
    monkeypatch.chdir(files)
    has_given_name = "{}" in written  # else the command makes the name, in a folder
    if has_given_name:
        link, output_arguments = files / "link", written
    else:
        (files / "out").mkdir()
        link, output_arguments = files / "out" / "new.partial.json", written.format(partial="out/new.json")
    for option, read, make_link in _cases(command, written):
        output = make_link(files / read, link)
        before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
        completed = run(command, *_arguments(command, option), *output_arguments.format(output).split())
        case = (option, read, make_link.__name__)
        assert (completed.status, completed.out) == (2, ""), case
        assert "is an input" in completed.err, (*case, completed.err)
        assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before, case
        link.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "arguments",
    [
        "apply model.onnx -o a --report a",
        "apply model.onnx -o a --report ./a",
        "apply model.onnx -o a --report b/../a",
        "apply model.onnx -o a --report link",
        "apply model.onnx -o original --report hard --force",
        "tune model.onnx -o a --state a",
        "tune model.onnx -o a.json --state a.partial.json",
        "repair model.onnx -o a --rules a",
        "convert model.onnx -o a --rules a",
    ],
)
def test_two_outputs_in_one_file_are_refused(
    run: Any, files: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.chdir(files)
    (files / "b").mkdir()
    (files / "link").symlink_to("a")
    (files / "original").write_bytes(b"text")
    os.link("original", "hard")
    before = sorted(files.iterdir())
    completed = run(*arguments.split())
    assert (completed.status, completed.out) == (2, "")
    assert "would write the same file" in completed.err
    assert sorted(files.iterdir()) == before


def test_files_that_are_not_read_are_replaced(run: Any, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page in the folder of the batches, and a file that has the name of a built-in library, are no inputs."""
    monkeypatch.chdir(files)
    (files / "onnx").mkdir()
    for page in ("batches/page.html", "onnx/page.html", "library/page.html"):
        for _ in range(2):
            completed = run("check", "model.onnx", "--data=batches", "--ops-info=onnx", "--html", page)
            assert completed.status == 0, completed.err


def test_a_search_may_replace_the_list_that_it_started_from(
    run: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    arguments = ("tune", "model.onnx", "-o", "lists.json", "--data=batches", "--mixlist=lists.json")
    completed = run(*arguments)
    assert completed.status == 2
    assert "--force" in completed.err
    completed = run(*arguments, "--force")
    assert completed.status == 0, completed.err
    assert "wrote lists.json" in completed.err
    completed = run(*arguments, "--force", "--customize-dtypes=lists.json")
    assert completed.status == 2
    assert "is an input" in completed.err


@pytest.mark.parametrize(
    ("arguments", "existing", "other_files"),
    [
        ("demo -o out", "digits.converted.onnx", [*DEMO_FILES, "digits.all_low.onnx", "digits.mixed.onnx"]),
    ],
)
def test_a_file_in_an_output_folder_is_replaced_only_with_force(
    run: Any, files: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, existing: str, other_files: Sequence[str]
) -> None:
    """Without --force nothing is written; a file of another name in the folder does not matter."""
    monkeypatch.chdir(files)
    # The demo writes its models and evaluates them, which takes seconds.
    monkeypatch.setattr(demo, "run_reference_evaluator", lambda path, pixels: (np.zeros((len(pixels), 10)), ""))
    folder = files / "out"
    folder.mkdir()
    for name in (existing, "other.txt"):
        (folder / name).write_text("mine")
    completed = run(*arguments.split())
    assert (completed.status, completed.out) == (2, "")
    assert f"{Path('out', existing)} exists" in completed.err
    assert "--force" in completed.err
    assert {path.name: path.read_text() for path in folder.iterdir()} == {existing: "mine", "other.txt": "mine"}
    assert run(*arguments.split(), "--force").status == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted([existing, *other_files, "other.txt"])
    assert (folder / existing).read_bytes() != b"mine"
    assert (folder / "other.txt").read_text() == "mine"


@posix_only
def test_devices_are_no_inputs_or_outputs(run: Any, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    arguments = ("apply", "model.onnx", "-o", "new.onnx", "--type-hints=/dev/null", "--report=/dev/null")
    assert "is an input" not in run(*arguments).err
    inline = ("--external-data=no", "--force")
    assert run("apply", "model.onnx", "-o", "/dev/null", "--report=/dev/null", *inline).status == 0


@posix_only
def test_a_pipe_gets_the_model_and_is_not_read(run: Any, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S7.14: Reading a pipe would wait for a writer, and a device can have no end."""
    monkeypatch.chdir(files)
    os.mkfifo("pipe")
    with ThreadPoolExecutor() as threads:
        received = threads.submit(Path("pipe").read_bytes)
        assert run("apply", "model.onnx", "-o", "pipe", "--force", "--external-data=no").status == 0
        assert [tensor.name for tensor in onnx.load_model_from_string(received.result()).graph.initializer] == ["w"]
    names = sorted(path.name for path in files.iterdir())
    completed = run("apply", "model.onnx", "-o", "pipe", "--force")
    assert completed.status == 2
    assert "pipe is a pipe or a device, and the model needs a data file" in completed.err
    assert "--external-data no" in completed.err
    assert sorted(path.name for path in files.iterdir()) == names


# --- places that cannot be written ---

_UNWRITABLE: list[Sequence[str]] = [
    ("apply", "model.onnx", "-o", "{}"),
    ("apply", "model.onnx", "-o", "new.onnx", "--report={}"),
    ("convert", "model.onnx", "--data=batches", "-o", "{}"),
    ("convert", "model.onnx", "--data=batches", "-o", "new.onnx", "--rules={}"),
    ("convert", "model.onnx", "--data=batches", "-o", "new.onnx", "--html={}"),
    ("check", "model.onnx", "--data=batches", "--html={}"),
    ("bench", "model.onnx", "--data=batches", "--html={}"),
    ("tune", "model.onnx", "--data=batches", "-o", "{}"),
    ("tune", "model.onnx", "--data=batches", "-o", "new.json", "--state={}"),
    ("repair", "model.onnx", "--data=batches", "-o", "{}"),
    ("repair", "model.onnx", "--data=batches", "-o", "new.onnx", "--rules={}"),
    ("repair", "model.onnx", "--data=batches", "-o", "new.onnx", "--state={}"),
    ("tune", "model.onnx", "--data=batches", "-o", "new.json", "--html={}"),
    ("diff", "onnx", "onnx", "--html={}"),
    ("train", "train.py:run", "--html={}"),
]


@needs_proc
@pytest.mark.parametrize("arguments", _UNWRITABLE, ids=" ".join)
def test_a_place_that_cannot_be_written_stops_before_the_run(
    run: Any, files: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]
) -> None:
    """/proc is a folder in which nobody can create a file."""
    monkeypatch.chdir(files)

    def refuse(*_: object) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setattr("mixlist.model.load._load_path", refuse)
    monkeypatch.setattr("mixlist.training.run.run_train", refuse)
    completed = run(*(argument.format("/proc/new") for argument in arguments))
    assert (completed.status, completed.out) == (2, "")
    assert "cannot be written" in completed.err


@pytest.mark.parametrize("written", ["-o {}", "-o new.onnx --report {}", "-o {stem}.json"])
def test_a_name_that_is_too_long_is_reported_before_the_run(
    run: Any, files: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """The name of the partial list is longer than that of the list."""
    monkeypatch.chdir(files)
    monkeypatch.setattr("mixlist.model.load._load_path", lambda _: pytest.fail("the model was read"))
    command = "tune" if "{stem}" in written else "apply"
    completed = run(command, "model.onnx", *written.format("a" * 300, stem="a" * 245).split())
    assert (completed.status, completed.out) == (2, "")
    assert "cannot be written" in completed.err


def test_a_configuration_is_an_input(run: Any, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output may not be the configuration."""
    monkeypatch.chdir(files)
    completed = run("check", "model.onnx", "--data=batches", "--config=config.toml", "--html=config.toml")
    assert completed.status == 2
    assert "is an input: --config" in completed.err
    assert CONFIG.name is not None
