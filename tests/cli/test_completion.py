"""What the Tab key offers in a shell: libraries, modes, and names in the model of the command line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from click.shell_completion import BashComplete, get_completion_class
from onnx import parser

from mixlist.cli import name_completion
from mixlist.cli.command_group import mixlist
from mixlist.lists import presets

MIXLIST = [sys.executable, "-m", "mixlist"]
MODEL = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
small (float[N, 4] x, bool c) => (float[N, 4] y)
{
    [relu] a = Relu (x)
    d = Neg (a)
    e = Neg (d)
    [Neg_0] f = Neg (e)
    [branch] g = If (c) <then_branch = t () => (float[N, 4] h) { [inner] h = Abs (f) },
                         else_branch = s () => (float[N, 4] i) { [relu] i = Relu (f) }>
    y = local.twice (g)
}
<domain: "local", opset_import: ["" : 17]>
twice (v) => (w) { [added] w = Add (v, v) }
"""


def make_model(relu_name: str = "/model/layers.0/Relu") -> onnx.ModelProto:
    """Return the model above; the Relu of the main graph and the one of the branch have the same name."""
    proto = parser.parse_model(MODEL)
    proto.graph.node[0].name = proto.graph.node[4].attribute[1].g.node[0].name = relu_name
    return proto


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    path = tmp_path / "small.onnx"
    onnx.save(make_model(), path)
    return str(path)


def complete(*words: str) -> dict[str, str | None]:
    """Return what completes the last word, with the descriptions."""
    items = BashComplete(mixlist, {}, "mixlist", "_MIXLIST_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return {str(item.value): item.help for item in items}


@pytest.mark.parametrize("command", ["check", "resolve", "validate", "export", "lists"])
def test_libraries(command: str) -> None:
    assert list(complete(command, "--ops-info", "")) == presets.names()
    assert complete(command, "--ops-info", "ascend910b") == {"ascend910b": presets.find("ascend910b").title}


def test_a_path_of_a_library_is_left_to_the_shell() -> None:
    (item,) = BashComplete(mixlist, {}, "mixlist", "X").get_completions(["lists", "--ops-info"], "./lib")
    assert (item.value, item.type) == ("./lib", "file")


def test_modes_have_the_names_of_their_option() -> None:
    assert list(complete("check", "--precision-mode-v2", "mixed")) == [
        "mixed_float16",
        "mixed_bfloat16",
        "mixed_hif8",
    ]
    assert list(complete("check", "--precision-mode", "force")) == ["force_fp16", "force_fp32"]


def test_nodes_have_names_that_explain_accepts(model_path: str, run) -> None:
    nodes = complete("resolve", model_path, "--explain", "")
    assert nodes == {
        "./" + "/model/layers.0/Relu": "Relu",
        "Neg_1": "Neg",
        "Neg_2": "Neg",
        "Neg_0": "Neg",
        "branch": "If",
        "inner": "Abs",
        "branch/else_branch//model/layers.0/Relu": "Relu",
        "twice_0": "twice",
    }
    for name in nodes:
        completed = run("resolve", model_path, "--explain", name)
        assert completed.status == 0, completed.err
    assert list(complete("resolve", model_path, "--explain", "Neg_")) == ["Neg_1", "Neg_2", "Neg_0"]
    # The option may also come before the model is assigned, with its value still missing.
    assert list(complete("resolve", "--all", model_path, "--explain", "inn")) == ["inner"]


def test_filters_of_resolve(model_path: str) -> None:
    assert complete("resolve", model_path, "--op", "N") == {"Neg": "nodes: 3"}
    assert list(complete("resolve", model_path, "--scope", "/")) == ["/model/", "/model/layers.0/"]
    assert list(complete("resolve", model_path, "--rule", "s")) == ["shape", "schema"]
    assert list(complete("resolve", model_path, "--list", "w")) == ["white"]


def test_inputs_and_outputs(model_path: str) -> None:
    assert complete("apply", model_path, "--keep-io", "") == {"x": "input", "c": "input", "y": "output"}


def test_an_error_completes_nothing(
    tmp_path: Path, model_path: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "damaged.onnx").write_bytes(b"no model")
    for path in (str(tmp_path / "damaged.onnx"), "missing.onnx", str(tmp_path)):
        assert complete("resolve", path, "--explain", "") == {}
        assert complete("apply", path, "--keep-io", "") == {}
    assert complete("resolve", "--explain", "") == {}
    monkeypatch.setattr(name_completion, "MAX_MODEL_BYTES", 10)  # a large model would keep the user waiting
    assert complete("resolve", model_path, "--explain", "") == {}
    assert capfd.readouterr() == ("", "")


def test_names_that_would_break_the_protocol_are_left_out(tmp_path: Path) -> None:
    onnx.save(make_model("a\nplain,evil"), tmp_path / "m.onnx")
    assert not any("evil" in name for name in complete("resolve", str(tmp_path / "m.onnx"), "--explain", ""))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_of_all_shells_ask_for_the_same_names(shell: str, model_path: str) -> None:
    words = ["mixlist", "resolve", model_path, "--explain", "inn"]
    env = {**os.environ, "_MIXLIST_COMPLETE": f"{shell}_complete", "COMP_CWORD": "4"}
    # fish passes the whole line, and the typed word apart.
    env |= {"COMP_WORDS": shlex.join(words)} | ({"COMP_CWORD": "inn"} if shell == "fish" else {})
    completed = subprocess.run(MIXLIST, env=env, capture_output=True, text=True, check=False)
    assert completed.stderr == ""
    assert "inner" in completed.stdout
    assert get_completion_class(shell) is not None


def test_bash_completes_the_line_with_the_printed_script(model_path: str, tmp_path: Path) -> None:
    (tmp_path / "mixlist").write_text(f'#!/bin/sh\nexec {shlex.join(MIXLIST)} "$@"\n')
    (tmp_path / "mixlist").chmod(0o755)
    script = (
        'source <(mixlist completion bash); COMP_WORDS=(mixlist resolve "$1" --explain bra); COMP_CWORD=4;'
        ' _mixlist_completion mixlist; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    completed = subprocess.run(
        ["bash", "-c", script, "bash", model_path], env=env, capture_output=True, text=True, check=False
    )
    assert completed.stdout.splitlines() == ["branch", "branch/else_branch//model/layers.0/Relu"], completed.stderr
