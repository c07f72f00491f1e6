"""The two GitHub Actions: the steps in bash that validate list files and check a model, and the guide that shows them.

``test_packaging.py`` runs the step that installs mixlist.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.action_steps import ACTION, CHECK_ACTION, ROOT, StepEnd, run_step
from tests.support.package import data_folder
from tests.support.systems import posix_only

pytestmark = posix_only  # GitHub's runner has a bash on Windows, other systems need not
GOOD = '{"black-list": {"to-add": ["Softmax"]}}'
UNKNOWN_NAME = '{"black-list": {"to-add": ["AcmeHead"]}}'  # a warning, if the library is given
SEARCH_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
WRONG_KEY = '{"black-list": {"to-addd": ["Softmax"]}}'  # an error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (
        ("lists/good.json", GOOD),
        ("lists/deep/good.json", GOOD),
        ("with blanks.json", GOOD),
        ("unknown.json", UNKNOWN_NAME),
        ("wrong.json", WRONG_KEY),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def validate(folder: Path, **inputs: str) -> StepEnd:
    """Run the step ``validate`` with the ``mixlist`` of this environment. ``ops_info`` is the input ops-info."""
    return run_step(
        "validate", {name.replace("_", "-"): value for name, value in inputs.items()}, folder, PATH=SEARCH_PATH
    )


def check(folder: Path, *options: str, **inputs: str) -> StepEnd:
    """Run the step ``check`` on digits.onnx, with random data and these options."""
    options = ("--random=2", "--dim=batch=4", "--range=pixels=0:16", *options)
    given = {name.replace("_", "-"): value for name, value in inputs.items()}
    all_inputs = {"model": "digits.onnx", "options": "\n".join(options), **given}
    return run_step("check", all_inputs, folder, action=CHECK_ACTION, PATH=SEARCH_PATH)


def test_good_files_pass_with_status_0_and_no_annotation(folder: Path) -> None:
    """Two stars match the files of all folders."""
    end = validate(folder, paths="lists/**/*.json\nwith blanks.json\n", strict="true", ops_info="onnx")
    assert (end.status, end.out, end.outputs) == (0, "", {"status": "0"}), end.err
    assert end.err == "3 files checked: 0 errors, 0 warnings\n"


def test_an_error_fails_with_an_annotation_and_a_sarif_file(folder: Path) -> None:
    end = validate(folder, paths="lists/good.json\nwrong.json", sarif="findings.sarif")
    assert end.status == 1
    assert end.outputs == {"status": "1", "sarif": "findings.sarif"}
    assert end.out.startswith("::error file=wrong.json,line=1,col=17,title=mixlist ML101::")
    (run,) = json.loads((folder / "findings.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["ML101"]


@pytest.mark.parametrize(("strict", "status"), [("false", 0), ("true", 1)])
def test_a_warning_fails_only_if_strict(folder: Path, strict: str, status: int) -> None:
    """Each line of ops-info is a library."""
    end = validate(folder, paths="unknown.json", ops_info="onnx\nascend910b\n", strict=strict)
    assert (end.status, end.outputs) == (status, {"status": str(status)})
    assert end.out.startswith("::warning file=unknown.json")
    assert "title=mixlist ML108::library onnx" in end.out
    assert "title=mixlist ML108::library ascend910b" in end.out


def test_a_file_that_is_missing_fails_with_status_2(folder: Path) -> None:
    end = validate(folder, paths="lists/*.txt")
    assert (end.status, end.outputs) == (2, {"status": "2"})
    assert "lists/*.txt: no such file" in end.err
    (annotation,) = [line for line in end.out.splitlines() if line.startswith("::")]
    assert annotation.startswith("::error title=mixlist validate::") and "lists/*.txt: no such file" in annotation


def test_the_model_and_other_options_reach_the_command(folder: Path) -> None:
    shutil.copy(data_folder("demo_data") / "digits.onnx", folder / "my model.onnx")
    (folder / "einsum.json").write_text(
        '{"white-list": {"to-remove": ["Einsum"]}, "black-list": {"to-add": ["Einsum"]}}'
    )
    end = validate(folder, paths="einsum.json", model="my model.onnx", options="--op-names=onnx\n--strict")
    assert end.status == 1
    assert end.out.startswith("::warning file=einsum.json,line=1,col=31,title=mixlist ML406::")


def test_an_input_is_never_read_as_a_command(folder: Path) -> None:
    end = validate(folder, paths='$(touch made.txt)\n`touch made.txt`\n"; touch made.txt; "', options="--strict\n*")
    assert end.status == 2
    assert not (folder / "made.txt").exists()


def test_the_job_summary_has_the_findings_as_code(folder: Path) -> None:
    (folder / "evil.json").write_text('{"black-list": {"to-add": ["```<b>**"]}}')
    end = validate(folder, paths="lists/good.json\nwrong.json\nevil.json", ops_info="onnx")
    title, empty, *lines = end.summary.splitlines()
    assert (title, empty) == ("### mixlist validate", "")
    assert all(line.startswith("    ") for line in lines)
    assert any(line.startswith("    wrong.json:1:17: error ML101: ") for line in lines)
    assert lines[-1].startswith("    3 files checked: 1 error")


def test_a_job_summary_is_short(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(600):
        (folder / f"many/{number}_mixlist.json").write_text(GOOD)
    end = validate(folder, paths="many")
    assert "600 files checked" in end.err
    assert len(end.summary.splitlines()) == 2 + 500


@pytest.mark.parametrize(
    ("inputs", "package"),
    [
        ({}, "/actions/check/../..[cpu]"),
        ({"extra": "gpu"}, "/actions/check/../..[gpu]"),
        ({"version": "1.2"}, "mixlist[cpu]==1.2"),
    ],
)
def test_the_check_is_installed_with_an_onnx_runtime(tmp_path: Path, inputs: dict[str, str], package: str) -> None:
    python = tmp_path / "python"  # makes an environment whose Python writes down its arguments
    write = 'printf \'#!/bin/sh\\necho "$@"\\n\' > "$3/bin/python"'
    python.write_text(f'#!/bin/sh\nmkdir -p "$3/bin"\n{write}\nchmod +x "$3/bin/python"\n')
    python.chmod(0o755)
    action_path = str(ROOT / "actions/check")
    end = run_step("install", inputs, tmp_path, action=CHECK_ACTION, python=str(python), GITHUB_ACTION_PATH=action_path)
    assert end.status == 0, end.err
    assert end.out.startswith("-m pip install --quiet ") and end.out.rstrip().endswith(package)
    assert (Path(action_path) / "../../pyproject.toml").is_file()
    assert end.added_paths == [str(tmp_path / "mixlist-check-venv/bin")]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    shutil.copy(data_folder("demo_data") / "digits.onnx", tmp_path)
    return tmp_path


def test_a_model_that_passes_gives_the_verdict_and_a_summary(model_folder: Path) -> None:
    end = check(model_folder, html="report page.html")
    assert (end.status, end.outputs) == (0, {"status": "0", "verdict": "pass"}), end.err
    assert end.out.startswith("PASS  digits.onnx") and "::error" not in end.out
    assert end.summary.startswith("### mixlist check: pass\n\n    PASS  digits.onnx")
    assert "<html" in (model_folder / "report page.html").read_text("utf-8")


def test_a_model_that_overflows_fails_with_an_annotation(model_folder: Path) -> None:
    end = check(model_folder, "--precision-mode-v2=fp16")
    assert (end.status, end.outputs) == (1, {"status": "1", "verdict": "fail"}), end.err
    (annotation,) = [line for line in end.out.splitlines() if line.startswith("::")]
    headline, *reasons = annotation.split("%0A")
    assert headline.startswith("::error title=mixlist check::FAIL  digits.onnx in float16")
    assert reasons[0].startswith(" 2 of 2 batches overflow: 100 %25") and len(reasons) > 2
    assert "### mixlist check: fail" in end.summary and "/energy/ReduceSum" in end.summary


def test_data_and_lists_reach_the_check(model_folder: Path) -> None:
    pixels = np.load(data_folder("demo_data") / "digits.npz")["pixels"][:8]
    for name in ("one.npz", "and two.npz"):
        np.savez(model_folder / name, pixels=pixels)
    (model_folder / "list.json").write_text('{"black-list": {"to-add": ["Div", "ReduceSum"]}}')
    inputs = {"data": "one.npz\nand two.npz", "options": "", "ops_info": "mindspore-o3"}
    assert check(model_folder, **inputs).outputs["verdict"] == "fail"
    end = check(model_folder, **inputs, mixlist="list.json")
    assert (end.status, end.outputs["verdict"]) == (0, "pass"), end.err
    assert "2 batches" in end.out


def test_a_check_that_cannot_run_says_why(model_folder: Path) -> None:
    end = check(model_folder, model="missing.onnx")
    assert (end.status, end.outputs) == (2, {"status": "2", "verdict": ""})
    assert "::error title=mixlist check::mixlist: error: " in end.out
    assert end.summary.startswith("### mixlist check: error\n\n    mixlist: error: ")


def test_the_guide_uses_inputs_that_the_actions_have() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/guides/ci.md").read_text("utf-8"), re.M | re.S)
    used = [
        step
        for document in map(yaml.safe_load, blocks)
        for job in document.get("jobs", {}).values()
        for step in job["steps"]
        if "/mixlist" in step.get("uses", "")
    ]
    assert len(used) == 2
    for step in used:
        path, _, _ = step["uses"].partition("@")
        action = CHECK_ACTION if path.endswith("/actions/check") else ACTION
        assert set(step["with"]) <= set(action["inputs"])
        assert {name for name, entry in action["inputs"].items() if entry.get("required")} <= set(step["with"])


@pytest.mark.parametrize("action", [ACTION, CHECK_ACTION], ids=["validate", "check"])
def test_every_output_comes_from_a_step_that_writes_it(action: dict[str, Any]) -> None:
    scripts = {step["id"]: step.get("run", "") for step in action["runs"]["steps"]}
    for output in action["outputs"].values():
        ((step, name),) = re.findall(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", output["value"])
        assert f'echo "{name}=' in scripts[step]
