"""``mixlist diff``: options of both sides, totals, and the comparison on data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixlist.cli.command_index import load_command
from mixlist.cli.options import POLICY_OPTIONS

BLACK_MATMUL = '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}'
DATA = ("--random", "2", "--dim", "N=3")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder; it has the list file black.json."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "black.json").write_text(BLACK_MATMUL)
    return tmp_path


def test_each_side_has_every_policy_option() -> None:
    flags = {flag for option in load_command("diff").params for flag in option.opts}
    for option in POLICY_OPTIONS:
        if option.name != "ops_info":  # the arguments BASE and OTHER
            name = option.opts[-1].removeprefix("--")
            assert {f"--base-{name}", f"--other-{name}"} <= flags


def test_settings_that_no_list_expresses_are_named_on_standard_error(run, folder: Path) -> None:
    (folder / "keep.cfg").write_text("first\n")
    completed = run("diff", "onnx", "onnx", "--other-gray-policy", "between", "--base-keep-dtype", "keep.cfg")
    assert completed.status == 0
    assert json.loads(completed.out) == {}
    assert "no modify_mixlist can express: gray policy (ascend -> between), node rules (1, 1 of" in completed.err
    assert "express" not in run("diff", "onnx", "onnx", "--other-mixlist", "black.json").err


def test_totals_come_before_at_most_50_nodes(run, folder: Path) -> None:
    import onnx

    nodes = "".join(f"[n{i}] t{i + 1} = MatMul(t{i}, t{i})" for i in range(60))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2, 2] t0) => (float[2, 2] t60) {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    arguments = ("diff", "onnx", "onnx", "--other-mixlist", "black.json", "--model", "m.onnx")
    lines = run(*arguments).out.splitlines()
    assert lines[0] == "DIFFERENT  60 of 60 nodes of m.onnx with another precision; Casts 2 -> 0"
    assert lines[6].split() == ["float16", "float32", "60", "MatMul", "60"]
    assert sum(line.startswith("n") for line in lines) == 51  # with the titles of the columns
    assert any("10 more" in line for line in lines)
    assert sum(line.startswith("n") for line in run(*arguments, "--all").out.splitlines()) == 61
    assert len(run(*arguments, "--format", "csv").out.splitlines()) == 61


def test_data_compare_both_sides(run, folder: Path, model_path: Path) -> None:
    arguments = ("diff", "onnx", "onnx", "--other-mixlist", "black.json", "--model", model_path, *DATA)
    completed = run(*arguments, "--html", "page.html")
    assert completed.status == 1 and "OTHER: inconclusive: every limit is kept, because nothing is low" in completed.out
    rows = [line.split() for line in completed.out.splitlines()]
    assert ["verdict", "pass", "inconclusive"] in rows
    assert ["matrix", "operations", "in", "low", "precision", "100", "%", "0", "%"] in rows
    assert "Accuracy and cost" in (folder / "page.html").read_text("utf-8")
    result = json.loads(run(*arguments, "--format", "json").out)
    assert [result["check"][side]["format"] for side in ("base", "other")] == ["mixlist.check/1"] * 2
    assert (result["estimate"]["base"]["low_share"], result["estimate"]["other"]["low_share"]) == (1, 0)
    assert result["totals"]["casts"] == {"base": 2, "other": 0}


@pytest.mark.parametrize(("failing", "status"), [("base", 0), ("other", 1)])
def test_the_exit_status_is_that_of_the_other_side(
    run, folder: Path, model_path: Path, failing: str, status: int
) -> None:
    # Of the two low types, only float16 keeps the limit.
    passing = {"base": "other", "other": "base"}[failing]
    options = (f"--{failing}-precision-mode-v2", "mixed_bfloat16", "--max-normalized-error", "0.001")
    completed = run("diff", "onnx", "onnx", "--model", model_path, *DATA, *options)
    assert completed.status == status
    assert f"{failing.upper()}: fail: " in completed.out
    assert f"{passing.upper()}: " not in completed.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "batches"), "--data needs a model"),
        (("--all",), "--all needs a model"),
        (("--type-hints", "hints.json"), "--type-hints needs a model"),
        (
            ("--model", "{model}", "--max-batches", "2"),
            "--max-batches is for a check of both sides, and there is no data",
        ),
        (("--base-mixlist", "-", "--other-mixlist", "-"), "standard input) is given twice"),
        (("--base-precision-mode", "x", "--base-precision-mode-v2", "y"), "precision"),
    ],
)
def test_options_without_effect_are_refused(run, folder, model_path, options: tuple[str, ...], message: str) -> None:
    completed = run("diff", "onnx", "onnx", *(option.format(model=model_path) for option in options))
    assert completed.status == 2
    assert message in completed.err
    assert completed.out == ""


def test_a_configuration_has_the_options_of_both_sides(run, folder: Path) -> None:
    (folder / "mixlist.toml").write_text(
        '[diff]\nother-mixlist = "black.json"\nother-gray-policy = "between"\nbase-precision-mode = "force_fp16"\n'
    )
    completed = run("diff", "onnx", "onnx", "--base-precision-mode-v2", "mixed_float16")
    assert completed.status == 0
    assert json.loads(completed.out) == json.loads(BLACK_MATMUL)
    assert "gray policy (ascend -> between)" in completed.err
    assert "precision mode" not in completed.err  # the command line wins over the other name of the mode


def test_two_list_files_get_the_command_that_compares_them(run, folder: Path) -> None:
    (folder / "a.json").write_text('{"black-list": {"to-add": ["Add"]}}')
    refused = run("diff", "a.json", "a.json")
    assert "ML208" in refused.err and "diff ascend910b ascend910b --base-mixlist a.json --other-mixlist b.json" in (
        refused.err
    )


def test_a_file_with_the_edits_needs_no_other_one(run, folder: Path, model_path: Path) -> None:
    """The next step shows the nodes; it does not write the given file again."""
    text = run("diff", "onnx", "onnx", "--other-mixlist", "black.json", "--model", model_path).out
    assert "> modify.json" not in text and "lists are equal" not in text
    (command,) = [line.strip() for line in text.splitlines() if line.startswith("    mixlist ")]
    assert command.startswith(f"mixlist view {model_path}") and "--other-mixlist black.json" in command
    assert run(*command.split()[1:]).status == 0
    text = run("diff", "onnx", "pytorch", "--other-mixlist", "black.json", "--model", model_path).out
    assert "mixlist diff onnx pytorch --other-mixlist black.json > modify.json" in text
