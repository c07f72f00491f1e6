"""``mixlist recover``: its files, its report and its exit status."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Run
from tests.support.builders import apply, customize, model, policy

TEXT = "g (float[2] x) => (float[2] y) { [exp] a = Exp(x) [again] b = Exp(a) [relu] y = Relu(b) }"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """Write original.onnx, and mixed.onnx in which one of two Exps is float16, into the working folder."""
    monkeypatch.chdir(tmp_path)
    original = model(TEXT)
    onnx.save(original, "original.onnx")
    rules = (customize("exp", ["float16"], ["float16"]),)
    onnx.save(apply(original, policy(black=["Exp", "Relu"], rules=rules)), "mixed.onnx")
    return original


def test_the_files_and_the_command_that_shows_their_decisions(run: Run, models: onnx.ModelProto) -> None:
    completed = run("recover", "original.onnx", "mixed.onnx", "-o", "list.json", "--node-rules", "rules.txt")
    assert completed.status == 0
    assert "wrote list.json and rules.txt" in completed.err
    assert completed.out.startswith("COMPLETE  mixed.onnx: mixed_float16, 0 moved op types and 1 node rule\n")
    assert run("fmt", "--check", "list.json", "rules.txt").status == 0
    command = completed.out.splitlines()[-1].removeprefix("to see these decisions: ")
    resolved = run(*shlex.split(command)[1:], "--format", "json")
    precisions = {node["name"]: node["precision"] for node in json.loads(resolved.out)["nodes"]}
    assert precisions == {"exp": "float16", "again": "float32", "relu": "float32"}


def test_existing_files_need_force(run: Run, models: onnx.ModelProto) -> None:
    Path("list.json").write_text("mine")
    arguments = ("recover", "original.onnx", "mixed.onnx", "-o", "list.json", "--node-rules", "rules.txt")
    refused = run(*arguments)
    assert (refused.status, refused.out) == (2, "")
    assert "--force" in refused.err
    assert not Path("rules.txt").exists()
    assert run(*arguments, "--force").status == 0
    assert json.loads(Path("list.json").read_text()) == {}


def test_an_incomplete_recovery_has_exit_status_1_and_names_the_nodes(run: Run, models: onnx.ModelProto) -> None:
    mixed = model("g (float[2] x) => (float[2] y) { [exp] a = Exp(x) [new] b = Sin(a) [relu] y = Relu(b) }")
    onnx.save(mixed, "mixed.onnx")
    completed = run("recover", "original.onnx", "mixed.onnx", "-o", "list.json", "--node-rules", "rules.txt")
    assert completed.status == 1
    assert completed.out.startswith("INCOMPLETE  mixed.onnx")
    assert "new of MIXED" in completed.out and "no node of the original corresponds to it" in completed.out
    assert "Nodes of ORIGINAL that MIXED does not have\nnode   op\n-----  ---\nagain  Exp\n" in completed.out
    assert Path("list.json").exists() and Path("rules.txt").read_text() == ""


def test_a_model_that_tools_damaged_is_refused_without_files(run: Run, models: onnx.ModelProto) -> None:
    mixed = onnx.load("mixed.onnx")
    mixed.graph.node.append(mixed.graph.node[0])
    onnx.save(mixed, "mixed.onnx")
    completed = run("recover", "original.onnx", "mixed.onnx", "-o", "list.json", "--node-rules", "rules.txt")
    assert (completed.status, completed.out) == (2, "")
    assert "defined twice" in completed.err
    assert not Path("list.json").exists()


def test_the_report_as_json(run: Run, models: onnx.ModelProto) -> None:
    arguments = ("recover", "original.onnx", "mixed.onnx", "-o", "list.json", "--node-rules", "rules.txt")
    completed = run(*arguments, "--ops-info", "ascend910b", "--constants", "ieee", "--format", "json")
    report = json.loads(completed.out)
    assert completed.status == 0
    assert report["complete"] and report["constants"] == "ieee"
    assert "--ops-info ascend910b" in report["next_command"] and "--constants ieee" in report["next_command"]
    assert report["modify_mixlist"] == Path("list.json").read_text()
