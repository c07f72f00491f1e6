"""The command that writes the page of the graph."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from mixlist.cli.command_index import load_command
from tests.cli.conftest import Run


def graph_data(page: Path) -> dict[str, Any]:
    """Return the data of the graph in a page."""
    text = page.read_text("utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])["graph"]
    return data


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    path = tmp_path / "other.json"
    path.write_text('{"white-list": {"to-remove": ["MatMul"]}, "black-list": {"to-add": ["MatMul"]}}')
    return path


def test_a_page_with_the_decisions_is_written(run: Run, model_path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    completed = run("view", model_path, "-o", page)
    assert (completed.status, completed.out, completed.err) == (0, "", f"wrote {page}\n")
    data = graph_data(page)
    resolved = json.loads(run("resolve", model_path, "--format", "json").out)
    assert data["nodes"]["name"][: data["node_count"]] == [node["name"] for node in resolved["nodes"]]
    precisions = [data["texts"][number] for number in data["nodes"]["precision"]]
    assert precisions[: data["node_count"]] == [node["precision"] for node in resolved["nodes"]]
    assert data["check"] is data["differences"] is None


def test_an_existing_page_is_replaced(run: Run, model_path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    assert run("view", model_path, "-o", page).status == 0
    assert graph_data(page)["node_count"] == 3


def test_against_shows_the_nodes_that_differ(run: Run, model_path: Path, lists: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ("view", model_path, "--ops-info", "pytorch", "-o", page)  # Softmax is black on both sides
    for source in (lists, "-"):
        assert run(*arguments, "--other-mixlist", source, stdin=lists.read_bytes()).status == 0
        data = graph_data(page)
        names = [data["nodes"]["name"][entry["node"]] for entry in data["differences"]["nodes"]]
        assert names == ["first", "second"]
        reason = data["texts"][data["differences"]["nodes"][0]["reason"]]
        assert f"black by {'<stdin>' if source == '-' else lists}:1:" in reason


def test_a_check_of_the_same_model_is_shown(run: Run, model_path: Path, tmp_path: Path) -> None:
    page, report = tmp_path / "page.html", tmp_path / "report.json"
    completed = run(
        "check", model_path, "--random", 1, "--dim", "N=2", "--per-tensor", "--layerwise", "--format", "json"
    )
    report.write_text(completed.out)
    assert run("view", model_path, "-o", page, "--check-report", report).status == 0
    check = graph_data(page)["check"]
    assert check["verdict"] == json.loads(completed.out)["verdict"]
    assert len(check["ranges"]) == len(json.loads(completed.out)["tensors"]) > 0
    assert check["errors"]
    assert check["warnings"] == []
    assert run("view", model_path, "-o", page, "--check-report", "-", stdin=completed.out).status == 0


def test_what_cannot_be_used_is_refused_and_nothing_is_written(
    run: Run, model_path: Path, lists: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    for options, message in (
        (["--check-report", lists], "other.json: this is not the JSON of a check (mixlist.check/1)"),
        (["--check-report", model_path], "small.onnx:1:1: error ML013: the file is an ONNX model"),
        (["--check-report", tmp_path / "missing"], "missing: no such file"),
        (["--other-mixlist", model_path], "small.onnx"),
        (
            ["--other-mixlist", lists, "--precision-mode-v2", "fp16"],
            "other.json edits lists, but the precision mode fp16 has none",
        ),
        (["--check-report", "-", "--other-mixlist", "-"], "'-' (standard input) is given twice"),
    ):
        completed = run("view", model_path, "-o", page, *options)
        assert completed.status == 2
        assert message in completed.err
        assert "Traceback" not in completed.err
        assert not page.exists()


def test_an_output_is_needed(run: Run, model_path: Path) -> None:
    completed = run("view", model_path)
    assert completed.status == 2
    assert "--output" in completed.err


def test_a_configuration_gives_the_options(run: Run, model_path: Path, lists: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[view]\nother-mixlist = "other.json"\n')
    assert run("view", model_path, "--config", config, "-o", tmp_path / "page.html").status == 0
    assert graph_data(tmp_path / "page.html")["differences"]["nodes"]


def test_bodies_are_groups(run: Run, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    m (bool c, float[4] x) => (float[4] y) {
      [a] a = Erf (x)
      [branch] y = If (c) < then_branch = t () => (float[4] p) { [p] p = Exp (a) },
                            else_branch = f () => (float[4] q) { [q] q = Relu (a) }>
    }"""
    path, page = tmp_path / "m.onnx", tmp_path / "page.html"
    onnx.save(onnx.parser.parse_model(text), path)
    assert run("view", path, "-o", page).status == 0
    groups = graph_data(page)["groups"]
    assert set(zip(groups["kind"], groups["label"], strict=True)) >= {
        ("body", "branch: then_branch"),
        ("body", "branch: else_branch"),
    }


def test_the_help_has_examples() -> None:
    assert "--check-report report.json" in (load_command("view").help or "")
