"""``mixlist validate``: findings in every format, exit statuses, cross-checks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BAD = '{\n  "black-list": {"to-add": ["Add"]},\n  "white-list": {"to-add": ["Add"]}\n}\n'
DOUBTFUL = '{"gray-list": {"to-add": ["Relu"]}}\n'


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_text('{"black-list": {"to-add": ["Add"]}}\n')
    (tmp_path / "bad.json").write_text(BAD)
    (tmp_path / "doubtful.json").write_text(DOUBTFUL)
    return tmp_path


def test_a_good_file(run, files: Path) -> None:
    ran = run("validate", "good.json")
    assert (ran.status, ran.out) == (0, "good.json: modify-mixlist, no findings\n")
    assert ran.err == "1 file checked: 0 errors, 0 warnings\n"


def test_findings_have_a_place_a_code_and_fail(run, files: Path) -> None:
    ran = run("validate", "bad.json", "good.json")
    assert ran.status == 1
    assert "bad.json:3:29: error ML1" in ran.out or "bad.json:2:29: error ML1" in ran.out
    assert "good.json: modify-mixlist, no findings" in ran.out


def test_strict_makes_warnings_fail(run, files: Path) -> None:
    assert run("validate", "doubtful.json").status == 0
    ran = run("validate", "doubtful.json", "--strict")
    assert ran.status == 1
    assert "doubtful.json:1:" in ran.out


def test_json_holds_what_the_contract_says(run, files: Path) -> None:
    ran = run("validate", "bad.json", "good.json", "--format", "json")
    told = json.loads(ran.out)
    assert told["format"] == "mixlist.validate/1"
    assert [(f["path"], f["kind"]) for f in told["files"]] == [
        ("bad.json", "modify-mixlist"),
        ("good.json", "modify-mixlist"),
    ]
    (finding, *_) = told["files"][0]["findings"]
    assert set(finding) == {"code", "severity", "message", "line", "column", "hint"}
    assert finding["severity"] == "error"
    assert finding["line"] in (2, 3)
    assert finding["column"] == 29
    assert told["files"][1]["findings"] == []
    assert ran.status == 1


def test_github_annotations(run, files: Path) -> None:
    ran = run("validate", "bad.json", "--format", "github")
    assert ran.out.startswith("::error file=bad.json,line=")
    assert ran.out.count("\n") == ran.out.count("::error ")


def test_sarif(run, files: Path) -> None:
    ran = run("validate", "bad.json", "doubtful.json", "--format", "sarif")
    log = json.loads(ran.out)
    assert log["version"] == "2.1.0"
    (sole,) = log["runs"]
    rules = sole["tool"]["driver"]["rules"]
    assert sole["tool"]["driver"]["name"] == "mixlist"
    for result in sole["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] in ("bad.json", "doubtful.json")
        assert place["region"]["startLine"] >= 1
    for rule in rules:
        assert rule["shortDescription"]["text"] != rule["id"], "docs/codes.md gives every rule a title"


def test_a_missing_file_is_told_and_the_others_are_checked(run, files: Path) -> None:
    ran = run("validate", "nothing.json", "good.json")
    assert ran.status == 2
    assert "nothing.json: no such file" in ran.err
    assert "good.json" in ran.out


def test_a_directory_without_json(run, files: Path) -> None:
    (files / "empty").mkdir()
    ran = run("validate", "empty")
    assert ran.status == 2
    assert "empty" in ran.err


def test_standard_input(run, files: Path) -> None:
    ran = run("validate", "-", stdin=BAD)
    assert ran.status == 1
    assert "<stdin>:" in ran.out
    assert run("validate", "-", "-", stdin=BAD).status == 2


def test_kind(run, files: Path) -> None:
    (files / "nodes.txt").write_text("/fc/MatMul\nOpType::Add\n")
    assert run("validate", "nodes.txt", "--kind", "keep-dtype").status == 0
    assert run("validate", "good.json", "--kind", "ops-info").status == 1


def test_against_a_library_of_the_other_name_space(run, files: Path) -> None:
    (files / "conv.json").write_text('{"black-list": {"to-add": ["Conv"]}}\n')
    ran = run("validate", "conv.json", "--ops-info", "ascend910b")
    assert ran.status == 0
    assert "ML404" in ran.out
    assert "Conv2D" in ran.out


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_against_a_model(run, files: Path, model_path: Path, source: str) -> None:
    text = '{"black-list": {"to-add": ["GRU"]}}\n'
    (files / "gru.json").write_text(text)
    path = "gru.json" if source == "file" else "-"
    ran = run("validate", path, "--model", model_path, stdin=text)
    assert ran.status == 0
    assert "ML406" in ran.out
    assert run("validate", path, "--model", model_path, "--strict", stdin=text).status == 1


def test_unusable_model(run, files: Path) -> None:
    ran = run("validate", "good.json", "--model", "nothing.onnx")
    assert ran.status == 2
    assert "nothing.onnx" in ran.err


def test_the_library_may_come_from_standard_input(run: Callable[..., Any], tmp_path: Path) -> None:
    """It is read for each file, and again as a part of the policy."""
    library = '{"MatMul": {"precision_reduce": {"flag": "true"}}}'
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text('{"black-list": {"to-add": ["MatMul", "Softmax"]}}')
    ran = run("validate", tmp_path / "one.json", tmp_path / "two.json", "--ops-info", "-", stdin=library)
    assert ran.status == 0
    assert ran.out.count('ML108: library <stdin> has no op type "Softmax"') == 2
    assert '"MatMul"' not in ran.out


def test_a_list_alone_is_checked_without_the_rooms_that_know_models(tmp_path: Path) -> None:
    """Their import takes as long as everything else that the command does."""
    (tmp_path / "modify.json").write_text('{"black-list": {"to-add": ["MatMul"]}}')
    code = "import sys, mixlist.cli; mixlist.cli.main(['validate', 'modify.json']); print(sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "'mixlist.validation'" in ran.stdout
    assert not any(f"'{name}'" in ran.stdout for name in ("mixlist.resolver", "mixlist.graph", "onnx", "numpy"))
