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


def test_the_help_names_no_default_library(run) -> None:
    """Without --ops-info no library is compared."""
    words = " ".join(run("validate", "--help").out.split())
    assert "Also check the lists against this operator library" in words and "[default: onnx]" not in words


def test_a_valid_file_has_status_0(run, files: Path) -> None:
    completed = run("validate", "good.json")
    assert (completed.status, completed.out) == (0, "good.json: modify-mixlist, no findings\n")
    assert completed.err == "1 file checked: 0 errors, 0 warnings\n"


def test_errors_have_a_line_a_code_and_status_1(run, files: Path) -> None:
    completed = run("validate", "bad.json", "good.json")
    assert completed.status == 1
    assert "bad.json:3:29: error ML1" in completed.out or "bad.json:2:29: error ML1" in completed.out
    assert "good.json: modify-mixlist, no findings" in completed.out


def test_strict_makes_warnings_fail(run, files: Path) -> None:
    assert run("validate", "doubtful.json").status == 0
    completed = run("validate", "doubtful.json", "--strict")
    assert completed.status == 1
    assert "doubtful.json:1:" in completed.out


def test_json_has_the_findings_of_each_file(run, files: Path) -> None:
    completed = run("validate", "bad.json", "good.json", "--format", "json")
    result = json.loads(completed.out)
    assert result["format"] == "mixlist.validate/1"
    assert [(f["path"], f["kind"]) for f in result["files"]] == [
        ("bad.json", "modify-mixlist"),
        ("good.json", "modify-mixlist"),
    ]
    (finding, *_) = result["files"][0]["findings"]
    assert set(finding) == {"code", "severity", "message", "line", "column", "hint"}
    assert finding["severity"] == "error"
    assert finding["line"] in (2, 3)
    assert finding["column"] == 29
    assert result["files"][1]["findings"] == []
    assert completed.status == 1


def test_github_annotations_name_the_file(run, files: Path) -> None:
    completed = run("validate", "bad.json", "--format", "github")
    assert completed.out.startswith("::error file=bad.json,line=")
    assert completed.out.count("\n") == completed.out.count("::error ")


def test_sarif_has_rules_and_locations(run, files: Path) -> None:
    completed = run("validate", "bad.json", "doubtful.json", "--format", "sarif")
    log = json.loads(completed.out)
    assert log["version"] == "2.1.0"
    (sarif_run,) = log["runs"]
    rules = sarif_run["tool"]["driver"]["rules"]
    assert sarif_run["tool"]["driver"]["name"] == "mixlist"
    for result in sarif_run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] in ("bad.json", "doubtful.json")
        assert place["region"]["startLine"] >= 1
    for rule in rules:
        assert rule["shortDescription"]["text"] != rule["id"], "docs/codes gives every rule a title"


def test_after_a_missing_file_the_other_files_are_checked(run, files: Path) -> None:
    completed = run("validate", "nothing.json", "good.json")
    assert completed.status == 2
    assert "nothing.json: no such file" in completed.err
    assert "good.json" in completed.out


def test_a_directory_without_json_is_an_error(run, files: Path) -> None:
    (files / "empty").mkdir()
    completed = run("validate", "empty")
    assert completed.status == 2
    assert "empty" in completed.err


def test_standard_input_is_read_once(run, files: Path) -> None:
    completed = run("validate", "-", stdin=BAD)
    assert completed.status == 1
    assert "<stdin>:" in completed.out
    assert run("validate", "-", "-", stdin=BAD).status == 2


def test_kind_decides_how_a_file_is_read(run, files: Path) -> None:
    (files / "nodes.txt").write_text("/fc/MatMul\nOpType::Add\n")
    assert run("validate", "nodes.txt", "--kind", "keep-dtype").status == 0
    assert run("validate", "good.json", "--kind", "ops-info").status == 1


def test_names_of_the_other_name_space_have_a_hint(run, files: Path) -> None:
    (files / "conv.json").write_text('{"black-list": {"to-add": ["Conv"]}}\n')
    completed = run("validate", "conv.json", "--ops-info", "ascend910b")
    assert completed.status == 0
    assert "ML404" in completed.out
    assert "Conv2D" in completed.out


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_op_types_that_the_model_lacks_are_findings(run, files: Path, model_path: Path, source: str) -> None:
    text = '{"black-list": {"to-add": ["GRU"]}}\n'
    (files / "gru.json").write_text(text)
    path = "gru.json" if source == "file" else "-"
    completed = run("validate", path, "--model", model_path, stdin=text)
    assert completed.status == 0
    assert "ML406" in completed.out
    assert run("validate", path, "--model", model_path, "--strict", stdin=text).status == 1


def test_a_missing_model_is_an_error(run, files: Path) -> None:
    completed = run("validate", "good.json", "--model", "nothing.onnx")
    assert completed.status == 2
    assert "nothing.onnx" in completed.err


def test_the_library_can_come_from_standard_input(run: Callable[..., Any], tmp_path: Path) -> None:
    """The library is read for each file, and again as a part of the policy."""
    library = '{"MatMul": {"precision_reduce": {"flag": "true"}}}'
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text('{"black-list": {"to-add": ["MatMul", "Softmax"]}}')
    completed = run("validate", tmp_path / "one.json", tmp_path / "two.json", "--ops-info", "-", stdin=library)
    assert completed.status == 0
    assert completed.out.count('ML108: library <stdin> has no op type "Softmax"') == 2
    assert '"MatMul"' not in completed.out


def test_a_list_alone_is_checked_without_importing_onnx(tmp_path: Path) -> None:
    """The import of onnx takes as long as everything else that the command does."""
    (tmp_path / "modify.json").write_text('{"black-list": {"to-add": ["MatMul"]}}')
    code = "import sys, mixlist.cli; mixlist.cli.main(['validate', 'modify.json']); print(sorted(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "'mixlist.validation'" in completed.stdout
    assert not any(f"'{name}'" in completed.stdout for name in ("mixlist.resolver", "mixlist.graph", "onnx", "numpy"))
