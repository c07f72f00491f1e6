"""The GitHub Action validates list files: its step in bash, with good and bad files.

``test_packaging.py`` runs the step that installs mixlist.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from mixlist.cli import main
from tests.support.action_steps import ACTION, StepEnd, run_step
from tests.support.package import data_folder
from tests.support.systems import posix_only

pytestmark = posix_only  # GitHub's runner has a bash on Windows, other systems need not
GOOD = '{"black-list": {"to-add": ["Softmax"]}}'
UNKNOWN_NAME = '{"black-list": {"to-add": ["Sotfmax"]}}'  # a warning, if the library is given
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
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return run_step(
        "validate", {name.replace("_", "-"): value for name, value in inputs.items()}, folder, PATH=search_path
    )


def test_good_files_pass_with_status_0_and_no_annotation(folder: Path) -> None:
    end = validate(folder, paths="lists/*.json\nwith blanks.json\n", strict="true", ops_info="onnx")
    assert (end.status, end.out, end.outputs) == (0, "", {"status": "0"}), end.err
    assert "2 files checked: 0 errors, 0 warnings" in end.err


def test_two_stars_match_files_of_all_folders(folder: Path) -> None:
    end = validate(folder, paths="lists/**/*.json")
    assert (end.status, end.err) == (0, "2 files checked: 0 errors, 0 warnings\n")


def test_an_error_fails_with_an_annotation_and_a_sarif_file(folder: Path) -> None:
    end = validate(folder, paths="lists/good.json\nwrong.json", sarif="findings.sarif")
    assert end.status == 1
    assert end.outputs == {"status": "1", "sarif": "findings.sarif"}
    assert end.out.startswith("::error file=wrong.json,line=1,col=17,title=mixlist ML101::")
    (run,) = json.loads((folder / "findings.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["ML101"]


@pytest.mark.parametrize(("strict", "status"), [("false", 0), ("true", 1)])
def test_a_warning_fails_only_if_strict(folder: Path, strict: str, status: int) -> None:
    end = validate(folder, paths="unknown.json", ops_info="onnx", strict=strict)
    assert (end.status, end.outputs) == (status, {"status": str(status)})
    assert end.out.startswith("::warning file=unknown.json")


def test_a_file_that_is_missing_fails_with_status_2(folder: Path) -> None:
    end = validate(folder, paths="lists/*.txt")
    assert (end.status, end.outputs) == (2, {"status": "2"})
    assert "lists/*.txt: no such file" in end.err


def test_the_model_and_other_options_reach_the_command(folder: Path) -> None:
    shutil.copy(data_folder("demo_data") / "digits.onnx", folder / "my model.onnx")
    (folder / "einsum.json").write_text(
        '{"white-list": {"to-remove": ["Einsum"]}, "black-list": {"to-add": ["Einsum"]}}'
    )
    end = validate(folder, paths="einsum.json", model="my model.onnx", options="--op-names=onnx\n--strict")
    assert end.status == 1
    assert end.out.startswith("::warning file=einsum.json,line=1,col=31,title=mixlist ML406::")


def test_findings_of_the_baseline_do_not_fail(folder: Path) -> None:
    assert main(["validate", str(folder / "wrong.json"), "--write-baseline", str(folder / "baseline.json")]) == 0
    assert validate(folder, paths="wrong.json", baseline="baseline.json").status == 0
    assert validate(folder, paths="wrong.json\nlists", baseline="baseline.json", strict="true").status == 0
    end = validate(folder, paths="wrong.json\nunknown.json", baseline="baseline.json", strict="true", ops_info="onnx")
    assert (end.status, end.out.count("::")) == (1, 2)


def test_an_input_is_never_read_as_a_command(folder: Path) -> None:
    end = validate(folder, paths='$(touch made.txt)\n`touch made.txt`\n"; touch made.txt; "', options="--strict\n*")
    assert end.status == 2
    assert not (folder / "made.txt").exists()


def test_every_output_comes_from_a_step_that_writes_it() -> None:
    scripts = {step["id"]: step.get("run", "") for step in ACTION["runs"]["steps"]}
    for output in ACTION["outputs"].values():
        ((step, name),) = re.findall(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", output["value"])
        assert f'echo "{name}=' in scripts[step]
