"""No name in a model or list and no path steers the terminal or the CI runner that shows what mixlist prints.

A control character moves the cursor or hides text; GitHub's runner takes ``::`` after leading blanks, and ``##[``
anywhere in a line, as a command. JSON and SARIF escape both, and hold the exact names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Run

NAMES = (
    "::error file=a::b",
    "  ::stop-commands::c",
    "\u3000::add-mask::d",
    "e##[error]f",
    "###[g",
    "h\n::error::i",
    "j\r\n##[warning]k",
    "\x1b[31ml",
    "m\x9b31mn",
    "o\u2028::p",
    "q\x85::r",
    "s\x7f\x08t",
)
UNUSED = "unused\n::error::##[\x1b\x9b"
IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
COMMAND = re.compile(r"::(error|warning) [^:\n]*::.*")


def assert_steers_nothing(printed: str, annotations: bool = False) -> None:
    for line in printed.split("\n"):
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in line), line
        assert "##[" not in line
        assert not line.lstrip().startswith("::") or (annotations and COMMAND.fullmatch(line)), line


def named_model() -> onnx.ModelProto:
    """Return a model that uses each name wherever ONNX has one: in an Add, a custom operator, an If and a function."""
    nodes, functions, previous_output = [], [], "x"
    for name in NAMES:
        outputs = [f"{name}{number}" for number in range(6)]
        branch = [
            helper.make_graph([helper.make_node("Exp", [outputs[1]], [out], out)], name, [], [float_value(out)])
            for out in (f"{name}x", f"{name}y")
        ]
        nodes += [
            helper.make_node("Add", [previous_output, previous_output], [outputs[0]], name),
            helper.make_node(name, [outputs[0]], [outputs[1]], outputs[1], domain="own"),
            helper.make_node("If", ["c"], [outputs[2]], outputs[2], then_branch=branch[0], else_branch=branch[1]),
        ]
        body = [
            helper.make_node("Mul", [name, name], [outputs[4]], outputs[4]),
            helper.make_node("Relu", [outputs[4]], [outputs[5]], outputs[5]),
        ]
        functions.append(helper.make_function("own", name, [name], [outputs[5]], body, IMPORTS))
        previous_output = outputs[2]
    inputs = [float_value("x"), float_value(UNUSED), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, NAMES[0], inputs, [float_value(previous_output)])
    return helper.make_model(graph, opset_imports=IMPORTS, functions=functions, ir_version=8)


def float_value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in strings(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in strings(part))
    elif isinstance(value, str):
        yield value


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the working directory, so that paths can begin with a name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def files(folder: Path) -> tuple[str, str, str]:
    """Write a model, a list and data under hostile names; return their paths."""
    model, mixlist, data = f"{UNUSED}.onnx", f"{NAMES[0]}.json", f"{NAMES[5]}.npz"
    (folder / model).write_bytes(named_model().SerializeToString())
    edits = {"black-list": {"to-add": [*NAMES, "Exp"]}, "white-list": {"to-add": ["Add", "Mul", "Relu"]}}
    (folder / mixlist).write_text(json.dumps(edits), "utf-8")
    with (folder / data).open("wb") as file:
        np.savez(file, **{"x": np.array([1, 7e4], np.float32), UNUSED: np.zeros(2, np.float32), "c": np.array(True)})
    return f"./{model}", mixlist, f"./{data}"


def valid_commands(model: str, mixlist: str, data: str) -> Iterator[list[str]]:
    """Yield commands that run to their end."""
    lists = ["--mixlist", mixlist]
    for output_format in ("text", "csv", "json"):
        yield ["resolve", model, *lists, "--format", output_format]
        yield ["lists", *lists, "--format", output_format]
        yield ["diff", "onnx", "onnx", "--other-mixlist", mixlist, "--model", model, "--format", output_format]
    yield ["diff", "onnx", "onnx", "--other-mixlist", mixlist]
    for output_format in ("text", "json"):
        report_options = ["--per-tensor", "--layerwise", "--html", f"{UNUSED}.html"]
        yield ["check", model, *lists, "--data", data, "--format", output_format, *report_options]
        output_options = [
            "-o",
            f"{UNUSED}.new",
            "--force",
            "--state",
            f"{UNUSED}.state",
        ]  # the second search has the trials of the first
        yield ["tune", model, *lists, "--data", data, "--format", output_format, "--jobs", "1", *output_options]
    for output_format in ("text", "json"):
        yield ["bench", model, *lists, "--estimate", "--format", output_format]
    yield ["apply", model, *lists, "-o", "out.onnx"]
    yield ["apply", model, *lists, "-o", "out.onnx", "--force", "--report", "-"]


def commands_with_names(model: str, mixlist: str) -> Iterator[list[str]]:
    """Yield commands that have the names as arguments, most of them invalid."""
    lists = ["--mixlist", mixlist]
    for name in NAMES:
        yield from (
            ["resolve", model, *lists, "--explain", node] for node in (name, f"{name}1", f"./{name}", f"{name}?")
        )
        yield from (["resolve", name], [name], ["resolve", model, name], ["resolve", model, f"--{name}"])
        yield ["resolve", model, "--ops-info", name]
        yield ["check", model, "--random", "1", "--dim", f"{name}=1"]
        yield ["check", model, "--random", "1", "--range", f"{name}0=1:2"]


def assert_prints_safely(run: Run, command: list[str], statuses: tuple[int, ...]) -> None:
    completed = run(*command)
    assert completed.status in statuses, (command, completed.err)
    assert_steers_nothing(completed.out)
    assert_steers_nothing(completed.err)


def test_output_of_commands_cannot_steer_the_terminal(run: Run, files: tuple[str, str, str]) -> None:
    for command in valid_commands(*files):
        assert_prints_safely(run, command, (0, 1))


def test_names_in_arguments_cannot_steer_the_terminal(run: Run, files: tuple[str, str, str]) -> None:
    model, mixlist, _ = files
    for command in commands_with_names(model, mixlist):
        assert_prints_safely(run, command, (0, 2))


def test_json_has_the_exact_names(run: Run, files: tuple[str, str, str]) -> None:
    model, mixlist, _ = files
    names = set(strings(json.loads(run("resolve", model, "--mixlist", mixlist, "--format", "json").out)))
    assert {*NAMES, *(f"{name}2" for name in NAMES)} <= names


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_in_list_files_cannot_steer_the_terminal(run: Run, folder: Path, name: str) -> None:
    """The files are broken and valid, of every kind, and their paths begin with the name."""
    edits = json.dumps({"black-list": {"to-add": [name, name]}, name: {}, "white-list": {"to-add": [name, f" {name}"]}})
    library = json.dumps(
        {name: {"precision_reduce": {"flag": name}}, f"{name}2": {name: {}, "precision_reduce": {"flag": "true"}}}
    )
    rules = f"{name}\nOpType::{name}\n{name}::InputDtype:{name},OutputDtype:float99"
    for ending, text in (
        (".json", edits),
        (".ops.json", library),
        (".cfg", rules),
        (".txt", edits[:-1]),
        (".x.json", f"{{ // {name}"),
    ):
        path = f"{name}{ending}"
        (folder / path).write_text(text, "utf-8")
        for output_format in ("text", "github", "json", "sarif"):
            completed = run("validate", path, "--format", output_format)
            assert completed.status in (0, 1), completed.err
            assert_steers_nothing(completed.out, annotations=output_format == "github")
            assert_steers_nothing(completed.err)
        for command in (["fmt", "--check", path], ["fmt", path], ["fmt", path]):
            completed = run(*command)
            assert completed.status in (0, 1, 2), completed.err
            assert_steers_nothing(completed.out + completed.err)
        (folder / path).unlink()
